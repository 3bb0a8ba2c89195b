"""Tables of the paper that consist of trainings: variants of one setting, compared by AP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rankdet.config import Config, merge, to_dict
from rankdet.experiments.arms import outcome, submitted, trained
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import (
    BLUE,
    GREEN,
    ORANGE,
    VERMILION,
    begin_at_zero,
    label_axes,
    new_figure,
    save_figure,
)
from rankdet.experiments.paper import paper_row, paper_value
from rankdet.experiments.record import Record
from rankdet.experiments.scales import Training, base_config, with_changes
from rankdet.experiments.seed_statistics import spread
from rankdet.experiments.seeds import number_of_seeds, seed_key, values_of_row
from rankdet.experiments.tables import (
    Cell,
    caption,
    comparison_table,
    difference_text,
    markdown_table,
    missing_text,
    page,
)

METRICS = ("AP", "AP50", "AP75")
USUAL_SEEDS = 1
DECIMALS_OF_SEEDS = 2  # of means over several of them
LOSSES = {"CE-Loss + OHEM": "ohem", "Focal Loss": "focal", "AUC-Loss": "auc", "AP-Loss": "ap"}
COLOURS = {"ohem": ORANGE, "focal": VERMILION, "auc": GREEN, "ap": BLUE}
# Of losses that never stand beside those.
COLOURS |= {"ce": ORANGE, "ghm": VERMILION, "dr": GREEN}
_GROUP_COLOURS = (BLUE, VERMILION, GREEN, ORANGE)
Points = tuple[list[float], list[float]]  # places, and the values there
# Of the test sets whose annotations are not public: the splits, if the user has their images.
SERVER_SPLITS = {"voc12": "2012_test", "coco": "test-dev2017"}


@dataclass(frozen=True)
class Variant:
    """A training that fills a row of a table, or the columns of one group in it.

    changes: settings in place of the base's, as in a --config file. paper: label of the table, and
    the name of the row there; group: also the heading of the columns there.
    """

    row: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    training: Training = field(default_factory=Training)
    paper: tuple[str, str] | None = None
    metrics: tuple[str, ...] = METRICS

    @property
    def key(self) -> str:
        return f"{self.group}: {self.row}" if self.group else self.row


@dataclass(frozen=True)
class Comparison:
    """A table of variants.

    row_title: what differs from row to row. reference: the row that all others are compared with,
    where there are several seeds.
    """

    title: str
    row_title: str
    variants: tuple[Variant, ...]
    notes: tuple[str, ...] = ()
    decimals: int = 1
    reference: str | None = None

    def plan(self, request: Request) -> list[Row]:
        """A row for each seed and each variant that the user's data allow."""
        rows = []
        for seed in request.all_seeds(USUAL_SEEDS):  # what is finished first has one of each
            for variant in chosen(self.variants, request):
                row = self.row(variant, replace(request, seed=seed))
                is_first = seed == request.seed
                rows.append(row if is_first else replace(row, key=seed_key(row.key, seed)))
        return rows

    def row(self, variant: Variant, request: Request) -> Row:
        """The training of a variant with the seed of the request."""
        return training_row(variant, request)

    def markdown(self, record: Record) -> str:
        labels = dict.fromkeys(variant.paper[0] for variant in self.variants if variant.paper)
        notes = [*self.notes_on(record), *data_notes(self.variants, record)]
        if number_of_seeds(record) > 1:
            notes.append(
                "±: the standard deviation over the seeds; of a difference, half of its 95 % "
                "interval (Welch's t)."
            )
        return page(record, self.title, self.body(record), [*notes, *map(caption, labels)])

    def body(self, record: Record) -> list[str]:
        """The tables of the page."""
        row_names = list(dict.fromkeys(variant.row for variant in self.variants))
        columns, cells = columns_of(self.variants), cells_of(self.variants, record)
        has_spread = any(cell.deviation is not None for cell in cells.values())
        decimals = max(self.decimals, DECIMALS_OF_SEEDS) if has_spread else self.decimals
        tables = [comparison_table(self.row_title, row_names, columns, cells, decimals)]
        if has_spread and self.reference is not None:
            tables.append(f"Less the row with {self.row_title} {self.reference}:")
            tables.append(self._differences(record, self.reference, row_names))
        return tables

    def _differences(self, record: Record, reference: str, row_names: Sequence[str]) -> str:
        """Each row less that of `reference`, with the interval of the difference."""
        columns = columns_of(self.variants)
        values = {
            (variant.row, column_name(variant.group, metric)): values_of_row(
                record, variant.key, metric
            )
            for variant in self.variants
            for metric in variant.metrics
        }
        rows = []
        for name in row_names:
            if name != reference:
                pairs = [(values[name, one], values[reference, one]) for one in columns]
                rows.append([name, *(difference_text(*pair, DECIMALS_OF_SEEDS) for pair in pairs)])
        return markdown_table([self.row_title, *columns], rows)

    def notes_on(self, record: Record) -> list[str]:
        return list(self.notes)

    def figure(self, record: Record, path: Path) -> None:
        """A panel for each metric: the paper's numbers are empty marks.

        Ours are filled marks, both joined by lines, where the rows are numbers; otherwise bars.
        """
        groups = list(dict.fromkeys(variant.group for variant in self.variants))
        metrics = list(dict.fromkeys(name for v in self.variants for name in v.metrics))
        rows = list(dict.fromkeys(variant.row for variant in self.variants))
        cells = cells_of(self.variants, record)
        draw = _draw_lines if all(map(_is_number, rows)) else _draw_bars
        figure = new_figure(3.6 * len(metrics), 3.8)
        panels = figure.subplots(1, len(metrics), squeeze=False)[0]
        for axes, metric in zip(panels, metrics, strict=True):
            for number, group in enumerate(groups):
                values = [cells.get((row, column_name(group, metric))) for row in rows]
                draw(axes, values, group, number, len(groups))
            axes.set_xticks(range(len(rows)), rows)
            if any(len(row) > 8 for row in rows):  # they would meet
                for label in axes.get_xticklabels():
                    label.set(rotation=20, ha="right", rotation_mode="anchor")
            if draw is _draw_bars:  # lines may show what differs alone
                begin_at_zero(axes)
            label_axes(axes, metric, self.row_title, "percent")
        shown = {  # of each label the first that has a number somewhere
            label: handle
            for axes in reversed(panels)
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            list(shown.values()), list(shown),
            loc="outside lower center", ncols=4, frameon=False, fontsize=8,
        )  # fmt: skip
        save_figure(figure, path)


