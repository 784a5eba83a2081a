"""A flame graph and a diff in a real browser, opened from disk without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfbisect.report.diffs import DiffFileDocument, DiffLineDocument
from perfbisect.report.document import FileLines, FlameGraph, Report, Verdict
from perfbisect.report.flames import FlameDocument, flame_boxes
from perfbisect.report.html import report_html
from tests.report.test_flames import HOSTILE, frame, root

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

TREE: FlameDocument = root(
    frame("grew", 2, 9, frame("leaf", 1, 8), frame("x" * 300, 1, 1)), frame("less", 6, 3), HOSTILE, own=2
)
LINES = (
    DiffLineDocument(sign="-", number=3, content="\treturn 1"),
    DiffLineDocument(sign="+", number=3, content="\treturn '<b>' + " + "a" * 300, marked=True),
)
FILE = DiffFileDocument(path="a.c", old_path="a.c", state="changed", binary=False, hunks=(LINES,))


@pytest.fixture(params=[("light", 1200), ("dark", 480)], ids=lambda param: param[0])
def page(browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    scheme, width = request.param
    target = tmp_path / "report.html"
    report = Report("t", Verdict("v"), (FlameGraph("A caption", TREE), FileLines(FILE)))
    target.write_text(report_html(report), encoding="utf-8")
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=False
    )
    made = context.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    made.on("request", lambda found: asked.append(found.url))
    made.on("console", lambda message: complaints.append(message.text))
    made.goto(target.as_uri())
    yield made
    assert (asked, complaints) == ([target.as_uri()], [])
    context.close()


def test_frames_are_as_wide_as_their_time(page: Page) -> None:
    whole = page.locator("svg.flames").bounding_box()
    assert whole is not None
    boxes = flame_boxes(TREE)
    drawn = page.locator("svg.flames > svg")
    assert drawn.count() == len(boxes)
    for index, box in enumerate(boxes):
        at = drawn.nth(index).locator("rect").bounding_box()
        assert at is not None
        assert at["x"] - whole["x"] == pytest.approx(box.left * whole["width"], abs=2)
        assert at["width"] == pytest.approx(box.width * whole["width"], abs=2)
        assert drawn.nth(index).locator("title").text_content() == box.frame.description.replace(
            "\x1b", r"\x1b"
        )


def test_shades_have_colours(page: Page) -> None:
    boxes = flame_boxes(TREE)
    fills = {
        box.shade: page.locator("svg.flames > svg rect").nth(index).evaluate("e => getComputedStyle(e).fill")
        for index, box in enumerate(boxes)
    }
    assert len(set(fills.values())) == len(fills) > 2


def test_the_page_is_no_wider_than_its_window(page: Page) -> None:
    size = page.viewport_size
    assert size is not None
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert page.locator("table.diff tr.marked td.mark").all_inner_texts() == [">"]
    assert page.locator("table.diff td.text").first.inner_text() == "    return 1"
