"""What a machine does to a job: no skip, no blame, no lost measurement, in any."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import pytest

from perfbisect.bisect.plan import BisectPlan
from perfbisect.errors import MachineError
from perfbisect.jobs.events import JobNote
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read
from perfbisect.jobs.replay import Timeline, launches
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Failure, Fault, Phase
from perfbisect.model.change import Change
from tests.fixtures.jobs import MakePlan
from tests.jobs.world import PowerCut, Watch, World, history, kinds, no_file_above, verdict

NewJob = Callable[[BisectPlan, Watch, World], Job]
REFUSES = Failure("launch", "change", "it ended with exit code 1", "/log")
MIDNIGHT = datetime(2026, 1, 2, tzinfo=timezone.utc)


def place(world: World, request: AttemptRequest) -> int:
    return next(i for i, change in enumerate(world.changes) if change.id == request.change.id)


@dataclass
class SetBack:
    """A clock that goes on by a minute whenever it is read, and is set back by a day at the tenth time."""

    reads: int = 0

    def __call__(self) -> datetime:
        self.reads += 1
        return (
            MIDNIGHT
            + timedelta(minutes=self.reads)
            - (timedelta(days=1) if self.reads >= 10 else timedelta())
        )


def test_a_clock_that_is_set_back_changes_nothing(plan_for: MakePlan, new_job: NewJob) -> None:
    calm, watch = World(history(12).changes, slow=7, factor=1.3), Watch()
    undisturbed = verdict(new_job(plan_for(calm), watch, calm), watch, calm)
    world, watch = World(history(12).changes, slow=7, factor=1.3), Watch()
    job = new_job(plan_for(world), watch, world)
    report = verdict(job, watch, world, clock=SetBack())
    times = [event.time for event in read(job.journal).events]
    assert times != sorted(times), "the events' times do go backwards"
    assert report.beliefs == undisturbed.beliefs
    assert report.culprit == undisturbed.culprit
    assert [x.at for x in report.launches] == [x.at for x in undisturbed.launches]


def test_minutes_go_on_over_an_interruption_whatever_the_clock_says(
    plan_for: MakePlan, new_job: NewJob
) -> None:
    world, watch = World(history(12).changes, slow=7, factor=1.3), Watch()
    world.fault = lambda n, _: PowerCut() if n == 4 else None
    job = new_job(plan_for(world), watch, world)
    with pytest.raises(PowerCut):
        verdict(job, watch, world)
    seen = launches(read(job.journal).events)
    began = datetime.fromisoformat(seen[-2].started_at)
    reached = (seen[-2].at or 0.0) + seen[-2].minutes
    for now, passed in (
        (began - timedelta(days=1), 0.0),
        (began + timedelta(hours=2), 120 - seen[-2].minutes),
    ):
        line = Timeline(seen[:-1], lambda: 5.0, now)
        assert line.minutes() == pytest.approx(reached + passed)


def test_an_end_that_flaps_is_no_skip(plan_for: MakePlan, new_job: NewJob) -> None:
    """The bad end, which is the culprit, does not start every other time once it has been measured."""
    world, watch = World(history(12).changes, slow=11, factor=1.25, tau=0.03), Watch()
    tries: list[int] = []

    def flap(_: int, request: AttemptRequest) -> Failure | None:
        if place(world, request) != 11:
            return None
        tries.append(len(tries))
        return REFUSES if len(tries) % 2 == 0 else None

    world.fault = flap
    report = verdict(new_job(plan_for(world), watch, world), watch, world)
    assert len(tries) > 2
    assert report.outcome == "found"
    assert report.culprit is not None
    assert report.culprit.id == world.changes[11].id
    assert report.skips == ()


def test_a_disk_that_is_full_when_the_journal_is_written(plan_for: MakePlan, new_job: NewJob) -> None:
    """The kernel refuses the journal's line; the attempt is on disk already and is taken up on resume."""
    world, watch = World(history(12).changes, slow=7, factor=1.3), Watch()
    job = new_job(plan_for(world), watch, world)
    world.fault = lambda n, _: PowerCut() if n == 3 else None
    with pytest.raises(PowerCut):
        verdict(job, watch, world)
    world.fault = lambda *_: None
    size = job.journal.stat().st_size
    attempt = max(path.stat().st_size for path in job.path.glob("attempts/*/attempt.json"))
    room = size + 1200
    assert attempt < room
    with no_file_above(room), pytest.raises(MachineError, match="File too large") as caught:
        verdict(job, watch, world)
    assert f"perfbisect resume {job.id}" in str(caught.value.next_step)
    measured = len(world.requests)
    report = verdict(job, watch, world)
    assert report.culprit is not None
    assert report.culprit.id == world.changes[7].id
    assert any(isinstance(n, JobNote) and "had ended: taken from" in n.text for n in watch.notices)
    assert len(world.requests) > measured
    assert [x.outcome for x in report.launches].count("abandoned") == 1, "the one of the power cut"


@pytest.mark.parametrize("seed", range(2))
def test_three_hundred_commits_of_which_thirty_per_cent_cannot_be_served(
    plan_for: MakePlan, new_job: NewJob, seed: int
) -> None:
    draw = random.Random(seed)
    slow = draw.randrange(60, 240)
    skips = {i for i in range(1, 299) if draw.random() < 0.3} - {slow, slow - 1}
    world, watch = World(history_of(300), slow=slow, factor=1.25, seed=seed), Watch()
    world.fault = lambda _, request: REFUSES if place(world, request) in skips else None
    report = verdict(new_job(plan_for(world), watch, world), watch, world)
    assert report.outcome == "found"
    assert report.culprit is not None
    assert report.culprit.id == world.changes[slow].id
    told = {skip.change.id for skip in report.skips}
    assert told == {r.change.id for r in world.requests if place(world, r) in skips}, "each with its reason"
    assert len(report.launches) <= 60


def history_of(count: int) -> tuple[Change, ...]:
    return tuple(Change(f"{i:040x}"[::-1], "commit", f"Change {i}") for i in range(count))


TEMPTING = "by rule: void; the machine failed; the client failed; No space left on device; position 3"


@pytest.mark.parametrize("phase", ["build", "launch", "bench"])
@pytest.mark.parametrize("fault", ["machine", "client", "change"])
def test_reason_of_a_failure_decides_nothing(
    plan_for: MakePlan, new_job: NewJob, phase: Phase, fault: Fault
) -> None:
    """Launches, waits and events are the same, whatever the reasons of the failures say."""

    def decisions(reason: str) -> tuple[list[str], list[str], list[float], str]:
        world, watch = World(history(12).changes, slow=5), Watch()
        failure = Failure(phase, fault, reason, "/log", "machine_failed")
        world.fault = lambda n, _: failure if n in (3, 6) else None
        job = new_job(plan_for(world), watch, world)
        report = verdict(job, watch, world)
        return [r.change.id for r in world.requests], kinds(job), watch.waits, report.outcome

    assert decisions("x") == decisions(TEMPTING)