def _is_number(text: str) -> bool:
    """Whether the name of a row has a place on a scale.

    >>> _is_number("0.25"), _is_number("Focal Loss")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def _draw_lines(
    axes: Any, cells: Sequence[Cell | None], group: str, number: int, num_groups: int
) -> None:
    """The numbers of one group of several over the rows: ours, and the paper's."""
    colour = _GROUP_COLOURS[number % len(_GROUP_COLOURS)]
    ours, paper = _points(cells)
    axes.plot(*ours, "o-", color=colour, label=group or "ours")
    _draw_deviations(axes, ours, cells, colour)
    _draw_paper(axes, paper, ":", colour, group)


def _draw_bars(
    axes: Any, cells: Sequence[Cell | None], group: str, number: int, num_groups: int
) -> None:
    """As `_draw_lines`, where the rows have no order that a line could follow."""
    colour = _GROUP_COLOURS[number % len(_GROUP_COLOURS)]
    width = 0.8 / num_groups
    ours, paper = _points(cells, shift=width * (number - (num_groups - 1) / 2))
    axes.bar(*ours, 0.9 * width, color=colour, alpha=0.75, label=group or "ours")
    _draw_deviations(axes, ours, cells, "black")
    _draw_paper(axes, paper, "", colour, group)


def _draw_deviations(axes: Any, ours: Points, cells: Sequence[Cell | None], colour: str) -> None:
    """A line of one standard deviation up and down from each of our numbers, if there are any."""
    deviations = [cell.deviation or 0.0 for cell in cells if cell and cell.ours is not None]
    if any(deviations):
        axes.errorbar(*ours, yerr=deviations, fmt="none", ecolor=colour, capsize=3)


def _draw_paper(axes: Any, points: Points, line: str, colour: str, group: str) -> None:
    if not points[0]:
        return
    label = f"{group} (paper)" if group else "paper"
    axes.plot(*points, f"o{line}", color=colour, markerfacecolor="white", label=label)


def _points(cells: Sequence[Cell | None], shift: float = 0.0) -> tuple[Points, Points]:
    """Where our numbers and the paper's are to be drawn, as far as there are any."""
    known = [(place + shift, cell) for place, cell in enumerate(cells) if cell is not None]
    ours = [(place, cell.ours) for place, cell in known if cell.ours is not None]
    paper = [(place, cell.paper) for place, cell in known if cell.paper is not None]
    return _columns(ours), _columns(paper)


def _columns(points: Sequence[tuple[float, float]]) -> Points:
    return [place for place, _ in points], [value for _, value in points]


def experiment(
    name: str,
    comparison: Comparison,
    labels: Sequence[str],
    *,
    figure: Any = None,
) -> Experiment:
    """The comparison as an experiment of `rankdet reproduce`."""
    return Experiment(
        name=name,
        summary=comparison.title,
        labels=tuple(labels),
        plan=comparison.plan,
        markdown=comparison.markdown,
        figure=figure or comparison.figure,
        usual_seeds=USUAL_SEEDS,
    )


