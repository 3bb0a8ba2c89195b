"""Every named case of bad data, read as training does, checked in process and by the command."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.main import get_command

from rankdet import cli
from rankdet.bench import bad_case, bad_data
from rankdet.bench.bad_case import SOUND, TRAIN, Case
from rankdet.data.reading import formats, images
from rankdet.data.reading.rules import RULES

# pytest lifts our own filter
pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")

ALL_CASES = bad_data.all_cases()
CASES = {case.name: case for case in ALL_CASES}
COMMAND = get_command(cli.app)  # Typer would make it again for each of hundreds of calls


@pytest.fixture
def run_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs `rankdet check` as the command does, with its handling of errors: (status, text)."""

    def run(folder: Path, *options: str) -> tuple[int, str]:
        arguments = ["rankdet", "check", str(folder), "--workers", "0", *options]
        monkeypatch.setattr("sys.argv", arguments)
        monkeypatch.setattr(cli, "app", COMMAND)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        output = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), output.out + output.err

    return run


@pytest.mark.parametrize("name", CASES)
def test_a_case_ends_as_it_should(name: str, tmp_path: Path) -> None:
    CASES[name].write(tmp_path)
    assert bad_data.problems(CASES[name], tmp_path) == []


@pytest.mark.parametrize("name", CASES)
def test_the_command_exits_with_1_on_faults_only(
    name: str, tmp_path: Path, run_check: Callable[..., tuple[int, str]]
) -> None:
    case = CASES[name]
    case.write(tmp_path)
    status, text = run_check(tmp_path, *(["--allow-outside"] if case.allow_outside else []))
    is_gone = case.code == "split-unknown"  # a check of all splits does not miss one
    assert status == (0 if is_gone else int(case.is_fault)), text
    assert "Traceback" not in text
    if case.code and not is_gone:
        rule = " ".join(RULES[case.code].rule.split()[:3])
        assert rule in " ".join(text.split()), text


@pytest.mark.parametrize("format", SOUND)
def test_the_sound_sets_are_sound(
    format: str, tmp_path: Path, run_check: Callable[..., tuple[int, str]]
) -> None:
    bad_case.write_files(SOUND[format](), tmp_path)
    for split in formats.split_names(tmp_path):
        assert formats.read_split(tmp_path, split).findings.counts == {}
    status, text = run_check(tmp_path)
    assert status == 0, text


def test_the_sound_sets_have_the_same_boxes(tmp_path: Path) -> None:
    boxes = []
    for format, make in SOUND.items():
        bad_case.write_files(make(), tmp_path / format)
        split = formats.read_split(tmp_path / format, TRAIN[format])
        boxes.append((split.annotations.boxes.round(3).tolist(), split.annotations.labels.tolist()))
    assert boxes[0] == boxes[1] == boxes[2]
    assert boxes[0][0][0] == [8, 8, 24, 28]
    assert boxes[0][1] == [0, 1, 1]


def test_there_are_enough_cases_of_every_kind() -> None:
    assert len(CASES) == len(ALL_CASES), "two cases have the same name"
    assert Counter(case.format for case in CASES.values()).keys() == {"voc", "coco", "yolo"}
    assert len(CASES) >= 300


def test_every_rule_about_data_has_a_case() -> None:
    """Left out: what only a test list, a sum, an option, a disk or a crash can break."""
    covered = {code for case in CASES.values() for code in (case.code, *case.also)}
    elsewhere = {
        *("image-crashes", "split-overlap", "split-unannotated", "classes-differ"),
        *("out-not-empty", "out-unwritable", "format-differs", "annotations-unused"),
        "split-unclear",
    }
    assert set(RULES) - covered == elsewhere


def test_a_16_bit_image_is_not_white(tmp_path: Path) -> None:
    CASES["a 16-bit PNG"].write(tmp_path)
    assert 60 < images.decode(tmp_path / "images/train/b.png").mean() < 200


# What the judge of the cases is worth: it must see each thing that can go wrong.

SOUND_CASE = Case("a sound set", "voc", lambda files: None)
CLIPPED = CASES["a VOC box a little outside"]
REFUSED = CASES["a JSON key twice"]


@pytest.mark.parametrize(
    ("case", "wrong", "text"),
    [
        (SOUND_CASE, {"code": "box-clipped"}, "codes after reading"),
        (SOUND_CASE, {"images": (2, 1)}, "seen and used"),
        (SOUND_CASE, {"objects": (3, 2)}, "seen and used"),
        (SOUND_CASE, {"num_ignored": 1}, "ignored"),
        (SOUND_CASE, {"is_refused": True, "code": "data-empty"}, "read, but expected"),
        (CLIPPED, {"code": ""}, "codes after reading"),
        (CLIPPED, {"code": "box-outside"}, "faults: False"),
        (CLIPPED, {"count": 2}, "codes after the check"),
        (CLIPPED, {"also": ("no-objects",)}, "codes after reading"),
        (CLIPPED, {"file": "a.xml"}, "no 'a.xml' in"),
        (CLIPPED, {"field": "width"}, "no 'width' in"),
        (CLIPPED, {"value": "71"}, "no '71' in"),
        (REFUSED, {"code": "json-malformed"}, "code: json-duplicate-key"),
        (REFUSED, {"file": "val2017.json"}, "no 'val2017.json' in"),
        (REFUSED, {"is_refused": False}, "refused:"),
    ],
)
def test_the_judge_notices(case: Case, wrong: dict, text: str, tmp_path: Path) -> None:
    case.write(tmp_path)
    assert bad_data.problems(case, tmp_path) == []
    found = bad_data.problems(replace(case, **wrong), tmp_path)
    assert any(text in problem for problem in found)


def test_the_judge_notices_a_changed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SOUND_CASE.write(tmp_path)
    read = formats.read_split

    def meddle(folder: Path, split: str, **options: object):
        (folder / "classes.txt").write_text("cat\ndog\n\n")
        return read(folder, split, **options)

    monkeypatch.setattr(formats, "read_split", meddle)
    assert bad_data.problems(SOUND_CASE, tmp_path) == ["a file of the user's was changed"]


def test_a_fingerprint_sees_content_times_and_new_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    before = bad_data.fingerprint(tmp_path)
    assert bad_data.fingerprint(tmp_path) == before
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    assert bad_data.fingerprint(tmp_path) != before
    before = bad_data.fingerprint(tmp_path)
    (tmp_path / "b.txt").touch()
    assert bad_data.fingerprint(tmp_path) != before


def test_the_judge_notices_counts_that_do_not_reconcile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SOUND_CASE.write(tmp_path)
    read = formats.read_split

    def miscount(folder: Path, split: str, **options: object):
        result = read(folder, split, **options)
        result.findings.objects.dropped["box-outside"] += 1
        return result

    monkeypatch.setattr(formats, "read_split", miscount)
    assert "the objects do not reconcile" in "".join(bad_data.problems(SOUND_CASE, tmp_path))


def test_other_exceptions_go_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SOUND_CASE.write(tmp_path)

    def crash(folder: Path, split: str, **options: object) -> None:
        raise KeyError("bndbox")

    monkeypatch.setattr(formats, "read_split", crash)
    with pytest.raises(KeyError):
        bad_data.problems(SOUND_CASE, tmp_path)


def test_a_path_that_does_not_exist_is_one_line(run_check: Callable[..., tuple[int, str]]) -> None:
    status, text = run_check(Path("nowhere"))
    assert status == 1
    assert text.count("\n") == 1
    assert "nowhere: there is no such file or folder" in text
