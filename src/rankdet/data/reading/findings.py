"""What was found wrong while reading a data set, and counts that reconcile.

For images and objects alike: seen = used + dropped, by reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rankdet.data.reading.rules import RULES, Outcome, Rule
from rankdet.errors import DataError, message, shorten

_MAX_EXAMPLES = 200  # findings of one kind that are kept; all are counted


@dataclass(frozen=True)
class Finding:
    """One fault or note; `code` names its rule. `detail` is a further sentence for this one case.

    >>> print(Finding.of("box-zero-area", file="a.xml", where="object[1]", field="width", value=0))
    a.xml: object[1]: width = 0: expected a width and a height above 0. Correct or remove the box.
    """

    code: str
    file: str
    where: int | str = ""
    field: str = ""
    value: str | None = None
    detail: str = ""

    @classmethod
    def of(
        cls,
        code: str,
        *,
        file: object,
        where: int | str = "",
        field: str = "",
        value: object = None,
        detail: str = "",
    ) -> Finding:
        """A finding; `value` is shortened to one line as Python would write it."""
        text = None if value is None else shorten(value)
        return cls(code, str(file), where, field, text, detail)

    @classmethod
    def from_error(cls, error: DataError) -> Finding:
        """The same as a finding, where the rest of the data set can be read on."""
        return cls(error.code, error.file, error.where, error.field, error.value, error.detail)

    @property
    def rule(self) -> Rule:
        return RULES[self.code]

    @property
    def outcome(self) -> Outcome:
        """What was done. Where reading went on, a file that is refused is one image skipped."""
        return "image skipped" if self.rule.outcome == "refused" else self.rule.outcome

    def __str__(self) -> str:
        hint = " ".join(part for part in (self.detail, self.rule.hint) if part)
        return message(
            self.rule.rule,
            file=self.file,
            where=self.where,
            field=self.field,
            value=self.value,
            hint=hint,
        )

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "code": self.code,
            "level": self.rule.level,
            "outcome": self.outcome,
            "file": self.file,
            "where": self.where,
            "field": self.field,
            "value": self.value,
            "rule": self.rule.rule,
            "detail": self.detail,
            "hint": self.rule.hint,
        }


def data_error(
    code: str,
    *,
    file: object,
    where: int | str = "",
    field: str = "",
    value: object = None,
    detail: str = "",
) -> DataError:
    """The error that refuses what breaks the rule `code`, ready to be raised."""
    rule = RULES[code]
    return DataError(
        rule.rule,
        code=code,
        file=str(file),
        where=where,
        field=field,
        value=value,
        detail=detail,
        hint=rule.hint,
    )


class BrokenRule(Exception):
    """An object breaks the rule `code`; in which file and where is known only further out."""

    def __init__(self, code: str, field: str, value: object, detail: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.field = field
        self.value = value
        self.detail = detail

    def finding(self, *, file: object, where: int | str, more: str = "") -> Finding:
        """The finding for it; `more`: a further sentence."""
        detail = f"{self.detail} {more}".strip()
        return Finding.of(
            self.code, file=file, where=where, field=self.field, value=self.value, detail=detail
        )


@dataclass
class Tally:
    """How many were seen, how many are used, and why the others are not."""

    seen: int = 0
    used: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def reconciles(self) -> bool:
        """Whether seen = used + dropped."""
        return self.seen == self.used + self.dropped.total()

    def as_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "used": self.used, "dropped": dict(self.dropped)}


class Findings:
    """Collects findings (every one counted, the first ones of each kind kept) and both tallies."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[Finding]] = {}
        self.images = Tally()
        self.objects = Tally()
        self.num_clipped = 0
        self.num_ignored = 0  # objects that are used, but are difficult or crowd

    def add(self, finding: Finding) -> None:
        """Count a finding. The tallies are the caller's: see `skip_image` and `drop_object`."""
        self.counts[finding.code] += 1
        kept = self.examples.setdefault(finding.code, [])
        if len(kept) < _MAX_EXAMPLES:
            kept.append(finding)

    def drop_object(self, finding: Finding) -> None:
        """An object that was seen is not used."""
        self.add(finding)
        self.objects.dropped[finding.code] += 1

    def skip_image(self, finding: Finding, num_objects: int = 0) -> None:
        """An image that was seen is not used, nor are its `num_objects` objects that were seen."""
        self.add(finding)
        self.images.dropped[finding.code] += 1
        if num_objects:
            self.objects.dropped[finding.code] += num_objects

    def leave_out_object(self, finding: Finding) -> None:
        """A reader drops an object that nobody has counted yet: it is seen, and not used."""
        self.objects.seen += 1
        self.drop_object(finding)

    def leave_out_image(self, finding: Finding, num_objects: int = 0) -> None:
        """A reader skips an image that nobody has counted yet, nor its `num_objects` objects."""
        self.images.seen += 1
        self.objects.seen += num_objects
        self.skip_image(finding, num_objects)

    def unuse_image(self, finding: Finding, num_objects: int, num_ignored: int) -> None:
        """An image that counts as used is skipped after all, as are its objects that do.

        num_ignored: how many of the objects are difficult or crowd.
        """
        self.images.used -= 1
        self.objects.used -= num_objects
        self.num_ignored -= num_ignored
        self.skip_image(finding, num_objects)

    def merge(self, other: Findings) -> None:
        """Add everything of `other`, for a sum of splits."""
        for code, examples in other.examples.items():
            kept = self.examples.setdefault(code, [])
            kept.extend(examples[: _MAX_EXAMPLES - len(kept)])
        self.counts.update(other.counts)
        for mine, theirs in ((self.images, other.images), (self.objects, other.objects)):
            mine.seen += theirs.seen
            mine.used += theirs.used
            mine.dropped.update(theirs.dropped)
        self.num_clipped += other.num_clipped
        self.num_ignored += other.num_ignored

    @property
    def num_faults(self) -> int:
        """How many findings lose or endanger something of the user's."""
        return sum(count for code, count in self.counts.items() if RULES[code].level == "fault")
