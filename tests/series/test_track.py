"""Bringing results in, the table of nights, new baselines: over files that the test made."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfbisect.dashboard.collect import collect_site
from perfbisect.errors import LocatedError, UsageError
from perfbisect.model.commit_details import Evidence
from perfbisect.report.terminal import report_lines
from perfbisect.series.detect import analyze_series, detect
from perfbisect.series.ingest import TrackIngestDocument, ingest
from perfbisect.series.night_table import show_nights
from perfbisect.series.points import Point, message_of
from perfbisect.series.rebaseline import rebaseline
from perfbisect.series.report import detect_report, series_report
from perfbisect.series.sources import IngestOptions
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.table import load_suspect_table
from tests.series.made import drawn, name_of, nights, result, series_of, served, template, write
from tests.series.test_detect import keep, points

TABLE = load_suspect_table()
CELL = "omni/random@c4-n40"
OTHER = f"{CELL} on A100"


@pytest.fixture
def kanban(tmp_path: Path) -> Path:
    return tmp_path / "kanban"


def bring(store: SeriesStore, *paths: Path, **asked: Any) -> TrackIngestDocument:
    return ingest(store, [str(path) for path in paths], IngestOptions(**asked))


def test_nothing_comes_in_twice(store: SeriesStore, kanban: Path, tmp_path: Path) -> None:
    nights(kanban, [600.0, 610.0, None, 620.0])
    first = bring(store, kanban)
    assert (first.builds, first.new, first.points, first.rejected) == (3, 3, 3, ())
    before = store.points()
    again = bring(store, kanban)
    assert (again.new, again.unchanged, again.points) == (0, 3, 0)
    assert store.points() == before
    nights(kanban, [630.0], first=104)
    later = bring(store, kanban)
    assert (later.new, later.unchanged, later.points) == (1, 3, 1)
    shutil.copytree(kanban, tmp_path / "copy")
    copied = bring(store, tmp_path / "copy")
    assert (copied.duplicates, copied.new, len(store.points())) == (4, 0, 4)


@pytest.mark.parametrize("order", [("raw", "old"), ("old", "raw")])
def test_one_file_in_two_layouts_is_of_the_build(
    store: SeriesStore, tmp_path: Path, order: tuple[str, str]
) -> None:
    result(tmp_path / "raw", "6433", name_of(), served())
    write(tmp_path / "old" / "data" / "results" / "omni" / name_of(), json.dumps(served(), indent=2))
    for part in order:
        bring(store, tmp_path / part)
    (point,) = store.points()
    assert point.build.name == "6433"
    (rejection,) = store.rejections()
    assert rejection.kind == "twin"
    assert rejection.why == Evidence("same file", {"file": point.raw})


def test_rejected_results_are_counted_by_kind(store: SeriesStore, kanban: Path) -> None:
    result(kanban, "1", name_of(at="20260412-190115"), served())
    result(kanban, "1", name_of(load="8", at="20260412-190116"), template())
    failed = served(max_concurrency=10, completed=30, failed=10)
    result(kanban, "1", name_of(load="10", at="20260412-190118"), failed)
    done = bring(store, kanban)
    assert [(group.fate, group.count) for group in done.rejected] == [("failed", 1), ("template", 1)]
    assert done.rejected[0].why == message_of("10 of 40 requests failed")
    assert (done.points, done.builds_of_unknown_branch) == (1, 1)


def test_text_that_is_no_text_is_kept_as_its_escape(store: SeriesStore, kanban: Path) -> None:
    result(kanban, "1", os.fsdecode(b"result_test_\xff_random_4_40_20260412-190115.json"), served())
    half = drawn(test_name="test_\ud800", server_params={"model": "\ud800"})
    result(kanban, "1", "benchmark_results_test_image_20260412-191748.json", [half])
    assert bring(store, kanban).points == 2
    assert store.cells() == ("\\ud800/512x512_steps20@c1-n10", "\\xff/random@c4-n40")
    assert bring(store, kanban).points == 0


def test_a_time_without_a_zone_brings_nothing_in(store: SeriesStore, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    write(folder / "1" / "a.json", served(date="2026-04-12T19:02:55Z"))
    path = write(folder / "2" / "b.json", served())
    with pytest.raises(LocatedError, match="does not say its zone") as caught:
        bring(store, folder)
    assert (caught.value.file, caught.value.field) == (str(path), "date")
    assert "--zone UTC" in str(caught.value.next_step)
    assert store.builds() == ()
    assert bring(store, folder, zone="UTC").points == 2
    assert bring(store, folder, zone="UTC").unchanged == 2


def test_another_zone_moves_the_points(store: SeriesStore, tmp_path: Path) -> None:
    write(tmp_path / "results" / "1" / "b.json", served())
    bring(store, tmp_path / "results", zone="UTC")
    bring(store, tmp_path / "results", zone="Asia/Shanghai")
    (point,) = store.points()
    assert point.ended == "2026-04-12T11:02:55Z"
    with pytest.raises(UsageError, match="no time zone"):
        bring(store, tmp_path / "results", zone="Nowhere/Atlantis")


def test_a_build_that_is_there_twice_is_refused(store: SeriesStore, kanban: Path, tmp_path: Path) -> None:
    nights(kanban, [600.0])
    bring(store, kanban)
    nights(tmp_path / "other", [601.0])
    nights(tmp_path / "other", [605.0], first=200)
    with pytest.raises(UsageError, match="twice, with different content") as caught:
        bring(store, tmp_path / "other")
    assert str(tmp_path / "other") in str(caught.value.where)
    assert [p.values["audio_ttfp:median"] for p in store.points()] == [600.0], "nothing came of it"


def test_an_ingest_that_was_cut_short_is_made_good(
    store: SeriesStore, kanban: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights(kanban, [600.0, 610.0])
    with monkeypatch.context() as cut:
        cut.setattr("perfbisect.series.ingest.admit_build", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bring(store, kanban)
    assert store.points() == ()
    assert bring(store, kanban).points == 2


def test_the_nightlys_new_warm_ups_break_its_series(store: SeriesStore, kanban: Path) -> None:
    for build, day in (("1", 17), ("2", 19)):
        at = f"202605{day}-190000"
        result(kanban, build, name_of(at=at), served(date=at))
    bring(store, kanban)
    (series,) = series_of(store, metric="e2el")
    assert [(b.index, b.kind) for b in series.boundaries] == [(1, "instrument")]
    assert "two requests warm up" in series.boundaries[0].change.values["what"]
    assert [h.kind for h in series.hints] == ["warmups"]


def test_the_table_of_nights(store: SeriesStore, kanban: Path) -> None:
    with pytest.raises(UsageError, match="the store has no points"):
        show_nights(store, [])
    nights(kanban, [600.0, 660.0, None, 594.0])
    result(kanban, "102", name_of(at="20260403-190000"), served(completed=0, failed=40))
    bring(store, kanban)
    (table,) = show_nights(store, [CELL]).tables
    assert (table.cell, table.metric.name) == (CELL, "audio_ttfp")
    failed = "none of 40 requests completed (40 failed)"
    rows = [(r.night, r.build, r.value, r.marks) for r in table.rows]
    assert rows == [
        ("2026-04-01", "100", 600.0, ()),
        ("2026-04-02", "101", 660.0, ()),
        (
            "2026-04-03",
            "102",
            None,
            (Evidence("no point", {"why": "message", "message": failed}),),
        ),
        ("2026-04-04", "103", 594.0, (Evidence("nights missing", {"nights": 1}),)),
    ]
    assert [r.change for r in table.rows] == pytest.approx([None, 0.1, None, -0.1])
    assert show_nights(store, [CELL], since="2026-04-02").tables[0].rows[0].build == "101"
    requests = show_nights(store, [CELL], metric="input_tokens")
    title = f"{CELL}: input_tokens in tokens/req, neither more nor less is better"
    assert (requests.tables[0].neutral, table.neutral) == (True, False)
    assert series_report("show", document=requests).sections[0].title == title


def test_a_cell_may_be_the_beginning_of_names(store: SeriesStore, kanban: Path) -> None:
    """Up to a mark: one test's name may begin as another's does, and 4 as 40 does."""
    for place, (test, load) in enumerate([("omni", "4"), ("omni", "40"), ("omni_chunk", "4")]):
        told = served(max_concurrency=int(load), median_audio_ttfp_ms=600.0 + place)
        result(kanban, str(place), name_of(test, load), told)
    bring(store, kanban)

    def shown(*cells: str) -> list[str]:
        return [table.cell for table in show_nights(store, cells).tables]

    four, forty = "omni/random@c4-n40", "omni/random@c40-n40"
    for beginning in ("omni", "omni/", "omni/random", "omni/random@"):
        assert shown(beginning) == [four, forty]
    assert shown("omni/random@c4") == shown("omni/random@c4-") == [four]
    assert [series.metric for series in series_of(store, ["omni/"], metric="ttft:p99")] == ["ttft:p99"] * 2
    for other in ("omn", "omni_", ""):
        with pytest.raises(UsageError, match=f"no cell {other!r}"):
            shown(other)
    with pytest.raises(UsageError, match="nearest: omni_chunk/random@c4-n40"):
        shown("omni_")


def test_a_metric_that_half_the_points_lack(store: SeriesStore, kanban: Path) -> None:
    nights(kanban, [600.0, 610.0])
    for place, build in enumerate(("102", "103")):
        at = f"2026040{3 + place}-190000"
        result(kanban, build, name_of(at=at), served(date=at, median_audio_rtf=None))
    bring(store, kanban)
    (table,) = show_nights(store, [CELL], metric="audio_rtf").tables
    assert [r.value for r in table.rows] == [0.25, 0.25, None, None]
    assert table.lacking == 2
    assert table.rows[2].marks == (Evidence("not reported", {"metric": "audio_rtf"}),)
    with pytest.raises(UsageError, match=r"no point of omni.* reports tpot; reported: audio_duration"):
        show_nights(store, [CELL], metric="tpot")
    with pytest.raises(UsageError, match="unknown metric 'ttftt'; nearest: ttft"):
        show_nights(store, [], metric="ttftt")


def test_without_a_cell_a_line_for_each(store: SeriesStore, kanban: Path) -> None:
    nights(kanban, [600.0, 660.0])
    result(kanban, "9", "benchmark_results_test_image_20260412-191748.json", [drawn()])
    bring(store, kanban)
    document = show_nights(store, [])
    assert document.newest
    assert [(t.cell, t.metric.name, t.nights, *(r.value for r in t.rows)) for t in document.tables] == [
        ("image_one/512x512_steps20@c1-n10", "latency", 1, 2.5),
        (CELL, "audio_ttfp", 2, 660.0),
    ]
    assert document.unknown_branch == 3
    with pytest.raises(UsageError, match="no point since 2027"):
        show_nights(store, [], since="2027-01-01")


def test_new_baselines(store: SeriesStore, kanban: Path) -> None:
    baseline = {"median_audio_ttfp_ms": 700, "H100.median_audio_rtf": 0.2, "audio_throughput": 8.1, "x": 1}
    nights(kanban, [100.0, 600.0, 610.0, 620.0, 630.0, 640.0, 650.0, 660.0], baseline=baseline)
    bring(store, kanban)
    document = rebaseline(store, analyze_series(store, TABLE), [CELL])
    assert (document.first, document.last) == ("2026-04-02", "2026-04-08")
    rows = {row.name: row for row in document.rows}
    ttfp = rows["median_audio_ttfp_ms"]
    assert (ttfp.old, ttfp.mean, ttfp.new, ttfp.n, ttfp.status) == (700, 630, 630, 7, "better")
    assert ttfp.change == pytest.approx(-0.1)
    assert rows["audio_throughput"].status == "same"
    assert (rows["median_audio_rtf"].status, rows["median_audio_rtf"].new) == ("kept", 0.2)
    lines = report_lines(series_report("rebaseline", document=document))
    assert any(line.endswith("%: a regression is not absorbed)") for line in lines)
    assert (rows["x"].status, rows["x"].new, rows["x"].n) == ("too few", 1, 0)
    earlier = rebaseline(store, analyze_series(store, TABLE), [CELL], until="2026-04-03")
    assert {row.name: row.status for row in earlier.rows}["median_audio_ttfp_ms"] == "too few"


def test_baselines_in_another_unit_and_without_old_ones(store: SeriesStore, kanban: Path) -> None:
    sound = {"mean_audio_duration_ms": 21_000.0, "total_audio_duration_ms": 800_000.0}
    nights(kanban, [600.0] * 7, baseline={"mean_audio_duration_ms": 20_000}, **sound)
    nights(kanban, [600.0] * 7, test="other", first=200)
    bring(store, kanban)
    rows = rebaseline(store, analyze_series(store, TABLE)).rows
    (converted,) = (row for row in rows if row.cell == CELL)
    assert (converted.old, converted.mean) == (20_000, pytest.approx(21_000))
    usual = {row.name: row.status for row in rows if row.cell != CELL}
    assert usual["median_audio_ttfp_ms"] == "new"
    assert "median_tpot_ms" not in usual


def test_a_mean_begins_at_a_change_of_the_instrument(store: SeriesStore, kanban: Path) -> None:
    for place in range(7):
        at = f"202605{15 + place}-190000"
        result(kanban, str(place), name_of(at=at), served(date=at, baseline={"median_audio_ttfp_ms": 900}))
    bring(store, kanban)
    (row,) = rebaseline(store, analyze_series(store, TABLE)).rows
    assert (row.n, row.mean, row.status) == (4, 600, "better")
    assert row.left_out == ("2026-05-15", "2026-05-16", "2026-05-17")


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


def test_a_series_of_one_machine_can_be_named(store: SeriesStore) -> None:
    keep(store, *on("H100", points(n=9)), *on("A100", points(n=7)))
    assert {one.cell for one in series_of(store, [OTHER])} == {OTHER}
    assert {one.cell for one in series_of(store, [CELL])} == {CELL, OTHER}
    (table,) = show_nights(store, [OTHER]).tables
    assert (table.cell, len(table.rows)) == (OTHER, 7)
    assert {line.cell for line in show_nights(store, []).tables} == {CELL, OTHER}
    with pytest.raises(UsageError, match=r"no series of '.* on B200'; there are: .*, .* on A100"):
        show_nights(store, [f"{CELL} on B200"])


def test_an_update_of_the_driver_is_told_where_its_series_begin(store: SeriesStore) -> None:
    """Ten nights on one driver, then ten on another: a series each, and the night between says why."""
    old, new = "H200 x 1, driver 550", "H200 x 1, driver 560"
    keep(store, *on(old, points(n=20)[:10]), *on(new, points(n=20)[10:]))
    first = points(n=20)[10].night
    (mark,) = detect(store, TABLE, now="t").discontinuities
    assert (mark.night, mark.kind, mark.change.kind) == (first, "machine", "machine")
    assert mark.change.values == {"names": [], "before": ["driver 550"], "after": ["driver 560"]}
    assert (mark.cells, mark.series) == (
        (f"{CELL} on {new}",),
        len(list(series_of(store, [f"{CELL} on {new}"]))),
    )
    told = Evidence("series begins", mark.change.values)
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
    told_again = f"machine changed, {mark.series} series begin anew: driver 550 -> driver 560"
    assert f"  - {first}  {told_again}" in list(lines)


def test_a_baseline_is_of_one_machine(store: SeriesStore) -> None:
    told = {"median_e2el_ms": 100.0}
    fast = [replace(p, covariates={**p.covariates, "baseline": told}) for p in points(n=9)]
    slow = [replace(p, values={name: 2 * value for name, value in p.values.items()}) for p in fast]
    keep(store, *on("H100", fast), *on("A100", slow))
    rows = {row.cell: row.mean for row in rebaseline(store, analyze_series(store, TABLE)).rows}
    assert rows[OTHER] == pytest.approx(2 * rows[CELL])
