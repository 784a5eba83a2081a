"""Reports in a real browser, opened from disk: a flame graph and a diff without scripts, and figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfbisect.bisect.report import build_report
from perfbisect.bisect.result import BisectResult
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


@pytest.fixture
def drawn(browser: Browser, tmp_path: Path, rich: BisectResult) -> Iterator[Page]:
    """The page of a bisection, opened from disk in a dark window."""
    target = tmp_path / "report.html"
    target.write_text(report_html(build_report(rich)), encoding="utf-8")
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="dark")
    made = context.new_page()
    complaints: list[str] = []
    made.on("console", lambda message: complaints.append(message.text))
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.goto(target.as_uri())
    yield made
    assert complaints == []
    context.close()


DRAWN = "document.getElementById('by-commit').drawn"


def test_every_launch_and_run_is_drawn_and_a_name_of_the_legend_hides_its_own(
    drawn: Page, rich: BisectResult
) -> None:
    runs = sum(len(x.values) for x in rich.launches if len(x.values) > 1)
    ended = [x for x in rich.launches if x.outcome in ("measured", "failed", "abandoned")]
    count = runs + len(ended) + len(rich.skips)
    assert drawn.evaluate(f"{DRAWN}.count()") == count
    failed = drawn.get_by_role("button", name="failed", exact=True).first
    assert failed.get_attribute("aria-pressed") == "true"
    failed.click()
    assert failed.get_attribute("aria-pressed") == "false"
    hidden = sum(x.outcome == "failed" for x in ended)
    assert drawn.evaluate(f"{DRAWN}.count()") == count - hidden
    failed.press("Enter")
    assert drawn.evaluate(f"{DRAWN}.count()") == count


def test_a_mark_under_the_pointer_is_told_as_text(drawn: Page, rich: BisectResult) -> None:
    panel = drawn.locator("#by-commit .u-over").nth(1)
    drawn.evaluate(f"{DRAWN}.tell(1, {DRAWN}.plot.panels[1].traces.findIndex((x) => x.name === 'failed'), 0)")
    told = drawn.locator("#by-commit .told")
    failed = next(x for x in rich.launches if x.outcome == "failed")
    assert told.locator("div").first.inner_text().startswith(f"#{failed.number} ")
    assert told.locator("*:not(div)").count() == 0
    panel.hover(position={"x": 2, "y": 2})
    assert not told.is_visible(), "nothing is near"


def test_what_is_dragged_is_enlarged_in_both_panels_and_comes_back(drawn: Page) -> None:
    box = drawn.locator("#by-commit .u-over").first.bounding_box()
    assert box is not None
    whole = drawn.evaluate(f"{DRAWN}.count()")
    drawn.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 40)
    drawn.mouse.down()
    drawn.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 42, steps=3)
    drawn.mouse.up()
    assert 0 < drawn.evaluate(f"{DRAWN}.count()") < whole, "marks are in the other panel"
    drawn.mouse.dblclick(box["x"] + 0.5 * box["width"], box["y"] + 40)
    assert drawn.evaluate(f"{DRAWN}.count()") == whole
