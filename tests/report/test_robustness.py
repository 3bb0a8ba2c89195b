"""robustness.json on the page: the paper's table, pictures, and nothing that a stranger wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdet.errors import RankdetError
from rankdet.report import plots
from rankdet.report.page import render
from rankdet.report.reading import read_report_runs
from rankdet.report.robustness import LABELS

Make = Callable[..., Path]
NAMES = ("original", "black", "random", "flip", "adversarial", "noise")
FOOLED = {
    "norm": 0.0612,
    "norm_255": 15.606,
    "relative_norm": 0.001,
    "iterations": 2.0,
    "success_rate": 98.5,
    "num_attacked": 200,
    "num_detected": 400,
    "num_objects": 500,
}


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots take most of the time, and are not the point here."""
    for name in plots.__all__:
        monkeypatch.setattr(plots, name, lambda *_: None)
    monkeypatch.setattr(plots, "training_curves", lambda _: {})


def robustness(first: float = 81.5, **changes: Any) -> dict[str, Any]:
    """What the command writes, with AP50 of 81.5, 71.5, 61.5, ..."""
    return {
        "rankdet_robustness": 1,
        "protocol": "voc",
        "perturbations": [
            {"name": name, "metrics": {"AP": 40.0, "AP50": first - 10 * position}}
            for position, name in enumerate(NAMES)
        ],
        "corruptions": [
            {"name": "jpeg", "severity": severity, "metrics": {"AP50": 50.25 - severity}}
            for severity in (1, 2, 3)
        ],
        "deepfool": FOOLED,
        "patch": {"file": "p.png", "is_trained_here": False},
        "settings": {"seed": 0, "limit": None},
        "data": {"path": "VOC", "split": "2007_test", "num_images": 4952, "num_objects": 12032},
        "pictures": [],
        **changes,
    }


def write(folder: Path, content: Any) -> Path:
    (folder / "robustness.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def page(*runs: Path) -> str:
    return render(read_report_runs(list(runs)))


def test_numbers_of_another_step_than_the_evaluation_say_so(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "ap")
    step = json.loads((folder / "results.json").read_text())["checkpoint"]["step"]
    same = robustness(checkpoint={"name": "a", "step": step, "epoch": 1})
    assert "measured at step" not in page(write(folder, same))
    earlier = robustness(checkpoint={"name": "a", "step": step - 1, "epoch": 1})
    words = f"measured at step {step - 1:,}, the evaluation is of {step:,}"
    assert words in page(write(folder, earlier))


def test_the_table_has_a_column_for_each_perturbation(make_run: Make, tmp_path: Path) -> None:
    text = page(write(make_run(tmp_path / "ap"), robustness()))
    table = text.partition('id="robustness-table"')[2].partition("</table>")[0]
    heads = re.findall(r'data-type="\w+">([^<]+)</th>', table)
    assert heads == [
        *("Loss", "Original", "Black patch", "Random patch", "Flip patch"),
        *("Adversarial patch", "Gaussian noise", "DeepFool"),
    ]
    assert re.findall(r'<td data-value="[^"]+">([\d.]+)', table) == [
        *("81.5", "71.5", "61.5", "51.5", "41.5", "31.5", "15.6")
    ]
    assert "98.5 % of 200" in table
    assert "−10.0" in table
    assert "4,952 images, split 2007_test" in table
    assert '<a href="#robustness">' in text


def test_runs_have_a_row_each_with_their_loss(make_run: Make, tmp_path: Path) -> None:
    ap = write(make_run(tmp_path / "ap", loss="ap"), robustness())
    focal = write(make_run(tmp_path / "focal", loss="focal"), robustness(70.0, deepfool=None))
    plain = make_run(tmp_path / "ohem", loss="ohem")  # was not measured: has no row
    table = page(ap, focal, plain).partition('id="robustness-table"')[2].partition("</table>")[0]
    assert re.findall(r'<th scope="row">([^<]+)<br>', table) == ["AP-loss", "focal loss"]
    assert table.count("<tr>") == 3
    assert "n/a" in table  # DeepFool of the second


def test_corruptions_have_a_table_of_severities(make_run: Make, tmp_path: Path) -> None:
    text = page(write(make_run(tmp_path / "ap"), robustness()))
    row = text.partition('<th scope="row">JPEG</th>')[2].partition("</tr>")[0]
    assert re.findall(r">([^<]+)</td>", row) == ["49.2", "48.2", "47.2", "n/a", "n/a"]


def test_every_perturbation_has_a_title_of_its_own() -> None:
    assert len(set(LABELS.values())) == len(LABELS)


def test_a_run_without_the_file_has_no_section(make_run: Make, tmp_path: Path) -> None:
    assert "robustness" not in page(make_run(tmp_path / "ap")).lower()


def test_pictures_are_shown_image_by_image(
    make_run: Make, make_results: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    picture = make_results()["pictures"][0]
    shown = [{**picture, "perturbation": name} for name in ("original", "black")]
    text = page(write(make_run(tmp_path / "ap"), robustness(pictures=shown)))
    section = text.partition('<h2 id="robustness">')[2].partition("</section>")[0]
    assert re.findall(r"<figcaption><strong>([^<]+)</strong>", section) == [
        *("Original", "Black patch")
    ]


def test_names_of_strangers_make_no_elements(
    make_run: Make,
    make_results: Callable[..., dict[str, Any]],
    hostile_names: tuple[str, ...],
    tmp_path: Path,
) -> None:
    hostile = "<script>window.hacked = 1</script>"
    picture = make_results()["pictures"][0]
    picture["name"] = hostile
    picture["objects"] = [{"box": [1, 1, 20, 20], "class": hostile_names[0], "state": "missed"}]
    data = {"path": hostile, "split": hostile, "num_images": 1, "num_objects": 1}
    content = robustness(
        pictures=[{**picture, "perturbation": "black"}],
        data=data,
        patch={"file": hostile, hostile: hostile},
        settings={hostile: hostile},
    )
    text = page(write(make_run(tmp_path / "ap"), content))
    assert "<script>window" not in text
    assert "&lt;script&gt;window" in text
    assert text.count("<script>") == 1  # the page's own


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rankdet_robustness": 2}, "rankdet_robustness = 2: expected 1: another version"),
        ({"perturbations": []}, "perturbations: expected 1 to 6 entries"),
        ({"perturbations": [{"name": "black", "metrics": {}}]}, "expected original first"),
        (
            {"perturbations": [{"name": "<b>", "metrics": {}}]},
            r"perturbations\[0\]\.name = '<b>': expected original or black",
        ),
        ({"deepfool": {"num_attacked": 1}}, r"deepfool\.num_detected: the field is missing"),
        ({"pictures": [{"jpeg": "x"}]}, r"pictures\[0\]\.name: the field is missing"),
    ],
)
def test_a_changed_file_is_refused_in_words(
    changes: dict[str, Any], message: str, make_run: Make, tmp_path: Path
) -> None:
    folder = write(make_run(tmp_path / "ap"), robustness(**changes))
    with pytest.raises(RankdetError, match=message) as caught:
        page(folder)
    assert "run `rankdet robustness RUN` again" in str(caught.value)


def test_a_file_that_is_not_json_is_refused(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "ap")
    (folder / "robustness.json").write_text("{")
    with pytest.raises(RankdetError, match=r"robustness\.json: this is not the JSON"):
        page(folder)
