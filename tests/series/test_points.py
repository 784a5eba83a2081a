"""Points: names of cells, and the series of each kind of machine."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from perfbisect.common.quantities import moment, stamp
from perfbisect.series.points import Build, Point, Workload
from perfbisect.series.series import cell_of_series, machine_series, machine_series_starts
from perfbisect.series.suspects.table import load_suspect_table
from tests.series.made_series import cell, noise


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


def points_on(*kinds: str) -> list[Point]:
    (series,) = cell({"e2el:median": noise(7, len(kinds))})
    return [
        replace(point, covariates={**point.covariates, "hardware": kind} if kind else {})
        for point, kind in zip(series.points, kinds, strict=True)
    ]


def test_one_kind_of_machine_is_one_series_with_points_of_unknown_machines() -> None:
    points = points_on("", "H100", "", "H100")
    assert list(machine_series(points)) == [(points[0].cell, tuple(points))]
    assert [name for name, _ in machine_series(points_on("", ""))] == [points[0].cell]
    assert list(machine_series([])) == []


def test_the_first_kind_keeps_the_name_and_points_of_unknown_machines() -> None:
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
        ("NVIDIA H200 x 2, driver 550.54", "NVIDIA H200 x 1 -> NVIDIA H200 x 2"),
        ("AMD MI300X x 1", f"{OLD} -> AMD MI300X x 1"),
    ],
)
def test_a_series_on_another_machine_starts_with_what_differs(kind: str, what: str) -> None:
    points = points_on("", OLD, "", kind, OLD, kind)
    (start,) = machine_series_starts(points[::-1])
    assert (start.first, start.before, start.what) == (points[3], points[1], what)
    assert start.name == list(dict(machine_series(points)))[1]


def test_one_kind_of_machine_starts_nothing() -> None:
    assert list(machine_series_starts(points_on("", "H100", "", "H100"))) == []
    (other,) = (replace(p, workload=replace(p.workload, test="another")) for p in points_on("A100"))
    assert list(machine_series_starts([*points_on("H100"), other])) == [], "each cell has its own machine"


def test_a_moment_has_a_zone() -> None:
    assert stamp(moment("2026-07-02T15:23:35+08:00")) == "2026-07-02T07:23:35Z"
    with pytest.raises(ValueError, match="does not say its zone"):
        moment("2026-07-02T15:23:35")
