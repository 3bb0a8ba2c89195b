"""The site: built strictly, complete, and without anything from elsewhere."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from rankdet.recipes import RECIPES

# What is public: the names in these modules' __all__.
PUBLIC = ("rankdet", "rankdet.losses", "rankdet.data", "rankdet.config")
# Lists of names, which the descriptions of the settings have, and a helper for messages.
INTERNAL = {"BACKBONE_NAMES", "DETECTOR_NAMES", "FORMAT_NAMES", "LOSS_NAMES", "closest"}


def directives(root: Path) -> list[str]:
    """The names of which the API pages are made."""
    text = "\n".join(path.read_text() for path in (root / "docs" / "api").glob("*.md"))
    return re.findall(r"^::: (\S+)$", text, re.MULTILINE)


def found(name: str) -> Any:
    """What a full name means: a module, or something in one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module: str, root: Path) -> None:
    documented = {name: found(name) for name in directives(root)}
    index = (root / "docs" / "api" / "index.md").read_text()
    for name in set(importlib.import_module(module).__all__) - INTERNAL:
        value = getattr(importlib.import_module(module), name)
        same = [full for full in documented if full.endswith(f".{name}")]
        is_there = any(documented[full] is value for full in same)
        is_named = module == "rankdet" and re.search(rf"`(rankdet\.)?{name}`", index)
        assert is_there or is_named, f"{module}.{name} is in no page of docs/api"


def test_every_recipe_is_in_the_reference(root: Path) -> None:
    documented = [found(name) for name in directives(root) if name.startswith("rankdet.recipes")]
    assert set(RECIPES.values()) <= set(documented)


def test_nothing_is_documented_twice(root: Path) -> None:
    names = directives(root)
    assert len(names) == len(set(names)) > 50


def html_files(site: Path) -> list[Path]:
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


def test_every_page_is_in_the_navigation_and_built(site: Path, pages: list[Any]) -> None:
    index = (site / "index.html").read_text()
    for page in pages:
        if page.name != "README.md":
            built = Path(page.name).relative_to("docs").with_suffix(".html")
            assert (site / built).is_file(), built
            assert f'href="{built.as_posix()}"' in index or f'href="./{built.as_posix()}"' in index


def test_links_of_the_site_are_inside_of_it(site: Path) -> None:
    for file in html_files(site):
        for target in re.findall(r'href="([^"#?]+)', file.read_text()):
            if not re.match(r"[a-z]+:", target):
                assert (file.parent / target).exists(), f"{file.name}: {target}"


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    for file in html_files(site):
        text = file.read_text()
        for tag in re.findall(r"<(?:script|link|img|iframe|source|video)\b[^>]*>", text):
            assert not re.search(r"""(?:src|href|srcset)=["']?(?:https?:)?//""", tag), tag
        assert "@import" not in text
    for file in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import\s)[\"']?(?:https?:)?//", file.read_text()), file


def test_search_without_a_server_uses_our_own_script(site: Path) -> None:
    assert (site / "search.js").read_text().startswith("var __index")
    assert 'src="./javascripts/iframe-worker.js"' in (site / "index.html").read_text()


def test_every_name_of_the_reference_has_a_place_in_the_site(site: Path, root: Path) -> None:
    text = "".join(file.read_text() for file in (site / "api").glob("*.html"))
    for name in directives(root):
        assert f'id="{name}"' in text, name


def test_classes_of_the_reference_say_what_they_take(site: Path) -> None:
    text = re.sub("<[^>]+>", "", (site / "api" / "losses.html").read_text())
    assert "APLoss(\n    delta: float = 1.0,\n" in text


def test_examples_in_docstrings_are_code(site: Path) -> None:
    text = (site / "api" / "losses.html").read_text()
    assert "&gt;&gt;&gt; " in text
    assert "<blockquote>" not in text


def test_formulas_are_drawn_by_the_browser(site: Path) -> None:
    text = (site / "losses.html").read_text()
    assert text.count("<math ") > 3
    assert "$$" not in text
    assert "\\frac" not in text


def test_a_formula_becomes_mathml_and_a_wrong_one_is_an_error(root: Path) -> None:
    markdown = pytest.importorskip("markdown")
    pytest.importorskip("latex2mathml")
    sys.path.insert(0, str(root))
    try:
        from docs_extensions.doctests import Doctests
        from docs_extensions.mathml import MathML, to_mathml
    finally:
        sys.path.remove(str(root))

    def html(text: str) -> str:
        return str(markdown.markdown(text, extensions=[MathML(), Doctests(), "fenced_code"]))

    assert "<msub><mi>x</mi><mi>i</mi></msub>" in html("the score $x_i$ of $a$")
    assert html("$a_1$ and $b_2$").count("<math") == 2
    assert 'display="block"' in html("before\n\n$$\nx < y\n$$\n\nafter")
    assert "<math" not in html("costs \\$5 or \\$6, `$x$`, 5 $ and 6 $")
    assert html("costs \\$5") == "<p>costs $5</p>"
    for wrong in (r"\nosuch{x}", r"\frac{1}{2", r"\left( x"):
        with pytest.raises(Exception, match=r"formula|^$"):
            to_mathml(wrong)
    assert "<code" in html("text\n>>> 1 + 1\n2\n\nafter")
    assert "<p>after</p>" in html("text\n>>> 1 + 1\n2\n\nafter")
    assert "blockquote" in html("> a quotation")
