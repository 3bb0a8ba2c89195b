"""Batches from any number of workers and processes, and workers that die, hang or raise."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from rankdet.data.dataset import open_dataset
from rankdet.data.loading import workers
from rankdet.data.loading.collate import Batch
from rankdet.data.loading.loader import Loader, make_loader
from rankdet.data.randomness import SampleKey, uniforms
from rankdet.data.reading.annotations import RawImage, RawObject, assemble
from rankdet.data.reading.findings import Findings
from rankdet.data.reading.formats import split_names
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.data.write import write_dataset
from rankdet.errors import DataError, LoaderError
from rankdet.structures import IMAGENET_MEAN

# Workers import the fakes by name; this module they could not import.
sys.path.insert(0, str(Path(__file__).parent))
from loading_fakes import FakeDataset, FakeTransform, OwnError, ThreadCount

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc of Linux")


@pytest.fixture(autouse=True)
def short_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead worker is noticed within a moment."""
    monkeypatch.setattr(workers, "_POLL_SECONDS", 0.3)


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 5
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert multiprocessing.active_children() == []


def loader_of(length: int = 10, faults: dict[int, str] | None = None, **settings: Any) -> Loader:
    settings = {"batch_size": 4, "num_workers": 0, "multiple": 4, **settings}
    return make_loader(FakeDataset(length), FakeTransform(faults or {}), **settings)


def epoch_of(loader: Loader, epoch: int = 0, start: int = 0) -> list[Batch]:
    return list(loader.epoch(epoch, start))


def assert_same(first: Batch, second: Batch) -> None:
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.sizes, second.sizes)
    assert torch.equal(first.indices, second.indices)
    assert first.names == second.names
    targets = [vars(target) for target in first.targets]
    assert_close(targets, [vars(target) for target in second.targets], rtol=0, atol=0)


def samples(batches: list[Batch]) -> list[tuple[int, float, int, int]]:
    """Number, first pixel, draw and number of objects of every image: not what padding changes."""
    return [
        (int(index), float(image[0, 0, 0]), target.draw, len(target))
        for batch in batches
        for index, image, target in zip(batch.indices, batch.images, batch.targets, strict=True)
    ]


