"""The table of rules: every text can be put into a message as it is."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from rankdet.data.reading.rules import (
    ANNOTATION_RULES,
    BOX_RULES,
    FILE_RULES,
    IMAGE_RULES,
    RULES,
    Outcome,
    Rule,
)

EVERY_RULE = [pytest.param(code, rule, id=code) for code, rule in RULES.items()]


@pytest.mark.parametrize(("code", "rule"), EVERY_RULE)
def test_texts_fit_into_a_message(code, rule):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code)
    assert rule.rule
    assert not rule.rule.endswith(".")
    assert rule.hint.endswith(".")
    assert rule.hint[0].isupper()
    assert not rule.hint.endswith("..")
    for text in (rule.rule, rule.hint):
        assert text.isprintable()
        assert text == " ".join(text.split())


@pytest.mark.parametrize(("code", "rule"), EVERY_RULE)
def test_levels_fit_outcomes(code, rule):
    assert rule.outcome in get_args(Outcome)
    assert rule.level in ("fault", "note")
    if rule.outcome in ("object dropped", "image skipped", "refused"):
        assert rule.level == "fault", "something of the user's is lost"


def test_no_code_stands_in_two_tables():
    tables = (IMAGE_RULES, BOX_RULES, ANNOTATION_RULES, FILE_RULES)
    assert sum(len(table) for table in tables) == len(RULES)


def test_each_table_has_the_outcomes_of_its_kind():
    assert {rule.outcome for rule in IMAGE_RULES.values()} == {"image skipped", "kept"}
    assert {rule.outcome for rule in FILE_RULES.values()} == {"refused"}
    assert {rule.outcome for rule in BOX_RULES.values()} == {"object dropped", "clipped", "kept"}
    assert "refused" not in {rule.outcome for rule in ANNOTATION_RULES.values()}


def test_a_rule_is_a_fault_unless_it_says_otherwise():
    assert Rule("kept", "r", "H.").level == "fault"
