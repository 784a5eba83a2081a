"""A cell of a site from its series: every point once, every mark at its point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from perfbisect.dashboard.collect import SeriesFindings, SiteCell, SmallChange, collect_cell
from perfbisect.series.points import Build, Point, Workload
from perfbisect.series.series import CellSeries, build_series, nightly
from perfbisect.serving.eras import Era

ERAS = (Era("2026-04-03T00:00:00", (1,), "aaa", "tokens are counted otherwise", ("ttft",)),)


def point(day: int, values: Mapping[str, float], *, hour: int = 19, test: str = "chat", **more: Any) -> Point:
    began = f"2026-04-{day:02d}T{hour:02d}:00:00+00:00"
    build = Build(
        "kanban", "p", f"{day}", commit=f"{day:040x}", branch="main", url=f"https://ci.example/{day}"
    )
    load = Workload(test, "random", 4, prompts=40, model="m/1", backend="openai-chat-omni")
    return Point(
        build=build,
        workload=load,
        began=began,
        ended=began,
        values=values,
        covariates=more,
        night=began[:10],
        start=f"{day}",
    )


def series(points: Sequence[Point]) -> tuple[CellSeries, ...]:
    return build_series(points, lambda _: ERAS)


POINTS = tuple(
    point(day, {"ttft:median": 100.0 + day} | ({"e2el:median": 900.0} if day % 2 else {}), warmups=day // 4)
    for day in range(1, 7)
)


def test_every_point_stands_once_and_values_at_their_point() -> None:
    made = collect_cell(series(POINTS), {})
    assert made.name == "chat/random@c4-n40"
    assert (made.family, made.model, made.load, made.machine) == ("omni", "m/1", "c4", "")
    assert made.headline == "ttft"
    assert [x.time for x in made.points] == [f"2026-04-0{day}T19:00:00Z" for day in range(1, 7)]
    assert made.points[2].commit == f"{3:040x}"
    assert made.points[2].of_main is True
    assert made.points[2].url == "https://ci.example/3"
    values = {one.metric.name: one.values for one in made.series}
    assert values == {
        "ttft": (101, 102, 103, 104, 105, 106),
        "e2el": (900, None, 900, None, 900, None),
    }


def test_levels_end_at_cuts_and_at_boundaries() -> None:
    made = collect_cell(series(POINTS), {"ttft": SeriesFindings(cuts=(4,))})
    ttft = next(one for one in made.series if one.metric.name == "ttft")
    # The era begins with the third night; the cut is at the fifth.
    assert [(x.first, x.last, x.value) for x in ttft.levels] == [(0, 1, 101.5), (2, 3, 103.5), (4, 5, 105.5)]
    assert [(x.at, x.what, x.cut) for x in ttft.discontinuities] == [
        (2, "tokens are counted otherwise (aaa)", True),
        (3, "1 requests warm up, 0 before", False),
    ]
    assert ttft.judged and ttft.level == ttft.levels[-1]


def test_during_a_transient_the_level_is_that_before_it() -> None:
    made = collect_cell(series(POINTS), {"ttft": SeriesFindings(cuts=(4,), transients=(4,))})
    ttft = next(one for one in made.series if one.metric.name == "ttft")
    assert ttft.transients == (4,)
    assert ttft.level is not None
    assert (ttft.level.first, ttft.level.last, ttft.level.value) == (2, 3, 103.5)


def test_marks_of_a_metric_that_half_the_points_lack_stand_at_their_points() -> None:
    small = SmallChange(at=1, effect=0.01, interval=(0.0, 0.02), why="too small")
    made = collect_cell(series(POINTS), {"e2el": SeriesFindings(cuts=(2,), small=(small,), note="3 nights")})
    e2el = next(one for one in made.series if one.metric.name == "e2el")
    assert [(x.first, x.last) for x in e2el.levels] == [(0, 2), (4, 4)]
    assert e2el.small[0].at == 2
    assert e2el.note == "3 nights"


def test_what_was_not_judged_says_so() -> None:
    assert {one.judged for one in collect_cell(series(POINTS), {}).series} == {False}


def test_nights_with_two_results_come_as_one() -> None:
    twice = (*POINTS, point(6, {"ttft:median": 200.0}, hour=21))
    made = collect_cell([nightly(one) for one in series(twice)], {})
    ttft = next(one for one in made.series if one.metric.name == "ttft")
    assert ttft.values[-1] == 153


def test_shares_are_absolute_and_tails_say_so() -> None:
    values = {"spec_decode_acceptance_rate": 0.5, "ttft:p99": 9.0}
    made = collect_cell(series([point(1, values)]), {})
    assert [one.metric.name for one in made.series] == ["spec_decode_acceptance_rate", "ttft:p99"]
    assert made.series[-1].metric.display == "time to first token, p99"


def test_covariates_are_plain() -> None:
    facts = {
        "host": "a",
        "converted": ["x", "y"],
        "baseline": {"a": 1},
        "duration": math.nan,
        "warmups": None,
    }
    made = collect_cell(series([point(1, {"ttft:median": 1.0}, hardware="H100", **facts)]), {})
    assert made.machine == "H100"
    assert made.points[0].covariates == {
        "host": "a",
        "converted": "['x', 'y']",
        "duration": None,
        "hardware": "H100",
    }


def cell_of(load: Workload, *metrics: str) -> SiteCell:
    points = [replace(point(day, dict.fromkeys(metrics or ["ttft"], 1.0)), workload=load) for day in (1, 2)]
    return collect_cell(series(points), {})


@pytest.mark.parametrize(
    ("backend", "metrics", "expected"),
    [
        ("openai-audio-speech", ["audio_ttfp"], "tts"),
        ("openai-chat-omni", [], "omni"),
        ("openai", ["ttft"], "text"),
        ("", ["latency:p99"], "diffusion"),
    ],
)
def test_the_family_is_read_from_the_result(backend: str, metrics: list[str], expected: str) -> None:
    assert cell_of(Workload("t", backend=backend), *metrics).family == expected


@pytest.mark.parametrize(
    ("load", "expected"),
    [(Workload("t", "", 64), "c64"), (Workload("t", rate=2.0), "r2.0"), (Workload("t"), "rinf")],
)
def test_the_load_is_said_as_in_names(load: Workload, expected: str) -> None:
    assert cell_of(load).load == expected
