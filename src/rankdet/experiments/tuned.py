"""Comparisons of losses, each at a learning rate of its own where `rates` has chosen one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rankdet.experiments.comparison import Comparison, Variant
from rankdet.experiments.experiment import Request, Row
from rankdet.experiments.rates import Rates, chosen_changes
from rankdet.experiments.record import Record


@dataclass(frozen=True)
class TunedComparison(Comparison):
    """A table of variants at the learning rates that `tuning` has chosen in the same folder."""

    tuning: Rates = field(kw_only=True)

    def row(self, variant: Variant, request: Request) -> Row:
        chosen = chosen_changes(self.tuning, variant.changes["loss"]["name"], request)
        return super().row(replace(variant, changes={**variant.changes, **chosen}), request)

    def notes_on(self, record: Record) -> list[str]:
        configs = [row["settings"]["config"] for row in record["rows"].values()]
        rates = {f"{_rate(config):g} for {config['loss']['name']}" for config in configs}
        used = f"Learning rates, for the images of a step: {', '.join(sorted(rates))}. "
        return [
            *self.notes,
            f"{used if rates else ''}`{self.tuning.name}` chooses them where its record is in the "
            "folder; otherwise they are the scale's own, at best tuned for the four losses of "
            "RetinaNet.",
        ]


def _rate(config: dict[str, dict[str, float]]) -> float:
    training = config["training"]
    return training["learning_rate"] * training["batch_size"] / training["reference_batch_size"]