def training_row(variant: Variant, request: Request) -> Row:
    """The row of a variant: its training, judged by its last evaluation."""
    config = variant_config(variant, request)
    return Row(
        key=variant.key,
        settings={"config": to_dict(config)},
        run=partial(_result, variant, config, request),
        trainings=(config,),
        is_outcome=not _has_server(variant.training, request),
    )


def variant_config(variant: Variant, request: Request) -> Config:
    """All settings of a variant at the scale of the request, the user's --set included."""
    loss = variant.changes.get("loss", {}).get("name", "ap")
    base = base_config(request, variant.training, loss)
    return with_changes(request, merge(base, variant.changes))


def _result(variant: Variant, config: Config, request: Request) -> dict[str, Any]:
    result = outcome(config, request)
    if files := server_files(config, variant.training, request):
        result["submission"] = files
    return result


def server_files(config: Config, training: Training, request: Request) -> str | None:
    """Files for the evaluation server, where a benchmark has one and its test images are here."""
    from rankdet.data.reading.formats import split_names

    if not _has_server(training, request):
        return None
    split = SERVER_SPLITS[training.data]
    if split not in split_names(config.data.path, config.data.format):
        return None
    return submitted(trained(config, request), request, split, split)


def _has_server(training: Training, request: Request) -> bool:
    is_benchmark = training.data == "voc12" or training.side != 600
    return request.scale == "paper" and training.data in SERVER_SPLITS and is_benchmark


def chosen(variants: Sequence[Variant], request: Request) -> list[Variant]:
    """Without those on COCO at voc320, where the user has no COCO and others are left."""
    if request.scale != "voc320" or request.coco is not None:
        return list(variants)
    on_voc = [variant for variant in variants if variant.training.data != "coco"]
    return on_voc or list(variants)


def column_name(group: str, metric: str) -> str:
    return f"{group} {metric}" if group else metric


def columns_of(variants: Sequence[Variant]) -> list[str]:
    """The columns in the order of the variants."""
    names = (column_name(variant.group, name) for variant in variants for name in variant.metrics)
    return list(dict.fromkeys(names))


def cells_of(variants: Sequence[Variant], record: Record) -> dict[tuple[str, str], Cell]:
    """The numbers of a record by row and column, the means over the seeds, and the paper's."""
    cells = {}
    for variant in variants:
        text = missing_text(record, variant.key)
        for metric in variant.metrics:
            found = spread(values_of_row(record, variant.key, metric))
            ours, deviation = (found.mean, found.deviation) if found else (None, None)
            paper, is_best = paper_cell(variant, metric)
            cell = Cell(ours, paper, text, is_best, deviation)
            cells[variant.row, column_name(variant.group, metric)] = cell
    return cells


def paper_cell(variant: Variant, metric: str) -> tuple[float | None, bool]:
    """The paper's number for a variant, and whether it is bold there."""
    if variant.paper is None:
        return None, False
    label, name = variant.paper
    column = f"{variant.group} / {metric}" if variant.group else metric
    return paper_value(label, name, column), column in paper_row(label, name)["best"]


def data_notes(variants: Sequence[Variant], record: Record) -> list[str]:
    """What has to be said of test sets without public annotations, and of data that are missing."""
    kinds = {variant.training.data for variant in variants}
    scale = record["request"]["scale"]
    notes = []
    if left := [variant.key for variant in variants if variant.key not in record["plan"]]:
        notes.append(f"Left out, because there was no --coco: {', '.join(left)}.")
    if "voc12" in kinds and scale == "paper":
        notes.append(
            "VOC2012 test has no public annotations: where its images are in the folder, files for "
            "the server were written."
        )
    elif "voc12" in kinds:
        data = "train of --voc, tested on its val" if scale == "voc320" else "drawn images"
        notes.append(f"VOC2007 and VOC2012, as the paper has them, are the same here: {data}.")
    if "coco" in kinds and scale == "paper":
        notes.append(
            "Our numbers on COCO are of val2017; files for test-dev if its images are there."
        )
    return notes


def multi_scale_notes(record: Record, name: str) -> list[str]:
    """What differs between rows of one scale and of several, as the record has them.

    name: of the rows of several.
    """
    notes = [
        f"{name}: 0.8 to 1.6 times the usual side (1 and 1.5 times at smoke), each also mirrored; "
        "the paper does not say which scales it took."
    ]
    configs = [row["settings"]["config"] for row in record["rows"].values()]
    sides = sorted({config["evaluation"]["fixed_size"] for config in configs} - {None})
    if sides:
        squares = " or ".join(str(side) for side in sides)
        notes.append(
            f"Images of one scale are squares of {squares} pixels here; those of {name} keep the "
            "aspect, as all of the paper's do."
        )
    return notes
