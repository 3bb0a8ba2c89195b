"""The four losses under perturbed images: patches on objects, noise, DeepFool."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rankdet.config import Config, to_dict
from rankdet.errors import counted
from rankdet.experiments import evidence
from rankdet.experiments.arms import run_folder, trained
from rankdet.experiments.comparison import COLOURS, LOSSES, variant_config
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import label_axes, new_figure, save_figure
from rankdet.experiments.losses import RETINANET_VOC
from rankdet.experiments.paper import paper_table
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.schedules import LONG
from rankdet.experiments.tables import (
    Cell,
    caption,
    comparison_table,
    missing_text,
    number,
    page,
)

LABEL = "base-loss-robustness"
# The paper's columns, by the names of `rankdet robustness`.
COLUMNS = {
    "original": "Original",
    "black": "Black Patch",
    "random": "Random Patch",
    "flip": "Flip Patch",
    "adversarial": "Advs-Patch",
    "noise": "Gaussian Noise",
    "deepfool": "DeepFool",
}

# Where the trainings are those whose learning rates were tuned, not those of the table of losses.
_TUNED_SCALE = "voc320"
_FEW_OBJECTS = 20  # of which a mean says little


@dataclass(frozen=True)
class Effort:
    """How much is done for each detector. None: all images, or all objects."""

    num_images: int | None
    patch_steps: int
    deepfool_objects: int | None


EFFORTS = {
    "smoke": Effort(2, 1, 1),
    "tiny": Effort(100, 100, 50),
    "voc320": Effort(500, 300, 100),
    "paper": Effort(None, 1000, 1000),
}


def plan(request: Request) -> list[Row]:
    """A row for each loss: its training, which another table has too, and the attacks."""
    if request.scale == _TUNED_SCALE:
        configs = evidence.RETINANET.first_configs(LONG, request)
    else:
        configs = {variant.row: variant_config(variant, request) for variant in RETINANET_VOC}
    return [_row(name, config, request) for name, config in configs.items()]


def _row(name: str, config: Config, request: Request) -> Row:
    effort = EFFORTS[request.scale]
    return Row(
        key=name,
        settings={"config": to_dict(config), "effort": vars(effort)},
        run=partial(_run, config, effort, request),
        trainings=(config,),
    )


def _run(config: Config, effort: Effort, request: Request) -> dict[str, Any]:
    from rankdet.robustness.adversarial import PatchSettings
    from rankdet.workflows.robustness import robustness

    run = trained(config, request)
    with redirect_stdout(io.StringIO()):  # its table is not the one that was asked for
        content = robustness(
            run,
            limit=effort.num_images,
            patch_settings=PatchSettings(steps=effort.patch_steps),
            deepfool_objects=effort.deepfool_objects,
            seed=request.seed,
            checkpoint="last",
            device=request.device,
            out=run.with_name(f"{run.name}-robustness"),
            is_forced=True,  # of an attempt that did not reach the record of the experiment
        )
    kept = ("perturbations", "deepfool", "patch", "data", "settings", "notes")
    return {"run": run_folder(config, request).name, **{name: content[name] for name in kept}}


def markdown(record: Record) -> str:
    table = comparison_table("training loss", list(LOSSES), list(COLUMNS.values()), cells(record))
    notes = [
        "AP50 in percent; DeepFool: the mean L2 norm of the smallest perturbation that changes a "
        "prediction, in grey levels of 0 to 255. More is better everywhere.",
        f"Our trainings are those of {_trained_by(record)}.",
        *_sample_notes(record),
        *_fooled_notes(record),
        caption(LABEL),
    ]
    return page(record, SUMMARY, [table], notes)


def _trained_by(record: Record) -> str:
    name = "`losses-voc`"
    if record["request"]["scale"] == _TUNED_SCALE:
        name = f"`{evidence.RETINANET.name}` in its {LONG} schedule, with the first seed"
    return f"{name}, but for what was changed" if record["request"].get("changes") else name


def cells(record: Record) -> dict[tuple[str, str], Cell]:
    """Our numbers and the paper's, by loss and column."""
    results = results_of(record)
    paper = {row["name"].replace("+", " + "): row for row in paper_table(LABEL)["rows"]}
    found = {}
    for loss in LOSSES:
        result = results.get(loss)
        ours = {} if result is None else numbers(result)
        for column in COLUMNS.values():
            found[loss, column] = Cell(
                ours.get(column),
                paper[loss]["values"][column],
                missing_text(record, loss),
                column in paper[loss]["best"],
            )
    return found


