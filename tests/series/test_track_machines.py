"""Nights of several kinds of machines: each kind is a series of its own, wherever series are shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.dashboard.collect import collect_site
from perfbisect.errors import UsageError
from perfbisect.report.terminal import report_lines
from perfbisect.series.detect import analyze_series, detect
from perfbisect.series.night_table import show_nights
from perfbisect.series.points import Point
from perfbisect.series.rebaseline import rebaseline
from perfbisect.series.report import detect_report
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.table import load_suspect_table
from tests.series.made import series_of
from tests.series.test_detect import keep, points

TABLE = load_suspect_table()
CELL = "omni/random@c4-n40"
OTHER = f"{CELL} on A100"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SeriesStore]:
    with SeriesStore.of(tmp_path) as opened:
        yield opened


def on(kind: str, found: list[Point]) -> list[Point]:
    return [
        replace(
            point,
            covariates={**point.covariates, "hardware": kind},
            build=replace(point.build, name=f"{kind}-{point.build.name}"),
            start=f"{kind} {point.start}",
        )
        for point in found
    ]


def test_nights_in_turn_on_two_machines_are_no_change(store: SeriesStore) -> None:
    """The second kind takes twice as long, and runs every second night from the eighth on."""
    slow = [replace(p, values={name: 2 * value for name, value in p.values.items()}) for p in points()[9::2]]
    keep(store, *on("H100", points()[:9] + points()[10::2]), *on("A100", slow))
    assert {one.cell for one in series_of(store)} == {CELL, OTHER}
    assert detect(store, TABLE, now="t").alerts == ()
    document = collect_site(
        store, analyze_series(store, TABLE), TABLE, title="t", made="2026-01-01T00:00:00Z"
    )
    assert {(one.name, one.machine) for one in document.cells} == {(CELL, "H100"), (OTHER, "A100")}


def test_a_step_on_one_machine_is_told_of_it_alone(store: SeriesStore) -> None:
    keep(store, *on("H100", points()), *on("A100", points(at=20, factor=1.4)))
    (alert,) = detect(store, TABLE, now="t").alerts
    assert (alert.cell, alert.shape) == (OTHER, "step")


def test_a_series_of_one_machine_can_be_named(store: SeriesStore) -> None:
    keep(store, *on("H100", points(n=9)), *on("A100", points(n=7)))
    assert {one.cell for one in series_of(store, [OTHER])} == {OTHER}
    assert {one.cell for one in series_of(store, [CELL])} == {CELL, OTHER}
    (table,) = show_nights(store, [OTHER]).tables
    assert (table.cell, len(table.rows)) == (OTHER, 7)
    assert {line.cell for line in show_nights(store, []).cells} == {CELL, OTHER}
    with pytest.raises(UsageError, match=r"no series of '.* on B200'; there are: .*, .* on A100"):
        show_nights(store, [f"{CELL} on B200"])


def test_an_update_of_the_driver_is_told_where_its_series_begin(store: SeriesStore) -> None:
    """Ten nights on one driver, then ten on another: a series each, and the night between says why."""
    old, new = "H200 x 1, driver 550", "H200 x 1, driver 560"
    keep(store, *on(old, points(n=20)[:10]), *on(new, points(n=20)[10:]))
    first = points(n=20)[10].night
    (mark,) = detect(store, TABLE, now="t").discontinuities
    assert (mark.night, mark.kind, mark.what) == (first, "machine", "driver 550 -> driver 560")
    assert (mark.cells, mark.series) == (
        (f"{CELL} on {new}",),
        len(list(series_of(store, [f"{CELL} on {new}"]))),
    )
    told = "machine changed: driver 550 -> driver 560, the series begins"
    for since in ("", points(n=20)[5].night):
        marked = {
            (t.cell, row.night)
            for t in show_nights(store, [CELL], since=since).tables
            for row in t.rows
            if told in row.marks
        }
        assert marked == {(f"{CELL} on {new}", first)}
    later = points(n=20)[15].night
    assert not any(row.marks for t in show_nights(store, [CELL], since=later).tables for row in t.rows)
    assert detect(store, TABLE, now="t", since=later).discontinuities == ()
    lines = report_lines(detect_report(detect(store, TABLE, now="t")))
    assert f"  - {first}  machine changed, {mark.series} series begin anew: {mark.what}" in list(lines)


def test_a_baseline_is_of_one_machine(store: SeriesStore) -> None:
    told = {"median_e2el_ms": 100.0}
    fast = [replace(p, covariates={**p.covariates, "baseline": told}) for p in points(n=9)]
    slow = [replace(p, values={name: 2 * value for name, value in p.values.items()}) for p in fast]
    keep(store, *on("H100", fast), *on("A100", slow))
    rows = {row.cell: row.mean for row in rebaseline(store, analyze_series(store, TABLE)).rows}
    assert rows[OTHER] == pytest.approx(2 * rows[CELL])
