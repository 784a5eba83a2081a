"""Kanban checkouts, folders of results and our own journals: what is found in them, as which builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfbisect.errors import UsageError
from perfbisect.model.attempt import Failure
from perfbisect.series.ingest import ingest
from perfbisect.series.points import Point, RejectedResult
from perfbisect.series.sources import SOURCES, IngestOptions, SourceBuild, find_source
from perfbisect.series.sources.journals import recorded_results
from perfbisect.series.store import SeriesStore
from tests.series.made import RAW, drawn, name_of, result, served, write
from tests.series.test_publish import COMMIT, VALUES, attempt, cell, job_of


def batches(path: Path, **asked: Any) -> list[SourceBuild]:
    source, place = find_source(str(path))
    return list(source.builds(place, IngestOptions(**asked)))


def source_of(place: Path, name: str | None = None) -> str:
    return find_source(str(place), name)[0].NAME


def names(found: list[SourceBuild]) -> dict[str, list[str]]:
    return {batch.build.name: [file.name for file in batch.files] for batch in found}


def test_a_kanban_of_every_layout(tmp_path: Path) -> None:
    result(tmp_path, "6433", name_of(), served())
    result(tmp_path, "999", "benchmark_results_test_image_20260401-191500.json", [drawn()])
    write(tmp_path / RAW / "6433" / "tests/dfx/perf/results/notes.json", {})
    old = write(tmp_path / "data/results/qwen3omni" / name_of(at="20260328-184452"), served())
    write(tmp_path / "data/results/2026-03-07.json", {"date": "2026-03-07", "results": []})
    write(tmp_path / "data/alerts.json", {})
    assert source_of(tmp_path) == "kanban"
    found = batches(tmp_path)
    assert names(found) == {
        "999": ["tests/dfx/perf/results/benchmark_results_test_image_20260401-191500.json"],
        "6433": [f"tests/dfx/perf/results/{name_of()}"],
        "2026-03-07": ["2026-03-07.json"],
        "2026-03-28": [f"qwen3omni/{old.name}"],
    }
    assert [b.build.name for b in found][:2] == ["999", "6433"], "by number"
    assert {b.build.pipeline for b in found} == {"vllm/vllm-omni", "vllm/vllm-omni, no build"}
    assert found[0].zone == "UTC"
    assert all(b.build.of_main is None for b in found)
    for inner in ("data", RAW):
        assert source_of(tmp_path / inner) == "kanban"
    assert [b.build.name for b in batches(tmp_path, since="2026-04-02")] == ["6433"]
    assert batches(tmp_path, zone="Asia/Tokyo")[0].zone == "Asia/Tokyo"


def test_folders_that_are_no_kanban_or_an_empty_one(tmp_path: Path) -> None:
    write(tmp_path / "plain/data/results/thing.json", {"a": 1})
    write(tmp_path / "plain/results" / name_of(), served())
    assert source_of(tmp_path / "plain") == "folder"
    (tmp_path / RAW / "6433").mkdir(parents=True)
    with pytest.raises(UsageError, match="no results"):
        batches(tmp_path)


def test_folders_in_a_folder_are_builds(tmp_path: Path) -> None:
    write(tmp_path / "0123abc" / "results" / "serving_a.json", served())
    write(tmp_path / "2026-04-02" / "serving_a.json", served(commit="fedcba9"))
    write(tmp_path / "6433" / "serving_a.json", served())
    write(tmp_path / ".git" / "x.json", served())
    write(tmp_path / name_of(at="20260405-190000"), served())
    write(tmp_path / "bench.json", served(date="20260406-190000"))
    write(tmp_path / "empty.json", "")
    found = batches(tmp_path)
    assert names(found) == {
        "0123abc": ["results/serving_a.json"],
        "2026-04-02": ["serving_a.json"],
        "2026-04-05": [name_of(at="20260405-190000")],
        "2026-04-06": ["bench.json"],
        "6433": ["serving_a.json"],
        "undated": ["empty.json"],
    }
    commits = {b.build.name: b.build.commit for b in found}
    assert (commits["0123abc"], commits["2026-04-02"], commits["6433"]) == ("0123abc", "fedcba9", "")
    assert {b.zone for b in found} == {""}
    assert "2026-04-02" not in names(batches(tmp_path, since="2026-04-03"))


def test_one_file_is_a_folder_of_one(tmp_path: Path) -> None:
    path = write(tmp_path / name_of(), served())
    write(tmp_path / "other.json", served())
    assert names(batches(path)) == {"2026-04-12": [name_of()]}


def test_commands_beside_a_result_are_part_of_it(tmp_path: Path) -> None:
    path = write(tmp_path / "serving_a.json", served())
    alone = batches(tmp_path)[0].files[0]
    path.with_suffix(".commands").write_text('{"gpu_type": "H100"}')
    both = batches(tmp_path)[0].files[0]
    assert (both.read(), both.commands()) == (path.read_text(), '{"gpu_type": "H100"}')
    assert both.version != alone.version


def test_a_byte_order_mark_is_no_part_of_a_result(tmp_path: Path) -> None:
    path = tmp_path / name_of()
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(served()).encode())
    assert json.loads(batches(tmp_path)[0].files[0].read()) == served()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: None, "no such file or folder"),
        (lambda p: p.mkdir(), "is empty"),
        (lambda p: (p / "inner").mkdir(parents=True), "holds nothing that can be ingested"),
        (lambda p: p.write_text("x"), "holds nothing that can be ingested"),
    ],
)
def test_a_path_that_is_none(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path / "there")
    with pytest.raises(UsageError, match=message):
        find_source(str(tmp_path / "there"))


def test_a_source_that_is_asked_for_by_name(tmp_path: Path) -> None:
    write(tmp_path / "a.json", served())
    assert source_of(tmp_path, "folder") == "folder"
    with pytest.raises(UsageError, match=r"is no kanban: a checkout with data/"):
        find_source(str(tmp_path), "kanban")
    with pytest.raises(UsageError, match="there are: buildkite, kanban, journals, dashboard, folder"):
        find_source(str(tmp_path), "jenkins")
    with pytest.raises(UsageError, match="holds nothing"):
        find_source("https://example.org/results")


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_satisfies_the_protocol(name: str, tmp_path: Path) -> None:
    source = SOURCES[name]
    assert name == source.NAME
    assert source.ACCEPTS
    assert not source.takes(str(tmp_path)), "nothing is there"
    assert not source.takes(str(tmp_path / "nowhere"))
    assert not source.takes("https://example.org/some/thing/else")


def test_our_own_runs_are_points(tmp_path: Path) -> None:
    of = cell()
    attempts = (
        attempt(1, of, {"ttft:median": 10.0, "failed": 0.0}, {"ttft:median": 40.0, "failed": 0.0}),
        attempt(2, of, failure=Failure("launch", "machine", "no memory")),
        attempt(3, of, VALUES),
    )
    job = job_of(tmp_path, "a", of, *attempts, discarded="a-003")
    torn = {"schema": 1, "seq": 5, "time": "2026-04-12T19:00:00+00:00", "event": "finished"}
    with job.journal.open("a") as journal:
        journal.write(json.dumps(torn | {"data": {"attempt": {"id": "4"}}}) + "\n")
    job_of(tmp_path, "b", of, verb="bisect")
    (batch,) = batches(tmp_path)
    assert (batch.build.name, batch.build.commit, batch.build.source) == ("a", COMMIT, "journal")
    document = json.loads(batch.files[0].read())
    point, *rejected = recorded_results(batch.build, document, "raw")
    assert isinstance(point, Point)
    assert (point.cell, point.workload.digest) == (of.name, of.digest)
    assert point.began == "2026-04-12T19:01:00Z"
    assert point.values == pytest.approx({"ttft:median": 20.0, "failed": 0.0, "ready_time": 30.0})
    assert (point.start, point.covariates["output_tokens"], point.covariates["duration"]) == ("a-001", 9, 20)
    assert point.covariates["hardware"] == "H20 x 2"
    refused = [result for result in rejected if isinstance(result, RejectedResult)]
    kinds = [(result.kind, result.why.values["message"]) for result in refused]
    assert kinds[:2] == [("unmeasured", "no memory"), ("unmeasured", "others measured")]
    assert kinds[2][0] == "broken"
    assert source_of(tmp_path / "jobs" / "a") == "journals"


def test_a_damaged_journal_and_an_unknown_metric_keep_no_other_job_out(tmp_path: Path) -> None:
    of = cell()
    job_of(tmp_path, "a", of, attempt(1, of, {**VALUES, "of_tomorrow": 1.0}))
    damaged = job_of(tmp_path, "b", of, attempt(2, of, VALUES))
    lines = damaged.journal.read_text().splitlines()
    damaged.journal.write_text("\n".join([lines[0], "[" * 9000, *lines[1:]]) + "\n")
    with SeriesStore.of(tmp_path / "store") as store:
        ingest(store, [str(tmp_path)], IngestOptions())
        assert [(point.build.name, set(point.values)) for point in store.points()] == [
            ("a", {*VALUES, "ready_time"})
        ]
        (rejected,) = store.rejections()
        assert (rejected.build.name, rejected.kind) == ("b", "broken")


def test_jobs_that_are_no_runs_are_no_nights(tmp_path: Path) -> None:
    job_of(tmp_path, "b", cell(), verb="bisect")
    with pytest.raises(UsageError, match="no job of `perfbisect run`"):
        batches(tmp_path)
