"""The figures of a bisection: levels, pairs and marks, and foreign text that acts on nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from perfbisect.bisect.figures import LevelSpan, ab_pairs, level_spans, plots, step_spans
from perfbisect.bisect.result import BisectResult
from perfbisect.report import html
from tests.bisect.test_report import ACTS
from tests.jobs.world import Watch


@pytest.fixture
def report(told: tuple[BisectResult, Watch]) -> BisectResult:
    return told[0]


def with_launches(report: BisectResult, *rows: dict[str, Any]) -> BisectResult:
    first = replace(report.launches[0], purpose="search", at=None)
    made = [replace(first, number=i, **row) for i, row in enumerate(rows, 1)]
    return report.model_copy(update={"launches": tuple(made)})


def test_a_level_is_the_median_of_what_lies_between_two_steps(report: BisectResult) -> None:
    culprit, last = report.culprits[0].index, report.culprits[-1].index
    values = ((0, 10.0), (culprit - 1, 12.0), (culprit - 1, 99.0), (culprit, 70.0), (last, 20.0))
    rows = [{"position": position, "value": value} for position, value in values]
    made = with_launches(report, *rows, {"position": report.positions - 1, "value": None})
    assert culprit < last, "two that cannot be told apart: what is measured between them is on no level"
    assert step_spans(made) == ((culprit, last),)
    end = report.positions - 1
    assert level_spans(made) == (LevelSpan(0, culprit - 1, 12.0), LevelSpan(last, end, 20.0))
    unnamed = made.model_copy(update={"outcome": "too small"})
    assert step_spans(unnamed) == ()
    assert level_spans(unnamed) == (LevelSpan(0, 0, 10.0),), "the ends alone"


def test_pairs_are_of_one_slot_and_of_unlike_sides(report: BisectResult) -> None:
    assert report.confirmed is not None
    left, right = report.confirmed.parent, report.confirmed.culprit
    ab = {"purpose": "confirm", "value": 1.0}
    made = with_launches(
        report,
        {"position": left, "value": 1.0},
        ab | {"position": left, "slot": "a"},
        ab | {"position": left, "slot": "b"},
        ab | {"position": right, "slot": "b"},
        ab | {"position": right, "slot": "a"},
        ab | {"position": right, "slot": "a"},
        ab | {"position": left, "slot": "a", "value": None, "outcome": "failed"},
        ab | {"position": left, "slot": "a"},
        ab | {"position": left, "slot": "b"},
    )
    assert [(a.number, b.number) for a, b in ab_pairs(made)] == [(3, 4), (2, 5), (8, 6)]
    assert ab_pairs(made.model_copy(update={"confirmed": None})) == ()


def test_the_levels_of_an_ab_are_as_far_apart_as_its_effect(report: BisectResult) -> None:
    assert report.confirmed is not None
    a, b = (line["y0"] for line in plots(report)["pairs"]["layout"]["shapes"])
    assert b / a - 1 == pytest.approx(report.confirmed.effect)
    values = [x.value for pair in ab_pairs(report) for x in pair if x.value is not None]
    assert min(values) < a < b < max(values)


def plain(value: Any) -> Any:
    """A figure with real colours in the place of the theme's names."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return "#123456" if isinstance(value, str) and value.startswith("@") else value


def test_plotly_knows_every_property_of_the_figures(rich: BisectResult) -> None:
    drawn = plots(rich)
    assert set(drawn) == {"by-commit", "by-time", "pairs"}
    for figure in drawn.values():
        go.Figure(plain(figure))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def test_no_foreign_text_is_markup_in_a_figure(rich: BisectResult) -> None:
    texts = list(strings(plots(rich)))
    assert any("alert" in text for text in texts), "the subjects are shown"
    for text in texts:
        assert set(re.findall(r"<[^>]*>", text)) <= {"<br>", "<extra>", "</extra>"}, text
        assert not ACTS.search(text)


def test_every_colour_is_one_of_both_themes(rich: BisectResult) -> None:
    style = (Path(html.__file__).parent / "templates" / "report.css").read_text()
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    named = {text[1:] for text in strings(plots(rich)) if re.fullmatch(r"@[a-z]+\d?", text)}
    assert {"end", "search", "confirm", "culprit", "slot1"} <= named
    for theme in (light, dark.split("* {")[0]):
        assert named | {"revert"} <= set(re.findall(r"--c-(\w+):", theme))


@pytest.mark.parametrize("name", ["by-commit", "by-time"])
def test_a_stopped_launch_is_no_failure(rich: BisectResult, name: str) -> None:
    stopped = next(x for x in rich.launches if x.outcome == "measured")
    changed = replace(stopped, outcome="abandoned", value=None, values=())
    rows = tuple(changed if x is stopped else x for x in rich.launches)
    before, after = (
        {trace.get("name"): trace for trace in plots(document)[name]["data"]}
        for document in (rich, rich.model_copy(update={"launches": rows}))
    )
    assert len(after["failed"]["y"]) == len(before["failed"]["y"])
    assert len(after["stopped"]["y"]) == 1
    assert after["stopped"]["marker"]["color"] != after["failed"]["marker"]["color"]


@pytest.mark.parametrize("name", ["by-commit", "by-time"])
def test_every_launch_is_a_mark(rich: BisectResult, name: str) -> None:
    figure = plots(rich)[name]
    traces = {trace.get("name"): trace for trace in figure["data"]}
    for purpose, label in (("end", "an end of the range"), ("confirm", "A/B")):
        values = [x.value for x in rich.launches if x.purpose == purpose and x.value is not None]
        assert traces[label]["y"] == values
    failed = [x for x in rich.launches if x.outcome == "failed"]
    assert failed
    assert len(traces["failed"]["y"]) == len(failed)
    low, high = figure["layout"]["yaxis"]["range"]
    values = [v for x in rich.launches for v in x.values]
    assert low < min(traces["failed"]["y"]) < min(values) < max(values) < high


def test_the_reverted_end_stands_beyond_the_range(rich: BisectResult) -> None:
    last = rich.positions - 1
    more = [replace(rich.launches[0], number=90 + i, purpose="revert", position=last + i) for i in (0, 1)]
    figure = plots(rich.model_copy(update={"launches": (*rich.launches, *more)}))["by-commit"]
    (reverted,) = [trace for trace in figure["data"] if trace.get("name") == "revert check"]
    assert reverted["x"] == [last, last + 1]
    axis = figure["layout"]["xaxis"]
    assert axis["range"][1] > last + 1
    assert axis["ticktext"][axis["tickvals"].index(last + 1)] == "reverted"
    assert "reverted" not in plots(rich)["by-commit"]["layout"]["xaxis"]["ticktext"]


def test_distances_from_the_level_are_a_line_a_slot(rich: BisectResult) -> None:
    lines = [trace for trace in plots(rich)["by-time"]["data"] if trace.get("yaxis") == "y2"]
    assert [trace["name"] for trace in lines] == ["slot gpu0", "slot gpu1"]
    first, level = rich.launches[0], level_spans(rich)[0].value
    assert first.value is not None
    assert lines[0]["y"][0] == pytest.approx((first.value / level - 1) * 100)
