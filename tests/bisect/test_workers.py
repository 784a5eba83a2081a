"""Several slots at once: one journal, pairs on one slot, and what a slot's machine does is its own."""

from __future__ import annotations

import time

import pytest

from perfbisect.errors import Interrupted, MachineError
from perfbisect.jobs.events import JobNote, MachineBackoff
from perfbisect.machine.slots import Slot
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Failure
from tests.fixtures.jobs import Play, Start
from tests.jobs.world import PowerCut, World, history, named
from tests.long import mostly_long

TWO = (Slot("one"), Slot("two"))
FAILED = Failure("launch", "machine", "no memory", "/log")


def name_of(request: AttemptRequest) -> str:
    return request.slot.name if request.slot else ""


def beside(_: AttemptRequest) -> None:
    """Long enough that the other slot gets its turn."""
    time.sleep(0.003)


def test_two_slots_name_the_planted_change(start: Start) -> None:
    world = World(history(24).changes, slow=15, factor=1.3, hold=beside)
    begun = start(world)
    report = begun.run(slots=TWO)
    assert named(report) == world.changes[15].id
    seen = begun.records
    measured = [x for x in seen if x.outcome == "measured"]
    assert {x.slot for x in measured} == {"one", "two"}
    for slot in ("one", "two"):
        assert {0, 23} <= {x.position for x in measured if x.slot == slot}, "each slot sees both ends"
    assert {x.trial[1:3] for x in measured if x.purpose == "confirm"} == {(14, 15)}
    for slot in ("one", "two"):
        made = [x.position for x in measured if x.purpose == "confirm" and x.slot == slot]
        assert made.count(14) == made.count(15), "a pair is made on one slot"
    assert all(x.outcome != "running" for x in seen)
    assert {x.reason for x in seen if x.outcome == "abandoned"} <= {"the result was reached without it"}
    assert [x.at for x in seen] == sorted(x.at or 0.0 for x in seen)
    assert {x.slot for x in report.launches} == {"one", "two"}


@pytest.mark.parametrize("seed", mostly_long(range(4), short=[0]))
def test_a_slot_of_half_the_speed_is_no_step(play: Play, seed: int) -> None:
    world = World(history(20).changes, slow=9, factor=1.2, hold=beside, seed=seed)
    world.pace = lambda request: 2.0 if name_of(request) == "two" else 1.0
    report = play(world, slots=TWO)
    assert named(report) == world.changes[9].id
    assert report.confirmed is not None
    # Which pair is made where differs from call to call, and an interval holds in 95 % of them alone.
    assert report.confirmed.effect == pytest.approx(0.2, abs=0.1)


def test_a_slot_that_the_machine_fails_is_left_and_the_other_goes_on(start: Start) -> None:
    world = World(history(12).changes, slow=5, hold=beside)
    world.fault = lambda _, request: FAILED if name_of(request) == "two" else None
    begun = start(world)
    report = begun.run(slots=TWO, backoff=(0.0, 0.0))
    assert named(report) == world.changes[5].id
    assert {x.slot for x in report.launches if x.outcome == "measured"} == {"one"}
    assert {n.slot for n in begun.watch.notices if isinstance(n, MachineBackoff)} == {"two"}
    notes = [n.text for n in begun.watch.notices if isinstance(n, JobNote)]
    assert any("on slot two: continuing without it" in text for text in notes)
    assert report.skips == ()


def test_slots_that_all_fail_end_the_job(play: Play) -> None:
    world = World(history(12).changes, slow=5, hold=beside)
    world.fault = lambda *_: FAILED
    with pytest.raises(MachineError, match="2 times in a row on slot"):
        play(world, slots=TWO, backoff=(0.0,))


def test_power_lost_with_two_launches_under_way_costs_those_two(start: Start) -> None:
    world = World(history(12).changes, slow=5, hold=beside)
    world.fault = lambda n, _: PowerCut() if n >= 5 else None
    begun = start(world)
    begun.cut(slots=TWO)
    opened = [x for x in begun.records if x.outcome == "running"]
    assert 1 <= len(opened) <= 2
    world.fault = lambda *_: None
    report = begun.run(slots=TWO)
    assert {x.token for x in opened} <= {token for token, _, _ in begun.watch.stopped}
    assert named(report) == world.changes[5].id
    cut_short = {x.id for x in report.launches if x.reason == "perfbisect ended during it"}
    assert cut_short == {x.id for x in opened}


def test_a_job_of_two_slots_is_resumed_on_one(start: Start) -> None:
    world = World(history(12).changes, slow=5, hold=beside)
    world.fault = lambda n, _: PowerCut() if n == 9 else None
    begun = start(world)
    begun.cut(slots=TWO)
    report = begun.run(slots=TWO[:1])
    assert named(report) == world.changes[5].id


@pytest.mark.parametrize("is_blamed", [False, True])
def test_an_interruption_of_one_ends_the_other_too(start: Start, is_blamed: bool) -> None:
    """One attempt is asked to stop; the other is interrupted, or comes back failed as its processes ended."""
    world = World(history(12).changes, slow=5)
    ended: list[str] = []

    def hold(request: AttemptRequest) -> None:
        if name_of(request) == "one":
            while not any(name_of(other) == "two" for other in world.requests):
                time.sleep(0.001)
            raise Interrupted("a stop was asked for")
        try:
            while True:
                time.sleep(0.001)
        except KeyboardInterrupt:
            ended.append(request.id)
            if not is_blamed:
                raise

    world.hold = hold
    blame = Failure("bench", "change", "the server is gone")
    world.fault = lambda _, request: blame if name_of(request) == "two" else None
    begun = start(world)
    with pytest.raises(Interrupted):
        begun.run(slots=TWO)
    assert ended == [request.id for request in world.requests if name_of(request) == "two"]
    if not is_blamed:
        ends = [x.outcome for x in begun.records]
        assert ends == ["running", "running"], "both are measured again"
    world.hold, world.fault = lambda _: None, lambda *_: None
    report = begun.run(slots=TWO)
    assert report.culprit is not None
    assert {x.outcome for x in report.launches} == {"measured", "abandoned"}