# What is in a batch


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_holds_the_samples_of_its_indices(num_workers: int) -> None:
    loader = loader_of(shuffle=False, seed=5, num_workers=num_workers)
    batches = epoch_of(loader, epoch=3)
    loader.close()
    assert [batch.indices.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    batch = batches[1]
    assert batch.names == ("image 4", "image 5", "image 6", "image 7")
    assert batch.sizes.tolist() == [[10, 6], [7, 7], [8, 12], [10, 6]]
    assert batch.sizes.dtype == batch.indices.dtype == torch.int64
    assert batch.images.shape == (4, 3, 12, 12)
    value = 4 / 255 + uniforms([SampleKey(5, 3, 4)], 1).item()
    assert batch.images[0, :, :10, :6].unique().item() == pytest.approx(value)
    for channel in range(3):
        assert batch.images[0, channel, 10:].unique().item() == pytest.approx(
            IMAGENET_MEAN[channel]
        )
        assert batch.images[0, channel, :, 6:].unique().item() == pytest.approx(
            IMAGENET_MEAN[channel]
        )
    dataset = FakeDataset()
    for index, target in zip(batch.indices.tolist(), batch.targets, strict=True):
        assert torch.equal(target.boxes, dataset.target(index).boxes)
        assert torch.equal(target.labels, dataset.target(index).labels)
        assert target.image_id == 1000 + index


def test_padding_and_multiple_can_be_chosen() -> None:
    batch = epoch_of(loader_of(multiple=32, fill=(0, 0, 0), shuffle=False))[0]
    assert batch.images.shape == (4, 3, 32, 32)
    assert batch.images[0, :, 8:].eq(0).all()


def test_a_fixed_size_holds_for_every_batch() -> None:
    dataset = FakeDataset(4, sizes=((5, 7),))
    loader = make_loader(dataset, FakeTransform(), batch_size=2, size=(5, 7), num_workers=0)
    assert [batch.images.shape for batch in loader.epoch(0)] == [(2, 3, 5, 7)] * 2


def test_an_image_of_another_size_is_refused_by_name() -> None:
    loader = loader_of(size=(8, 12), shuffle=False)
    with pytest.raises(ValueError, match=r"^image 1: expected .* \(8, 12\).* got \(10, 6\)"):
        epoch_of(loader)


def test_shuffling_leaves_out_a_small_last_batch_unless_told_otherwise() -> None:
    assert len(loader_of(10)) == len(epoch_of(loader_of(10))) == 2
    assert len(loader_of(10, drop_last=False)) == len(epoch_of(loader_of(10, drop_last=False))) == 3
    assert len(loader_of(10, shuffle=False)) == 3
    assert len(loader_of(10, shuffle=False, drop_last=True)) == 2


def test_index_batches_are_those_of_the_epoch() -> None:
    loader = loader_of(30, seed=2, num_groups=2)
    of_epoch = [batch.indices.tolist() for batch in loader.epoch(4, start=2)]
    assert [indices.tolist() for indices in loader.index_batches(4, start=2)] == of_epoch
    assert len(of_epoch) == len(loader) - 2


def test_grouped_batches_hold_one_orientation() -> None:
    batches = epoch_of(loader_of(30, num_groups=2))  # 10 upright images and 20 others
    kinds = [{bool(height > width) for height, width in batch.sizes.tolist()} for batch in batches]
    assert sorted(map(len, kinds)) == [1] * 7
    assert kinds.count({True}) == 2


# The same samples, whoever loads them


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")  # more than processors
def test_the_number_of_workers_changes_nothing() -> None:
    expected = [epoch_of(loader_of(14, seed=1), epoch) for epoch in range(2)]
    for num_workers in (1, 3):
        loader = loader_of(14, seed=1, num_workers=num_workers)
        for epoch in range(2):
            batches = epoch_of(loader, epoch)
            assert len(batches) == 3
            for one, other in zip(expected[epoch], batches, strict=True):
                assert_same(one, other)
        loader.close()


def test_seed_and_epoch_change_the_samples() -> None:
    first = samples(epoch_of(loader_of(8, shuffle=False)))
    assert first == samples(epoch_of(loader_of(8, shuffle=False)))
    for other in (epoch_of(loader_of(8, shuffle=False), 1), epoch_of(loader_of(8, False, seed=1))):
        for one, two in zip(first, sorted(samples(other)), strict=True):
            assert one[0] == two[0]
            assert one[1] != two[1]
            assert one[2] != two[2]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_every_epoch_gives_a_sample_another_draw(num_workers: int) -> None:
    loader = loader_of(8, seed=7, num_workers=num_workers)
    for epoch in (0, 1):
        for batch in epoch_of(loader, epoch):
            wanted = [SampleKey(7, epoch, index).draw for index in batch.indices.tolist()]
            assert [target.draw for target in batch.targets] == wanted
            moved = batch.to("meta")
            assert [target.draw for target in moved.targets] == wanted
    loader.close()


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_number_of_processes_changes_nothing(world_size: int) -> None:
    settings: dict[str, Any] = {"seed": 3, "drop_last": False, "world_size": world_size}
    alone = epoch_of(loader_of(10, seed=3, drop_last=False), 2)
    parts = [epoch_of(loader_of(10, rank=rank, **settings), 2) for rank in range(world_size)]
    for number, batch in enumerate(alone):
        assert samples([part[number] for part in parts]) == samples([batch])


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_batch_need_not_be_a_multiple_of_the_processes(world_size: int) -> None:
    settings: dict[str, Any] = {"batch_size": 5, "seed": 3, "world_size": world_size}
    alone = epoch_of(loader_of(10, batch_size=5, seed=3), 2)
    parts = [epoch_of(loader_of(10, rank=rank, **settings), 2) for rank in range(world_size)]
    for number, batch in enumerate(alone):
        assert samples([part[number] for part in parts]) == samples([batch])


def test_whole_batches_can_be_dealt_instead() -> None:
    settings: dict[str, Any] = {"shuffle": False, "is_dealt": True, "world_size": 2}
    alone = epoch_of(loader_of(10, shuffle=False))
    first, second = (epoch_of(loader_of(10, rank=rank, **settings)) for rank in range(2))
    assert samples(first) == samples(alone[::2])
    assert samples(second) == samples(alone[1::2])
    assert len(first) == len(second)
    assert len(second[-1]) == 0


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_process_without_images_still_gets_a_batch(num_workers: int) -> None:
    loader = loader_of(5, drop_last=False, rank=3, world_size=4, num_workers=num_workers)
    batches = epoch_of(loader)
    loader.close()
    assert [len(batch) for batch in batches] == [1, 0]
    assert batches[1].images.shape == (0, 3, 4, 4)
    assert batches[1].sizes.shape == (0, 2)
    assert batches[1].indices.shape == (0,)
    assert batches[1].targets == []
    assert len(batches[1].to("cpu")) == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_resumes_at_any_batch_and_loads_only_the_rest(num_workers: int) -> None:
    whole = epoch_of(loader_of(16, shuffle=False), 1)
    # The images of the first two batches would be faults.
    faults = {3: "value error", 6: "value error"}
    loader = loader_of(16, faults, shuffle=False, num_workers=num_workers)
    rest = epoch_of(loader, 1, start=2)
    assert len(rest) == 2
    for one, other in zip(whole[2:], rest, strict=True):
        assert_same(one, other)
    assert epoch_of(loader, 1, start=4) == []
    loader.close()


def test_an_epoch_that_was_left_early_does_not_disturb_the_next() -> None:
    expected = epoch_of(loader_of(40), 1)
    loader = loader_of(40, num_workers=2)
    for _ in loader.epoch(0):
        break
    for one, other in zip(expected, epoch_of(loader, 1), strict=True):
        assert_same(one, other)
    loader.close()


def test_two_epochs_can_be_read_at_the_same_time() -> None:
    expected = [epoch_of(loader_of(8), epoch) for epoch in range(2)]
    loader = loader_of(8, num_workers=1)
    pairs = list(zip(loader.epoch(0), loader.epoch(1), strict=True))
    for number, pair in enumerate(pairs):
        assert_same(pair[0], expected[0][number])
        assert_same(pair[1], expected[1][number])
    loader.close()


def test_workers_stay_for_the_next_epoch_and_end_with_close() -> None:
    loader = loader_of(8, num_workers=2)
    epoch_of(loader, 0)
    before = {process.pid for process in multiprocessing.active_children()}
    epoch_of(loader, 1)
    assert {process.pid for process in multiprocessing.active_children()} == before
    assert len(before) == 2
    loader.close()
    assert multiprocessing.active_children() == []
    assert len(epoch_of(loader, 2)) == 2
    loader.close()


def test_workers_end_when_an_epoch_is_left_early() -> None:
    batches = loader_of(40, num_workers=2).epoch(0)
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_global_randomness_is_left_alone(num_workers: int) -> None:
    def state() -> tuple[Any, ...]:
        of_numpy = np.random.get_state()[1].tolist()
        return random.getstate(), of_numpy, torch.random.get_rng_state().tolist()

    before = state()
    loader = loader_of(8, num_workers=num_workers)
    epoch_of(loader)
    loader.close()
    assert state() == before


def test_a_worker_uses_one_thread_and_the_main_process_keeps_its_own() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        loader = make_loader(FakeDataset(2), ThreadCount(), batch_size=2, num_workers=1, size=None)
        assert epoch_of(loader)[0].images[0, 0, 0, 0] == 1
        loader.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_other_start_methods_give_the_same(start_method: str) -> None:
    if start_method not in multiprocessing.get_all_start_methods():
        pytest.skip("not on this system")
    loader = loader_of(8, num_workers=2, start_method=start_method)
    for one, other in zip(epoch_of(loader_of(8)), epoch_of(loader), strict=True):
        assert_same(one, other)
    loader.close()


# What goes wrong


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_error_arrives_as_it_was_raised(num_workers: int) -> None:
    batches = loader_of(12, {5: "data error"}, shuffle=False, num_workers=num_workers).epoch(0)
    next(batches)
    with pytest.raises(DataError) as caught:
        next(batches)
    error = caught.value
    assert str(error) == ("a.jpg:3: [1]: the image ends too early. So. Download or copy it again.")
    assert (error.code, error.file, error.where) == ("image-truncated", "a.jpg", 3)
    assert (error.value, error.detail) == ("[1]", "So.")
    assert not hasattr(error, "__notes__")
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("num_workers", [0, 1])
def test_another_exception_keeps_its_type_and_names_the_sample(num_workers: int) -> None:
    loader = loader_of(12, {5: "value error"}, seed=9, shuffle=False, num_workers=num_workers)
    with pytest.raises(ValueError, match="a bad value") as caught:
        epoch_of(loader, 2)
    assert str(caught.value) == "a bad value"
    notes = caught.value.__notes__
    assert notes[0] == "While loading image 5: SampleKey(seed=9, epoch=2, index=5)."
    assert len(notes) == 1 + num_workers
    if num_workers:
        assert "in act" in notes[1]


def test_an_exception_that_cannot_be_sent_is_described() -> None:
    with pytest.raises(RuntimeError, match="OwnError: two words") as caught:
        epoch_of(loader_of(12, {5: "own error"}, num_workers=1, shuffle=False))
    assert caught.value.__notes__[0].startswith("While loading image 5")
    with pytest.raises(OwnError):
        epoch_of(loader_of(12, {5: "own error"}, num_workers=0, shuffle=False))


@linux_only
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (
            "SIGKILL",
            r"worker 1 \(process \d+\) was ended by SIGKILL.*memory.* at image 5\. .*fewer",
        ),
        (
            "SIGBUS",
            r"worker 1 \(process \d+\) was ended by SIGBUS.*shared.* at image 5\. .*/dev/shm",
        ),
        ("SIGSEGV", r"worker 1 \(process \d+\) was ended by SIGSEGV.* at image 5\. .*check"),
        ("exit", r"worker 1 \(process \d+\) ended with exit code 3.* at image 5\. .*__main__"),
    ],
)
def test_a_worker_that_dies_is_named_with_its_sample(fault: str, text: str) -> None:
    loader = loader_of(40, {5: fault}, num_workers=2, shuffle=False)
    start = time.monotonic()
    with pytest.raises(LoaderError, match=text):
        epoch_of(loader)
    assert time.monotonic() - start < 30
    assert multiprocessing.active_children() == []


