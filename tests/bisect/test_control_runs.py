"""After a failure of the machine a change of known level is measured again before anything new counts."""

from __future__ import annotations

import pytest

from perfbisect.errors import MachineError
from perfbisect.jobs.events import MachineBackoff
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Failure
from tests.fixtures.jobs import Play, Start
from tests.jobs.world import PowerCut, World, history, named
from tests.long import mostly_long

FAILED = Failure("launch", "machine", "killed from outside", "/log")


def first_search(world: World) -> int:
    """Number of the first launch of the search of an undisturbed bisection, from 1."""
    return next(i for i, request in enumerate(world.requests, 1) if request.purpose == "search")


@pytest.fixture
def calm(play: Play) -> World:
    world = World(history(40).changes, slow=23, factor=1.3)
    assert play(world).outcome == "found"
    return world


def at(world: World, request: AttemptRequest) -> int:
    return next(i for i, change in enumerate(world.changes) if change.id == request.change.id)


def test_an_end_is_measured_before_a_new_position(calm: World, start: Start) -> None:
    n = first_search(calm)
    world = World(calm.changes, slow=23, factor=1.3)
    world.fault = lambda i, _: FAILED if i == n else None
    begun = start(world)
    report = begun.run()
    assert begun.watch.waits == [30.0]
    failed, anchor, again = world.requests[n - 1 : n + 2]
    assert at(world, anchor) in (0, 39)
    assert anchor.purpose == "search"
    assert again.change == failed.change
    assert "a control run" in report.launches[n].why
    assert named(report) == world.changes[23].id


def test_a_machine_that_is_another_since_is_waited_for(calm: World, start: Start) -> None:
    """Everything takes twice as long for a while: what is measured then is void, and told."""
    n = first_search(calm)
    world = World(calm.changes, slow=23, factor=1.3)
    world.fault = lambda i, _: FAILED if i == n else None
    world.pace = lambda _: 2.0 if len(world.requests) == n + 1 else 1.0
    begun = start(world)
    report = begun.run()
    assert begun.watch.waits == [30.0, 120.0]
    void = [x for x in begun.records if x.discarded]
    assert [x.number for x in void] == [n + 1]
    assert "the machine is not what it was" in void[0].reason
    assert any(isinstance(x, MachineBackoff) and "not what it was" in x.reason for x in begun.watch.notices)
    assert named(report) == world.changes[23].id
    assert report.minutes.lost > 0


def test_a_machine_that_stays_another_ends_the_job(calm: World, play: Play) -> None:
    n = first_search(calm)
    world = World(calm.changes, slow=23, factor=1.3)
    world.fault = lambda i, _: FAILED if i == n else None
    world.pace = lambda _: 2.0 if n < len(world.requests) else 1.0
    with pytest.raises(MachineError, match="not what it was"):
        play(world)


def test_the_doubt_outlives_an_interruption(calm: World, start: Start) -> None:
    n = first_search(calm)
    world = World(calm.changes, slow=23, factor=1.3)
    world.fault = lambda i, _: FAILED if i == n else PowerCut() if i == n + 1 else None
    begun = start(world)
    begun.cut()
    assert begun.kinds[-1] == "started"
    report = begun.run()
    assert "a control run" in report.launches[n + 1].why
    assert report.outcome == "found"


@pytest.mark.parametrize("seed", mostly_long(range(3), short=[0]))
def test_half_the_launches_killed_from_outside(play: Play, seed: int) -> None:
    world = World(history(24).changes, slow=17, factor=1.3, seed=seed)
    world.fault = lambda i, _: FAILED if (i * 2_654_435_761 + seed * 40_503) >> 7 & 1 else None
    report = play(world, backoff=(1.0,) * 8)
    assert named(report) == world.changes[17].id
    assert report.skips == ()
    assert report.minutes.total <= 600
    failed = [x for x in report.launches if x.outcome == "failed"]
    assert {x.fault for x in failed} == {"machine"}
    assert 0.3 < len(failed) / len(report.launches) < 0.7
