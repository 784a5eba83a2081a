"""Cells that share a server's starts, each with a job of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfbisect.errors import ClientError, Interrupted, ServerError, UsageError
from perfbisect.jobs.events import PhaseStarted
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read
from perfbisect.jobs.replay import LaunchRecord, launches
from perfbisect.measure.attempt import read_attempt
from perfbisect.model.attempt import Attempt
from perfbisect.series.ingest import ingest
from perfbisect.series.series import build_series
from perfbisect.series.sources import IngestOptions
from perfbisect.series.store import SeriesStore
from tests.experiments.suite_world import cells, go_on, jobs_of, starts
from tests.jobs.test_kill9 import marked
from tests.jobs.world import Watch

ROOT = Path(__file__).parents[2]


def seen(job: Job) -> tuple[LaunchRecord, ...]:
    return launches(read(job.journal).events)


def ends(job: Job) -> list[str | None]:
    return [launch.end for launch in seen(job)]


def measured(job: Job) -> list[Attempt]:
    return [launch.attempt for launch in seen(job) if launch.end == "finished" and launch.attempt]


@pytest.mark.processes
def test_two_starts_give_two_launches_of_each(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, cells())
    first = go_on(tmp_path, jobs, until=1)
    assert [(len(one.result.launches), one.result.finished) for one in first] == [(1, False)] * 3
    done = go_on(tmp_path, list(reversed(jobs)))
    assert [(one.job, one.result.finished, one.error) for one in done] == [
        (job, True, None) for job in reversed(jobs)
    ]
    assert starts(tmp_path) == 2
    shared = [[attempt.provenance.facts["launch"] for attempt in measured(job)] for job in jobs]
    assert [[fact["id"] for fact in facts] for facts in shared] == [
        [f"{jobs[0].id}-001", f"{jobs[2].id}-002"]
    ] * 3
    assert [[fact["after"] for fact in facts] for facts in shared] == [
        [[], ["c", "b"]], [["a"], ["c"]], [["a", "b"], []],
    ]  # fmt: skip
    assert go_on(tmp_path, jobs) == tuple(reversed(done)), "done is done"
    assert starts(tmp_path) == 2


def test_the_starts_of_a_suite_are_one_vote(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, cells(), launches=1)
    go_on(tmp_path, jobs)
    with SeriesStore.of(tmp_path / "state") as store:
        ingest(store, [str(tmp_path / "state")], IngestOptions())
        points = {name: store.points((name,)) for name in "abc"}
    series = [build_series(points[name], lambda _: (), metric="tpot")[0] for name in "abc"]
    assert {tuple(point.start for point in one.points) for one in series} == {(f"{jobs[0].id}-001",)}
    assert len({one.group for one in series}) == 1
    assert {point.covariates["suite"] for found in points.values() for point in found} == {
        measured(jobs[0])[0].provenance.facts["launch"]["suite"]
    }


def test_a_cell_whose_client_fails_is_given_up_alone(tmp_path: Path) -> None:
    broken = {"name": "vllm_bench", "env": {"PRETEND_FAULT": "client_exit1"}}
    jobs = jobs_of(tmp_path, cells(client=broken))
    done = go_on(tmp_path, jobs)
    assert [ends(job) for job in jobs] == [["finished"] * 2, ["failed"] * 2, ["finished"] * 2]
    assert starts(tmp_path) == 2
    assert isinstance(done[1].error, ClientError)
    assert "2 times in a row" in done[1].error.message
    assert [one.result.finished for one in done] == [True, False, True]


def under(job: Job, act: Callable[[LaunchRecord], None], **tools: Any) -> Watch:
    """Who acts when a cell has had its discarded run."""

    class Acting(Watch):
        def tools(self, *arguments: Any, **changed: Any) -> Any:
            def sink(notice: object) -> None:
                now = seen(job)[-1:]
                if isinstance(notice, PhaseStarted) and notice.phase == "warm" and now and now[0].end is None:
                    act(now[0])

            return super().tools(*arguments, **{"sink": sink, **tools, **changed})

    return Acting()


@pytest.mark.processes
def test_a_cell_that_fells_its_server_is_given_up_alone(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, cells())
    watch = under(jobs[1], lambda launch: os.kill(launch.pid, signal.SIGABRT))
    done = go_on(tmp_path, jobs, watch=watch)
    # a, b and the server, c with it; a, c, b and the server; c.
    assert [ends(job) for job in jobs] == [["finished"] * 2, ["failed"] * 2, ["failed", *["finished"] * 2]]
    assert starts(tmp_path) == 3
    assert isinstance(done[1].error, ServerError)
    assert "does not serve: bench: " in done[1].error.message
    assert "shared server failed with cell b" in seen(jobs[2])[0].reason
    assert [one.result.finished for one in done] == [True, False, True]
    assert marked(tmp_path / "state") == []


def test_a_change_that_does_not_serve_is_tried_twice_for_all(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, cells())
    done = go_on(tmp_path, jobs, env={"PRETEND_FAULT": "exit1"})
    assert [ends(job) for job in jobs] == [["failed"] * 2] * 3
    assert starts(tmp_path) == 2
    assert all(isinstance(one.error, ServerError) for one in done)


def test_a_stop_that_is_asked_for_comes_between_two_cells(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, cells())
    with pytest.raises(Interrupted):
        go_on(tmp_path, jobs, watch=under(jobs[0], lambda _: (jobs[1].path / "stop").touch()))
    assert ends(jobs[0]) == [None] and ends(jobs[1]) == []
    assert read_attempt(jobs[0].attempt(1)) is not None
    assert marked(tmp_path / "state") == []
    go_on(tmp_path, jobs, until=1)
    assert [ends(job) for job in jobs] == [["finished"]] * 3


@pytest.mark.processes
def test_kill_9_in_the_middle(tmp_path: Path) -> None:
    """What was measured is kept, the server that was left is ended, and nothing is measured twice."""
    jobs = jobs_of(tmp_path, cells())
    command = [sys.executable, "-m", "tests.experiments.suite_world", str(tmp_path), "1"]
    process = subprocess.Popen(command, cwd=ROOT)
    while not (jobs[1].attempt(1) / "client-warm.log").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert marked(tmp_path / "state"), "the server lives"
    before = measured(jobs[0])
    assert [len(before), ends(jobs[1]), ends(jobs[2])] == [1, [None], []]
    subprocess.run(command, cwd=ROOT, check=True)
    assert marked(tmp_path / "state") == []
    assert measured(jobs[0]) == before
    assert [ends(job) for job in jobs[1:]] == [["abandoned", "finished"], ["finished"]]
    assert starts(tmp_path) == 2


def test_cells_of_two_servers_share_nothing(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, [*cells()[:1], cells(serve_args={"max-model-len": 512})[1]])
    with pytest.raises(UsageError, match="cells a and b share no launch: another server"):
        go_on(tmp_path, jobs)
    assert [ends(job) for job in jobs] == [[], []]
