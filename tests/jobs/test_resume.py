"""A bisection that was cut short goes on as if nothing had happened."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from perfbisect.jobs.events import JobNote
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read
from perfbisect.model.attempt import Failure
from tests.fixtures.jobs import Start
from tests.jobs.world import PowerCut, Watch, World, history, verdict

CHANGE_FAILS = Failure("launch", "change", "it ended with exit code 1", "/log")


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.processes)])
def test_a_cut_at_any_event_resumes_to_the_same_verdict(start: Start, tmp_path: Path, stride: int) -> None:
    """kill -9 after every event, or every fifth: the journal ends there, the folders hold what they held."""
    world = World(history(10).changes, slow=6, factor=1.25, tau=0.03)
    world.fault = lambda n, _: Failure("launch", "machine", "no port") if n == 3 else None
    begun = start(world)
    whole = begun.run()
    lines = begun.job.journal.read_bytes().splitlines(keepends=True)
    events = begun.events
    for cut in range(1, len(lines), stride):
        copy = Job(tmp_path / "cut" / f"{cut}" / "jobs" / begun.job.id)
        shutil.copytree(begun.job.path, copy.path)
        copy.journal.write_bytes(b"".join(lines[:cut]))
        opened = [e.data["attempt"] for e in events[:cut] if e.kind == "started"]
        done = {e.data["attempt"]["id"] for e in events[:cut] if e.kind in ("finished", "failed")}
        open_now = [identity for identity in opened if identity not in done]
        for folder in sorted((copy.path / "attempts").iterdir())[len(opened) :]:
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
        assert not {request.id for request in again.requests} & set(opened), "and none is measured again"
        assert [token for token, _, _ in looked.stopped] == [
            e.data["token"] for e in events[:cut] if e.kind == "started" and e.data["attempt"] in open_now
        ], "what it left is looked for by its token"


def test_power_lost_during_a_launch_costs_that_launch_only(start: Start) -> None:
    calm = World(history(10).changes, slow=6)
    undisturbed = start(calm).run()
    world = World(history(10).changes, slow=6)
    world.fault = lambda n, _: PowerCut() if n == 4 else None
    begun = start(world)
    begun.cut()
    assert begun.kinds[-1] == "started"
    report = begun.run()
    assert report.culprit == undisturbed.culprit
    assert [x.outcome for x in report.launches].count("abandoned") == 1
    assert any(isinstance(n, JobNote) and "cut short" in n.text for n in begun.watch.notices)


def test_a_torn_last_line_is_told_and_costs_nothing(start: Start) -> None:
    world = World(history(10).changes, slow=6)
    world.fault = lambda n, _: PowerCut() if n == 4 else None
    begun = start(world)
    begun.cut()
    with begun.job.journal.open("ab") as file:
        file.write(b'{"schema":1,"seq":')
    assert begun.run().outcome == "found"
    assert any(isinstance(n, JobNote) and "torn" in n.text for n in begun.watch.notices)


def test_resuming_a_finished_job_measures_nothing(start: Start) -> None:
    world = World(history(10).changes, slow=6)
    begun = start(world)
    first = begun.run()
    launched = len(world.requests)
    assert begun.run() == first
    assert len(world.requests) == launched
