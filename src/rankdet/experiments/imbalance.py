"""Three optimisations of the AP-loss under more and more imbalance: fig-performance_imbalance.

A proposal network chooses the anchors that a detector learns from (`rankdet.experiments.proposals`)
and the final AP-loss is compared. Each training is run from the pretrained backbone, and once more
from a snapshot that was trained with few proposals; the figure shows the second one, dashed as in
the paper, where the first did not converge.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rankdet.config import Config, to_dict
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import label_axes, new_figure, save_figure
from rankdet.experiments.optimisations import MEASURE, OPTIMISATIONS, study_config
from rankdet.experiments.paper import paper
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.scales import with_changes
from rankdet.experiments.tables import NO_NUMBER, markdown_table, missing_text, page

ALL = "all"

_NOTES = (
    MEASURE,
    "Valid samples of an image: its n best anchors by a proposal network without regression "
    "(one class, binary cross-entropy on positives and as many random negatives, the detector's "
    "own architecture and anchors, frozen), and all positives; other anchors are ignored. The "
    "final AP-loss, on these samples, is the mean over the last tenth of the steps.",
    "! marks a training that has not converged: it ends less than 5 % below the AP-loss of the "
    "pretrained backbone. The snapshot is of the same optimisation, with few proposals; there is "
    "none for no more proposals than its own. The figure shows the training from the snapshot, "
    "dashed, where the other one did not converge.",
)


def notes(record: Record) -> list[str]:
    """What a reader of the numbers has to know, and what the paper says."""
    said = paper()["statements"]["fig-performance_imbalance"]
    return [
        *_NOTES,
        *_length_notes(record),
        "Paper: error-driven keeps a steady value under any imbalance; the hinge's rises with the "
        "number of proposals; the approximate gradient is good below "
        f"{said['approximate_is_good_below']:,}, and above "
        f"{said['approximate_needs_snapshot_above']:,} converges from the snapshot alone. Its "
        "figure has no numbers.",
    ]


def _length_notes(record: Record) -> list[str]:
    """How long was trained, by the settings of the rows, and the paper's numbers beside them."""
    said = paper()["statements"]["fig-performance_imbalance"]
    settings = [row["settings"] for row in record["rows"].values() if "settings" in row]
    if not settings:
        return []
    study, training = settings[0]["study"], settings[0]["config"]["training"]
    if training["max_steps"] is None:
        whole, unit = training["epochs"], "epochs"
    else:
        whole, unit = training["max_steps"], "steps"
    of_snapshot, of_proposer = (
        f"{max(1, round(study[name] * whole)):,} {unit} (of {whole:,})"
        for name in ("snapshot_part", "proposal_part")
    )
    return [
        f"Snapshot: {study['snapshot_proposals']:,} proposals, {of_snapshot}; the paper's: "
        f"{said['snapshot_proposals']:,} proposals, {said['snapshot_epochs']} epochs. Proposal "
        f"network: {of_proposer}; the paper does not say how long."
    ]


@dataclass(frozen=True)
class Study:
    """How much is trained at a scale.

    numbers: of proposals, None: every anchor. steps: of a training; None: as long as the scale's
    trainings are. proposal_part, snapshot_part: parts of the training's length that the proposal
    network and the snapshot have. snapshot_proposals: of each image.
    """

    numbers: tuple[int | None, ...]
    snapshot_proposals: int
    steps: int | None = None
    proposal_part: float = 1.0
    snapshot_part: float = 0.25


STUDIES = {
    "smoke": Study((50, None), snapshot_proposals=20, steps=3),
    "tiny": Study((50, 200, None), snapshot_proposals=20, steps=120, proposal_part=0.5),
    "voc320": Study(
        (500, 1000, 2000, 4000, 8000, None), snapshot_proposals=500, steps=600, proposal_part=0.5
    ),
    "paper": Study(
        (500, 1000, 2000, 4000, 8000, 16_000, None),
        snapshot_proposals=2000,
        proposal_part=0.25,
        snapshot_part=10 / 160,
    ),
}


def row_config(request: Request, name: str) -> Config:
    """The settings of one optimisation's trainings."""
    study = STUDIES[request.scale]
    config = study_config(request, name)
    if study.steps is not None:
        # A schedule of so many steps, however many an epoch has; their number ends it.
        training = replace(
            config.training,
            epochs=100_000,
            max_steps=study.steps,
            schedule="one_cycle",
            milestones=(),
            warmup_steps=study.steps // 20,
        )
        config = replace(config, training=training)
    return with_changes(request, config)


