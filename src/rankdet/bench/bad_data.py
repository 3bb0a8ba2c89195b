"""Every named case of bad data, and what is not as it should be when ours meets it.

Stale caches are no case: nothing that is read from a data set is ever cached.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

from rankdet.bench.bad_case import TRAIN, Case
from rankdet.bench.bad_coco import coco_cases
from rankdet.bench.bad_coco_file import coco_file_cases
from rankdet.bench.bad_images import image_cases
from rankdet.bench.bad_voc import voc_cases
from rankdet.bench.bad_voc_objects import voc_object_cases
from rankdet.bench.bad_yolo import yolo_cases
from rankdet.data.checking import check
from rankdet.data.reading import formats
from rankdet.data.reading.findings import Finding, Findings
from rankdet.data.reading.rules import RULES
from rankdet.errors import DataError


def all_cases() -> list[Case]:
    """Every case, in a fixed order; their names differ."""
    return [
        *image_cases(),
        *voc_object_cases(),
        *voc_cases(),
        *coco_cases(),
        *coco_file_cases(),
        *yolo_cases(),
    ]


def problems(case: Case, folder: Path) -> list[str]:
    """What is not as the case wants it, in words; empty if all is well.

    `folder` holds the data set that the case wrote. It is read as training does and checked as
    `rankdet check` does. Any exception other than DataError goes through.
    """
    before = fingerprint(folder)
    found = _problems_of_reading(case, folder) + _problems_of_checking(case, folder)
    if fingerprint(folder) != before:
        found.append("a file of the user's was changed")
    return found


def fingerprint(folder: Path) -> dict[str, tuple[int, str]]:
    """The time of change and the content of everything in a folder, itself included."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        state = path.lstat()
        is_file = path.is_file() and not path.is_symlink()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if is_file else str(state.st_mode)
        found[str(path)] = (state.st_mtime_ns, content)
    return found


def _problems_of_reading(case: Case, folder: Path) -> list[str]:
    try:
        split = formats.read_split(folder, TRAIN[case.format], allow_outside=case.allow_outside)
    except DataError as error:
        return _problems_of_refusal(case, error)
    if case.is_refused:
        return [f"read, but expected {case.code}"]
    findings = split.findings
    found = _unlike("codes after reading", _codes(findings), expected_codes(case, "reading"))
    found += _unlike("format", split.format, case.format)
    tallies = (findings.images, case.expected_images()), (findings.objects, case.expected_objects())
    for tally, expected in tallies:
        found += _unlike("seen and used", (tally.seen, tally.used), expected)
    found += _unlike("images in arrays", len(split), findings.images.used)
    found += _unlike("boxes in arrays", len(split.annotations.boxes), findings.objects.used)
    found += _unlike("ignored", findings.num_ignored, case.num_ignored)
    return found + _problems_of_counts(findings)


def _problems_of_checking(case: Case, folder: Path) -> list[str]:
    try:
        report = check.check(folder, allow_outside=case.allow_outside)
    except DataError as error:
        return _problems_of_refusal(case, error)
    if case.is_refused:
        # Without its own file a split does not exist for a check of all splits.
        if case.code == "split-unknown":
            return []
        errors = [_problems_of_refusal(case, error) for error in report.errors.values()]
        return min(errors, default=["checked, but expected a refusal"], key=len)
    found = [f"refused {name}: {error}" for name, error in report.errors.items()]
    total = Findings()
    for split in report.splits:
        found += _problems_of_counts(split.findings)
        if split.name == TRAIN[case.format]:
            total.merge(split.findings)
    total.merge(report.between)
    found += _unlike("codes after the check", _codes(total), expected_codes(case, "checking"))
    found += _unlike("faults", report.num_faults > 0, case.is_fault)
    if case.code in total.examples:
        lacks = [_problems_of_message(case, finding) for finding in total.examples[case.code]]
        found += sorted(lacks, key=len)[0]  # one of several must say it all
    return found


def expected_codes(case: Case, stage: str) -> Counter[str]:
    """How often each rule is broken after reading, or after the whole check."""
    is_complete = stage == "checking"
    codes = Counter(case.also)
    if case.code and (is_complete or case.found_by == "reading"):
        codes[case.code] += case.count
        if RULES[case.code].outcome == "object dropped" and case.expected_objects()[1] == 2:
            # b had but one; where nobody knows that it was b's, b has none.
            is_lost = case.code == "annotation-unknown-image" or case.field in (
                "image_id",
                "annotation",
            )
            codes["no-objects" if is_lost else "all-objects-dropped"] += 1
    return codes


def _codes(findings: Findings) -> Counter[str]:
    return Counter({code: count for code, count in findings.counts.items() if count})


def _problems_of_refusal(case: Case, error: DataError) -> list[str]:
    if not case.is_refused:
        return [f"refused: {error}"]
    found = _unlike("code", error.code, case.code)
    return found + _problems_of_message(case, error)


def _problems_of_message(case: Case, found: DataError | Finding) -> list[str]:
    """The parts that a message lacks: file, field, value, rule and hint, on one line."""
    text = str(found)
    rule = RULES[found.code]
    wanted = (case.file, case.field, case.value, rule.rule, rule.hint)
    lacks = [f"no {part!r} in: {text}" for part in wanted if part not in text]
    if not found.file:
        lacks.append(f"no file in: {text}")
    if not text.isprintable():
        lacks.append(f"not one plain line: {text!r}")
    return lacks


def _problems_of_counts(findings: Findings) -> list[str]:
    tallies = {"images": findings.images, "objects": findings.objects}
    return [
        f"the {name} do not reconcile: {tally.as_dict()}"
        for name, tally in tallies.items()
        if not tally.reconciles() or min(tally.seen, tally.used, *tally.dropped.values(), 0) < 0
    ]


def _unlike(what: str, found: object, expected: object) -> list[str]:
    return [] if found == expected else [f"{what}: {found}, expected {expected}"]