@linux_only
@pytest.mark.parametrize("fault", ["hang", "SIGSTOP"])
def test_a_worker_that_hangs_is_named_with_its_sample(fault: str) -> None:
    loader = loader_of(40, {5: fault}, num_workers=2, shuffle=False)
    epoch_of(loader, 0, start=2)  # the workers are up: what follows does not wait for their start
    loader._idle.timeout = 1  # type: ignore[union-attr]
    start = time.monotonic()
    text = r"worker 1 \(process \d+\) gave no batch within 1 seconds.*\. It was at image 5\."
    with pytest.raises(LoaderError, match=text):
        epoch_of(loader, 0)
    assert 1 < time.monotonic() - start < 10
    assert multiprocessing.active_children() == []


@linux_only
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_a_death_is_told_when_the_next_batch_is_asked_for_and_not_before(start_method: str) -> None:
    loader = loader_of(40, {}, num_workers=2, shuffle=False, start_method=start_method)
    batches = loader.epoch(0)
    next(batches)
    pool = batches.gi_frame.f_locals["pool"]  # type: ignore[attr-defined]
    os.kill(pool._workers()[1].pid, signal.SIGKILL)
    time.sleep(0.5)  # a step, a save: an exception in the middle of them would be their end
    with pytest.raises(LoaderError, match=r"worker 1 \(process \d+\) was ended by SIGKILL"):
        list(batches)


