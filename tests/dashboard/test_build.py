"""The files of a site: whole, small and harmless, with events in the right order."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfbisect.bisect.result import BisectResult
from perfbisect.commands.outcomes import SiteBisection
from perfbisect.dashboard.build import write_site
from perfbisect.dashboard.pages import (
    EventKind,
    cell_payload,
    curve,
    event_payload,
    events,
    harmless,
    kind,
    overview,
    packed,
    page_of,
    weight,
)
from perfbisect.errors import MachineError, UsageError
from perfbisect.report.html import embedded_json, plot_script
from perfbisect.resources import shipped_folder
from tests.dashboard.site_world import ACCEPTED, HARM, METRICS, TTFT, alert, cell, large, series, site
from tests.fixtures.reports import narrow

DASHBOARDS = shipped_folder("dashboards")
ACTS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")


def payload(path: Path) -> tuple[str, Any]:
    """What a data file puts, and its key, read as a browser reads a string of a script."""
    found = re.fullmatch(r"perfbisect\.put\('([^']*)',JSON\.parse\('(.*)'\)\);\n", path.read_text("ascii"))
    assert found, path
    assert not re.search(r"(?<!\\)(?:\\\\)*'", found[2]), "the string ends early"
    return found[1], unpacked(json.loads(re.sub(r"\\(['\\])", r"\1", found[2])))


def unpacked(value: Any) -> Any:
    """Tables as lists of objects, as a page reads them."""
    if isinstance(value, dict) and list(value) == ["names", "rows"]:
        return [dict(zip(value["names"], map(unpacked, row), strict=True)) for row in value["rows"]]
    if isinstance(value, dict):
        return {name: unpacked(item) for name, item in value.items()}
    return [unpacked(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def folder(tmp_path: Path, rich: BisectResult) -> Path:
    write_site(site(rich), tmp_path / "out")
    return tmp_path / "out"


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_all_that_a_page_reads_is_there(folder: Path) -> None:
    key, first = payload(folder / "data" / "site.js")
    assert key == "site"
    files = [one["file"] for one in (*first["cells"], *first["events"], *first["measures"]) if one["file"]]
    assert len(files) == 9 + 8 + 2, "the headline of all cells is on the first page"
    for name in files:
        assert payload(folder / "data" / name)[0] == name
    assert {name for name in names(folder) if name.startswith("data/")} == {
        "data/site.js",
        *(f"data/{name}" for name in files),
    }
    page = (folder / "index.html").read_text()
    for source in re.findall(r'(?:src|href)="([^#"]+)"', page):
        assert (folder / source).is_file(), source
    assert (folder / "plots.js").read_text() == plot_script()


def test_every_script_that_is_shipped_is_in_the_page(folder: Path) -> None:
    app = (folder / "assets" / "app.js").read_text()
    for path in (DASHBOARDS / "js").iterdir():
        assert path.name == "theme.js" or path.read_text() in app


def test_no_file_holds_markup_or_acting_characters_of_others(folder: Path) -> None:
    for path in (folder / "data").iterdir():
        text = path.read_text("ascii")
        assert not set(text) & set("<>&"), path
        assert text.count("\n") == 1
        for shown in texts(payload(path)[1]):
            assert not ACTS.search(shown), path
    _, first = payload(folder / "data" / "site.js")
    assert any("<script>window.harmed=1</script>" in cell["name"] for cell in first["cells"]), "as text"


def texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for item in items for text in texts(item)]


def test_only_addresses_of_the_web_are_kept(folder: Path) -> None:
    urls = [
        url
        for path in (folder / "data").glob("cell-*.js")
        for url in payload(path)[1]["points"]["url"]
        if url
    ]
    assert urls
    assert {url.split(":")[0] for url in urls} == {"https"}


@pytest.mark.processes
def test_the_first_page_of_300_series_is_small(tmp_path: Path) -> None:
    document = large(100, 365)
    assert sum(len(one.series) for one in document.cells) == 300
    found = write_site(document, tmp_path)
    read = ["index.html", "assets/app.js", "assets/theme.js", "assets/site.css", "data/site.js"]
    assert found.first_page == sum((tmp_path / name).stat().st_size for name in read) < 500_000
    assert found.all == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())


def test_a_cell_adds_few_bytes_to_the_first_page_whatever_its_metrics() -> None:
    """A thousand cells fit 0.5 MB beside scripts and alerts."""

    def size(cells: int) -> int:
        document = replace(large(cells, 32), alerts=(), suspects=())
        files = {one.name: f"cell-{0:016x}.js" for one in document.cells}
        return len(embedded_json(packed(overview(document, files, {}, {}))))

    assert (size(60) - size(20)) / 40 < 320


def test_every_series_is_on_the_first_page_or_in_the_file_of_its_metric(folder: Path) -> None:
    _, first = payload(folder / "data" / "site.js")
    here = {(row["cell"], row["measure"]) for row in first["series"]}
    there = {
        (row["cell"], row["measure"]): at
        for at, one in enumerate(first["measures"])
        if one["file"]
        for row in payload(folder / "data" / one["file"])[1]["series"]
    }
    assert all(measure == at for (_, measure), at in there.items())
    assert not here & set(there)
    assert here | set(there) == {(i, at) for i, one in enumerate(first["cells"]) for at in one["metrics"]}
    names = [one["name"] for one in first["measures"]]
    leads = {(event["alerts"][0]["cell"], event["alerts"][0]["metric"]) for event in first["events"]}
    headlines = {(i, one["headline"]) for i, one in enumerate(first["cells"])}
    assert {(i, names[at]) for i, at in here} == leads | headlines


def test_building_again_changes_nothing_and_leaves_what_is_not_ours(folder: Path, rich: BisectResult) -> None:
    before = {name: (folder / name).read_bytes() for name in names(folder)}
    (folder / "CNAME").write_text("mine")
    (folder / "data" / "mine.js").write_text("mine")
    write_site(site(rich), folder)
    assert {
        name: (folder / name).read_bytes() for name in names(folder) - {"CNAME", "data/mine.js"}
    } == before
    write_site(replace(site(rich), cells=(), alerts=(), suspects=()), folder)
    assert {name for name in names(folder) if name.startswith("data/")} == {"data/site.js", "data/mine.js"}
    assert (folder / "CNAME").read_text() == "mine"


def test_a_page_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<title>mine</title>")
    with pytest.raises(UsageError, match="not a page of perfbisect"):
        write_site(site(), tmp_path)
    assert names(tmp_path) == {"index.html"}
    assert (tmp_path / "index.html").read_text() == "<title>mine</title>"


def test_a_place_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        write_site(site(), tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be written"):
        write_site(site(), tmp_path / "file" / "below")


def test_a_disk_that_fails_leaves_the_old_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: (folder / name).read_bytes() for name in names(folder)}
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.name.startswith(".site.js"):
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(MachineError, match="No space left"):
        write_site(large(4, 40), folder)
    after = {name: (folder / name).read_bytes() for name in before}
    assert after == before


def test_a_bisection_has_a_page_that_shares_the_plotting_script(folder: Path, rich: BisectResult) -> None:
    path = folder / page_of(rich)
    page = path.read_text()
    assert path.stat().st_size < 300_000
    assert '<script src="../plots.js"></script>' in page
    assert 'href="../index.html#/bisections"' in page
    own = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in own]
    assert len(digests) == 2, "figures, and buttons that copy"
    assert (
        f"script-src &#39;sha256-{digests[0]}&#39; &#39;sha256-{digests[1]}&#39; &#39;self&#39; file:;"
        in page
    )


def test_a_measured_commit_stands_on_the_front_page_and_on_its_alert(
    tmp_path: Path, rich: BisectResult
) -> None:
    assert rich.culprit is not None
    document = site(rich)
    (bisected,) = document.bisections[0].alerts
    write_site(document, tmp_path / "out")
    shown = payload(tmp_path / "out" / "data" / "site.js")[1]["events"]
    alerts = {alert["id"]: alert for event in shown for alert in event["alerts"]}
    measured = alerts[bisected]["measured"]
    assert (measured["job"], measured["probability"]) == (rich.job, round(rich.probability, 6))
    assert [sha for sha, *_ in measured["commits"]] == [rich.culprit.id]
    other = document.alerts[1].id
    assert alerts[other]["measured"] is None
    assert alerts[other]["suspect"][0] == document.suspects[1].ranking.suspects[0].sha
    (event,) = (event for event in events(document) if event.id == "deploy")
    whole = event_payload(event, document)
    proposed = {alert["id"]: whole["rankings"][alert["ranking"]]["bisect"] for alert in whole["alerts"][:3]}
    assert proposed[bisected] == "" and proposed[other], "it is not to be bisected again"


def test_a_narrowed_range_stands_on_the_front_page(tmp_path: Path, rich: BisectResult) -> None:
    narrowed = narrow(rich)
    write_site(site(narrowed), tmp_path / "out")
    shown = payload(tmp_path / "out" / "data" / "site.js")[1]["events"]
    (measured,) = [a["measured"] for event in shown for a in event["alerts"] if a["measured"]]
    assert measured["probability"] == 0.97
    assert [(sha, p) for sha, _, p in measured["commits"]] == [
        (of.position.changes[0].id, of.probability) for of in narrowed.candidates
    ]


def test_each_of_several_bisections_has_a_page_of_its_own(tmp_path: Path, rich: BisectResult) -> None:
    other = rich.model_copy(update={"job": "20260102-030405-zzzz"})
    document = site(rich)
    alert = document.bisections[0].alerts
    both = (*document.bisections, SiteBisection(report=other, alerts=alert))
    write_site(replace(document, bisections=both), tmp_path / "out")
    pages = {page_of(one) for one in (rich, other)}
    assert {name for name in names(tmp_path / "out") if name.startswith("bisections/")} == pages
    for one in (rich, other):
        page = (tmp_path / "out" / page_of(one)).read_text()
        assert (other.job in page) == (one is other), "the launches' own names are those of the first"
    told = payload(tmp_path / "out" / "data" / "site.js")[1]["bisections"]
    assert [row["job"] for row in told] == [rich.job, other.job]


@pytest.mark.parametrize("job", ["../../x", "a/b", "", ".hidden", "<b>", "20260101-abc"])
def test_the_page_of_a_bisection_stays_in_its_folder(rich: BisectResult, job: str) -> None:
    found = page_of(rich.model_copy(update={"job": job}))
    assert re.fullmatch(r"bisections/[A-Za-z0-9_-][A-Za-z0-9._-]*\.html", found)


def test_what_is_ours_names_no_address_and_makes_no_markup() -> None:
    files = [path for path in DASHBOARDS.rglob("*") if path.is_file()]
    assert len(files) > 15
    pattern = (
        r"https?://\w|@import|url\(|innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Function\("
    )
    found = {path.name: re.findall(pattern, path.read_text()) for path in files}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_values_come_as_they_are() -> None:
    one = site().cells[0]
    found = cell_payload(one)
    assert found["points"]["build"] == [point.build for point in one.points]
    for mine, theirs in zip(found["series"], one.series, strict=True):
        assert mine["metric"] == theirs.metric.name
        assert [value is None for value in mine["values"]] == [value is None for value in theirs.values]
        pairs = zip(mine["values"], theirs.values, strict=True)
        assert all(a == pytest.approx(b, rel=1e-5) for a, b in pairs if b is not None)
    assert found["covariates"]["warmups"] == [point.covariates["warmups"] for point in one.points]


def test_equal_rankings_stand_once() -> None:
    document = site()
    first = document.suspects[0]
    same = first.model_copy(update={"alert": document.alerts[2].id})
    document = replace(document, suspects=(first, same))
    found = event_payload(events(document)[0], document)
    at = {alert["id"]: alert["ranking"] for alert in found["alerts"]}
    assert len(found["rankings"]) == 1
    assert at == {
        document.alerts[0].id: 0,
        document.alerts[1].id: 0,
        document.alerts[2].id: 0,
    }
    names = {alert["id"]: alert["ranked"] for alert in found["alerts"]}
    assert names == {one.id: one.id for one in document.alerts[:3]} | {document.alerts[1].id: same.alert}


def test_of_an_event_without_suspects_none_are_shown() -> None:
    document = replace(site(), suspects=())
    found = event_payload(events(document)[0], document)
    assert [(alert["ranking"], alert["ranked"]) for alert in found["alerts"]] == [(None, "")] * 3
    assert found["rankings"] == []


def test_what_a_metric_is_stands_once() -> None:
    document = large(8, 40)
    files = {one.name: "" for one in document.cells}
    found = overview(document, files, {event.id: "" for event in events(document)}, {})
    assert [measure["name"] for measure in found["measures"]] == [metric.name for metric in METRICS]
    for mine, theirs in zip(found["cells"], document.cells, strict=True):
        named = [found["measures"][at]["name"] for at in mine["metrics"]]
        assert named == [one.metric.name for one in theirs.series]


def test_an_empty_site_is_a_site(tmp_path: Path) -> None:
    empty = replace(site(), cells=(), alerts=(), suspects=())
    write_site(empty, tmp_path)
    assert overview(empty, {}, {}, {})["span"] == [0, 0]


def test_a_list_of_like_objects_is_a_table_and_comes_back() -> None:
    rows = [{"a": 1, "b": [{"c": "x"}]}, {"a": None, "b": []}]
    given = {"rows": rows, "mixed": [{"a": 1}, {"b": 2}], "empty": [], "plain": [[1, "x"]]}
    found = packed(given)
    assert found["rows"]["names"] == ["a", "b"] and found["mixed"] == given["mixed"]
    assert unpacked(found) == given


def test_harmless_keeps_whole_numbers_and_words() -> None:
    given = {
        "n": 1777777777,
        "yes": True,
        "none": None,
        "x": 1.23456789,
        "nan": float("nan"),
        "t": "a\x1b[2Jb",
    }
    assert harmless(given) == {
        "n": 1777777777,
        "yes": True,
        "none": None,
        "x": 1.23457,
        "nan": None,
        "t": "a\\x1b[2Jb",
    }
    assert "\u202e" not in harmless(HARM)


def heights(text: str) -> list[int | None]:
    """A small curve, 0 to 63 as its letters have it."""
    letters = string.digits + string.ascii_uppercase + string.ascii_lowercase + "-_"
    return [None if letter == "." else letters.index(letter) for letter in text]


def test_a_step_is_a_step_in_the_small_curve() -> None:
    one = series(TTFT, 120, 1, 1.5, 60)
    days = [86400 * i for i in range(120)]
    found = heights(curve(one, days, (0, days[-1])))
    assert len(found) == 60
    left = [height for height in found[:28] if height is not None]
    right = [height for height in found[32:] if height is not None]
    assert max(left) < 22 < 41 < min(right)


def test_noise_is_not_drawn_as_mountains_and_gaps_stay() -> None:
    values = tuple(None if i == 30 else 100 * (1.01 if i % 2 else 0.99) for i in range(60))
    one = replace(series(TTFT, 60, 1, 1.0, 0), values=values)
    found = heights(curve(one, list(range(60)), (0, 59)))
    assert found[30] is None
    there = [height for height in found if height is not None]
    # 2 % of a span of 10 %, in the middle of 63.
    assert (min(there), max(there)) == (25, 38)


def test_small_curves_of_all_cells_stand_on_one_time() -> None:
    late = series(TTFT, 30, 1, 1.0, 0)
    found = heights(curve(late, list(range(30, 60)), (0, 59)))
    assert found[:30] == [None] * 30
    assert sum(height is not None for height in found) >= 28


def test_a_curve_of_nothing_is_empty() -> None:
    nothing = replace(cell(0, 5).series[0], values=(None,) * 5)
    assert curve(nothing, list(range(5)), (0, 4)) == ""


CELL = cell(0, 30)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "wrong"),
        ({"cause": "unknown"}, "wrong"),
        ({"worse": False}, "better"),
        ({"cause": "instrument"}, "other"),
        ({"cause": "workload"}, "other"),
        ({"cause": "night"}, "other"),
        ({"recovered": True}, "over"),
        ({"cause": "night", "recovered": True}, "over"),
        ({"state": "acknowledged", "recovered": True}, "acknowledged"),
        ({"state": "closed"}, "closed"),
    ],
)
def test_the_list_of_an_alert(more: dict[str, object], expected: EventKind) -> None:
    found = replace(alert(CELL, "ttft", 9, 0.1), **more)  # type: ignore[arg-type]
    assert kind(found) == expected
    assert kind(found, silent=True) == (
        expected if expected in ("over", "acknowledged", "closed") else "silent"
    )


@pytest.mark.parametrize(("nights", "expected"), [(84, "wrong"), (83, "silent"), (60, "silent")])
def test_what_has_no_result_for_a_week_is_silent(nights: int, expected: EventKind) -> None:
    ended, going = cell(0, nights), cell(1, 90)
    alerts = (alert(ended, "ttft", 50, 0.9), alert(going, "ttft", 50, 0.2, event="other"))
    document = replace(site(), cells=(ended, going), alerts=alerts, suspects=())
    found = events(document)
    kinds = {event.alerts[0].cell: event.kind for event in found}
    assert kinds == {ended.name: expected, going.name: "wrong"}
    assert found[-1].kind == expected, "what is known to be wrong now stands before it"
    files = {one.name: "" for one in document.cells}
    told = overview(document, files, {event.id: "" for event in found}, {})
    assert [one["silent"] for one in told["cells"]] == [expected == "silent", False]


def test_the_level_of_a_transient_is_that_before_it() -> None:
    one = cell(0, 30, moved=6.0, at=28)
    lasting = overview(replace(site(), cells=(one,), alerts=(), suspects=()), {one.name: ""}, {}, {})
    passing = replace(one, series=tuple(replace(x, transients=(28,)) for x in one.series))
    before = overview(replace(site(), cells=(passing,), alerts=(), suspects=()), {one.name: ""}, {}, {})
    assert [round(x["series"][0]["level"][0]) for x in (lasting, before)] == [720, 120]


def test_the_weight_is_the_near_end_in_smallest_effects_less_what_chance_shows() -> None:
    # ln 1.1 = 0.09531, ln 1.05 = 0.04879
    found = alert(CELL, "ttft", 9, 0.12, interval=(0.10, 0.14), p=0.5)
    assert weight(found, TTFT) == pytest.approx(0.5 * 0.09531 / 0.04879, rel=1e-3)
    assert weight(replace(found, p=None), TTFT) == pytest.approx(1.9535, rel=1e-3)


def test_twice_as_slow_weighs_as_much_as_twice_as_fast() -> None:
    slow = alert(CELL, "ttft", 9, 1.2, interval=(1.0, 1.4))
    fast = alert(CELL, "ttft", 9, -0.55, interval=(-0.6, -0.5))
    assert weight(slow, TTFT) == pytest.approx(weight(fast, TTFT))


def test_what_may_be_nothing_weighs_nothing() -> None:
    assert weight(alert(CELL, "ttft", 9, 0.5, interval=(-0.01, 1.0)), TTFT) == 0


def test_a_share_weighs_by_its_difference() -> None:
    found = alert(CELL, ACCEPTED.name, 9, -0.06, interval=(-0.08, -0.04), p=None)
    assert weight(found, ACCEPTED) == pytest.approx(2.0)


def test_events_stand_by_list_then_by_weight_and_hold_their_alerts() -> None:
    found = events(site())
    lists = [event.kind for event in found]
    assert lists == ["wrong", "wrong", "wrong", "better", "other", "other", "over", "acknowledged"]
    # The deploy is surely 16 % slower, the drift 3 %, the third maybe only 1 %.
    assert [event.alerts[0].cell.split("_")[0] for event in found[:2]] == ["text", "omni"]
    assert found[2].id == HARM
    assert found[0].id == "deploy"
    assert {a.metric for a in found[0].alerts} == {"ttft", "output_throughput"}
    assert len(found[0].alerts) == 3
    weights = [event.weight for event in found[:3]]
    assert weights == sorted(weights, reverse=True)
