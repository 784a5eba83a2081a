"""The HTML report: it says all, acts on nothing of others, loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from perfbisect.bisect.documents import ReportDocument
from perfbisect.bisect.figures import effects_plot, plots
from perfbisect.bisect.report import build_report
from perfbisect.report import html as page_renderer
from perfbisect.report.html import embedded_json, report_html
from tests.jobs.world import Watch

ACTS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
PLOTLY = get_plotlyjs()


def html(document: ReportDocument) -> str:
    return report_html(build_report(document))


class Page(HTMLParser):
    """Elements, attributes and text of a page; scripts and styles by their content."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.shown: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, _tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.shown.append(data)


@pytest.fixture
def page(rich: ReportDocument) -> Page:
    return Page(html(rich))


def test_no_text_of_others_is_markup_or_script(page: Page) -> None:
    allowed = (
        "html head meta title style body header main footer section div span h1 h2 p code pre bdi br b ul li "
        "table tr th td details summary script noscript"
    )
    assert {tag for tag, _ in page.elements} <= set(allowed.split())
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    shown = "".join(page.shown)
    assert "<img src=http://evil.example/x" in shown, "as text"
    assert "{{7*7}}" in shown, "as text"
    assert not ACTS.search(shown.replace("\n", " "))


def test_only_our_two_scripts_may_run_and_nothing_may_be_loaded(page: Page) -> None:
    assert len(page.scripts) == 3
    (policy,) = (a["content"] for tag, a in page.elements if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    (allowed,) = re.findall(r"script-src ([^;]*)", policy)
    wanted = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.scripts[1:]]
    assert allowed.split() == [f"'sha256-{digest}'" for digest in wanted]
    loading = [
        (tag, name)
        for tag, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "data", "action", "poster") or "http" in (value or "")[:5]
    ]
    assert loading == [("meta", "http-equiv")] or loading == []


def test_the_page_is_small_beside_the_plotting_script(rich: ReportDocument) -> None:
    assert len(html(rich)) - len(PLOTLY) < 200_000


def test_what_is_ours_in_the_page_names_no_address() -> None:
    shipped = Path(page_renderer.__file__).parent / "templates"
    found = {
        path.name: re.findall(r"https?:|//[a-z]|@import|url\(", path.read_text())
        for path in shipped.iterdir()
    }
    assert len(found) >= 3
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_the_page_says_all_that_it_must(rich: ReportDocument, page: Page) -> None:
    shown = " ".join("".join(page.shown).split())
    assert rich.culprit is not None
    assert rich.parent is not None
    for text in (
        rich.culprit.id,
        "By commit",
        "By time",
        "Comparisons",
        "Where the minutes went",
        "saved, since work overlapped",
        "Guards",
        "What the engines' logs say differently",
        "FLASH_ATTN",
        "Steps",
        "bad without the culprit against bad",
        "not clean:",
        "Changes that only the good end has",
        "csrc differs",
        "when tried",
        "beforehand",
        "Same environment as a neighbour",
        "Not tested",
        "perfbisect bisect tiny --good A --bad B",
        *(sentence[:60] for sentence in rich.summary),
    ):
        assert text in shown, text
    ids = {attributes.get("id") for _, attributes in page.elements}
    assert {"by-commit", "by-time", "pairs", "effects", "phases"} <= ids
    assert "slot" in shown


@pytest.mark.parametrize("outcome", ["not reproduced", "too small", "out of budget", "unfinished"])
def test_every_outcome_has_a_page(told: tuple[ReportDocument, Watch], outcome: str) -> None:
    bare = told[0].model_copy(
        update={
            "outcome": outcome,
            "culprit": None,
            "parent": None,
            "confirmed": None,
            "whole": None,
            "share": None,
            "beliefs": None,
            "launches": (),
            "guards": (),
        }
    )
    shown = "".join(Page(html(bare)).shown)
    assert outcome in shown
    assert "By commit" not in shown
    assert "slot" not in shown


def test_several_culprits_are_all_named(told: tuple[ReportDocument, Watch]) -> None:
    report = told[0].model_copy(update={"culprit": None, "culprits": told[0].history[5:7]})
    shown = "".join(Page(html(report)).shown)
    assert "One of 2 changes that cannot be told apart" in shown
    for position in report.culprits:
        assert position.changes[0].short in shown


