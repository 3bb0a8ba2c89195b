"""Findings: bounded, counted, merged, and reconciled."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdet.data.reading.findings import Finding, Findings, Tally, data_error
from rankdet.data.reading.rules import RULES
from rankdet.errors import DataError


def zero_area(where: int = 1) -> Finding:
    return Finding.of("box-zero-area", file="a.txt", where=where, field="width", value=0)


def test_an_error_and_its_finding_have_the_same_text():
    error = data_error(
        "xml-malformed", file="a.xml", where=3, field="x", value=[1], detail="It says no."
    )
    finding = Finding.from_error(error)
    assert str(finding) == str(error)
    assert str(error) == (
        "a.xml:3: x = [1]: the file is not well-formed XML. It says no. Correct the file."
    )
    assert (finding.code, finding.rule) == ("xml-malformed", RULES["xml-malformed"])
    assert isinstance(error, DataError)
    assert (error.code, error.rule) == ("xml-malformed", RULES["xml-malformed"].rule)


@pytest.mark.parametrize("code", RULES)
def test_every_rule_makes_one_printable_line(code):
    finding = Finding.of(code, file="a\n\x1b[1m.xml", where="w\n", field="f\t", value="v\x00")
    assert str(finding).isprintable()
    assert RULES[code].rule in str(finding)
    assert str(finding).endswith(RULES[code].hint)
    assert str(data_error(code, file="a")) == str(Finding.of(code, file="a"))


def test_an_unknown_code_is_our_mistake():
    with pytest.raises(KeyError):
        data_error("no-such-code", file="a")
    with pytest.raises(KeyError):
        str(Finding.of("no-such-code", file="a"))


def test_a_finding_becomes_json():
    as_dict = zero_area().as_dict()
    assert json.loads(json.dumps(as_dict)) == {
        "code": "box-zero-area",
        "level": "fault",
        "outcome": "object dropped",
        "file": "a.txt",
        "where": 1,
        "field": "width",
        "value": "0",
        "rule": "expected a width and a height above 0",
        "detail": "",
        "hint": "Correct or remove the box.",
    }


def test_all_are_counted_but_only_the_first_200_of_a_kind_are_kept():
    findings = Findings()
    for where in range(1000):
        findings.add(zero_area(where))
    findings.add(Finding.of("box-clipped", file="b"))
    assert findings.counts == {"box-zero-area": 1000, "box-clipped": 1}
    assert [finding.where for finding in findings.examples["box-zero-area"]] == list(range(200))
    assert len(findings.examples["box-clipped"]) == 1


def test_only_faults_count_as_faults():
    findings = Findings()
    for code in ("box-clipped", "no-objects", "box-outside", "box-outside", "image-in-two-splits"):
        findings.add(Finding.of(code, file="a"))
    assert findings.num_faults == 3


def test_dropped_objects_and_skipped_images_are_counted_by_reason():
    findings = Findings()
    findings.images = Tally(seen=3, used=2)
    findings.objects = Tally(seen=9, used=3)
    findings.drop_object(zero_area())
    findings.skip_image(Finding.of("image-empty", file="a.jpg"), num_objects=5)
    assert findings.objects.dropped == {"box-zero-area": 1, "image-empty": 5}
    assert findings.images.dropped == {"image-empty": 1}
    assert findings.counts == {"box-zero-area": 1, "image-empty": 1}
    assert findings.images.reconciles()
    assert findings.objects.reconciles()
    assert findings.objects.as_dict() == {
        "seen": 9,
        "used": 3,
        "dropped": {"box-zero-area": 1, "image-empty": 5},
    }


def test_an_image_without_objects_leaves_no_zero_among_the_reasons():
    findings = Findings()
    findings.skip_image(Finding.of("image-empty", file="a.jpg"))
    assert dict(findings.objects.dropped) == {}


def test_a_tally_that_lost_one_does_not_reconcile():
    assert Tally().reconciles()
    assert not Tally(seen=1).reconciles()
    assert not Tally(used=1).reconciles()


def test_an_image_that_is_skipped_after_all_keeps_the_counts_right():
    findings = Findings()
    findings.images = Tally(seen=2, used=2)
    findings.objects = Tally(seen=5, used=5)
    findings.num_ignored = 4
    findings.unuse_image(Finding.of("image-truncated", file="a"), num_objects=3, num_ignored=2)
    assert (findings.images.used, findings.objects.used, findings.num_ignored) == (1, 2, 2)
    assert findings.objects.dropped == {"image-truncated": 3}
    assert findings.images.reconciles()
    assert findings.objects.reconciles()


codes = st.sampled_from(sorted(RULES))


def collected(events: list[tuple[str, int]]) -> Findings:
    findings = Findings()
    for code, num_objects in events:
        findings.images.seen += 1
        findings.objects.seen += num_objects
        if num_objects % 3 == 0:
            findings.skip_image(Finding.of(code, file="a", where=num_objects), num_objects)
        else:
            findings.images.used += 1
            findings.objects.used += num_objects - 1
            findings.drop_object(Finding.of(code, file="a", where=num_objects))
            findings.num_clipped += 1
            findings.num_ignored += 2
    return findings


@given(*[st.lists(st.tuples(codes, st.integers(0, 9)), max_size=30)] * 2)
def test_merging_equals_collecting_both_in_one(first, second):
    merged = collected(first)
    merged.merge(collected(second))
    both = collected(first + second)
    assert vars(merged) == vars(both)
    assert merged.images.reconciles()
    assert merged.objects.reconciles()


def test_merging_stays_bounded_and_leaves_the_other_alone():
    many, other = Findings(), Findings()
    for where in range(150):
        many.add(zero_area(where))
        other.add(zero_area(1000 + where))
    many.merge(other)
    many.merge(other)
    assert many.counts["box-zero-area"] == 450
    assert len(many.examples["box-zero-area"]) == 200
    assert many.examples["box-zero-area"][150].where == 1000
    assert len(other.examples["box-zero-area"]) == 150


def test_a_refused_file_among_findings_is_an_image_skipped() -> None:
    finding = Finding.of("xml-malformed", file="a.xml")
    assert (finding.rule.outcome, finding.outcome) == ("refused", "image skipped")
    assert finding.as_dict()["outcome"] == "image skipped"


def test_what_a_reader_leaves_out_is_seen_and_dropped() -> None:
    found = Findings()
    found.leave_out_object(Finding.of("box-zero-area", file="a.txt"))
    found.leave_out_image(Finding.of("image-missing", file="a.jpg"), num_objects=3)
    assert (found.images.seen, found.objects.seen) == (1, 4)
    assert found.images.dropped == {"image-missing": 1}
    assert found.objects.dropped == {"box-zero-area": 1, "image-missing": 3}
    assert found.images.reconciles()
    assert found.objects.reconciles()
