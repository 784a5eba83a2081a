"""The real kanban from its files to the commit: what issue 5 must show, as `track` shows it.

On 2026-04-12 every cell that streams chunks was slow for one night; on 04-14 tests and text-only twins came;
on 04-08 input tokens began to count what images and sound become.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.model.change import Change
from perfbisect.report.terminal import report_lines
from perfbisect.series.alerts import Alert
from perfbisect.series.detect import (
    SeriesAnalysis,
    TrackDetectDocument,
    analyze_series,
    detect,
)
from perfbisect.series.detection.model import SeriesRefusal
from perfbisect.series.ingest import ingest
from perfbisect.series.nightly_report import build_nightly_report
from perfbisect.series.points import night_of
from perfbisect.series.rebaseline import rebaseline
from perfbisect.series.report import detect_report, sentences_of
from perfbisect.series.series import CellSeries
from perfbisect.series.sources import IngestOptions
from perfbisect.series.sources.kanban import RAW
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.job import find_alert, rank_alert
from perfbisect.series.suspects.table import load_suspect_table
from perfbisect.series.suspects.window import MainLine, commit_window
from tests.history_repo import HistoryRepository, history_repository
from tests.series.made import series_of
from tests.shared import data

CULPRIT = "5d58abb1"
NIGHT = "2026-04-12"
TABLE = load_suspect_table()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeriesStore]:
    with SeriesStore.of(tmp_path_factory.mktemp("april")) as opened:
        ingest(opened, [str(data("kanban"))], IngestOptions())
        yield opened


@pytest.fixture(scope="module")
def told(store: SeriesStore) -> TrackDetectDocument:
    return detect(store, TABLE, now="2026-04-15T00:00:00Z")


@pytest.fixture(scope="module")
def seen(store: SeriesStore, told: TrackDetectDocument) -> SeriesAnalysis:
    assert told.alerts, "what is asked about was told"
    return analyze_series(store, TABLE)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> HistoryRepository:
    return history_repository(tmp_path_factory.mktemp("omni") / "repo", newest="2026-04-16")


def streams(cell: str) -> bool:
    """Whether a cell passes chunks from stage to stage."""
    return cell.startswith(("qwen3_omni_chunk/", "qwen3_tts/"))


def broken(told: TrackDetectDocument) -> list[Alert]:
    return [a for a in told.alerts if a.cause == "product"]


@pytest.mark.processes
def test_the_break_is_found_on_every_cell_that_streams(store: SeriesStore, told: TrackDetectDocument) -> None:
    measured = {
        p.cell for p in store.points() if p.night == NIGHT and streams(p.cell) and not p.workload.only_text
    }
    assert len(measured) == 10
    assert {a.cell for a in broken(told)} == measured
    for cell in measured:
        among = [a for a in broken(told) if a.cell == cell]
        assert {a.first[:10] for a in among} == {NIGHT}
        assert {a.shape for a in among} == {"transient"}
        assert {"audio_ttfp", "audio_rtf"} & {a.metric for a in among}
        assert {a.event for a in among} == {"20260412-product"}


@pytest.mark.processes
def test_on_its_first_morning_it_is_a_products_too(tmp_path: Path, told: TrackDetectDocument) -> None:
    """From the builds up to that night alone, when it is not known that it passed."""
    (tmp_path / "data" / RAW).mkdir(parents=True)
    for build in data("kanban", "data", RAW).iterdir():
        if int(build.name) <= 6433:
            (tmp_path / "data" / RAW / build.name).symlink_to(build)
    with SeriesStore.of(tmp_path / "state") as store:
        ingest(store, [str(tmp_path)], IngestOptions())
        first = detect(store, TABLE, now="2026-04-13T00:00:00Z")
    assert {alert.cell for alert in broken(first)} == {alert.cell for alert in broken(told)}
    assert {alert.first[:10] for alert in broken(first)} == {NIGHT}
    sounds = [alert for alert in broken(first) if alert.metric == "audio_rtf"]
    assert all("async_chunk" in alert.evidence[0].values["traits"] for alert in sounds)


def test_it_is_worse_and_some_of_it_is_better(told: TrackDetectDocument) -> None:
    """Time to first token is shorter while the first sound comes forty seconds later: both are told."""
    effects = {(a.cell, a.metric): a.effect for a in broken(told)}
    assert effects["qwen3_omni_chunk/random-mm@r0.3-n40", "audio_rtf"] == pytest.approx(8.4, abs=0.3)
    assert effects["qwen3_tts/random@c4-n40", "audio_ttfp"] > 100
    assert effects["qwen3_omni_chunk/random@c10-n100", "ttft"] < -0.5


def test_nothing_else_is_a_products(told: TrackDetectDocument) -> None:
    assert {a.first[:10] for a in broken(told)} == {NIGHT}
    assert all(streams(a.cell) for a in broken(told))


def test_what_changed_on_other_nights_is_told_apart(told: TrackDetectDocument) -> None:
    """Longer answers on 04-04 are workload; a cold first request that moved to another cell is a tail."""
    others = [a for a in told.alerts if a.cause != "product"]
    work = {(a.first[:10], a.metric) for a in others if a.cause == "workload"}
    assert ("2026-04-04", "output_throughput") in work
    assert {night for night, _ in work} <= {"2026-04-04", "2026-04-14"}
    cold = [a for a in others if a.metric == "ttft:p99" and a.cell == "qwen3_omni/random@c1-n10"]
    assert [a.cause for a in cold] == ["unknown"]
    assert "a few requests, such as those of a cold server" in sentences_of("evidence", cold[0].evidence)[0]
    assert not {a.event for a in others} & {a.event for a in broken(told)}


def test_the_night_of_the_recovery_is_no_regression(told: TrackDetectDocument) -> None:
    """On 04-14 the tests changed (#2600) and text-only twins came: what longer prompts did to the newest
    night of one cell is not sure yet among the transients of all."""
    late = {(a.cell, a.metric): a.cause for a in told.alerts if a.first[:10] == "2026-04-14"}
    assert set(late.values()) <= {"workload", "instrument", "unknown"}
    doubtful = {
        (c.cell, c.metric)
        for c in told.listed
        if c.kind == "too doubtful" and night_of(c.night) == "2026-04-14"
    }
    assert ("qwen3_omni/random-mm@r0.5-n100", "ttft") in doubtful
    assert not [a for a in told.alerts if a.cell.endswith("-text")]
    back = {a.cell: a.recovered for a in broken(told) if a.metric == "audio_ttfp"}
    assert back["qwen3_tts/random@c4-n40"] and back["qwen3_omni_chunk/random@c4-n16"]
    assert not back["qwen3_omni_chunk/random-mm@r0.3-n40"], "12 % of 7273 % are left, by other prompts"
    assert not back["qwen3_omni_chunk/random-mm@r0.5-n100"], "it came back to 0.65 of 0.1 only"
    assert not back["qwen3_omni_chunk/random@c4-n40"], "its series ends with the break"


def test_a_cold_request_that_is_sent_first_now_is_the_instruments(told: TrackDetectDocument) -> None:
    """On 04-14 the mean TTFP of ten requests fell from 3,832 to 59 ms, its p99 from 34 s to 61 ms, and the
    median was 65 and is 59; every client took longer before its run than on any night before."""
    (mean, tail) = [
        next(a for a in told.alerts if (a.cell, a.metric) == ("qwen3_tts/random@c1-n10", name))
        for name in ("audio_ttfp:mean", "audio_ttfp:p99")
    ]
    assert {mean.cause, tail.cause} == {"instrument"} and mean.first[:10] == "2026-04-14"
    moved, warmed = sentences_of("evidence", mean.evidence)[:2]
    assert "the median -5.0 %: slow requests that were in it before" in moved
    assert "took 65 s before the run that it measures, and 8 s until then; 38 s of slow" in warmed
    assert "34 s of slow requests are gone" in sentences_of("evidence", tail.evidence)[1]


def test_input_tokens_that_are_counted_otherwise_are_no_change(told: TrackDetectDocument) -> None:
    (mark,) = told.discontinuities
    assert (mark.night, mark.kind) == ("2026-04-08", "instrument")
    assert not [a for a in told.alerts if a.metric in ("input_tokens", "total_token_throughput")]


def test_the_census_says_what_was_judged(told: TrackDetectDocument) -> None:
    medians, tails = told.census.families
    assert medians.judged > 150 and tails.judged > 150
    short = [one for one in told.census.series if one.why]
    assert any(one.why == SeriesRefusal("few nights", 1) for one in short)
    assert all(one.smallest and one.p is not None for one in told.census.series if not one.why)
    assert sum(told.census.not_judged.values()) > 100
    assert medians.cut < medians.cut_of_transients, "the break of one night makes no steps significant"


def test_the_window_and_the_commit(
    store: SeriesStore, seen: SeriesAnalysis, history: HistoryRepository
) -> None:
    """By the cells and the revert, whichever alert of the event is asked about."""
    repository = Repository.open(history.path)
    asked = [
        find_alert(store, seen, "20260412-product"),
        *(a for a in seen.alerts if a.metric in ("audio_rtf", "audio_ttfp") and a.cause == "product"),
    ]
    assert len(asked) >= 8
    for alert in asked:
        found = rank_alert(store, seen, alert, repository, TABLE)
        shas = [suspect.sha for suspect in found.ranking.suspects]
        assert len(shas) <= 12
        assert shas[0] == history.sha(CULPRIT), alert.id
        assert found.ranking.attributed is not None, alert.id
        assert found.ranking.attributed.values["by_pull"] == 2716
        factors = {factor.name for factor in found.ranking.suspects[0].evidence}
        assert {"cells", "reverted"} <= factors


def test_a_baseline_is_of_one_level_and_one_workload(store: SeriesStore, seen: SeriesAnalysis) -> None:
    """Nights up to 04-14: without the break of 04-12, and of `random-mm` not across its other prompts."""
    rows = {(row.cell, row.name): row for row in rebaseline(store, seen).rows}
    chunk = rows["qwen3_omni_chunk/random-mm@r0.1-n10", "output_throughput"]
    assert (chunk.new, chunk.status) == (None, "too few"), "9.07 was the mean with -17.3 % of 04-12 in it"
    assert set(chunk.left_out) >= {f"2026-04-{day}" for day in ("08", "10", "11", "12")}
    mixed = rows["qwen3_omni/random-mm@r0.5-n100", "median_audio_ttfp_ms"]
    assert (mixed.n, mixed.new, mixed.status) == (1, None, "too few"), "10,694 is of other prompts than 7,882"
    sound = rows["qwen3_omni_chunk/random@c4-n16", "audio_throughput"]
    assert (sound.n, sound.status, sound.new) == (4, "new", pytest.approx(15.1065, abs=1e-4))
    assert sound.left_out == (NIGHT,)
    assert rows["qwen3_tts/random@c1-n10", "audio_throughput"].new is None
    image = rows["qwen_image_single_device/1536x1536_steps35@c1-n10", "latency_mean"]
    assert (image.n, image.status, image.left_out) == (6, "better", ())


def test_the_report_s_words_follow_the_cause(seen: SeriesAnalysis) -> None:
    rows = {
        (f"{row.test}/{row.config}", row.metric): row for row in build_nightly_report(seen, fdr=0.05).rows
    }
    assert not [row for row in rows.values() if row.issue], "it was mended"
    itl = rows["qwen3_omni/random@c4-n16", "itl"]
    assert (itl.cause, itl.status) == ("unknown", "worse"), "20.8 % for three days"
    ttft = rows["qwen3_omni_chunk/random@c10-n100", "ttft"]
    assert (ttft.status, ttft.beside_metric, ttft.now) == ("improved", "audio_ttfp", "not measured since")
    assert ttft.beside_effect == pytest.approx(13.7, abs=0.1)
    ended = {one.cell for one in seen.alerts if one.now == "not measured since"}
    assert "qwen3_omni_chunk/random@c10-n100" in ended and "qwen3_tts/random@c1-n10" not in ended


def test_a_reader_sees_it_first(told: TrackDetectDocument) -> None:
    lines = list(report_lines(detect_report(told)))
    heads = [line for line in lines if line.endswith("-product)")]
    assert len(heads) == 1 and heads[0].startswith("2026-04-12  product, transient")
    assert lines.index(heads[0]) == 2, "after the verdict"
    assert "every server that moved runs async_chunk" in lines[3]
    assert lines[-1].startswith("  next: perfbisect track suspects 20260412-")
    asked = lines[-1].split()[4]
    assert not next(alert for alert in told.alerts if alert.id == asked).recovered
    assert lines[0] == "Series up to 2026-04-14: 8 new events (82 alerts); to act on today: 0"
    assert len(told.brief().text()) < 20_000 and len(told.brief().events) == len(told.events) == 8


def test_nothing_is_told_twice(store: SeriesStore, told: TrackDetectDocument) -> None:
    again = detect(store, TABLE, now="2026-04-16T00:00:00Z")
    assert {a.id for a in again.alerts} == {a.id for a in told.alerts}
    assert all(a.new for a in told.alerts) and not any(a.new for a in again.alerts)
    assert detect_report(again).verdict.text == "no new events; to act on today: 0"


def files() -> tuple[list[Path], list[Path]]:
    """Result files of served models, and of the diffusion benchmark."""
    root = data("kanban", "data")
    return sorted(root.rglob("result_test_*.json")), sorted(root.rglob("benchmark_results_*.json"))


def test_every_file_is_a_point_once(store: SeriesStore) -> None:
    served, drawn = files()
    contents = Counter(path.read_bytes() for path in served)
    records = sum(len(json.loads(path.read_text())) for path in drawn)
    assert len(store.points()) == len(contents) + records
    rejected = Counter(r.kind for r in store.rejections())
    assert rejected == {
        "twin": len(served) - len(contents),
        "older": len(list(data("kanban", "data", "results").glob("*.json"))),
    }


def test_where_a_file_lies_in_two_layouts_the_build_is_known(store: SeriesStore) -> None:
    assert {p.build.name for p in store.points() if p.night == "2026-04-01"} == {"5654"}


def test_text_alone_is_six_cells_of_the_last_night(store: SeriesStore) -> None:
    silent = [p for p in store.points() if p.workload.only_text]
    assert len(silent) == len({p.cell for p in silent}) == 6
    assert {p.build.name for p in silent} == {"6664"}


def series(store: SeriesStore, cell: str, metric: str) -> CellSeries:
    (found,) = series_of(store, [cell], metric=metric)
    return found


def test_the_break_of_the_twelfth_is_in_the_series(store: SeriesStore) -> None:
    ttfp = series(store, "qwen3_omni_chunk/random-mm@r0.3-n40", "audio_ttfp")
    place = [point.build.name for point in ttfp.points].index("6433")
    assert ttfp.values[place] == pytest.approx(49716.2, abs=0.1)
    assert max(ttfp.values[:place]) < 800
    assert [b.index for b in ttfp.boundaries] == [], "no change of the instrument hides it"
    assert ttfp.nights[place + 1] - ttfp.nights[place] == 2, "the thirteenth is missing"


def test_input_tokens_that_are_counted_otherwise_are_a_boundary(store: SeriesStore) -> None:
    for metric in ("input_tokens", "total_token_throughput"):
        found = series(store, "qwen3_omni_chunk/random-mm@r0.3-n40", metric)
        assert [found.points[b.index].night for b in found.boundaries] == ["2026-04-08"]
    hints = series(store, "qwen3_omni_chunk/random-mm@r0.3-n40", "audio_rtf").hints
    assert [h.kind for h in hints] == ["workload"]
    assert sentences_of("differences", [h.change for h in hints]) == (
        "prompts have 647.55 tokens, 281 before",
    ), "the tests of 04-14 are others"


def test_the_window_of_the_break_holds_the_culprit(store: SeriesStore) -> None:
    rows = [json.loads(line) for line in data("vllm_omni", "history.jsonl").read_text().splitlines()]
    line = MainLine(
        tuple(Change(row["sha"], subject=row["subject"], date=row["date"]) for row in reversed(rows))
    )
    points = store.points()
    builds = {p.build.name: p.build for p in points}
    found = commit_window(line, points, builds["6388"], builds["6433"])
    assert len(found.commits) <= 12
    assert any(commit.id.startswith("5d58abb1") for commit in found.commits)
    wider = commit_window(line, points, builds["6346"], builds["6433"])
    assert set(found.commits) < set(wider.commits), "a night that is missing widens it"
