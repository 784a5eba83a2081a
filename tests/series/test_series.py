"""From points to series: parts, gaps, boundaries, hints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from perfbisect.common.quantities import moment, stamp
from perfbisect.model.commit_details import Evidence
from perfbisect.model.metric import METRICS
from perfbisect.series.points import Build, Point, Workload, day_number, night_of
from perfbisect.series.report import sentences_of
from perfbisect.series.series import (
    CellSeries,
    build_series,
    cell_of_series,
    eras_of,
    machine_series,
    machine_series_starts,
    nightly,
)
from perfbisect.series.sources.kanban import PIPELINE
from perfbisect.series.suspects.table import load_suspect_table
from perfbisect.serving.eras import Era
from tests.series.made_series import cell, noise

ERAS = (
    Era("2026-04-03T00:00:00", (1,), "aaa", "input tokens are counted otherwise", ("input_tokens",)),
    Era("2026-04-05T00:00:00", (2,), "bbb", "two requests warm up"),
)


def point(
    day: int,
    values: Mapping[str, float],
    *,
    hour: int = 19,
    workload: Mapping[str, Any] | None = None,
    **more: Any,
) -> Point:
    began = f"2026-04-{day:02d}T{hour:02d}:00:00Z"
    return Point(
        build=Build("kanban", "p", str(day), fixed=more.pop("fixed", "")),
        workload=Workload("omni", "random", 4, prompts=40, **(workload or {})),
        began=began,
        ended=began,
        values=values,
        covariates=more,
        night=began[:10],
        start=f"{day}",
    )


@pytest.mark.parametrize(
    ("users", "metric", "last"),
    [(1, "e2el", "#3623"), (2, "e2el", "#3623"), (3, "e2el", "#6356"), (8, "latency", "#3623")],
)
def test_only_what_sends_more_than_two_requests_at_once_is_warmed_otherwise(
    users: int, metric: str, last: str
) -> None:
    measured = point(1, {f"{metric}:median": 1.0})
    workload = replace(measured.workload, concurrency=users)
    nightly_point = replace(measured, workload=workload, build=Build("kanban", PIPELINE, "1"))
    assert last in eras_of(nightly_point)[-1].change


def one(points: Sequence[Point], metric: str = "e2el") -> CellSeries:
    found = build_series(points, lambda _: ERAS[:0], metric=metric)
    assert len(found) == 1
    return found[0]


def test_medians_means_and_tails_are_apart() -> None:
    keys = ("ttft:p99", "ttft:mean", "ttft:median", "e2el:p50", "output_throughput", "ttft:std", "nonsense")
    found = build_series([point(1, dict.fromkeys(keys, 2.0))], lambda _: ())
    assert [(s.metric, s.part) for s in found] == [
        ("e2el:p50", "typical"),
        ("output_throughput", "typical"),
        ("ttft", "typical"),
        ("ttft:mean", "mean"),
        ("ttft:p99", "tail"),
    ]
    assert {s.metric: s.sign for s in found}["output_throughput"] == -1
    assert found[2].min_effect == METRICS["ttft"].smallest_effect


def test_a_missing_night_is_a_gap_in_the_days() -> None:
    series = one([point(4, {"e2el:median": 2.0}), point(1, {"e2el:median": 1.0})])
    assert series.values == (1.0, 2.0)
    assert series.nights[1] - series.nights[0] == 3
    assert [night_of(n) for n in series.nights] == ["2026-04-01", "2026-04-04"]
    assert day_number("1970-01-02") == 1


def test_builds_that_overlap_at_midnight_are_a_night_each() -> None:
    """The build of 04-02 measured the cell after that of 04-03 did, and another server argument."""
    late = replace(point(3, {"e2el:median": 2.0}, hour=1, server="old"), night="2026-04-02")
    points = [
        point(1, {"e2el:median": 1.0}, server="old"),
        point(3, {"e2el:median": 3.0}, hour=0, server="new"),
        late,
        point(4, {"e2el:median": 4.0}, server="new"),
    ]
    series = nightly(one(points))
    assert (series.values, [night_of(n)[-2:] for n in series.nights]) == (
        (1.0, 2.0, 3.0, 4.0),
        ["01", "02", "03", "04"],
    )
    assert [mark.index for mark in series.boundaries] == [2]


def test_points_that_lack_a_metric_are_counted_between_those_that_have_it() -> None:
    points = [point(d, {"e2el:median": 1.0} | ({"ttft:median": 5.0} if d % 2 else {})) for d in range(1, 6)]
    assert [(len(series.values), series.lacking) for series in (one(points, "ttft"), one(points))] == [
        (3, 2), (5, 0),
    ]  # fmt: skip


def test_nothing_is_a_value_of_a_share_and_of_no_ratio() -> None:
    points = [point(1, {"failed": 0.0, "e2el:median": 0.0}), point(2, {"failed": 0.0, "e2el:median": 3.0})]
    assert one(points, "failed").values == (0.0, 0.0)
    assert one(points).values == (3.0,)


def test_an_era_breaks_the_metrics_that_it_touches() -> None:
    points = [point(d, {"e2el:median": 1.0, "input_tokens": 9.0}) for d in (1, 2, 3, 4, 6)]
    found = {s.metric: s for s in build_series(points, lambda _: ERAS)}
    assert [b.index for b in found["input_tokens"].boundaries] == [2, 4]
    assert [(b.index, b.kind) for b in found["e2el"].boundaries] == [(4, "instrument")]
    change = found["e2el"].boundaries[0].change
    assert "two requests warm up (bbb)" in sentences_of("differences", [change])[0]
    assert found["input_tokens"].segments() == (slice(0, 2), slice(2, 4), slice(4, 5))


def test_the_commit_says_the_era_where_it_is_known() -> None:
    """A build was made before the change and measured after it: the old instrument measured."""
    points = [point(4, {"e2el:median": 1.0}), point(5, {"e2el:median": 1.0}, fixed="2026-04-04T23:00:00Z")]
    assert build_series(points, lambda _: ERAS)[0].boundaries == ()
    assert build_series([points[0], point(5, {"e2el:median": 1.0})], lambda _: ERAS)[0].boundaries != ()


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ({"workload": {"digest": "a"}}, {"workload": {"digest": "b"}}, "digest"),
        ({"workload": {"model": "a"}}, {"workload": {"model": "b"}}, "model"),
        ({"server": "a"}, {"server": "b"}, "server"),
    ],
)
def test_what_makes_another_series(before: dict[str, Any], after: dict[str, Any], kind: str) -> None:
    points = [point(1, {"e2el:median": 1.0}, **before), point(2, {"e2el:median": 1.0}, **after)]
    assert [(b.index, b.kind) for b in one(points).boundaries] == [(1, kind)]
    unknown = [points[0], point(2, {"e2el:median": 1.0})]
    assert one(unknown).boundaries == ()


def prompts(*tokens: float) -> list[Point]:
    return [point(d, {"e2el:median": 1.0}, input_tokens=n) for d, n in enumerate(tokens, 1)]


def test_longer_prompts_are_a_hint_of_another_workload() -> None:
    assert [(h.index, h.kind) for h in one(prompts(100, 100, 100, 281, 281)).hints] == [(3, "workload")]
    assert one(prompts(100, 101, 100, 101, 100)).hints == ()
    assert one(prompts(6451, 6718, 6571, 6976, 6451, 7004)).hints == (), "drawn anew every night"


def test_tokens_that_are_counted_otherwise_are_no_hint() -> None:
    points = prompts(100, 100, 281, 281)  # the era began on the third
    assert build_series(points, lambda _: ERAS, metric="e2el")[0].hints == ()
    assert one(points).hints != ()


def test_other_names_and_warm_ups_are_hints() -> None:
    points = [
        point(1, {"e2el:median": 1.0}, keys="a", warmups=0),
        point(2, {"e2el:median": 1.0}, keys="b", warmups=0),
        point(3, {"e2el:median": 1.0}, keys="b", warmups=2),
        point(4, {"e2el:median": 1.0}, keys="b", warmups=None),
    ]
    assert [(h.index, h.kind) for h in one(points).hints] == [(1, "keys"), (2, "warmups")]


def test_a_server_that_is_shared_from_a_night_on_is_a_hint_and_another_vote() -> None:
    points = [
        point(1, {"e2el:median": 1.0}),
        point(2, {"e2el:median": 1.0}, suite="alone"),
        point(3, {"e2el:median": 1.0}, suite="0af3"),
        point(4, {"e2el:median": 1.0}, suite="0af3"),
        point(5, {"e2el:median": 1.0}, suite="alone"),
    ]
    assert [(h.index, h.kind, h.change) for h in one(points).hints] == [
        (2, "server", Evidence("suite", {"is_alone": False})),
        (4, "server", Evidence("suite", {"is_alone": True})),
    ]  # fmt: skip
    assert one(points).boundaries == ()
    assert [one(points[:count]).group for count in (1, 2, 4, 5)] == ["p/omni", "p/omni", "p/0af3", "p/omni"]
    assert one([point(1, {"e2el:median": 1.0}, workload={"only_text": True})]).group == "p/omni-text"


def test_one_value_a_night() -> None:
    points = [
        point(1, {"e2el:median": 1.0}, keys="a"),
        point(2, {"e2el:median": 4.0}, keys="b", hour=18),
        point(2, {"e2el:median": 2.0}, keys="c", hour=20),
        point(3, {"e2el:median": 5.0}, keys="c"),
    ]
    series = nightly(one(points))
    assert series.values == (1.0, 3.0, 5.0)
    assert series.nights == tuple(sorted(set(one(points).nights)))
    assert [p.covariates["keys"] for p in series.points] == ["a", "c", "c"]
    assert [h.index for h in series.hints] == [1]
    assert nightly(series) is series


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        (Workload("tts", "random", 4, math.inf, 40), "tts/random@c4-n40"),
        (Workload("omni", "random-mm", None, 0.5, 100), "omni/random-mm@r0.5-n100"),
        (Workload("omni", "random", None, math.inf, 8), "omni/random@rinf-n8"),
        (Workload("omni", "random", 1, math.inf, 4, "in2500-out900"), "omni/random@c1-n4-in2500-out900"),
        (Workload("omni", "random", 1, math.inf, 4, only_text=True), "omni/random@c1-n4-text"),
        (Workload("text_cpu@c4-n64"), "text_cpu@c4-n64"),
    ],
)
def test_a_cell_is_named_by_what_is_known_of_its_workload(workload: Workload, name: str) -> None:
    assert workload.cell == name


@pytest.mark.parametrize(("branch", "of_main"), [("main", True), ("master", True), ("x", False), ("", None)])
def test_an_unknown_branch_is_not_known_to_be_main(branch: str, of_main: bool | None) -> None:
    assert Build("kanban", "p", "1", branch=branch).of_main is of_main


def points_at(*places: tuple[str, str, str]) -> list[Point]:
    """Points of kinds of machine, of machines of a fleet, and of hosts."""
    (series,) = cell({"e2el:median": noise(7, len(places))})
    return [
        replace(point, covariates={"hardware": kind, "machine": machine, "host": host})
        for point, (kind, machine, host) in zip(series.points, places, strict=True)
    ]


def points_on(*kinds: str) -> list[Point]:
    return points_at(*((kind, "", "") for kind in kinds))


def test_the_first_kind_keeps_the_name_and_points_of_unknown_machines() -> None:
    for kinds in (("", "H100", "", "H100"), ("", "")):
        points = points_on(*kinds)
        assert list(machine_series(points)) == [(points[0].cell, tuple(points))]
    assert list(machine_series([])) == []
    points = points_on("", "H100", "A100", "H100", "A100")
    series = dict(machine_series(points[::-1]))
    name = points[0].cell
    assert list(series) == [name, f"{name} on A100"]
    assert series[name] == (points[0], points[1], points[3])
    assert series[f"{name} on A100"] == (points[2], points[4])
    assert {cell_of_series(name) for name in series} == {name}
    table = load_suspect_table()
    known = "test_qwen3_tts_async_chunk/random@c4-n40"
    assert table.traits_of(f"{known} on A100") == table.traits_of(known) != frozenset()


OLD = "NVIDIA H200 x 1, driver 550.54"


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("NVIDIA H200 x 1, driver 560.28", "driver 550.54 -> driver 560.28"),
        ("NVIDIA H200 x 1, driver 560.28, cpu A", "driver 550.54 -> driver 560.28, cpu A"),
        ("NVIDIA H200 x 2, driver 550.54", "NVIDIA H200 x 1 -> NVIDIA H200 x 2"),
        ("AMD MI300X x 1", f"{OLD} -> AMD MI300X x 1"),
    ],
)
def test_a_series_on_another_machine_starts_with_what_differs(kind: str, what: str) -> None:
    points = points_on("", OLD, "", kind, OLD, kind)
    (start,) = machine_series_starts(points[::-1])
    assert (start.first, start.before) == (points[3], points[1])
    assert sentences_of("differences", [start.change]) == (what,)
    assert start.name == list(dict(machine_series(points)))[1]


def test_a_class_that_comes_to_name_its_processors_goes_on() -> None:
    points = points_on(OLD, f"{OLD}, cpu A", OLD, f"{OLD}, cpu A", f"{OLD}, cpu B", f"{OLD}, cpu B")
    (start,) = machine_series_starts(points)
    assert start.first == points[4]
    assert sentences_of("differences", [start.change]) == ("cpu A -> cpu B",)
    assert [list(own) for _, own in machine_series(points)] == [list(points[:4]), list(points[4:])]


def test_one_kind_of_machine_starts_nothing() -> None:
    assert list(machine_series_starts(points_on("", "H100", "", "H100"))) == []
    (other,) = (replace(p, workload=replace(p.workload, test="another")) for p in points_on("A100"))
    assert list(machine_series_starts([*points_on("H100"), other])) == [], "each cell has its own machine"


BOX1, BOX2, HERE = ("H200", "box1", "h1"), ("H200", "box2", "h2"), ("H200", "", "h1")


def test_machines_of_a_fleet_have_series_of_their_own() -> None:
    points = points_at(BOX1, BOX2, BOX1, ("H200, driver 2", "box2", "h2"), ("H200", "", "h3"))
    name, series = points[0].cell, dict(machine_series(points))
    assert series == {
        name: (points[0], points[2]),
        f"{name} on box2": (points[1],),
        f"{name} on box2: H200, driver 2": (points[3],),
        f"{name} on h3": (points[4],),
    }
    assert {cell_of_series(each) for each in series} == {name}
    groups = {build_series(own, cell=each)[0].group for each, own in series.items()}
    assert len(groups) == 3, "the starts of each machine are votes of their own"


def test_what_a_host_measured_before_it_was_in_a_fleet_is_its_machines() -> None:
    points = points_at(HERE, HERE, BOX1, BOX1)
    assert dict(machine_series(points)) == {points[0].cell: tuple(points)}


def test_a_machine_that_takes_over_starts_a_series_and_one_that_measures_beside_does_not() -> None:
    points = points_at(BOX1, BOX1, BOX2, BOX2)
    (start,) = machine_series_starts(points)
    assert (start.first, start.before) == (points[2], points[1])
    (driver,) = machine_series_starts(points_at(BOX1, ("H200, driver 2", "box1", "h1")))
    told = sentences_of("differences", [start.change, driver.change])
    assert told == ("box1 -> box2", "H200 -> driver 2")
    beside = [replace(point, night="2026-01-01") for point in points]
    assert list(machine_series_starts(beside)) == []


def test_a_moment_has_a_zone() -> None:
    assert stamp(moment("2026-07-02T15:23:35+08:00")) == "2026-07-02T07:23:35Z"
    with pytest.raises(ValueError, match="does not say its zone"):
        moment("2026-07-02T15:23:35")