def numbers(result: Record) -> dict[str, float | None]:
    """AP50 under each perturbation and DeepFool's size, by the paper's columns."""
    values = {COLUMNS[row["name"]]: row["metrics"]["AP50"] for row in result["perturbations"]}
    return {**values, COLUMNS["deepfool"]: result["deepfool"]["norm_255"]}


def _sample_notes(record: Record) -> list[str]:
    """On how much the numbers rest; the same for every loss, whose rows have the same settings."""
    results = list(results_of(record).values())
    if not results:
        return []
    data, settings, patch = (results[0][name] for name in ("data", "settings", "patch"))
    images = counted(data["num_images"], "image")
    images = f"all {images}" if settings["limit"] is None else f"the first {images}"
    limit = settings["deepfool_objects"]
    objects = "all detected objects"
    if limit is not None:
        objects = f"the first {counted(limit, 'detected object')}"
    return [
        f"Our columns are of the same sample, Original too: {images}, "
        f"{counted(data['num_objects'], 'object')}. Advs-Patch: trained for "
        f"{counted(patch['settings']['steps'], 'step')} on the "
        f"{counted(patch['num_images'], 'image')} of {patch['split']}. DeepFool attacks {objects}. "
        "The paper's are of VOC2007 test; it does not say how long it trained a patch, nor how "
        "many objects it attacked."
    ]


def _fooled_notes(record: Record) -> list[str]:
    parts, counts = [], []
    for loss, result in results_of(record).items():
        fooled = result["deepfool"]
        counts.append(fooled["num_attacked"])
        share = f"{number(fooled['success_rate'])} % of {fooled['num_attacked']}"
        parts.append(f"{loss} {share if fooled['num_attacked'] else 'none to attack'}")
    notes = [f"Objects that DeepFool changed, of those attacked: {'; '.join(parts)}."]
    if 0 in counts:
        notes.append(
            "None to attack: no object has an anchor box that predicts its class, by the highest "
            "score of the anchor, at the threshold of the class. AP50 counts lower scores, too."
        )
    if any(0 < count < _FEW_OBJECTS for count in counts):
        notes.append(
            "A threshold lies halfway between the score of the last object that it keeps and the "
            "next lower one: the smallest change of that object may be next to nothing. Of fewer "
            f"than {_FEW_OBJECTS} objects, DeepFool's mean says little else."
        )
    return notes


def figure(record: Record, path: Path) -> None:
    """AP50 of each loss under each perturbation as bars, the paper's as marks; DeepFool beside."""
    found = cells(record)
    drawn = new_figure(10, 3.8)
    left, right = drawn.subplots(1, 2, width_ratios=[6, 1.4])
    *columns, last = COLUMNS.values()
    for axes, names in ((left, columns), (right, [last])):
        for place_of_loss, (loss, short) in enumerate(LOSSES.items()):
            for place, column in enumerate(names):
                x, cell = place + 0.2 * (place_of_loss - 1.5), found[loss, column]
                label = loss if place == 0 else None
                axes.bar(x, cell.ours or 0.0, 0.18, color=COLOURS[short], label=label)
                axes.plot(x, cell.paper, "_", color="black", markersize=9)
        axes.set_xticks(range(len(names)), names, fontsize=8)
    drawn.legend(
        *left.get_legend_handles_labels(),
        loc="outside lower center", ncols=4, frameon=False, fontsize=8,
    )  # fmt: skip
    label_axes(left, "Perturbed images (marks: the paper)", "", "AP50 in percent")
    label_axes(right, "Smallest change", "", "grey levels")
    save_figure(drawn, path)


SUMMARY = "four losses on images with patches, noise and adversarial changes"
EXPERIMENT = Experiment("robustness", SUMMARY, (LABEL,), plan, markdown, figure)