def plain(value: Any) -> Any:
    """A figure with real colours in the place of the theme's names."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return "#123456" if isinstance(value, str) and value.startswith("@") else value


def test_plotly_knows_every_property_of_the_figures(rich: ReportDocument) -> None:
    made = plots(rich)
    assert set(made) == {"by-commit", "by-time", "pairs", "effects", "phases"}
    for figure in made.values():
        go.Figure(plain(figure))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def test_no_text_of_others_is_markup_in_a_figure(rich: ReportDocument) -> None:
    texts = list(strings(plots(rich)))
    assert any("alert" in text for text in texts), "the subjects are shown"
    for text in texts:
        assert set(re.findall(r"<[^>]*>", text)) <= {"<br>", "<extra>", "</extra>"}, text
        assert not ACTS.search(text)


def test_data_cannot_end_its_script() -> None:
    text = embedded_json({"a": {"b": "</script><!--<script>&\u2028\u2029"}})
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == {"a": {"b": "</script><!--<script>&\u2028\u2029"}}
    with pytest.raises(ValueError, match="not JSON compliant"):
        embedded_json({"a": {"b": float("nan")}})


def test_the_bars_are_the_posterior_and_the_culprit_stands_out(rich: ReportDocument) -> None:
    assert rich.beliefs is not None
    bars = next(trace for trace in plots(rich)["by-commit"]["data"] if trace["type"] == "bar")
    assert bars["y"] == list(rich.beliefs.by_position)
    (culprit,) = [i for i, colour in enumerate(bars["marker"]["color"]) if colour == "@culprit"]
    assert culprit == rich.culprits[0].index
    assert rich.culprits[0].changes[0].short in bars["customdata"][culprit][0]


@pytest.mark.parametrize("name", ["by-commit", "by-time"])
def test_every_launch_is_a_mark(rich: ReportDocument, name: str) -> None:
    traces = {trace.get("name"): trace for trace in plots(rich)[name]["data"]}
    shown = {
        purpose: traces[label] for purpose, label in (("end", "an end of the range"), ("confirm", "A/B"))
    }
    for purpose, trace in shown.items():
        assert trace["y"] == [x.value for x in rich.launches if x.purpose == purpose and x.value is not None]
    failed = [x for x in rich.launches if x.outcome == "failed"]
    assert failed
    assert len(traces["failed"]["y"]) == len(failed)
    low, high = plots(rich)[name]["layout"]["yaxis"]["range"]
    values = [v for x in rich.launches for v in x.values]
    assert low < min(traces["failed"]["y"]) < min(values) < max(values) < high


def test_the_reverted_end_stands_beyond_the_range(rich: ReportDocument) -> None:
    last = rich.positions - 1
    more = [
        rich.launches[0].model_copy(update={"number": 90 + i, "purpose": "revert", "position": last + i})
        for i in (0, 1)
    ]
    figure = plots(rich.model_copy(update={"launches": (*rich.launches, *more)}))["by-commit"]
    (reverted,) = [trace for trace in figure["data"] if trace.get("name") == "revert check"]
    assert reverted["x"] == [last, last + 1]
    axis = figure["layout"]["xaxis"]
    assert axis["range"][1] > last + 1
    assert axis["ticktext"][axis["tickvals"].index(last + 1)] == "reverted"
    assert "reverted" not in plots(rich)["by-commit"]["layout"]["xaxis"]["ticktext"]


def test_every_colour_is_one_of_both_themes(rich: ReportDocument) -> None:
    style = (Path(page_renderer.__file__).parent / "templates" / "report.css").read_text()
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    named = {text[1:] for text in strings(plots(rich)) if re.fullmatch(r"@[a-z]+\d?", text)}
    assert {"end", "search", "confirm", "culprit", "slot1"} <= named
    for theme in (light, dark.split("* {")[0]):
        assert named | {"revert"} <= set(re.findall(r"--c-(\w+):", theme))


def test_launches_apart_from_their_level_are_told_by_slot(rich: ReportDocument) -> None:
    lines = [trace for trace in plots(rich)["by-time"]["data"] if trace.get("yaxis") == "y2"]
    assert [trace["name"] for trace in lines] == ["slot gpu0", "slot gpu1"]
    culprit = rich.culprits[0].index
    before = sorted(x.value for x in rich.launches if x.value is not None and x.position < culprit)
    middle = before[len(before) // 2] if len(before) % 2 else sum(before[len(before) // 2 - 1 :][:2]) / 2
    first = rich.launches[0]
    assert first.value is not None
    assert lines[0]["y"][0] == pytest.approx((first.value / middle - 1) * 100)


def test_an_effect_has_its_interval(rich: ReportDocument) -> None:
    figure = effects_plot(rich)
    assert figure is not None
    assert rich.confirmed is not None
    (trace,) = figure["data"]
    assert trace["x"][0] == pytest.approx(100 * rich.confirmed.effect)
    assert trace["x"][0] + trace["error_x"]["array"][0] == pytest.approx(100 * rich.confirmed.high)
    assert trace["x"][0] - trace["error_x"]["arrayminus"][0] == pytest.approx(100 * rich.confirmed.low)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser here")
def test_a_browser_draws_the_figures_and_offers_no_sharing(rich: ReportDocument, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(html(rich), encoding="utf-8")
    done = subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"file://{tmp_path / 'report.html'}"),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.count('class="main-svg"') >= 5
    assert done.stdout.count('data-title="Zoom"') == 5
    assert "Share" not in re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)