@linux_only
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("has_result", [True, False])
def test_a_worker_that_was_stopped_between_two_batches_is_named(
    number: int, has_result: bool
) -> None:
    loader = loader_of(40, {}, num_workers=2, shuffle=False)
    batches = loader.epoch(0)
    for _ in range(3):
        next(batches)
    pool = batches.gi_frame.f_locals["pool"]  # type: ignore[attr-defined]
    pool.timeout = 1
    stopped = pool._workers()[number].pid
    if has_result:  # which nobody but the stopped process can hand over
        time.sleep(1)
    os.kill(stopped, signal.SIGSTOP)
    while not workers._is_stopped(stopped):
        time.sleep(0.01)
    text = rf"worker {number} \(process {stopped}\) gave no batch within 1 seconds: it was stopped"
    # Also if it is the turn of the other, whose result stands behind one of this worker.
    assert re.match(text, pool._hang_message(1 - number))
    with pytest.raises(LoaderError, match=text):
        list(batches)


@linux_only
def test_a_worker_that_was_stopped_does_not_outlive_the_loader() -> None:
    batches = loader_of(40, {}, num_workers=2, shuffle=False).epoch(0)
    next(batches)
    worker = batches.gi_frame.f_locals["pool"]._workers()[1]  # type: ignore[attr-defined]
    os.kill(worker.pid, signal.SIGSTOP)
    batches.close()  # type: ignore[attr-defined]
    worker.join(20)
    assert worker.exitcode is not None


