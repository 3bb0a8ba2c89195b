"""The site in a real browser, opened from the disk: it fits, fetches nothing, and searches."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

PAGES = (
    "index.html",
    "quickstart.html",
    "losses.html",
    "reproducing.html",
    "results.html",
    "api/losses.html",
)


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_and_fetch_nothing(browser: Any, site: Path, width: int, scheme: str) -> None:
    for name in PAGES:
        page = browser.open(site / name, width=width, scheme=scheme)
        assert page.complaints() == [], name
        assert [at for at in page.requests() if not at.startswith(("file:", "data:"))] == []
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width, name
        assert page.evaluate("innerWidth") == width, name
        assert page.evaluate("document.body.dataset.mdColorScheme") == (
            "slate" if scheme == "dark" else "default"
        )


def test_formulas_are_laid_out(browser: Any, site: Path) -> None:
    page = browser.open(site / "losses.html")
    found = "[...document.querySelectorAll('.formula math')]"
    heights = page.evaluate(f"{found}.map(at => at.getBoundingClientRect().height)")
    assert len(heights) > 2
    assert min(heights) > 15
    assert max(heights) > 30  # a fraction takes two lines


def test_search_finds_a_function_without_a_server(browser: Any, site: Path) -> None:
    page = browser.open(site / "index.html")
    page.click(".md-search__button")
    wait_for(page, "document.activeElement.shadowRoot?.activeElement?.matches('input')")
    page.call("Input.insertText", text="smooth_ap_loss")
    first = "document.activeElement.shadowRoot?.querySelector('[role=option]')?.href"
    wait_for(page, first)
    assert page.evaluate(first).endswith("#rankdet.losses.smooth_ap_loss")
    assert (site / "api" / "losses.html").as_uri() in page.evaluate(first)
    assert page.complaints() == []


def wait_for(page: Any, condition: str) -> None:
    """Come back when the JavaScript expression is true."""
    deadline = time.monotonic() + 20
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"not in 20 s: {condition}"
        time.sleep(0.05)
