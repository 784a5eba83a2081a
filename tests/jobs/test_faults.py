"""What a machine does to a job: no skip, no blame, no lost measurement, in any."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import product

import pytest

from perfbisect.errors import MachineError
from perfbisect.jobs.events import JobNote
from perfbisect.jobs.replay import Timeline
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Failure, Fault, Phase
from perfbisect.model.change import Change
from tests.fixtures.jobs import Start
from tests.jobs.world import PowerCut, World, history, named, no_file_above
from tests.long import mostly_long

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


def test_a_clock_that_is_set_back_changes_nothing(start: Start) -> None:
    calm = World(history(12).changes, slow=7, factor=1.3)
    undisturbed = start(calm).run()
    world = World(history(12).changes, slow=7, factor=1.3)
    begun = start(world)
    report = begun.run(clock=SetBack())
    times = [event.time for event in begun.events]
    assert times != sorted(times), "the events' times do go backwards"
    assert report.beliefs == undisturbed.beliefs
    assert report.culprit == undisturbed.culprit
    assert [x.at for x in report.launches] == [x.at for x in undisturbed.launches]


def test_minutes_go_on_over_an_interruption_whatever_the_clock_says(start: Start) -> None:
    world = World(history(12).changes, slow=7, factor=1.3)
    world.fault = lambda n, _: PowerCut() if n == 4 else None
    begun = start(world)
    begun.cut()
    seen = begun.records
    began = datetime.fromisoformat(seen[-2].started_at)
    reached = (seen[-2].at or 0.0) + seen[-2].minutes
    for now, passed in (
        (began - timedelta(days=1), 0.0),
        (began + timedelta(hours=2), 120 - seen[-2].minutes),
    ):
        line = Timeline(seen[:-1], lambda: 5.0, now)
        assert line.minutes() == pytest.approx(reached + passed)


def test_an_end_that_flaps_is_no_skip(start: Start) -> None:
    """The bad end, which is the culprit, does not start every other time once it has been measured."""
    world = World(history(12).changes, slow=11, factor=1.25, tau=0.03)
    tries: list[int] = []

    def flap(_: int, request: AttemptRequest) -> Failure | None:
        if place(world, request) != 11:
            return None
        tries.append(len(tries))
        return REFUSES if len(tries) % 2 == 0 else None

    world.fault = flap
    report = start(world).run()
    assert len(tries) > 2
    assert report.outcome == "found"
    assert named(report) == world.changes[11].id
    assert report.skips == ()


def test_a_disk_that_is_full_when_the_journal_is_written(start: Start) -> None:
    """The kernel refuses the journal's line; the attempt is on disk already and is taken up on resume."""
    world = World(history(12).changes, slow=7, factor=1.3)
    begun = start(world)
    world.fault = lambda n, _: PowerCut() if n == 3 else None
    begun.cut()
    size = begun.job.journal.stat().st_size
    attempt = max(path.stat().st_size for path in begun.job.path.glob("attempts/*/attempt.json"))
    room = size + 1200
    assert attempt < room
    with no_file_above(room), pytest.raises(MachineError, match="File too large") as caught:
        begun.run()
    assert f"perfbisect resume {begun.job.id}" in str(caught.value.next_step)
    measured = len(world.requests)
    report = begun.run()
    assert named(report) == world.changes[7].id
    assert any(isinstance(n, JobNote) and "had ended: taken from" in n.text for n in begun.watch.notices)
    assert len(world.requests) > measured
    assert [x.outcome for x in report.launches].count("abandoned") == 1, "the one of the power cut"


def test_a_machine_that_fails_too_often_but_never_in_a_row_ends_the_job(start: Start) -> None:
    """As with too few descriptors: one launch of six is measured."""
    world = World(history(12).changes, slow=7, factor=1.3)
    world.fault = lambda n, _: Failure("launch", "machine", "too many open files") if n % 6 else None
    begun = start(world)
    with pytest.raises(
        MachineError, match="the machine failed in 20 of 23 launches, in launch: too many"
    ) as caught:
        begun.run(backoff=(1.0,) * 6)
    assert caught.value.exit_code == 5
    assert caught.value.next_step == f"perfbisect doctor; then: perfbisect resume {begun.job.id}"
    assert [x.outcome for x in begun.records].count("measured") == 3, "what was measured is kept"
    world.fault = lambda *_: None
    assert named(begun.run()) == world.changes[7].id


@pytest.mark.parametrize("seed", range(2))
def test_three_hundred_commits_of_which_thirty_per_cent_cannot_be_served(start: Start, seed: int) -> None:
    draw = random.Random(seed)
    slow = draw.randrange(60, 240)
    skips = {i for i in range(1, 299) if draw.random() < 0.3} - {slow, slow - 1}
    world = World(history_of(300), slow=slow, factor=1.25, seed=seed)
    world.fault = lambda _, request: REFUSES if place(world, request) in skips else None
    report = start(world).run()
    assert report.outcome == "found"
    assert named(report) == world.changes[slow].id
    told = {skip.change.id for skip in report.skips}
    assert told == {r.change.id for r in world.requests if place(world, r) in skips}, "each with its reason"
    assert len(report.launches) <= 60


def history_of(count: int) -> tuple[Change, ...]:
    return tuple(Change(f"{i:040x}"[::-1], "commit", f"Change {i}") for i in range(count))


TEMPTING = "by rule: void; the machine failed; the client failed; No space left on device; position 3"


@pytest.mark.parametrize(
    ("fault", "phase"),
    mostly_long(
        product(("machine", "client", "change"), ("build", "launch", "bench")),
        short=[("machine", "build"), ("client", "bench"), ("change", "launch")],
    ),
)
def test_reason_of_a_failure_decides_nothing(start: Start, phase: Phase, fault: Fault) -> None:
    """Launches, waits and events are the same, whatever the reasons of the failures say."""

    def decisions(reason: str) -> tuple[list[str], list[str], list[float], str]:
        world = World(history(12).changes, slow=5)
        failure = Failure(phase, fault, reason, "/log", "machine_failed")
        world.fault = lambda n, _: failure if n in (3, 6) else None
        begun = start(world)
        report = begun.run()
        return [r.change.id for r in world.requests], begun.kinds, begun.watch.waits, report.outcome

    assert decisions("x") == decisions(TEMPTING)