@pytest.mark.parametrize("timeout", [0, 30])
def test_a_worker_that_is_only_slow_is_waited_for(timeout: float) -> None:
    loader = loader_of(12, {5: "slow"}, num_workers=2, shuffle=False, timeout=timeout)
    assert [len(batch) for batch in loader.epoch(0)] == [4, 4, 4]
    loader.close()


@linux_only
def test_workers_that_died_between_two_epochs_are_replaced() -> None:
    expected = epoch_of(loader_of(12), 1)
    loader = loader_of(12, num_workers=2)
    epoch_of(loader, 0)
    victim = multiprocessing.active_children()[0]
    assert victim.pid
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    for one, other in zip(expected, epoch_of(loader, 1), strict=True):
        assert_same(one, other)
    loader.close()


@pytest.mark.filterwarnings("ignore:Got pickle error")  # torch says it too, at greater length
def test_a_transform_that_cannot_be_sent_is_refused_with_advice() -> None:
    loader = make_loader(
        FakeDataset(), lambda image, target, key: (image, target), batch_size=2, num_workers=1
    )
    with pytest.raises(LoaderError, match=r"lambda.*top level of a module"):
        epoch_of(loader)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"batch_size": 0}, "batch_size to be an integer >= 1, got 0"),
        ({"batch_size": 2.5}, r"batch_size to be an integer >= 1, got 2\.5"),
        ({"batch_size": 11}, "at least batch_size = 11 images, got 10"),
        ({"world_size": 0}, "world_size .* got 0"),
        ({"rank": 2, "world_size": 2}, "rank below world_size = 2, got 2"),
        ({"rank": -1}, "rank .* got -1"),
        ({"seed": -1}, "seed .* got -1"),
        ({"num_groups": 0}, "num_groups .* got 0"),
        ({"multiple": 0}, "multiple .* got 0"),
        ({"size": (0, 5)}, r"size .* got \(0, 5\)"),
        ({"size": (5,)}, r"size .* got \(5,\)"),
        ({"fill": (0, 0)}, r"fill .* got \(0, 0\)"),
        ({"num_workers": -1}, "num_workers .* got -1"),
        ({"prefetch": 0}, "prefetch .* got 0"),
        ({"timeout": -1}, "timeout .* got -1"),
        ({"timeout": float("nan")}, "timeout .* got nan"),
        ({"start_method": "threads"}, "start_method .* got 'threads'"),
    ],
)
def test_a_bad_setting_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^expected .*{text}"):
        loader_of(10, **settings)


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1), (0, 3)])
def test_a_place_that_does_not_exist_is_refused_at_once(epoch: int, start: int) -> None:
    loader = loader_of(10)
    with pytest.raises(ValueError, match=rf"start in 0\.\.2, got {epoch} and {start}"):
        loader.epoch(epoch, start)
    with pytest.raises(ValueError, match=rf"start in 0\.\.2, got {epoch} and {start}"):
        loader.index_batches(epoch, start)


