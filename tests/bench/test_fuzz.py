"""Spoilt files: made the same every time, read without a surprise, and every surprise noticed."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rankdet.bench import attacks, bad_data, fuzz, mutations, reliability, spoilt
from rankdet.bench.bad_case import TRAIN, encode, picture
from rankdet.bench.bad_images import image_cases
from rankdet.bench.fuzz import Answer
from rankdet.bench.spoilt import IMAGE_KINDS, TEXT_KINDS
from rankdet.data.reading import formats, images
from rankdet.data.reading.findings import Finding, data_error
from rankdet.data.reading.split import Split
from rankdet.errors import DataError, RankdetError

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:PIL"),  # pytest lifts our own filter
    pytest.mark.filterwarnings("ignore::DeprecationWarning:multiprocessing"),  # about forks
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the sound data sets."""
    fuzz.write_sound_sets(tmp_path)
    return tmp_path


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children see what a test has replaced."""
    monkeypatch.setattr(fuzz, "START_METHOD", "fork")


# The spoilt files


def made(kind: str, seed: int, index: int) -> bytes:
    if kind in IMAGE_KINDS:
        return spoilt.spoilt_image(kind, seed, index)
    return spoilt.spoilt_text(kind, seed, index)[1]


@pytest.mark.parametrize("kind", [*TEXT_KINDS, *IMAGE_KINDS])
def test_the_same_seed_gives_the_same_files(kind: str) -> None:
    files = [made(kind, 5, index) for index in range(20)]
    assert files == [made(kind, 5, index) for index in range(20)]
    assert files != [made(kind, 6, index) for index in range(20)]
    assert len(set(files)) >= 17


@pytest.mark.parametrize("kind", [*TEXT_KINDS, *IMAGE_KINDS])
def test_nearly_every_file_is_spoilt_and_none_is_large(kind: str) -> None:
    if kind in IMAGE_KINDS:
        sound = set(spoilt._sound_images(kind))
    else:
        sound = {text for name in formats.FORMATS for text in spoilt.sound_files(name).values()}
    files = [made(kind, 0, index) for index in range(60)]
    assert sum(content in sound for content in files) <= 8
    assert max(map(len, files)) <= 2**20


def test_no_mutation_makes_a_file_larger_than_the_limit() -> None:
    large = b"0.5 0.5\n" * 2**17
    files = [mutations.mutated(large, "image", random.Random(seed), large) for seed in range(20)]
    assert max(map(len, files)) == 2**20


def test_every_place_of_text_files_gets_its_turn() -> None:
    places = {spoilt.spoilt_text("txt", 0, index)[0].path for index in range(60)}
    assert places == {
        "labels/train/b.txt",
        "train.txt",
        "ImageSets/Main/train.txt",
        "classes.txt",
    }


@pytest.mark.parametrize("mutation", [*mutations._TEXT_MUTATIONS])
@pytest.mark.parametrize("text", ["", "a", '{"a":\n[1, "b"]}\n', "<a>1</a>\n<b/>\n", "0 0.5\n" * 5])
def test_a_text_mutation_takes_any_text(mutation: mutations.TextMutation, text: str) -> None:
    results = {mutation(text, random.Random(seed)) for seed in range(10)}
    assert results == {mutation(text, random.Random(seed)) for seed in range(10)}
    if text.startswith(("{", "<")):
        assert results != {text}


@pytest.mark.parametrize("mutation", [*mutations._IMAGE_MUTATIONS])
@pytest.mark.parametrize("content", [b"", b"a", bytes(range(256))])
def test_a_byte_mutation_takes_any_bytes(mutation: mutations.ByteMutation, content: bytes) -> None:
    results = {mutation(content, random.Random(seed)) for seed in range(10)}
    if content:
        assert results != {content}


# One file


@pytest.mark.parametrize("kind", [*TEXT_KINDS, *IMAGE_KINDS])
def test_spoilt_files_are_read_or_refused(kind: str, folder: Path) -> None:
    tally = fuzz.Tally(kind)
    for index in range(40):
        tally.add(fuzz.answer(kind, 1, index, folder))
    assert tally.failures == []
    assert tally.tried == tally.read + tally.refused == 40
    assert tally.read > 0
    assert tally.refused > 0


def test_a_spoilt_file_is_taken_away_again(folder: Path) -> None:
    place = spoilt.Place("voc", "Annotations/b.xml")
    assert fuzz.read_text(place, b"<annotation>", folder) == "refused"
    assert (folder / "voc" / place.path).read_bytes() == spoilt.sound_files("voc")[place.path]
    assert fuzz.read_text(place, spoilt.sound_files("voc")[place.path], folder) == "read"
    assert fuzz.read_text(spoilt.Place("yolo", "data.yaml"), b"[", folder) == "refused"


def test_a_line_that_is_no_path_does_not_fill_the_screen(folder: Path) -> None:
    """Found by seed 0, txt, indices 463 and 725: a message repeated a path of 5000 characters."""
    (folder / "yolo" / "train.txt").write_text("x" * 5000 + "\v" * 5000 + "\n")
    with pytest.raises(DataError) as refused:
        formats.read_split(folder / "yolo", "train")
    fuzz.assert_complete(refused.value)
    assert refused.value.hint in str(refused.value)


def test_a_yaml_file_of_many_brackets_is_refused_at_once(folder: Path) -> None:
    """Found by seed 0, yaml, index 607: 10 KB took 2 s."""
    text = "names:\n  " + "[" * 5000 + "]" * 5000 + ": cat\n"
    answer = fuzz.timed(
        lambda: fuzz.read_text(spoilt.Place("yolo", "data.yaml"), text.encode(), folder)
    )
    assert answer.outcome == "refused"
    assert answer.milliseconds < 500


def test_images_are_read_or_refused(tmp_path: Path) -> None:
    assert fuzz.read_image(encode(picture(1)), tmp_path) == "read"
    assert fuzz.read_image(b"no image", tmp_path) == "refused"


def test_pixels_of_another_size_than_the_header_says_are_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "decode", lambda path: np.zeros((3, 4, 3), dtype=np.uint8))
    with pytest.raises(AssertionError):
        fuzz.read_image(encode(picture(1)), tmp_path)
    with pytest.raises(AssertionError, match="header was refused"):
        fuzz.read_image(b"no image", tmp_path)


def take_hint(error: DataError) -> None:
    error.hint = ""


def take_file(error: DataError) -> None:
    error.file = ""


def take_rule(error: DataError) -> None:
    error.rule = ""


def take_code(error: DataError) -> None:
    error.code = "made-up"


@pytest.mark.parametrize("spoil", [take_hint, take_file, take_rule, take_code])
def test_an_incomplete_error_is_a_failure(spoil: Callable[[DataError], None]) -> None:
    error = data_error("box-swapped", file="a.xml")
    fuzz.assert_complete(error)
    spoil(error)
    with pytest.raises(AssertionError):
        fuzz.assert_complete(error)


def box_outside(split: Split) -> None:
    split.annotations.boxes[0, 2] = 65


def box_below(split: Split) -> None:
    split.annotations.boxes[0, 3] = 49


def box_swapped(split: Split) -> None:
    split.annotations.boxes[0, 0] = 60


def box_not_finite(split: Split) -> None:
    split.annotations.boxes[0, 0] = np.nan


def label_unknown(split: Split) -> None:
    split.annotations.labels[0] = 2


def area_not_finite(split: Split) -> None:
    split.annotations.areas[0] = np.inf


def object_too_many(split: Split) -> None:
    split.findings.objects.used += 1
    split.findings.objects.seen += 1


def image_not_counted(split: Split) -> None:
    split.findings.images.seen -= 1


def finding_without_file(split: Split) -> None:
    split.findings.add(Finding.of("box-swapped", file=""))


@pytest.mark.parametrize(
    "spoil",
    [
        *(box_outside, box_below, box_swapped, box_not_finite, label_unknown, area_not_finite),
        *(object_too_many, image_not_counted, finding_without_file),
    ],
)
def test_a_split_that_cannot_be_trusted_is_a_failure(
    spoil: Callable[[Split], None], folder: Path
) -> None:
    split = formats.read_split(folder / "voc", TRAIN["voc"])
    fuzz.assert_sound(split)
    spoil(split)
    with pytest.raises(AssertionError):
        fuzz.assert_sound(split)


def test_any_other_exception_is_a_failure() -> None:
    def read() -> str:
        raise KeyError("bndbox")

    assert fuzz.timed(read).outcome == "failed"
    assert "KeyError" in fuzz.timed(read).reason


def test_a_slow_file_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> str:
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        return "read"

    assert fuzz.timed(read).outcome == "read"
    monkeypatch.setattr(fuzz, "MAX_SECONDS", 0.01)
    answer = fuzz.timed(read)
    assert answer.outcome == "failed"
    assert "ms" in answer.reason
    assert answer.milliseconds >= 20


def test_a_file_that_needs_much_memory_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> str:
        np.ones(2**27, dtype=np.uint8)
        return "read"

    monkeypatch.setattr(fuzz, "MAX_MEGABYTES", 30.0)
    # The peak of this process may be higher than what it holds now.
    answer = fuzz.timed(read, baseline=1.0)
    assert answer.outcome == "failed"
    assert "MB" in answer.reason
    assert fuzz.timed(read, baseline=1e9).outcome == "read"


# Many files, in children


def test_children_answer_once_for_every_file() -> None:
    num_files = {"txt": 8, "PNG": 5, "xml": 0}
    answers = list(fuzz.run(num_files, seed=2))
    assert sorted((kind, answer.index) for kind, answer in answers) == [
        *(("PNG", index) for index in range(5)),
        *(("txt", index) for index in range(8)),
    ]
    assert {answer.outcome for _, answer in answers} <= {"read", "refused"}
    alone = [fuzz.repeat("txt", 2, index).outcome for index in range(8)]
    together = {answer.index: answer.outcome for kind, answer in answers if kind == "txt"}
    assert alone == [together[index] for index in range(8)]


@pytest.mark.usefixtures("forked")
def test_a_crash_is_put_down_to_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(kind: str, seed: int, index: int, folder: Path, baseline: float = 0.0) -> Answer:
        if index == 3:  # with -1 the child warms up
            os.kill(os.getpid(), signal.SIGTERM)
        return Answer(index, "read")

    monkeypatch.setattr(fuzz, "answer", crash)
    answers = [answer for _, answer in fuzz.run({"txt": 6}, seed=0, num_children=1)]
    assert [answer.index for answer in answers] == [0, 1, 2, 3, 4, 5]
    assert [answer.outcome == "failed" for answer in answers] == [index == 3 for index in range(6)]
    assert "-15" in answers[3].reason


@pytest.mark.usefixtures("forked")
def test_children_that_cannot_start_are_no_fault_of_the_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fuzz, "write_sound_sets", lambda folder: os._exit(3))
    with pytest.raises(RankdetError, match="did not start"):
        list(fuzz.run({"txt": 3}, seed=0))


@pytest.mark.usefixtures("forked")
def test_a_file_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(kind: str, seed: int, index: int, folder: Path, baseline: float = 0.0) -> Answer:
        if index == 1:
            time.sleep(60)
        return Answer(index, "read")

    monkeypatch.setattr(fuzz, "answer", hang)
    monkeypatch.setattr(fuzz, "HANG_SECONDS", 0.5)
    answers = [answer for _, answer in fuzz.run({"txt": 3}, seed=0)]
    assert [answer.outcome for answer in answers] == ["read", "failed", "read"]
    assert "no answer" in answers[1].reason


# Attacks

ATTACKS = {attack.name: attack for attack in attacks.attacks()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_cheaply(name: str) -> None:
    answer = attacks.run_attack(ATTACKS[name]).answer
    assert answer.outcome == "refused", answer
    assert answer.megabytes < 60


def test_a_billion_laughs_are_refused_cheaply() -> None:
    result = attacks.run_attack(ATTACKS["XML billion laughs"])
    assert result.answer.outcome == "refused"
    assert result.answer.reason == "xml-forbidden"
    assert result.num_bytes < 1000
    assert result.answer.megabytes < 20


@pytest.mark.usefixtures("forked")
def test_an_attack_that_is_read_is_a_failure() -> None:
    harmless = replace(ATTACKS["XML external entity"], content=lambda secret: b"<annotation/>")
    answer = attacks.run_attack(harmless).answer
    assert answer.outcome == "failed"
    assert "expected ('xml-forbidden',)" in answer.reason


@pytest.mark.usefixtures("forked")
def test_a_secret_that_shows_up_is_a_failure() -> None:
    def leaking(secret: Path) -> str:  # messages repeat the value of a wrong field
        return f"names: {secret.read_text()}\ntrain: images/train\n"

    answer = attacks.run_attack(attacks.Attack("leak", attacks._YAML, leaking, ())).answer
    assert answer.outcome == "failed"
    assert answer.reason == "the secret has leaked"


# The command


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = list(itertools.islice(image_cases(), 3))
    monkeypatch.setattr(bad_data, "all_cases", lambda: cases)
    monkeypatch.setattr(attacks, "attacks", lambda: iter([ATTACKS["YAML alias bomb"]]))
    monkeypatch.setattr(reliability, "NUM_TEXTS_QUICK", 2)
    monkeypatch.setattr(reliability, "NUM_IMAGES_QUICK", 1)


@pytest.mark.usefixtures("small", "forked")
def test_the_bench_prints_and_writes_what_it_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "record.json"
    assert reliability.main(quick=True, json_file=file, seed=3, only=("data",))
    record = json.loads(file.read_text())
    assert record["is_as_expected"] is True
    assert record["provenance"]["seed"] == 3
    assert [row["tried"] for row in record["cases"]] == [3]
    assert {row["kind"]: row["tried"] for row in record["spoilt"]} == {
        **dict.fromkeys(TEXT_KINDS, 2),
        **dict.fromkeys(IMAGE_KINDS, 1),
    }
    assert record["attacks"][0]["reason"] == "yaml-forbidden"
    assert "YAML alias bomb" in capsys.readouterr().out


@pytest.mark.usefixtures("small", "forked")
@pytest.mark.parametrize("part", ["case", "attack", "file"])
def test_one_surprise_is_enough_to_fail(
    part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if part == "case":
        monkeypatch.setattr(bad_data, "problems", lambda case, folder: 1 / 0)
    elif part == "attack":
        wrong = replace(ATTACKS["YAML alias bomb"], codes=("xml-too-deep",))
        monkeypatch.setattr(attacks, "attacks", lambda: iter([wrong]))
    else:
        boom = Answer(0, "failed", "boom")
        monkeypatch.setattr(
            fuzz, "answer", lambda kind, seed, index, *_: replace(boom, index=index)
        )
    assert not reliability.main(quick=True, json_file=None, seed=0, only=("data",))
    expected = {"case": "ZeroDivisionError", "attack": "xml-too-deep", "file": "index 0: boom"}
    assert expected[part] in " ".join(capsys.readouterr().out.split())
