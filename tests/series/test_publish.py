"""Publishing in the kanban's format: reading back gives the same points, and nothing is published twice."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfbisect.cells.reports import parse_result_name
from perfbisect.cli.app import run as perfbisect
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.plans import cell_data
from perfbisect.measure.attempt import to_dict
from perfbisect.model.attempt import Attempt, Failure, Provenance, RunResult
from perfbisect.model.cell import Cell
from perfbisect.series.ingest import ingest
from perfbisect.series.points import Point
from perfbisect.series.publish import TrackPublishDocument, file_name, publish
from perfbisect.series.sources import IngestOptions
from perfbisect.series.sources.journals import BLOCK, read_published
from perfbisect.series.sources.kanban import RAW
from perfbisect.series.sources.results import parse_result
from perfbisect.series.store import SeriesStore
from tests.fakes.history import ENGINE, make_history
from tests.series.made import write

COMMIT = "ab" * 20
RESULTS = "tests/dfx/perf/results"
VALUES = {"ttft:median": 80.5, "failed": 0.0}
FACTS = {"completed": 8, "failed": 0, "input_tokens": 801, "output_tokens": 77, "max_concurrent_requests": 3}
RAW_RESULT = {
    "completed": 8,
    "failed": 0,
    "duration": 10.0,
    "request_throughput": 0.8,
    "median_ttft_ms": 80.5,
}


def cell(client: str = "vllm_bench", **changed: Any) -> Cell:
    fields: dict[str, Any] = {
        "name": "text_cpu@c2",
        "family": "text",
        "model": "acme/tiny",
        "num_prompts": 8,
        "max_concurrency": 2,
        "client": client,
    }
    return Cell.model_validate(fields | changed)


def attempt(number: int, of: Cell, *runs: dict[str, float], job: str = "a", **changed: Any) -> Attempt:
    facts = {"machine": {"host": "box", "gpus": [{"name": "H20"}, {"name": "H20"}]}}
    made = Attempt(
        f"{job}-{number:03d}",
        COMMIT,
        "run",
        Provenance(of.digest, "H20 x 2", "vllm_bench 0.32.0 abcd", "0.32.0", facts=facts),
        tuple(
            RunResult(k, k, values, seconds=10.0, raw="run.json", facts=FACTS | {"output_tokens": 70 + k})
            for k, values in enumerate(runs, start=1)
        ),
        started_at=f"2026-04-12T21:{number:02d}:00+02:00",
        folder=f"/gone/jobs/{job}/attempts/{number:03d}",
        seconds={"launch": 30.0, "warm": 5.0, "bench": 21.0, "stop": 2.0},
    )
    return replace(made, **changed)


def written(home: Path, of: Cell, made: Attempt, raw: dict[str, Any] | None = None) -> tuple[str, Any]:
    """The only file that is published of an attempt: its name and content."""
    (path,) = publish(home / "kanban", [job_of(home, "job", of, made, raw=raw or {})]).written
    return Path(path).name, json.loads(Path(path).read_text())


@given(
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}(@[A-Za-z0-9._-]{1,8})?", fullmatch=True),
    data=st.sampled_from(["random", "prefix_repetition", "seed-tts", "random-mm"]),
    concurrency=st.none() | st.integers(1, 512),
    rate=st.just(math.inf) | st.floats(0.001, 500).map(lambda rate: round(rate, 6)),
    prompts=st.integers(1, 5000),
    lengths=st.booleans(),
)
def test_a_file_is_named_as_the_kanban_names_it(
    name: str, data: str, concurrency: int | None, rate: float, prompts: int, lengths: bool
) -> None:
    args = {"random-input-len": 12, "random-output-len": 34} if lengths else {}
    of = cell(
        name=name, dataset_name=data, max_concurrency=concurrency, request_rate=rate, num_prompts=prompts,
        dataset_args=args,
    )  # fmt: skip
    shown = file_name(of, datetime.fromisoformat("2026-04-12T21:00:35+02:00"))
    assert "/" not in shown
    assert shown.startswith("result_test_")
    found = parse_result_name(shown)
    assert found.time == "20260412-190035", "in UTC"
    assert found.fields["num_prompts"] == prompts
    assert found.fields["dataset_name"] == data.replace("_", "-")
    assert found.fields["max_concurrency"] == concurrency
    if concurrency is None:
        assert found.fields["request_rate"] == rate
    assert found.arguments == args


def test_the_layout_of_the_newest_era(tmp_path: Path) -> None:
    """A run begins after the phases before it and the runs before it."""
    served = cell(max_concurrency=None, request_rate=2.0, dataset_name="random-mm")
    name, _ = written(tmp_path / "a", served, attempt(0, served, VALUES))
    assert name == "result_test_text_cpu_random-mm_2.0_8_inna_outna_20260412-190035.json"
    diffusion = cell("diffusion_bench", name="qwen_image")
    name, _ = written(tmp_path / "b", diffusion, attempt(0, diffusion, VALUES))
    assert name == "diffusion_result_test_qwen_image_20260412-190035.json"
    two = job_of(tmp_path, "two", diffusion, attempt(0, diffusion, VALUES, VALUES))
    first, second = publish(tmp_path / "kanban", [two]).written
    assert (first[-11:], second[-11:]) == ("190035.json", "190045.json")


def test_a_result_of_the_client_keeps_what_else_it_says(tmp_path: Path) -> None:
    raw = {
        **RAW_RESULT, "date": "20260412-210102", "model_id": "pb-0ba5", "rtfx": 0.0, "label": None,
        "vllm_bench_extra": "x", "ttfts": [0.1, 0.2], "errors": ["", ""], "odd": math.nan,
    }  # fmt: skip
    values = {"ttft:median": 80.5, "failed": 0.0, "request_goodput": 0.0, "ttft:std": 3.0}
    _, document = written(tmp_path, cell(), attempt(0, cell(), values), raw)
    assert {"rtfx", "vllm_bench_extra", "median_ttft_ms"} <= set(document)
    assert not {"ttfts", "errors", "odd"} & set(document)
    assert document["model_id"] == "acme/tiny", "not the name that one server had"
    assert document["date"] == "20260412-190045", "the end, in UTC, not by the clock of the machine"
    assert (document["commit"], document["engine_version"]) == (COMMIT, "0.32.0")
    assert (document["gpu"], document["hardware"]) == ("H20, H20", "H20 x 2")
    assert parse_result(document).values["ttft:median"] == 80.5, "as others read it"
    published = read_published(document)
    assert published is not None
    assert published.attempt.runs[0].values == values


def test_what_concerns_only_this_machine_is_not_published(tmp_path: Path) -> None:
    of = cell()
    made = attempt(0, of, VALUES)
    secret = RunResult(
        1, 1, {"ttft:median": 1.0}, raw="/private/run.json", warnings=("private",), seconds=9, facts=FACTS
    )
    facts = {**made.provenance.facts, "env": {"private": "x"}, "serve": ["/private/vllm"]}
    made = replace(
        made, runs=(secret,), provenance=replace(made.provenance, facts=facts), folder="/private/1"
    )
    _, document = written(tmp_path, of, made)
    assert "private" not in json.dumps(document)


def test_a_record_of_the_diffusion_benchmark(tmp_path: Path) -> None:
    values = {
        "latency:median": 2.5, "latency:p99": 2.9, "throughput_qps": 0.38, "failed": 0.0,
        "peak_memory_mb:mean": 56342.0, "stage.Pipeline.diffuse:median": 2.4, "image_distance:median": 0.0,
    }  # fmt: skip
    of = cell("diffusion_bench", name="qwen_image", dataset_args={"width": 512})
    raw = {"latency_p95": 2.8, "task": "t2i", "stage_durations_p50": {"Pipeline.diffuse": 2.4}}
    _, document = written(tmp_path, of, attempt(0, of, values), raw)
    (record,) = document
    assert record["result"]["stage_durations_p50"] == {"Pipeline.diffuse": 2.4}
    assert record["benchmark_params"]["width"] == 512
    published = read_published(document)
    assert published is not None
    assert published.attempt.runs[0].values == values
    result = parse_result(record)
    assert (result.began, result.values["latency:p95"]) == ("20260412-190035", 2.8)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"schema": "perfbisect.published/1"}, "schema: Input should be 'perfbisect.published/2'"),
        ({"runs": "two"}, "runs: Input should be a valid integer"),
        ({"attempt": {}}, "attempt.id: Field required"),
    ],
)
def test_a_block_that_was_changed_is_broken(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    _, document = written(tmp_path, cell(), attempt(0, cell(), {"ttft:median": 1.0}))
    with pytest.raises(ValueError, match=message):
        read_published(document | {BLOCK: document[BLOCK] | changed})
    for block in ({"runs": []}, {"runs": document[BLOCK]["attempt"]["runs"] * 2}, {"started_at": "soon"}):
        damaged = document[BLOCK] | {"attempt": document[BLOCK]["attempt"] | block}
        with pytest.raises(ValueError, match=r"what perfbisect says of its run|soon"):
            read_published(document | {BLOCK: damaged})


def job_of(
    state: Path,
    name: str,
    of: Cell,
    *attempts: Attempt,
    discarded: str = "",
    verb: str = "run",
    raw: dict[str, Any] = RAW_RESULT,
) -> Job:
    change = {"id": f"{COMMIT}+pip:a==1", "kind": "commit"}
    events: list[tuple[str, dict[str, Any]]] = [
        ("plan", {"verb": verb, "cell": cell_data(of), "change": change})
    ]
    events += [("failed" if one.failure else "finished", {"attempt": to_dict(one)}) for one in attempts]
    events += [("discarded", {"attempt": discarded, "reason": "others measured"})] if discarded else []
    job = Job(state / "jobs" / name)
    job.path.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"schema": 1, "seq": i, "time": "2026-04-12T18:59:30+00:00", "event": kind, "data": data})
        for i, (kind, data) in enumerate(events)
    ]
    job.journal.write_text("\n".join(lines) + "\n")
    for one in attempts:
        write(job.path / "attempts" / Path(one.folder).name / "run.json", raw)
    return job


def points(state: Path, *places: Path) -> list[Point]:
    """Points as far as they are of the measurement: where the file lies aside."""
    with SeriesStore.of(state) as store:
        ingest(store, [str(place) for place in places], IngestOptions())
        return [replace(point, raw="", record=0) for point in store.points()]


def rejections(state: Path) -> dict[str, str]:
    with SeriesStore.of(state) as store:
        return {rejection.kind: rejection.cell for rejection in store.rejections()}


def files(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(folder.rglob("*.json"))}


RUN_VALUES = st.fixed_dictionaries(
    {
        name: st.floats(1e-3, 1e6)
        for name in ("ttft:median", "ttft:p99", "e2el:median", "output_throughput", "request_throughput")
    }
)
LAUNCHES = st.lists(st.lists(RUN_VALUES, min_size=1, max_size=3), min_size=1, max_size=3)
NIGHTS = st.dictionaries(st.sampled_from(["a@c1", "text_cpu", "b.c-d"]), LAUNCHES, min_size=1)
"""Cell -> the runs of each launch."""


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(night=NIGHTS)
def test_reading_back_gives_the_same_points(
    tmp_path_factory: pytest.TempPathFactory, night: dict[str, list[list[dict[str, float]]]]
) -> None:
    home = tmp_path_factory.mktemp("night")
    jobs = []
    for i, (name, launches) in enumerate(night.items()):
        of = cell(name=name)
        attempts = (attempt(n, of, *runs, job=f"job{i}") for n, runs in enumerate(launches))
        jobs.append(job_of(home, f"job{i}", of, *attempts))
    publish(home / "kanban", jobs)
    back = points(home / "b", home / "kanban")
    assert back == points(home / "a", home)
    assert len(back) == sum(len(launches) for launches in night.values())
    assert {point.build.commit for point in back} == {COMMIT}
    assert {point.covariates["engine"] for point in back} == {"0.32.0"}


def test_what_a_launch_ran_in_is_read_from_its_journal_and_from_its_files(tmp_path: Path) -> None:
    of = cell()
    made = attempt(0, of, VALUES)
    facts = {**made.provenance.facts, "engine": {"packages": ["torch==2.9"]}, "server": {"argv": ["--eager"]}}
    launch = replace(made, provenance=replace(made.provenance, facts=facts))
    publish(tmp_path / "kanban", [job_of(tmp_path, "job", of, launch)])
    found = []
    for place in (tmp_path, tmp_path / "kanban"):
        with SeriesStore.of(tmp_path / f"of {place.name}") as store:
            ingest(store, [str(place)], IngestOptions())
            found.append(store.environment(store.points()[0]))
    recorded, published = found
    assert (recorded["package: torch"], recorded["flag: --eager"], recorded["host"]) == ("2.9", "set", "box")
    assert recorded == {**published, "flag: --eager": "set", "host": "box"}


@pytest.fixture
def one_night(tmp_path: Path) -> Iterator[tuple[Path, Job]]:
    of = cell()
    yield (
        tmp_path,
        job_of(tmp_path, "a", of, attempt(1, of, VALUES, VALUES), attempt(2, of, VALUES, VALUES)),
    )


def test_again_without_change_writes_nothing(one_night: tuple[Path, Job]) -> None:
    home, job = one_night
    first = publish(home / "kanban", [job])
    before = files(home / "kanban")
    assert (first.launches, len(first.written), first.unchanged) == (2, 4, 0)
    assert sorted(first.written) == sorted(map(str, before))
    assert {path.parent for path in before} == {home / "kanban" / "data" / RAW / "a" / RESULTS}
    assert publish(home / "kanban", [job]) == TrackPublishDocument(
        folder=str(home / "kanban"), launches=2, unchanged=4
    )
    assert files(home / "kanban") == before
    assert [path for path in (home / "kanban").rglob("*") if path.name.startswith(".")] == []


def test_a_cut_off_publication_goes_on(one_night: tuple[Path, Job]) -> None:
    home, job = one_night
    lost = Path(publish(home / "kanban", [job]).written[1])
    lost.unlink()
    assert len(points(home / "half", home / "kanban")) == 1
    assert rejections(home / "half") == {"unmeasured": "text_cpu@c2"}, "half of a launch is none"
    assert publish(home / "kanban", [job]).written == (str(lost),)
    assert len(points(home / "half", home / "kanban")) == 2


def test_journals_and_what_was_published_of_them_in_one_store(one_night: tuple[Path, Job]) -> None:
    home, job = one_night
    publish(home / "kanban", [job])
    own = points(home / "state", home)
    assert points(home / "state", home / "kanban") == own
    assert rejections(home / "state") == {"twin": "text_cpu@c2"}
    assert points(home / "other", home / "kanban", home) == own


def test_only_what_was_measured_is_published(tmp_path: Path) -> None:
    of = cell()
    lost = RunResult(1, 1, VALUES, raw="run.json", seconds=10.0, facts=FACTS | {"completed": 7, "failed": 1})
    mute = RunResult(1, 1, VALUES, raw="run.json", seconds=10.0)
    unkept = RunResult(1, 1, VALUES, raw="gone.json", seconds=10.0, facts=FACTS)
    attempts = (
        attempt(1, of, VALUES),
        attempt(2, of, failure=Failure("launch", "machine", "no memory")),
        attempt(3, of, VALUES),
        replace(attempt(4, of), runs=(lost,)),
        replace(attempt(5, of), runs=(mute,)),
        replace(attempt(6, of), runs=(unkept,)),
    )
    job = job_of(tmp_path, "a", of, *attempts, discarded="a-003")
    other = job_of(tmp_path, "b", of, attempt(1, of, VALUES, job="b"), verb="compare")
    done = publish(tmp_path / "kanban", [job, other])
    assert done.launches == 2
    assert done.left_out == (
        "a-005: the run does not say how many requests were answered",
        "a-006: the client's own result was not kept",
    )
    assert [point.start for point in points(tmp_path / "state", tmp_path / "kanban")] == ["a-001"]
    assert rejections(tmp_path / "state") == {"failed": "text_cpu@c2"}
    assert [p.start for p in points(tmp_path / "own", tmp_path)] == ["a-001", "a-005", "a-006"]
    assert rejections(tmp_path / "own")["failed"] == "text_cpu@c2"


def test_a_launch_that_is_discarded_later_is_taken_back(one_night: tuple[Path, Job]) -> None:
    home, job = one_night
    publish(home / "kanban", [job])
    foreign = home / "kanban" / "data" / RAW / "a" / RESULTS / "result_test_zzz.json"
    foreign.write_text("{}")
    of = cell()
    attempts = (attempt(1, of, VALUES, VALUES), attempt(2, of, VALUES, VALUES))
    job_of(home, "a", of, *attempts, discarded="a-002")
    done = publish(home / "kanban", [job])
    assert (done.launches, len(done.removed), done.unchanged, done.written) == (1, 2, 2, ())
    assert foreign.exists(), "others' files are not ours to touch"
    assert [p.start for p in points(home / "state", home / "kanban")] == ["a-001"]


def test_launches_of_one_second_have_files_of_their_own(tmp_path: Path) -> None:
    of = cell()
    two = [attempt(n, of, {"ttft:median": 10.0 * n}, started_at="2026-04-12T19:00:00+00:00") for n in (1, 2)]
    publish(tmp_path / "kanban", [job_of(tmp_path, "a", of, *two)])
    found = points(tmp_path / "state", tmp_path / "kanban")
    assert [p.values["ttft:median"] for p in found] == pytest.approx([10.0, 20.0])
    assert {p.began for p in found} == {"2026-04-12T19:00:00Z"}


def test_a_start_that_cells_share_stays_one(tmp_path: Path) -> None:
    jobs = []
    for place, name in enumerate(("x", "y"), start=1):
        of = cell(name=name)
        made = attempt(1, of, {"ttft:median": 10.0}, job=name)
        shared = {"id": "x-001", "suite": "5e12e12", "place": place, "after": ["x"][: place - 1]}
        facts = {**made.provenance.facts, "launch": shared}
        made = replace(made, provenance=replace(made.provenance, facts=facts))
        jobs.append(job_of(tmp_path, name, of, made))
    publish(tmp_path / "kanban", jobs)
    own, back = points(tmp_path / "a", tmp_path), points(tmp_path / "b", tmp_path / "kanban")
    assert back == own
    assert [point.start for point in back] == ["x-001"] * 2
    assert points(tmp_path / "a", tmp_path / "kanban") == own, "and nothing twice"


@pytest.mark.processes
def test_the_real_thing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job of the pretend engine: published and read back by the commands of the documents."""
    history = make_history(tmp_path / "repo", commits=2, slow=None)
    workload = Path(__file__).parents[2] / "pretend" / "cells" / "pretend.yaml"
    state = str(tmp_path / "state")
    asked = [
        *("run", str(workload), "--repo", str(history.path), "--at", history.bad, "--launches", "2"),
        *("--env", f"overlay:{sys.executable},base=any", "--state", state),
        *("--client", f"existing:{sys.executable},path={ENGINE}"),
    ]
    assert perfbisect(asked) == 0
    capsys.readouterr()
    kanban = tmp_path / "our-kanban"
    assert perfbisect(["track", "publish", str(kanban), "--state", state, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["launches"], len(done["written"]), done["left_out"]) == (2, 2, [])
    document = json.loads(Path(done["written"][0]).read_text())
    assert document["commit"] == history.bad
    assert document["engine_version"]
    assert document["num_prompts"] == document["completed"] == 6
    assert "max_output_tokens_per_s" in document, "what else the client said"
    assert not [name for name, value in document.items() if isinstance(value, list)]
    assert perfbisect(["track", "publish", str(kanban), "--state", state]) == 0
    assert "0 files written, 2 were there" in capsys.readouterr().out
    (job,) = Jobs(Path(state)).all()
    back = points(tmp_path / "b", kanban)
    assert back == points(tmp_path / "a", job.path)
    assert len(back) == 2
    assert {"tpot:median", "ttft:p99", "e2el_per_token", "output_throughput"} <= set(back[0].values)
