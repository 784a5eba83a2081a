"""Exports: every point is a row, no cell is a formula, and the action gets what it reads."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from perfbisect.common.text import line
from perfbisect.errors import UsageError
from perfbisect.series import store as store_module
from perfbisect.series.export import (
    COLUMNS,
    Form,
    benchmark_entries,
    csv_parts,
    export_files,
    json_parts,
    series_for_export,
    series_frame,
)
from perfbisect.series.points import Build, Point, Workload
from perfbisect.series.store import SeriesStore


def point(
    day: int = 12, hour: int = 19, cell: str = "omni", commit: str = "c0ffee", **values: float
) -> Point:
    told = {name.replace("__", ":"): value for name, value in values.items()}
    at = f"2026-04-{day:02d}T{hour:02d}:00:00Z"
    return Point(
        build=Build("journal", "perfbisect", f"job-{day}", commit=commit),
        workload=Workload(cell, model="acme/omni"),
        began=at,
        ended=at,
        values=told,
        covariates={"engine": "0.32.0", "hardware": "H20 x 1", "completed": 8},
        night=at[:10],
        start=f"launch-{day}-{hour}",
    )


def by_cell(*points: Point) -> list[tuple[str, list[Point]]]:
    return [(cell, [p for p in points if p.cell == cell]) for cell in dict.fromkeys(p.cell for p in points)]


def text_of(*points: Point, metric: str = "") -> str:
    return "".join(csv_parts(by_cell(*points), metric))


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_row_for_each_metric_of_each_point() -> None:
    found = rows(text_of(point(ttft__median=80.5, output_throughput=0.1 + 0.2), point(13, ttft__median=81.0)))
    assert [tuple(row) for row in found] == [COLUMNS] * 3
    told = [(row["night"], row["metric"], float(row["value"]), row["unit"], row["better"]) for row in found]
    assert told == [
        ("2026-04-12", "output_throughput", 0.1 + 0.2, "tok/s", "higher"),
        ("2026-04-12", "ttft", 80.5, "ms", "lower"),
        ("2026-04-13", "ttft", 81.0, "ms", "lower"),
    ]
    assert found[0]["engine"] == "0.32.0"
    assert found[0]["hardware"] == "H20 x 1"
    assert [
        row["metric"] for row in rows(text_of(point(ttft__median=1, ttft__p99=2), metric="ttft:p99"))
    ] == ["ttft:p99"]
    assert rows(text_of()) == []
    assert rows(text_of(point(unheard_of=3.0))) == []


def test_every_form_has_the_same_rows(tmp_path: Path) -> None:
    points = by_cell(point(ttft__median=80.5, failed=0.0), point(13, cell='a "b"\n', ttft__median=81.0))
    for form in get_args(Form)[:3]:
        told = export_files(iter(points), form, tmp_path / form)
        assert (told.files, told.points) == ({form: str(tmp_path / form)}, 2)
    frame = series_frame(points)
    assert_frame_equal(pd.read_parquet(tmp_path / "parquet"), frame, check_dtype=False)
    listed = json.loads((tmp_path / "json").read_text())
    assert [list(row) for row in listed] == [list(COLUMNS)] * 3
    assert frame["value"].to_list() == [row["value"] for row in listed] == [0.0, 80.5, 81.0]
    assert frame["series"].to_list() == [row["series"] for row in listed]
    assert frame["branch"].isna().all() and {row["branch"] for row in listed} == {None}
    assert str(frame["night"].max()) == "2026-04-13 00:00:00"
    assert [row["cell"] for row in rows((tmp_path / "csv").read_text())] == ["omni", "omni", line('a "b"\n')]


def test_a_json_list_is_one_where_there_is_no_row_and_no_number() -> None:
    assert json.loads("".join(json_parts([]))) == []
    (row,) = json.loads("".join(json_parts(by_cell(point(ttft__median=float("inf"))))))
    assert row["value"] is None


def test_parquet_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfbisect.series.export.find_spec", lambda _: None)
    with pytest.raises(UsageError) as caught:
        export_files(by_cell(point(ttft__median=1.0)), "parquet", tmp_path / "series.parquet")
    assert caught.value.next == "pip install 'perfbisect[parquet]'"
    assert list(tmp_path.iterdir()) == []


@given(st.text(alphabet=st.sampled_from("=+-@ \t\r\n,;'\"ab|0"), min_size=1))
def test_no_cell_is_a_formula(text: str) -> None:
    (row,) = rows(text_of(point(cell=text, ttft__median=1.0)))
    assert row["cell"].lstrip()[:1] not in tuple("=+-@\t\r")
    assert row["cell"] in (line(text), f"'{line(text)}")


def test_the_newest_night_for_the_action() -> None:
    found = benchmark_entries(
        by_cell(
            point(11, ttft__median=70.0),
            point(12, ttft__median=80.0, ttft__p99=200.0, output_throughput=10.0, failed=0.0),
            point(12, 20, ttft__median=84.0, output_throughput=12.0, failed=0.0),
            point(10, cell="gone", ttft__median=1.0),
        )
    )
    assert [json.loads(json.dumps(entry)) for entry in found["smaller"]] == [
        {
            "name": "omni ttft",
            "unit": "ms",
            "value": 82.0,
            "range": "± 2",
            "extra": "night: 2026-04-12\ncommit: c0ffee\nengine: 0.32.0\nhardware: H20 x 1\nlaunches: 2",
        }
    ]
    assert [(e["name"], e["unit"], e["value"]) for e in found["bigger"]] == [
        ("omni output_throughput", "tok/s", 11.0)
    ]


def test_launches_of_another_commit_of_the_night_are_not_mixed_in() -> None:
    points = [point(12, 1, commit="old", ttft__median=10.0), point(12, 2, commit="new", ttft__median=90.0)]
    (entry,) = benchmark_entries(by_cell(*points))["smaller"]
    assert entry["value"] == 90.0
    assert "range" not in entry, "it is a single launch"


@pytest.mark.parametrize(("day", "hour"), [(12, 23), (13, 0)])
def test_a_night_that_passes_midnight_is_one(day: int, hour: int) -> None:
    late = point(13, 1, cell="late", ttft__median=1.0)
    entries = benchmark_entries(by_cell(point(day, hour, ttft__median=2.0), late))["smaller"]
    assert {entry["name"] for entry in entries} == {"omni ttft", "late ttft"}


def test_a_named_metric_alone() -> None:
    values: dict[str, Any] = {"ttft__p99": 200.0, "ttft__median": 80.0}
    (entry,) = benchmark_entries([("omni on H100", [point(**values)])], "ttft:p99")["smaller"]
    assert (entry["name"], entry["value"]) == ("omni on H100 ttft:p99", 200.0)
    assert benchmark_entries([]) == benchmark_entries([], "ttft")


def test_an_export_reads_one_series_at_a_time() -> None:
    """Every part is of the series read last: the memory does not grow with the store."""
    read: list[str] = []

    def series() -> Iterator[tuple[str, list[Point]]]:
        for name in ("a", "b", "c"):
            read.append(name)
            yield name, [point(cell=name, ttft__median=1.0)]

    parts = [(len(read), part.count("\n")) for part in csv_parts(series())]
    assert parts == [(1, 2), (2, 1), (3, 1)], "the first with the header"


def test_a_store_is_exported_cell_by_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        replace(point(day, cell=cell, ttft__median=1.0), start="") for day in (12, 13) for cell in "abc"
    ]
    with SeriesStore(tmp_path / "store.sqlite") as store:
        with store.transaction():
            for day, of_build in groupby(points, key=lambda p: p.build):
                store.replace_results(store.keep_build(day), list(of_build), ())
        made: list[str] = []
        make = store_module._point
        monkeypatch.setattr(store_module, "_point", lambda *of: (made.append(of[1]["raw"]), make(*of))[1])
        series = series_for_export(store)
        next(series)
        assert len(made) <= 3, "of the first cell, and the first of the second, which ends it"
        path = tmp_path / "all.csv"
        exported = export_files(series_for_export(store), "csv", path)
        assert (exported.points, exported.cells) == (6, 3)
        with pytest.raises(UsageError, match="no point reports tpot"):
            export_files(series_for_export(store, metric="tpot"), "csv", tmp_path / "none.csv", metric="tpot")
    assert [row["cell"] for row in rows(path.read_text())] == list("aabbcc")
    assert sorted(found.name for found in tmp_path.glob("*.csv")) == ["all.csv"]
