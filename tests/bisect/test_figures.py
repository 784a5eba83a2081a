"""The figures of a bisection: levels, pairs and marks; what others wrote acts on nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from perfbisect.bisect.figures import ab_pairs, levels_of, plots, step_spans
from perfbisect.bisect.result import BisectResult
from perfbisect.report import html
from perfbisect.report.plots import Plot, PlotTrace
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
    assert [(level.value, level.span) for level in levels_of(made)] == [
        (12.0, (-0.4, culprit - 0.6)),
        (20.0, (last - 0.4, end + 0.4)),
    ]
    unnamed = made.model_copy(update={"outcome": "too small"})
    assert step_spans(unnamed) == ()
    (alone,) = levels_of(unnamed)
    assert (alone.value, alone.span) == (10.0, (-0.4, 0.4)), "the ends alone"


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
    a, b = (level.value for level in plots(report)["pairs"].panels[0].levels)
    assert b / a - 1 == pytest.approx(report.confirmed.effect)
    values = [x.value for pair in ab_pairs(report) for x in pair if x.value is not None]
    assert min(values) < a < b < max(values)


def traces(plot: Plot) -> dict[str, PlotTrace]:
    return {trace.name: trace for panel in plot.panels for trace in panel.traces}


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def test_no_foreign_text_acts_in_a_figure(rich: BisectResult) -> None:
    drawn = plots(rich)
    assert set(drawn) == {"by-commit", "by-time", "pairs"}
    texts = [text for plot in drawn.values() for text in strings(asdict(plot))]
    assert any("alert" in text for text in texts), "the subjects are shown"
    assert [text for text in texts if ACTS.search(text)] == []


def test_every_symbol_is_one_that_the_script_draws(rich: BisectResult) -> None:
    script = (Path(html.__file__).parent / "templates" / "plot.js").read_text()
    known = set(re.findall(r"^    (\w+): \{ (?:polygon|strokes)", script, re.MULTILINE)) | {"bar"}
    symbols = {
        symbol.removesuffix("-open")
        for plot in plots(rich).values()
        for trace in traces(plot).values()
        for symbol in ([trace.symbol] if isinstance(trace.symbol, str) else trace.symbol)
    }
    assert {"circle", "cross", "bar", "dash", "tick"} <= symbols <= known


def test_every_colour_is_one_of_both_themes(rich: BisectResult) -> None:
    style = (Path(html.__file__).parent / "templates" / "report.css").read_text()
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    named = {
        drawn.color
        for plot in plots(rich).values()
        for panel in plot.panels
        for drawn in (*panel.traces, *panel.levels)
    }
    assert {"end", "search", "confirm", "culprit", "slot1"} <= named
    for theme in (light, dark.split("* {")[0]):
        assert named | {"revert", "grid", "paper"} <= set(re.findall(r"--c-(\w+):", theme))


@pytest.mark.parametrize("name", ["by-commit", "by-time"])
def test_a_stopped_launch_is_no_failure(rich: BisectResult, name: str) -> None:
    stopped = next(x for x in rich.launches if x.outcome == "measured")
    changed = replace(stopped, outcome="abandoned", value=None, values=())
    rows = tuple(changed if x is stopped else x for x in rich.launches)
    before, after = (
        traces(plots(document)[name]) for document in (rich, rich.model_copy(update={"launches": rows}))
    )
    assert len(after["failed"].y) == len(before["failed"].y)
    assert len(after["stopped"].y) == 1
    assert after["stopped"].color != after["failed"].color


@pytest.mark.parametrize("name", ["by-commit", "by-time"])
def test_every_launch_is_a_mark(rich: BisectResult, name: str) -> None:
    drawn = traces(plots(rich)[name])
    for purpose, label in (("end", "an end of the range"), ("confirm", "A/B")):
        own = [x for x in rich.launches if x.purpose == purpose and x.value is not None]
        assert list(drawn[label].y) == [x.value for x in own]
        assert [told[0].split()[0] for told in drawn[label].told] == [f"#{x.number}" for x in own]
    failed = [x for x in rich.launches if x.outcome == "failed"]
    assert failed
    assert drawn["failed"].y == [None] * len(failed)


def test_bars_are_the_beliefs_and_the_culprit_has_its_own_colour(rich: BisectResult) -> None:
    assert rich.beliefs is not None
    drawn = traces(plots(rich)["by-commit"])
    bars = {at: p for name in ("bar", "culprit") for at, p in zip(drawn[name].x, drawn[name].y, strict=True)}
    assert bars == dict(enumerate(rich.beliefs.p))
    assert list(drawn["culprit"].x) == [position.index for position in rich.culprits]


def test_the_reverted_end_stands_beyond_the_range(rich: BisectResult) -> None:
    last = rich.positions - 1
    more = [replace(rich.launches[0], number=90 + i, purpose="revert", position=last + i) for i in (0, 1)]
    plot = plots(rich.model_copy(update={"launches": (*rich.launches, *more)}))["by-commit"]
    assert list(traces(plot)["revert check"].x) == [last, last + 1]
    assert plot.x.range is not None and plot.x.range[1] > last + 1
    assert dict(plot.x.ticks)[last + 1] == "reverted"
    assert "reverted" not in dict(plots(rich)["by-commit"].x.ticks).values()


def test_distances_from_the_level_are_a_line_a_slot(rich: BisectResult) -> None:
    lines = plots(rich)["by-time"].panels[1].traces
    assert [trace.name for trace in lines] == ["slot gpu0", "slot gpu1"]
    first, level = rich.launches[0], levels_of(rich)[0].value
    assert first.value is not None
    assert lines[0].y[0] == pytest.approx((first.value / level - 1) * 100)
