"""The real kanban, where it lies beside this checkout: what is known of it is what is found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfbisect.model.change import Change
from perfbisect.series.ingest import ingest
from perfbisect.series.series import CellSeries
from perfbisect.series.sources import IngestOptions
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.job import window_between
from perfbisect.series.suspects.window import MainLine
from tests.series.made import series_of
from tests.shared import data


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeriesStore]:
    with SeriesStore.of(tmp_path_factory.mktemp("state")) as opened:
        ingest(opened, [str(data("kanban"))], IngestOptions())
        yield opened


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
    assert [(h.kind, h.what) for h in hints] == [("workload", "prompts have 647.55 tokens, 281 before")], (
        "the tests of 04-14 are others"
    )


def test_the_window_of_the_break_holds_the_culprit(store: SeriesStore) -> None:
    rows = [json.loads(line) for line in data("vllm_omni", "history.jsonl").read_text().splitlines()]
    line = MainLine(
        tuple(Change(row["sha"], subject=row["subject"], date=row["date"]) for row in reversed(rows))
    )
    points = store.points()
    builds = {p.build.name: p.build for p in points}
    found = window_between(line, points, builds["6388"], builds["6433"])
    assert len(found.commits) <= 12
    assert any(commit.id.startswith("5d58abb1") for commit in found.commits)
    wider = window_between(line, points, builds["6346"], builds["6433"])
    assert set(found.commits) < set(wider.commits), "a night that is missing widens it"
