"""Two kinds of machines are two series."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfbisect.series.points import Point, cell_of_series, machine_series, machine_series_starts
from perfbisect.series.suspects.table import load_suspect_table
from tests.series.made_series import cell, noise


def made(*kinds: str) -> list[Point]:
    (series,) = cell({"e2el:median": noise(7, len(kinds))})
    return [
        replace(point, covariates={**point.covariates, "hardware": kind} if kind else {})
        for point, kind in zip(series.points, kinds, strict=True)
    ]


def test_one_kind_is_one_series_also_where_some_do_not_say() -> None:
    points = made("", "H100", "", "H100")
    assert list(machine_series(points)) == [(points[0].cell, tuple(points))]
    assert [name for name, _ in machine_series(made("", ""))] == [points[0].cell]
    assert list(machine_series([])) == []


def test_the_first_kind_keeps_the_name_and_what_does_not_say() -> None:
    points = made("", "H100", "A100", "H100", "A100")
    found = dict(machine_series(points[::-1]))
    name = points[0].cell
    assert list(found) == [name, f"{name} on A100"]
    assert found[name] == (points[0], points[1], points[3])
    assert found[f"{name} on A100"] == (points[2], points[4])
    assert {cell_of_series(one) for one in found} == {name}


OLD = "NVIDIA H200 x 1, driver 550.54"


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("NVIDIA H200 x 1, driver 560.28", "driver 550.54 -> driver 560.28"),
        ("NVIDIA H200 x 2, driver 550.54", "NVIDIA H200 x 1 -> NVIDIA H200 x 2"),
        ("AMD MI300X x 1", f"{OLD} -> AMD MI300X x 1"),
    ],
)
def test_where_another_kind_begins_is_told_with_what_is_not_shared(kind: str, what: str) -> None:
    points = made("", OLD, "", kind, OLD, kind)
    (one,) = machine_series_starts(points[::-1])
    assert (one.first, one.before, one.what) == (points[3], points[1], what)
    assert one.name == list(dict(machine_series(points)))[1]


def test_one_kind_begins_nothing() -> None:
    assert list(machine_series_starts(made("", "H100", "", "H100"))) == []
    (other,) = (replace(one, workload=replace(one.workload, test="another")) for one in made("A100"))
    assert list(machine_series_starts([*made("H100"), other])) == [], "each cell has a machine of its own"


def test_a_machine_series_runs_what_its_cell_runs() -> None:
    table = load_suspect_table()
    cell = "test_qwen3_tts_async_chunk/random@c4-n40"
    assert table.traits_of(cell)
    assert table.traits_of(f"{cell} on A100") == table.traits_of(cell)