def test_a_small_data_set_can_be_evaluated_with_a_large_batch() -> None:
    assert [len(batch) for batch in loader_of(3, batch_size=8, shuffle=False).epoch(0)] == [3]


# Real files


def file_dataset(folder: Path, count: int) -> Any:
    from rankdet.data.dataset import FileDataset
    from rankdet.data.reading.split import Split

    raw = []
    for index in range(count):
        path = folder / f"{index:04d}.png"
        Image.new("RGB", (12, 9), (index, 0, 0)).save(path)
        objects = [RawObject((1.0, 2.0, 5.0, 6.0), 0)]
        raw.append(RawImage(path, "a.json", index, objects=objects))
    findings = Findings()
    annotations = assemble(raw, findings)
    return FileDataset(Split("train", "coco", ("a",), (1,), True, annotations, findings))


def test_a_data_set_of_files_is_sent_to_workers_as_little_more_than_its_arrays(
    tmp_path: Path,
) -> None:
    dataset = file_dataset(tmp_path, 200)
    arrays = [part for part in vars(dataset.annotations).values() if isinstance(part, np.ndarray)]
    assert len(pickle.dumps(dataset)) < sum(part.nbytes for part in arrays) + 3000


@pytest.mark.parametrize("format", ["voc", "coco", "yolo"])
def test_workers_never_read_the_annotations_again(tmp_path: Path, format: str) -> None:
    folder = tmp_path / "data"
    write_dataset({"train": SyntheticDataset("train", 4)}, folder, format)
    dataset = open_dataset(folder, split_names(folder)[0])
    annotations = [path for path in folder.rglob("*.*") if path.suffix != ".png"]
    assert annotations
    for path in annotations:
        path.unlink()
    loader = make_loader(dataset, FakeTransform(), batch_size=2, shuffle=False, num_workers=2)
    found = [len(target) for batch in epoch_of(loader) for target in batch.targets]
    loader.close()
    assert found == [len(dataset.target(index)) for index in range(4)]
    assert sum(found) > 0


def test_a_truncated_file_is_reported_by_a_worker_as_by_the_reader(tmp_path: Path) -> None:
    dataset = file_dataset(tmp_path, 4)
    path = tmp_path / "0002.png"
    Image.effect_noise((12, 9), 50).convert("RGB").save(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError) as expected:
        dataset.image(2)
    loader = make_loader(dataset, FakeTransform(), batch_size=2, num_workers=1, shuffle=False)
    with pytest.raises(DataError) as caught:
        epoch_of(loader)
    assert str(caught.value) == str(expected.value)
    assert str(path) in str(caught.value)
    assert vars(caught.value) == vars(expected.value)


@pytest.mark.gpu
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_can_come_in_pinned_memory(num_workers: int) -> None:
    loader = loader_of(12, num_workers=num_workers, pin_memory=True)
    batches = epoch_of(loader)
    loader.close()
    for one, other in zip(epoch_of(loader_of(12)), batches, strict=True):
        assert other.images.is_pinned()
        assert_same(one, other)
    with pytest.raises(DataError, match="ends too early"):
        epoch_of(loader_of(12, {5: "data error"}, num_workers=num_workers, pin_memory=True))


# Whole programs

SCRIPT = """
import sys, time
sys.path.insert(0, {folder!r})
from loading_fakes import FakeDataset, FakeTransform
from rankdet.data.loading.loader import make_loader

def main():
    loader = make_loader(
        FakeDataset(100_000), FakeTransform(), batch_size=4, num_workers=2, shuffle=False
    )
    for number, batch in enumerate(loader.epoch(0)):
        print(number, flush=True)
        {body}

{start}
"""


