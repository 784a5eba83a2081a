"""A bisection that was cut short goes on as if nothing had happened."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.bisect.plan import BisectPlan
from perfbisect.jobs.events import JobNote
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read
from perfbisect.model.attempt import Failure
from tests.fixtures.jobs import MakePlan
from tests.jobs.world import PowerCut, Watch, World, history, kinds, verdict

NewJob = Callable[[BisectPlan, Watch, World], Job]
CHANGE_FAILS = Failure("launch", "change", "it ended with exit code 1", "/log")


def test_a_cut_at_any_event_resumes_to_the_same_verdict(
    plan_for: MakePlan, new_job: NewJob, tmp_path: Path
) -> None:
    """kill -9 after every single event: the journal ends there, the folders hold what they held."""
    world, watch = World(history(10).changes, slow=6, factor=1.25, tau=0.03), Watch()
    world.fault = lambda n, _: Failure("launch", "machine", "no port") if n == 3 else None
    job = new_job(plan_for(world), watch, world)
    whole = verdict(job, watch, world)
    lines = job.journal.read_bytes().splitlines(keepends=True)
    events = read(job.journal).events
    for cut in range(1, len(lines)):
        copy = Job(tmp_path / "cut" / f"{cut}" / "jobs" / job.id)
        shutil.copytree(job.path, copy.path)
        copy.journal.write_bytes(b"".join(lines[:cut]))
        begun = [e.data["attempt"] for e in events[:cut] if e.kind == "started"]
        done = {e.data["attempt"]["id"] for e in events[:cut] if e.kind in ("finished", "failed")}
        open_now = [identity for identity in begun if identity not in done]
        for folder in sorted((copy.path / "attempts").iterdir())[len(begun) :]:
            shutil.rmtree(folder)
        again, looked = World(world.changes, slow=6, factor=1.25, tau=0.03), Watch()
        report = verdict(copy, looked, again)
        assert (report.outcome, report.culprit) == (whole.outcome, whole.culprit), cut
        ids = [e.data["attempt"] for e in read(copy.journal).events if e.kind == "started"]
        assert len(ids) == len(set(ids)), "no attempt twice"
        ended = [
            e.data["attempt"]["id"] if isinstance(e.data["attempt"], dict) else e.data["attempt"]
            for e in read(copy.journal).events
            if e.kind in ("finished", "failed", "abandoned")
        ]
        assert sorted(ended) == sorted(ids), "every attempt ends once"
        assert not {request.id for request in again.requests} & set(begun), "and none is measured again"
        assert [token for token, _, _ in looked.stopped] == [
            e.data["token"] for e in events[:cut] if e.kind == "started" and e.data["attempt"] in open_now
        ], "what it left is looked for by its token"


def test_power_lost_during_a_launch_costs_that_launch_only(plan_for: MakePlan, new_job: NewJob) -> None:
    calm, watch = World(history(10).changes, slow=6), Watch()
    undisturbed = verdict(new_job(plan_for(calm), watch, calm), watch, calm)
    world = World(history(10).changes, slow=6)
    world.fault = lambda n, _: PowerCut() if n == 4 else None
    job = new_job(plan_for(world), watch, world)
    with pytest.raises(PowerCut):
        verdict(job, watch, world)
    assert kinds(job)[-1] == "started"
    watch = Watch()
    report = verdict(job, watch, world)
    assert report.culprit == undisturbed.culprit
    assert [x.outcome for x in report.launches].count("abandoned") == 1
    assert any(isinstance(n, JobNote) and "cut short" in n.text for n in watch.notices)


def test_a_torn_last_line_is_told_and_costs_nothing(plan_for: MakePlan, new_job: NewJob) -> None:
    world, watch = World(history(10).changes, slow=6), Watch()
    world.fault = lambda n, _: PowerCut() if n == 4 else None
    job = new_job(plan_for(world), watch, world)
    with pytest.raises(PowerCut):
        verdict(job, watch, world)
    with job.journal.open("ab") as file:
        file.write(b'{"schema":1,"seq":')
    watch = Watch()
    assert verdict(job, watch, world).outcome == "found"
    assert any(isinstance(n, JobNote) and "torn" in n.text for n in watch.notices)


def test_resuming_a_finished_job_measures_nothing(plan_for: MakePlan, new_job: NewJob) -> None:
    world, watch = World(history(10).changes, slow=6), Watch()
    job = new_job(plan_for(world), watch, world)
    first = verdict(job, watch, world)
    launched = len(world.requests)
    assert verdict(job, watch, world) == first
    assert len(world.requests) == launched
