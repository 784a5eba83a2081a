"""The site for everybody: keys, colours, narrow windows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.browser.conftest import Reader, reading
from tests.dashboard.site_world import site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

SLOW = site().cells[0].name
CELL = f"#/cell/{quote(SLOW, safe='')}"


INK = """(() => { const canvas = document.querySelector(".figure canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const wanted = getComputedStyle(document.body).color;
  for (let at = 0; at < data.length; at += 4) {
    const found = `rgb(${data[at]}, ${data[at + 1]}, ${data[at + 2]})`;
    if (data[at + 3] === 255 && found === wanted) return found;
  }
  return "rgb(128, 128, 128)"; })()"""
"""The colour of the page's text if the figure's canvas has pixels of it, else grey."""


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def themed(browser: Browser, folder: Path, scheme: str) -> Iterator[Reader]:
    yield from reading(browser, folder.as_uri(), color_scheme=scheme)


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent"))


def test_a_ticked_box_leaves_the_keys_alive(reader: Reader) -> None:
    page = reader.open("#/?metric=*")
    page.locator("#view input[type=checkbox]").first.check()
    reader.press("c")
    reader.until("location.hash.startsWith('#/compare') && location.hash.includes('s=')")


def test_the_keys_reach_everything(reader: Reader) -> None:
    page = reader.open()
    first, second = page.locator("#view a.go").all_inner_texts()[:2]
    reader.press("j")
    assert focused(page) == first
    reader.press("j")
    assert focused(page) == second
    reader.press("k", "Enter")
    reader.until("location.hash.startsWith('#/alert/')")
    reader.ready()
    assert page.evaluate("document.activeElement.tagName") == "H1"
    reader.press("b")
    reader.until("location.hash === '#/bisections'")
    reader.press("c")
    reader.until("location.hash.startsWith('#/compare')")
    reader.press("o")
    reader.until("location.hash === '#/'")
    reader.ready()
    reader.press("/")
    page.keyboard.type("jt?")
    assert page.input_value("#filter-q") == "jt?", "in a field a key is a letter"
    reader.press("Escape", "?")
    assert page.locator("dialog[open]").count() == 1
    reader.press("Escape")
    assert page.locator("dialog[open]").count() == 0


def test_brackets_turn_the_metrics(reader: Reader) -> None:
    reader.open(CELL)
    reader.press("]")
    reader.until("location.hash.endsWith('?metric=output_throughput')")
    reader.ready()
    reader.press("[")
    reader.until("!location.hash.includes('metric')")
    reader.ready()
    reader.press("[")
    reader.until("location.hash.endsWith('metric=spec_decode_acceptance_rate')")


def test_tab_reaches_every_control_and_each_has_a_name(reader: Reader) -> None:
    page = reader.open()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("a, button, input, select")].filter((node) =>
             !(node.textContent.trim() || node.getAttribute("aria-label") || (node.labels || []).length))
             .map((node) => node.outerHTML)"""
    )
    assert nameless == []
    reader.press("Tab")
    assert focused(page) == "To the content"


def luminance(colour: str) -> float:
    """Relative luminance of ``rgb(r, g, b)``, as WCAG 2.2 defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def colours(page: Page, *names: str) -> list[str]:
    found: list[str] = page.evaluate(
        """(names) => { const probe = document.createElement("i"); document.body.append(probe);
             const all = names.map((name) => { probe.style.color = `var(--${name})`;
               return getComputedStyle(probe).color; }); probe.remove(); return all; }""",
        list(names),
    )
    return found


def test_text_can_be_read_on_its_ground(themed: Reader) -> None:
    page = themed.open()
    papers = colours(page, "paper", "raised")
    for colour in colours(page, "text", "soft", "link", "worse", "better", "other"):
        assert min(contrast(colour, paper) for paper in papers) >= 4.5
    for colour in colours(page, *(f"s{i}" for i in range(8)), "level"):
        assert contrast(colour, papers[0]) >= 3


def test_worse_and_better_stay_apart_without_colours(themed: Reader) -> None:
    page = themed.open("#/?list=better")
    assert "better" in page.inner_text("table.events tbody tr")
    marks = page.locator("table.cells a.mark").all_inner_texts()
    assert marks
    assert all(re.search(r"worse|better|night|instrument", mark) for mark in marks)


def test_the_theme_is_that_of_the_system_until_another_is_chosen(themed: Reader, scheme: str) -> None:
    page = themed.open(CELL)
    text = "getComputedStyle(document.body).backgroundColor"
    assert (luminance(page.evaluate(text)) > 0.5) is (scheme == "light")
    assert (luminance(page.evaluate(INK)) < 0.2) is (scheme == "light"), "the figure follows"
    wanted = "dark" if scheme == "light" else "light"
    while f"Colours: {wanted}" != page.inner_text("#theme"):
        themed.press("t")
    themed.ready()
    assert (luminance(page.evaluate(text)) > 0.5) is (wanted == "light")
    assert (luminance(page.evaluate(INK)) < 0.2) is (wanted == "light")
    page.reload()
    themed.ready()
    assert (luminance(page.evaluate(text)) > 0.5) is (wanted == "light"), "it is kept"


@pytest.mark.parametrize("address", ["#/", CELL, "#/compare", "#/bisections"])
def test_a_narrow_window_is_enough(reader: Reader, address: str) -> None:
    reader.page.set_viewport_size({"width": 390, "height": 800})
    page = reader.open(address)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_phone_shows_an_alert_as_a_card_below_folded_filters(reader: Reader) -> None:
    reader.page.set_viewport_size({"width": 390, "height": 844})
    page = reader.open("#/")
    card = page.locator("table.events tbody tr").first
    box = card.bounding_box()
    assert box and box["y"] < 422 and box["x"] + box["width"] <= 390, "in the upper half, whole"
    right = """(row) => { const range = document.createRange(); range.selectNodeContents(row);
        return Math.max(...[...range.getClientRects()].map((box) => box.right)); }"""
    assert card.evaluate(right) <= 390, "nothing of it is cut"
    assert "95 %: +29.0 % to +33.0 %" in card.inner_text()
    assert not page.is_visible("#filter-q")
    reader.press("/")
    page.keyboard.type("tts", delay=5)
    reader.until("location.hash === '#/?q=tts'")
    reader.ready()
    assert page.input_value("#filter-q") == "tts" and page.is_visible("#filter-q"), (
        "they stay open while used"
    )
    assert page.inner_text("#fold") == "Filters (1 set)"
    page.set_viewport_size({"width": 1280, "height": 900})
    reader.until("document.querySelector('details.fold').open")
    assert page.is_visible("#filter-q") and not page.is_visible("#fold")
