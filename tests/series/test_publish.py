"""Publishing in the kanban's format: reading back gives the same points, and nothing is published twice."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfbisect.cli.app import run as perfbisect
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.plans import cell_data
from perfbisect.measure.attempt import to_dict
from perfbisect.model.attempt import Attempt, Failure, Provenance, RunResult
from perfbisect.model.cell import Cell
from perfbisect.series.ingest import ingest
from perfbisect.series.points import Point
from perfbisect.series.publish import TrackPublishDocument, publish
from perfbisect.series.sources import IngestOptions
from perfbisect.series.sources.kanban import RAW
from perfbisect.series.store import SeriesStore
from tests.fakes.history import ENGINE, make_history

COMMIT = "ab" * 20
FACTS = {"completed": 8, "failed": 0, "input_tokens": 801, "output_tokens": 77, "max_concurrent_requests": 3}
METRICS = ("ttft:median", "ttft:p99", "e2el:median", "output_throughput", "request_throughput")


def cell(**changed: Any) -> Cell:
    fields = {
        "name": "text_cpu@c2",
        "family": "text",
        "model": "acme/tiny",
        "num_prompts": 8,
        "max_concurrency": 2,
    }
    return Cell.model_validate(fields | changed)


def attempt(number: int, of: Cell, *runs: dict[str, float], job: str = "a", **changed: Any) -> Attempt:
    facts = {"machine": {"host": "box", "gpus": [{"name": "H20"}]}}
    made = Attempt(
        f"{job}-{number:03d}",
        COMMIT,
        "run",
        Provenance(of.digest, "H20 x 1", "vllm_bench 0.32.0 abcd", "0.32.0", facts=facts),
        tuple(
            RunResult(k, k, values, seconds=10.0 + k, facts=FACTS | {"output_tokens": 70 + k})
            for k, values in enumerate(runs, start=1)
        ),
        started_at=f"2026-04-12T19:{number:02d}:00+00:00",
        folder=f"/gone/jobs/{job}/attempts/{number:03d}",
        seconds={"launch": 20.0},
    )
    return replace(made, **changed)


def job_of(state: Path, name: str, of: Cell, *attempts: Attempt, voided: str = "", verb: str = "run") -> Job:
    change = {"id": f"{COMMIT}+pip:a==1", "kind": "commit"}
    events: list[tuple[str, dict[str, Any]]] = [
        ("plan", {"verb": verb, "cell": cell_data(of), "change": change})
    ]
    events += [("failed" if one.failure else "finished", {"attempt": to_dict(one)}) for one in attempts]
    events += [("discarded", {"attempt": voided, "reason": "others measured"})] if voided else []
    job = Job(state / "jobs" / name)
    job.path.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"schema": 1, "seq": i, "time": "2026-04-12T18:59:30+00:00", "event": kind, "data": data})
        for i, (kind, data) in enumerate(events)
    ]
    job.journal.write_text("\n".join(lines) + "\n")
    return job


def points(state: Path, *places: Path) -> tuple[Point, ...]:
    with SeriesStore.of(state) as store:
        ingest(store, [str(place) for place in places], IngestOptions())
        return store.points()


def fates(state: Path) -> dict[str, str]:
    with SeriesStore.of(state) as store:
        return {rejection.kind: rejection.cell for rejection in store.rejections()}


def same(found: tuple[Point, ...]) -> list[Point]:
    """Points as far as they are of the measurement: where the file lies aside."""
    return [replace(point, raw="", record=0) for point in found]


def files(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(folder.rglob("*.json"))}


def values() -> st.SearchStrategy[dict[str, float]]:
    return st.fixed_dictionaries({name: st.floats(1e-3, 1e6) for name in METRICS})


@st.composite
def nights(draw: st.DrawFn) -> list[tuple[Cell, list[list[dict[str, float]]]]]:
    """Jobs of a night: of each its cell, and the runs of each launch."""
    names = draw(
        st.lists(st.sampled_from(["a@c1", "text_cpu", "b.c-d"]), min_size=1, max_size=3, unique=True)
    )
    return [
        (cell(name=name), draw(st.lists(st.lists(values(), min_size=1, max_size=3), min_size=1, max_size=3)))
        for name in names
    ]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(night=nights())
def test_reading_back_gives_the_same_points(
    tmp_path_factory: pytest.TempPathFactory, night: list[tuple[Cell, list[list[dict[str, float]]]]]
) -> None:
    home = tmp_path_factory.mktemp("night")
    jobs = [
        job_of(
            home, f"job{i}", of, *(attempt(n, of, *runs, job=f"job{i}") for n, runs in enumerate(launches))
        )
        for i, (of, launches) in enumerate(night)
    ]
    publish(home / "kanban", jobs)
    told, back = points(home / "a", home), points(home / "b", home / "kanban")
    assert same(back) == same(told)
    assert len(back) == sum(len(launches) for _, launches in night)
    assert {point.build.commit for point in back} == {COMMIT}
    assert {point.covariates["engine"] for point in back} == {"0.32.0"}


@pytest.fixture
def one_night(tmp_path: Path) -> Iterator[tuple[Path, Job]]:
    of = cell()
    told = {"ttft:median": 80.5, "failed": 0.0}
    yield tmp_path, job_of(tmp_path, "a", of, attempt(1, of, told, told), attempt(2, of, told, told))


def test_again_without_change_writes_nothing(one_night: tuple[Path, Job]) -> None:
    home, job = one_night
    first = publish(home / "kanban", [job])
    before = files(home / "kanban")
    assert (first.launches, len(first.written), first.unchanged) == (2, 4, 0)
    assert sorted(first.written) == sorted(map(str, before))
    folder = home / "kanban" / "data" / RAW / "a" / "tests/dfx/perf/results"
    assert {path.parent for path in before} == {folder}
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
    assert fates(home / "half") == {"unmeasured": "text_cpu@c2"}, "half of a launch is none"
    assert publish(home / "kanban", [job]).written == (str(lost),)
    assert len(points(home / "half", home / "kanban")) == 2


def test_journals_and_what_was_published_of_them_in_one_store(one_night: tuple[Path, Job]) -> None:
    home, job = one_night
    publish(home / "kanban", [job])
    told = points(home / "state", home)
    assert same(points(home / "state", home / "kanban")) == same(told)
    assert fates(home / "state") == {"twin": "text_cpu@c2"}
    assert same(points(home / "other", home / "kanban", home)) == same(told)


def test_only_what_was_measured_is_published(tmp_path: Path) -> None:
    of, told = cell(), {"ttft:median": 80.5}
    good = attempt(1, of, told)
    lost = RunResult(1, 1, told, seconds=10.0, facts=FACTS | {"completed": 7, "failed": 1})
    mute = RunResult(1, 1, told, seconds=10.0)
    job = job_of(
        tmp_path,
        "a",
        of,
        good,
        attempt(2, of, failure=Failure("launch", "machine", "no memory")),
        attempt(3, of, told),
        replace(attempt(4, of), runs=(lost,)),
        replace(attempt(5, of), runs=(mute,)),
        voided="a-003",
    )
    other = job_of(tmp_path, "b", of, attempt(1, of, told, job="b"), verb="compare")
    done = publish(tmp_path / "kanban", [job, other])
    assert done.launches == 2
    assert done.left_out == ("a-005: the run does not say how many requests were answered",)
    (point,) = points(tmp_path / "state", tmp_path / "kanban")
    assert point.start == "a-001"
    assert fates(tmp_path / "state") == {"failed": "text_cpu@c2"}, "requests were lost: so it is told"
    assert [p.start for p in points(tmp_path / "own", tmp_path)] == ["a-001", "a-005"]
    assert fates(tmp_path / "own")["failed"] == "text_cpu@c2"


def test_a_launch_that_turns_out_void_is_taken_back(one_night: tuple[Path, Job]) -> None:
    home, job = one_night
    publish(home / "kanban", [job])
    foreign = home / "kanban" / "data" / RAW / "a" / "tests/dfx/perf/results" / "result_test_zzz.json"
    foreign.write_text("{}")
    of, told = cell(), {"ttft:median": 80.5, "failed": 0.0}
    job_of(home, "a", of, attempt(1, of, told, told), attempt(2, of, told, told), voided="a-002")
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
    told, back = points(tmp_path / "a", tmp_path), points(tmp_path / "b", tmp_path / "kanban")
    assert same(back) == same(told)
    assert [point.start for point in back] == ["x-001"] * 2
    assert same(points(tmp_path / "a", tmp_path / "kanban")) == same(told), "and nothing twice"


def test_the_real_thing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job of the pretend engine: published and read back by the commands of the documents."""
    history = make_history(tmp_path / "repo", commits=2, slow=None)
    workload = Path(__file__).parents[1] / "fakes" / "cells" / "pretend.yaml"
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
    told = json.loads(capsys.readouterr().out)
    assert (told["launches"], len(told["written"]), told["left_out"]) == (2, 2, [])
    document = json.loads(Path(told["written"][0]).read_text())
    assert document["commit"] == history.bad
    assert document["engine_version"]
    assert document["num_prompts"] == document["completed"] == 6
    assert "max_output_tokens_per_s" in document, "what else the client said"
    assert not [name for name, value in document.items() if isinstance(value, list)]
    assert perfbisect(["track", "publish", str(kanban), "--state", state]) == 0
    assert "0 files written, 2 were there" in capsys.readouterr().out
    (job,) = Jobs(Path(state)).all()
    own, back = points(tmp_path / "a", job.path), points(tmp_path / "b", kanban)
    assert same(back) == same(own)
    assert len(back) == 2
    assert {"tpot:median", "ttft:p99", "e2el_per_token", "output_throughput"} <= set(back[0].values)