def run_script(tmp_path: Path, body: str, start: str) -> subprocess.Popen[str]:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(folder=str(Path(__file__).parent), body=body, start=start))
    return subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def members_of_session(session: int) -> list[int]:
    """The processes that belong to a session and live."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def assert_session_ends(session: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while members_of_session(session) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert members_of_session(session) == []


@linux_only
@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_stopped_leaves_no_process(tmp_path: Path, sent: signal.Signals) -> None:
    guard = 'if __name__ == "__main__":\n    main()'
    program = run_script(tmp_path, "time.sleep(0.05)", guard)
    assert program.stdout
    for _ in range(3):
        assert program.stdout.readline()
    assert len(members_of_session(program.pid)) >= 3
    if sent == signal.SIGINT:
        os.killpg(program.pid, sent)  # as a terminal does
    else:
        program.send_signal(sent)
    _, errors = program.communicate(timeout=30)
    assert_session_ends(program.pid, 15)
    if sent == signal.SIGINT:
        assert errors.count("Traceback") == 1, errors  # of the main process alone
        assert errors.rstrip().endswith("KeyboardInterrupt")


@linux_only
def test_workers_go_on_after_a_ctrl_c_that_the_main_process_only_remembers() -> None:
    loader = make_loader(FakeDataset(40), FakeTransform(), batch_size=2, num_workers=2)
    num_batches = 0
    for _ in loader.epoch(0):
        num_batches += 1
        if num_batches == 2:
            workers_alive = multiprocessing.active_children()
            assert len(workers_alive) == 2
            for process in workers_alive:
                os.kill(process.pid or 0, signal.SIGINT)  # as a terminal does
    loader.close()
    assert num_batches == 20


@linux_only
@pytest.mark.slow
def test_a_script_that_does_not_protect_its_start_is_told_so(tmp_path: Path) -> None:
    program = run_script(tmp_path, "break", "main()")
    _, errors = program.communicate(timeout=60)
    assert program.returncode != 0
    assert "LoaderError: worker" in errors
    assert '`if __name__ == "__main__":`' in errors
    assert_session_ends(program.pid, 15)


@linux_only
@pytest.mark.slow
def test_memory_and_open_files_do_not_grow_over_epochs() -> None:
    def used() -> tuple[int, int]:
        pids = [os.getpid(), *(process.pid for process in multiprocessing.active_children())]
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        return pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path("/proc/self/fd").iterdir()))

    dataset = FakeDataset(400, sizes=((100, 150), (150, 100)))  # an epoch has 100 MB
    loader = make_loader(dataset, FakeTransform(), batch_size=8, num_workers=2)
    history = []
    for epoch in range(6):
        for batch in loader.epoch(epoch):
            assert len(batch) == 8
        history.append(used())
    loader.close()
    assert history[-1][0] < history[2][0] + 20e6, history
    assert history[-1][1] <= history[2][1] + 4, history


def test_what_is_no_data_set_or_no_transform_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a data set \(see open_dataset\), got 'folder'"):
        make_loader("folder", FakeTransform(), batch_size=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected a transform\(image, target, key\), got None"):
        make_loader(FakeDataset(), None, batch_size=2)  # type: ignore[arg-type]


def test_a_seed_that_no_sample_can_have_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"expected seed below 2\*\*32, got 4294967296"):
        make_loader(FakeDataset(), FakeTransform(), batch_size=2, seed=2**32)


@pytest.mark.parametrize("size", [64, (64,), (0, 64), "64"])
def test_a_fixed_size_is_a_pair(size: Any) -> None:
    with pytest.raises(ValueError, match=r"expected size to be \(height, width\)"):
        make_loader(FakeDataset(), FakeTransform(), batch_size=2, size=size)


@linux_only
def test_ctrl_c_does_not_end_the_fork_server_at_its_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = multiprocessing.forkserver.ForkServer()
    monkeypatch.setattr(multiprocessing.forkserver, "ensure_running", server.ensure_running)
    workers.worker_context("forkserver")
    pid = server._forkserver_pid
    os.kill(pid, signal.SIGINT)  # a terminal sends it to all processes
    os.close(server._forkserver_alive_fd)  # which tells the server to end by itself
    assert os.waitpid(pid, 0)[1] == 0
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_fork_server_that_has_ended_is_an_error_of_the_loader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", fail)
    with pytest.raises(LoaderError, match=r"workers cannot be started \(.*Broken pipe\)"):
        next(loader_of(8, num_workers=1).epoch(0))