def key_of(name: str, number: int | None) -> str:
    """What a row is called."""
    return f"{name}, {ALL if number is None else number}"


def plan(request: Request) -> list[Row]:
    """A row for each number of proposals and each optimisation."""
    study = STUDIES[request.scale]
    rows = []
    for number in study.numbers:
        for name in OPTIMISATIONS:
            config = row_config(request, name)
            settings = {"config": to_dict(config), "study": asdict(study), "proposals": number}
            run = partial(_result, config, study, number, request)
            rows.append(Row(key=key_of(name, number), settings=settings, run=run))
    return rows


def _result(config: Config, study: Study, number: int | None, request: Request) -> dict[str, Any]:
    from rankdet.experiments.imbalance_training import train_with_proposals

    return train_with_proposals(config, study, number, request)


def final_of(result: Record) -> tuple[float, str]:
    """The final AP-loss that is drawn, and its mark: "", "*" (from the snapshot) or "!" (neither).

    Where neither converged, the lower of the two.
    """
    pretrained, snapshot = result["from_start"], result["from_snapshot"]
    if pretrained["has_converged"] or snapshot is None:
        return pretrained["final_ap_loss"], "" if pretrained["has_converged"] else "!"
    if snapshot["has_converged"]:
        return snapshot["final_ap_loss"], "*"
    return min(pretrained["final_ap_loss"], snapshot["final_ap_loss"]), "!"


def markdown(record: Record) -> str:
    """The final AP-loss of each optimisation and each start, by the number of proposals."""
    results = results_of(record)
    numbers = STUDIES[record["request"]["scale"]].numbers
    rows = []
    for name, optimisation in OPTIMISATIONS.items():
        for start, words in (("from_start", "backbone"), ("from_snapshot", "snapshot")):
            keys = [key_of(name, number) for number in numbers]
            texts = [missing_text(record, key) or _text(results[key][start]) for key in keys]
            rows.append([f"{optimisation.words}, from the {words}", *texts])
    ratios = ["negatives to a positive"]
    for number in numbers:
        found = [results.get(key_of(name, number)) for name in OPTIMISATIONS]
        ratio = next((result["imbalance"] for result in found if result is not None), None)
        ratios.append(NO_NUMBER if ratio is None else f"{ratio:,.0f}")
    heading = ["final AP-loss, proposals:", *(f"{number or ALL}" for number in numbers)]
    return page(record, SUMMARY, [markdown_table(heading, [*rows, ratios])], notes(record))


def _text(training: Record | None) -> str:
    if training is None:
        return NO_NUMBER
    return f"{training['final_ap_loss']:.3f}{'' if training['has_converged'] else '!'}"


def figure(record: Record, path: Path) -> None:
    """The final AP-loss against the number of proposals; dashed: from the snapshot alone."""
    results = results_of(record)
    picture = new_figure(6.4, 4.4)
    axes = picture.subplots()
    ticks: dict[int, str] = {}
    for name, optimisation in OPTIMISATIONS.items():
        points = []
        for number in STUDIES[record["request"]["scale"]].numbers:
            result = results.get(key_of(name, number))
            if result is None:
                continue
            place = result["anchors"] if number is None else number
            ticks[place] = ALL if number is None else str(number)
            points.append((place, *final_of(result)))
        for before, after in itertools.pairwise(points):
            axes.plot(
                [before[0], after[0]],
                [before[1], after[1]],
                color=optimisation.colour,
                linestyle="--" if after[2] else "-",
            )
        for place, value, mark in points:
            face = "white" if mark else optimisation.colour
            marker = "X" if mark == "!" else "o"
            axes.plot(place, value, marker, color=optimisation.colour, markerfacecolor=face)
        axes.plot([], [], "o-", color=optimisation.colour, label=optimisation.words)
    axes.plot([], [], "o--", color="grey", markerfacecolor="white", label="from the snapshot")
    axes.plot([], [], "X", color="grey", markerfacecolor="white", label="did not converge")
    axes.set_xscale("log")
    axes.set_xticks(list(ticks), list(ticks.values()), minor=False)
    axes.set_xticks([], minor=True)
    axes.set_ylim(0, 1.02)
    label_axes(axes, "", "proposals of an image", "final AP-loss")
    axes.legend(frameon=False, fontsize=8)
    save_figure(picture, path)


SUMMARY = "final AP-loss of three optimisations against the number of training anchors"
EXPERIMENT = Experiment(
    name="imbalance",
    summary=SUMMARY,
    labels=("fig-performance_imbalance",),
    plan=plan,
    markdown=markdown,
    figure=figure,
    has_trainings=False,
)
