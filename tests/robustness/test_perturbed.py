"""Perturbed data sets: only the pixels change, and always in the same way."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from rankdet.data.augmentation.transforms import ResizeFixed
from rankdet.data.chosen import ChosenImages
from rankdet.data.dataset import DetectionDataset
from rankdet.data.loading.loader import make_loader
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.robustness.patches import centre_windows
from rankdet.robustness.perturbed import PerturbedDataset
from rankdet.robustness.suite import PERTURBATIONS, corruption, perturbation, select
from rankdet.structures import Target

DATA = SyntheticDataset("val", 6)


def perturbed(name: str, seed: int = 0) -> PerturbedDataset:
    return PerturbedDataset(DATA, perturbation(name, torch.rand(3, 8, 8)), seed)


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_only_the_pixels_change(name: str) -> None:
    dataset: DetectionDataset = perturbed(name)
    assert (len(dataset), dataset.classes) == (len(DATA), DATA.classes)
    assert (dataset.category_ids, dataset.is_annotated) == (DATA.category_ids, True)
    assert (dataset.name(2), dataset.size(2)) == (DATA.name(2), DATA.size(2))
    assert torch.equal(dataset.target(2).boxes, DATA.target(2).boxes)
    image, original = dataset.image(2), DATA.image(2)
    assert (image.dtype, image.shape) == (original.dtype, original.shape)
    assert not torch.equal(image, original)


@pytest.mark.parametrize("name", PERTURBATIONS[:4])
def test_patches_leave_the_rest_of_the_image_alone(name: str) -> None:
    is_outside = torch.ones(DATA.size(1), dtype=torch.bool)
    for left, top, right, bottom in centre_windows(DATA.target(1).boxes, DATA.size(1)):
        is_outside[top:bottom, left:right] = False
    image, original = perturbed(name).image(1), DATA.image(1)
    assert torch.equal(image[:, is_outside], original[:, is_outside])


@pytest.mark.parametrize("name", ["random", "flip", "noise"])
def test_seed_and_image_number_alone_decide(name: str) -> None:
    one = [perturbed(name).image(index) for index in range(6)]
    other = [perturbed(name).image(index) for index in reversed(range(6))][::-1]
    assert all(map(torch.equal, one, other))
    chosen = ChosenImages(perturbed(name), [4, 1])
    assert torch.equal(chosen.image(0), one[4])
    assert any(not torch.equal(perturbed(name, 1).image(i), one[i]) for i in range(6))


def test_any_number_of_workers_gives_the_same_batches() -> None:
    batches = []
    for num_workers in (0, 2):
        loader = make_loader(
            perturbed("random"),
            ResizeFixed(48),
            batch_size=3,
            shuffle=False,
            num_workers=num_workers,
        )
        batches.append([batch.images for batch in loader.epoch(0)])
        loader.close()
    assert len(batches[0]) == 2
    assert all(map(torch.equal, *batches))


class WithIgnored(SyntheticDataset):
    """The embedded set, of each image the first object difficult."""

    def target(self, index: int) -> Target:
        target = super().target(index)
        is_ignored = target.is_ignored.clone()
        is_ignored[:1] = True
        return dataclasses.replace(target, is_ignored=is_ignored)


def test_ignored_objects_get_no_patch() -> None:
    seen: list[Tensor] = []

    def watch(image: Tensor, boxes: Tensor, random: np.random.Generator) -> Tensor:
        seen.append(boxes)
        return image

    PerturbedDataset(WithIgnored("val", 2), watch).image(0)
    assert torch.equal(seen[0], DATA.target(0).boxes[1:])


def test_corruptions_are_perturbations_too() -> None:
    image = PerturbedDataset(DATA, corruption("contrast", 5)).image(0)
    spread, original = (pixels.float().std(dim=(1, 2)) for pixels in (image, DATA.image(0)))
    assert (spread < 0.1 * original).all()


def test_the_selection_is_in_the_order_of_the_tables() -> None:
    everything = select()
    assert everything.perturbations == PERTURBATIONS
    assert (everything.corruptions, everything.has_deepfool) == ((), True)
    assert len(select(with_corruptions=True).corruptions) == 5
    some = select(["jpeg", "noise", "deepfool", "black"])
    assert some.perturbations == ("black", "noise")
    assert (some.corruptions, some.has_deepfool) == (("jpeg",), True)


def test_wrong_names_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one for the adversarial patch"):
        perturbation("adversarial")
    with pytest.raises(ValueError, match="expected one of black"):
        perturbation("white")
    with pytest.raises(ValueError, match="expected one of gaussian-noise"):
        corruption("fog", 1)
