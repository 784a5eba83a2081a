"""The site in a real browser, opened from disk: what it shows, loads, keeps and refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from perfbisect.bisect.result import BisectResult
from perfbisect.common.quantities import moment
from perfbisect.common.text import line
from perfbisect.dashboard.build import write_site
from perfbisect.dashboard.pages import page_of
from tests.browser.conftest import Reader
from tests.dashboard.site_world import HARM, alert, cell, large, sha, site

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parent.parent.parent

DOCUMENT = site()
SLOW, SLOW_TOO, FAST = DOCUMENT.cells[0].name, DOCUMENT.cells[1].name, DOCUMENT.cells[2].name
NOTED, SHORT = DOCUMENT.cells[6].name, DOCUMENT.cells[7].name

TOLD = "document.querySelector('.figure').drawn.told()"
"""What the figure says at the pointer."""


def at(view: str, name: str, query: str = "") -> str:
    return f"#/{view}/{quote(line(name, 8000), safe='')}{query and '?' + query}"


def series(*chosen: tuple[str, str]) -> str:
    return "#/compare?" + "&".join(f"s={quote(f'{name}|{metric}', safe='')}" for name, metric in chosen)


def shown(page: Page, selector: str) -> list[str]:
    return [" ".join(text.split()) for text in page.locator(selector).all_inner_texts()]


def figure(page: Page) -> tuple[list[dict[str, Any]], int]:
    """The panels of the figure, and how many marks were drawn."""
    panels, count = page.evaluate(
        """(() => { const { drawn } = document.querySelector(".figure");
             return [drawn.plot.panels, drawn.count()]; })()"""
    )
    return panels, count


def test_the_overview_opens_from_disk_and_asks_nobody(reader: Reader, folder: Path) -> None:
    page = reader.open()
    assert page.title() == "Nightly performance"
    assert reader.complaints == []
    own = folder.as_uri() + "/"
    asked = {url.removeprefix(own) for url in reader.asked if url != "about:blank"}
    assert asked == {"index.html", "assets/theme.js", "assets/site.css", "assets/app.js", "data/site.js"}


def test_what_is_wrong_stands_first_by_size_and_certainty(reader: Reader) -> None:
    page = reader.open()
    rows = shown(page, "table.events tbody tr")
    assert [row.split("_")[0].split()[-1] for row in rows[:2]] == ["text", "omni"]
    assert len(rows) == 3
    assert "+31.0 % worse" in rows[0], "what its cell is read by, though another metric moved by more"
    assert "and 2 more alerts in 2 cells" in rows[0]
    assert "0.99 060606060606" in rows[0], "the commit that a bisection named"
    assert "drift" in rows[1]
    counts = [text.rsplit(" ", 1) for text in shown(page, "nav.tabs a")]
    assert [[name, int(count)] for name, count in counts] == [
        ["Wrong now", 3],
        ["Better", 1],
        ["Not the product", 2],
        ["Silent", 1],
        ["Over", 1],
        ["Acknowledged", 1],
        ["Closed", 0],
    ]
    assert any("no result since 2026-01-06" in row for row in shown(page, "table.cells tbody tr"))


def test_an_alert_with_which_a_series_ends_says_so(reader: Reader, tmp_path: Path) -> None:
    """Nobody knows whether it is still so; of one that goes on nothing is said."""
    ended, going = cell(0, 86, moved=1.5, at=58), cell(1, 90, moved=1.5, at=58)
    silent, quiet = cell(2, 60, moved=1.5, at=58), cell(4, 60)
    alerts = tuple(
        alert(one, "ttft", 58, 0.5 - 0.1 * i, event=one.name) for i, one in enumerate((ended, going, silent))
    )
    cells = (ended, going, silent, quiet)
    write_site(replace(DOCUMENT, cells=cells, alerts=alerts, suspects=()), tmp_path)
    reader.base = tmp_path.as_uri()
    rows = shown(reader.open(), "table.events tbody tr")
    assert ["no result since 2026-03-27" in row for row in rows] == [True, False]
    page = reader.follow("nav.tabs a:has-text('Silent')")
    (row,) = shown(page, "table.events tbody tr")
    assert silent.name in row and "no result since 2026-03-01" in row
    assert shown(page, "ul.quiet li") == [f"{quiet.name} no result since 2026-03-01"]


def test_filters_stand_in_the_address_and_come_back_from_it(reader: Reader) -> None:
    page = reader.open()
    page.select_option("#filter-family", "text")
    reader.until("location.hash === '#/?family=text'")
    reader.ready()
    assert {row.split("_")[0] for row in shown(page, "table.cells tbody a.go")} == {"text"}
    page.select_option("#filter-load", "c16")
    reader.until("location.hash === '#/?family=text&load=c16'")
    reader.ready()
    assert shown(page, "table.cells tbody a.go") == [SLOW_TOO]
    assert len(shown(page, "table.events tbody tr")) == 1
    address = page.url.split("index.html")[1]
    page = reader.open(address)
    assert shown(page, "table.cells tbody a.go") == [SLOW_TOO]
    assert page.input_value("#filter-family") == "text"
    page.click("text=Clear")
    reader.until("document.querySelectorAll('table.cells tbody tr').length === 9")
    page.focus("#filter-q")
    page.keyboard.type("tts c64", delay=5)
    reader.until("document.querySelectorAll('table.cells tbody tr').length === 1")
    assert page.evaluate("document.activeElement.id") == "filter-q", "typing goes on"
    page.select_option("#filter-metric", "*")
    reader.until("document.querySelectorAll('table.cells tbody tr').length === 3")


def test_the_machine_is_a_filter_of_the_address_too(reader: Reader) -> None:
    page = reader.open("#/?machine=L40S")
    mine = {one.name for one in DOCUMENT.cells if one.machine == "L40S"}
    assert set(shown(page, "table.cells tbody a.go")) == mine < {one.name for one in DOCUMENT.cells}
    page.select_option("#filter-machine", "2 x H100")
    reader.until("location.hash === '#/?machine=2+x+H100'")
    reader.ready()
    assert set(shown(page, "table.cells tbody a.go")) == {
        one.name for one in DOCUMENT.cells if one.machine == "2 x H100"
    }


def test_a_cell_shows_its_series_alerts_suspects_and_bisections(reader: Reader, rich: BisectResult) -> None:
    page = reader.open()
    before = set(reader.asked)
    page = reader.follow(f"table.cells a.go:text-is('{SLOW}')")
    loaded = {Path(url).name.split("-")[0] for url in set(reader.asked) - before if url.startswith("file:")}
    assert loaded == {"plots.js", "cell", "event"}, "what belongs to a cell is read when it is opened"
    (panel,), count = figure(page)
    values = [value for value in DOCUMENT.cells[0].series[0].values if value is not None]
    (trace,) = panel["traces"]
    assert trace["y"] == pytest.approx(values, rel=1e-5)
    assert count == len(values)
    assert [rule.get("above") for rule in panel["rules"]] == ["1 ▲ +22.0 %"]
    told = trace["told"][5]
    assert "build nightly#6005" in told[1]
    assert told[2] == f"commit {sha(5)[:12]}"
    times = [moment(point.time).timestamp() for point in DOCUMENT.cells[0].points]
    (band,) = [box for box in panel["boxes"] if "y0" not in box]
    assert (band["x0"], band["x1"]) == (times[58], times[61]), "from the point before the places to the last"
    assert [level["value"] for level in panel["levels"]] == pytest.approx([120, 146.4])
    text = " ".join(shown(page, "#view"))
    for expected in (
        "+22.0 % worse",
        "95 % interval +20.0 % to +24.0 %",
        "it stayed for 12 nights, each on a fresh machine",
        "[Log] Wire stat loggers (#2551)",
        "2 servers that were hit run async_chunk, none of the 3 others does",
        f"By bisection {rich.job}.",
        "2 further commits",
    ):
        assert expected in text, expected
    assert "perfbisect bisect" not in text, "what was measured is not to be bisected again"
    assert shown(page, "table.suspects tbody tr")[0].startswith("0.85")
    assert reader.complaints == []


def test_marks_that_are_no_alarms_are_there_too(reader: Reader) -> None:
    (panel, beside), _ = figure(reader.open(at("cell", NOTED, "beside=warmups")))
    notes = [rule["below"] for rule in panel["rules"] if rule.get("below")]
    assert notes == ["warm-ups 0 -> 2", "longer prompts"]
    assert beside["traces"][0]["y"] == [0] * 30 + [2] * 60
    text = " ".join(shown(reader.page, "#view"))
    assert "Seen, and not alarmed" in text
    assert "No alert in this series." in text
    reader.open(at("cell", SHORT))
    assert "Not judged: 6 nights: steps under 20 % cannot be seen" in " ".join(shown(reader.page, "#view"))


def test_the_arrow_keys_walk_through_the_points(reader: Reader) -> None:
    page = reader.open(at("cell", SLOW))
    reader.press("f", "Home", "ArrowRight")
    value = DOCUMENT.cells[0].series[0].values[1]
    assert page.inner_text("#said") == f"2026-01-02 19:00 UTC: {value:.1f} ms, build nightly#6001"
    assert "nightly#6001" in shown(page, ".reading")[0]
    assert "duration (other)" in shown(page, ".reading")[0]
    reader.until(f"{TOLD}.includes('nightly#6001')")
    reader.press("End")
    assert "nightly#6089" in shown(page, ".reading")[0]


def test_pointing_at_a_point_tells_its_build(reader: Reader) -> None:
    page = reader.open(at("cell", SLOW))
    reader.press("f", "Home", "ArrowRight", "ArrowRight", "ArrowRight")
    box = page.locator(".figure .ring").bounding_box()
    assert box
    page.mouse.move(box["x"] - 200, box["y"])
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    reader.until(f"{TOLD}.includes('nightly#6003')")
    assert "nightly#6003" in shown(page, ".reading")[0]


def test_an_alert_has_a_page_with_all_of_its_cause(reader: Reader) -> None:
    page = reader.open()
    page = reader.follow("table.events a.go")
    assert page.inner_text("h1") == "time to first token: +31.0 %"
    assert "nightly#6060" in shown(page, ".reading")[0], "the point where it began"
    assert len(shown(page, "table.events tbody tr")) == 3
    assert len(shown(page, "table.events tbody tr.this")) == 1
    assert "0.85" in shown(page, "table.suspects tbody tr")[0], "the suspects of its event"
    assert any(text.startswith("Ranked for alert") for text in shown(page, "section.alert p"))
    page = reader.follow("a.button")
    assert len(figure(page)[0][0]["traces"]) == 3


def test_series_of_unlike_units_are_compared_by_their_change(reader: Reader) -> None:
    page = reader.open(series((SLOW, "ttft"), (FAST, "ttft"), (SLOW, "output_throughput")) + "&as=value")
    traces = figure(page)[0][0]["traces"]
    assert [round(trace["y"][-1] / 10) for trace in traces] == [3, -1, -2], "22, -15, -18 %, and noise"
    looks = {(trace["symbol"], trace["line"]) for trace in traces}
    assert len(looks) == 3, "apart without colours"
    page.click("button[aria-label^='Remove']")
    reader.until("document.querySelectorAll('#view tbody tr').length === 2")
    page.select_option("#add-cell", SLOW_TOO)
    reader.until("location.hash.includes('cell=')")
    reader.ready()
    page.click("#add:not([disabled])")
    reader.until("document.querySelectorAll('#view tbody tr').length === 3")
    same = reader.open(series((SLOW, "ttft"), (FAST, "ttft")) + "&as=value")
    assert figure(same)[0][0]["traces"][0]["y"][0] == pytest.approx(
        DOCUMENT.cells[0].series[0].values[0], rel=1e-5
    )


def test_rows_that_are_ticked_are_compared(reader: Reader) -> None:
    page = reader.open()
    for name in (SLOW, FAST):
        page.check(f"input[aria-label='compare {name}, ttft']")
    assert page.inner_text("#compare-picked") == "Compare (2)"
    page = reader.follow("#compare-picked")
    assert shown(page, "#view tbody a.go") == [SLOW, FAST]


def test_a_bisection_has_its_own_page(reader: Reader, rich: BisectResult, folder: Path) -> None:
    page = reader.open("#/bisections")
    page.click(f"a:text-is('{rich.job}')")
    page.wait_for_selector("#by-commit canvas")
    assert page.url == f"{folder.as_uri()}/{page_of(rich)}"
    assert page.locator(".figure canvas").count() == 5, "two panels by commit and by time, and the pairs"
    assert reader.complaints == []
    page.click("text=To the overview")
    reader.ready()
    assert page.inner_text("h1") == "Bisections"


@pytest.mark.parametrize("address", ["#/", at("cell", HARM), at("alert", HARM), series((HARM, "ttft"))])
def test_text_of_others_is_text(reader: Reader, address: str) -> None:
    page = reader.open(address)
    assert page.evaluate("window.harmed") is None
    assert page.locator("#view script, #view img, #view iframe, #view object").count() == 0
    assert page.locator("a[href^='javascript']").count() == 0
    assert "</script><script>window.harmed=1</script>" in " ".join(shown(page, "#view"))
    assert "\u202e" not in page.inner_text("#view")
    assert reader.complaints == []


def test_a_build_under_the_pointer_is_text(reader: Reader) -> None:
    page = reader.open(at("cell", HARM))
    reader.press("f", "Home", "ArrowRight")
    reader.until(f"{TOLD}.includes('</script><script>window.harmed=1')")
    assert page.locator(".figure .told").locator("a, img, script").count() == 0
    assert page.evaluate("window.harmed") is None


@pytest.mark.parametrize("address", ["#/cell/nothing", "#/nowhere", "#/alert/%E0%A4%A", "#/constructor"])
def test_an_address_of_nothing_is_told(reader: Reader, address: str) -> None:
    page = reader.open(address)
    assert page.inner_text("h1") == "This cannot be shown"
    page = reader.follow("text=To the overview")
    assert page.inner_text("h1") == "What is wrong now"


def test_a_file_that_is_missing_is_told(reader: Reader, rich: BisectResult, tmp_path: Path) -> None:
    write_site(site(rich), tmp_path)
    for path in (tmp_path / "data").glob("cell-*.js"):
        path.unlink()
    reader.base = tmp_path.as_uri()
    page = reader.open(at("cell", SLOW))
    assert re.search(r"data/cell-\w+\.js cannot be read", page.inner_text("#view"))


def test_it_works_on_a_web_host(hosted: Reader, rich: BisectResult) -> None:
    page = hosted.open()
    page = hosted.follow(f"table.cells a.go:text-is('{SLOW}')")
    assert figure(page)[1] == 87
    page.goto(f"{hosted.base}/{page_of(rich)}")
    page.wait_for_selector("#by-commit canvas")
    assert hosted.complaints == []
    hosts = {url.split("/")[2] for url in hosted.asked if url.startswith("http")}
    assert hosts == {hosted.base.split("/")[2]}


def test_what_the_first_page_lacks_is_read_when_it_is_shown(reader: Reader) -> None:
    page = reader.open()
    assert not any("metric-" in url for url in reader.asked)
    page.select_option("#filter-metric", "output_throughput")
    reader.until("location.hash === '#/?metric=output_throughput'")
    reader.ready()
    assert len([url for url in reader.asked if "metric-" in url]) == 1
    assert page.locator("table.cells svg.curve path.line").count() == len(DOCUMENT.cells)
    page = reader.open(series((SLOW, "output_throughput")))
    assert page.locator("#view table svg.curve path.line").count() == 1
    page.locator("#view h1").wait_for()
    reader.open(at("alert", line(DOCUMENT.alerts[0].id, 8000)))
    assert reader.page.locator("table.events svg.curve path.line").count() == 3
    assert reader.complaints == []


def test_300_series_are_all_there(reader: Reader, tmp_path: Path) -> None:
    write_site(large(100, 60), tmp_path)
    reader.base = tmp_path.as_uri()
    page = reader.open("#/?metric=*")
    assert page.locator("table.cells tbody tr").count() == 300
    assert page.locator("table.cells svg.curve path.line").count() == 300
    assert reader.complaints == []


def test_the_script_that_measures_a_site_prints_every_figure() -> None:
    sizes = ("--cells", "4", "--nights", "40", "--repeat", "1")
    command = (sys.executable, "-m", "scripts.bench_site", *sizes)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = dict(row.split("  ", 1) for row in done.stdout.splitlines())
    assert rows["site"].strip().startswith("12 series of 40 points")
    assert rows["first page"].strip().endswith("kB of 500 kB allowed")
    for name in ("overview drawn", "all series drawn", "first cell drawn", "another cell"):
        assert float(rows[name].split()[0]) > 0
