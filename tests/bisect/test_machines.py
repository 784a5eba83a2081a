"""A bisection over the machines of a fleet: one that is unlike the others is put out of use."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from perfbisect.bisect.job import BISECT
from perfbisect.bisect.search_events import machines_out
from perfbisect.jobs.events import JobNote
from perfbisect.jobs.replay import launches
from perfbisect.machine.slots import Slot
from perfbisect.measure.executor import AttemptRequest
from tests.fixtures.jobs import Start
from tests.jobs.world import PowerCut, World, history, named


def fleet(*machines: str, each: int = 1) -> tuple[Slot, ...]:
    return tuple(Slot(f"{name}/{k}", machine=name) for name in machines for k in range(each))


def machine_of(request: AttemptRequest) -> str:
    return request.slot.machine if request.slot else ""


def world_of(
    speeds: Mapping[str, float], *, changes: int = 24, slow: int | None = 15, **more: object
) -> World:
    """Machines of these speeds: 2.0 takes twice as long."""
    return World(
        history(changes).changes,
        slow=slow,
        factor=1.3,
        hold=lambda _: time.sleep(0.003),
        pace=lambda request: speeds.get(machine_of(request), 1.0),
        **more,  # type: ignore[arg-type]
    )


SPEEDS = {"a": 1.0, "b": 1.07, "c": 0.95, "odd": 1.6}


@pytest.mark.parametrize("each", [1, pytest.param(2, marks=pytest.mark.processes)])
def test_a_machine_unlike_the_others_is_put_out_of_use(start: Start, each: int) -> None:
    world = world_of(SPEEDS)
    begun = start(world)
    report = begun.run(slots=fleet("a", "b", "odd", "c", each=each))
    assert named(report) == world.changes[15].id
    events = begun.events
    assert list(machines_out(events)) == ["odd"]
    of_odd = [x for x in launches(events) if x.machine == "odd"]
    assert len(of_odd) >= 2 * each - 1
    assert all(x.outcome == "abandoned" for x in of_odd), "none of them is evidence"
    assert any(x.discarded and "odd is slower than the other machines" in x.reason for x in of_odd)
    began = begun.kinds.index("machine")
    late = [e for e in events[began:] if e.kind == "started" and e.data["machine"] == "odd"]
    assert late == []
    notes = [n.text for n in begun.watch.notices if isinstance(n, JobNote)]
    assert sum("machine odd is out of use" in text for text in notes) == 1
    assert report.minutes.lost >= sum(x.minutes for x in of_odd) > 0


def test_the_faster_of_two_machines_is_no_fault(start: Start) -> None:
    world = world_of({"a": 1.0, "b": 2.0})
    begun = start(world)
    report = begun.run(slots=fleet("a", "b"))
    assert named(report) == world.changes[15].id
    assert "machine" not in begun.kinds
    assert {x.outcome for x in report.launches} <= {"measured", "abandoned"}


@pytest.mark.processes
def test_a_machine_that_is_left_out_stays_out_after_a_power_cut(start: Start) -> None:
    world = world_of(SPEEDS)
    begun = start(world)
    slots = fleet("a", "b", "odd", "c")
    world.fault = lambda _, request: (
        PowerCut() if "machine" in begun.kinds and request.purpose == "confirm" else None
    )
    begun.cut(slots=slots)
    before = len(world.requests)
    report = begun.run(slots=slots)
    assert named(report) == world.changes[15].id
    assert "odd" not in {machine_of(request) for request in world.requests[before:]}
    assert begun.kinds.count("machine") == 1


@pytest.mark.processes
def test_the_last_machine_is_used_whatever_it_is(start: Start) -> None:
    world = world_of(SPEEDS)
    begun = start(world)
    world.fault = lambda *_: PowerCut() if "machine" in begun.kinds else None
    begun.cut(slots=fleet("a", "b", "odd", "c"))
    before = len(world.requests)
    report = begun.run(slots=fleet("odd"))
    assert named(report) == world.changes[15].id
    assert {machine_of(request) for request in world.requests[before:]} == {"odd"}


def test_machines_that_differ_as_usual_are_all_used(start: Start) -> None:
    speeds = {"a": 1.0, "b": 1.15, "c": 0.92}
    world = world_of(speeds, slow=None)
    begun = start(world)
    report = begun.run(slots=fleet(*speeds))
    assert report.outcome in ("not reproduced", "too small")
    assert "machine" not in begun.kinds
    assert {x.slot for x in report.launches if x.outcome == "measured"} == {"a/0", "b/0", "c/0"}


def test_a_step_that_one_machine_alone_has_is_not_averaged_away(start: Start) -> None:
    speeds = {"a": 1.0, "b": 1.06, "c": 0.95, "d": 1.02}
    world = world_of(speeds, slow=None, tau=0.01)
    last = world.changes[-1].id

    def pace(request: AttemptRequest) -> float:
        has_step = machine_of(request) == "b" and request.change.id == last
        return speeds[machine_of(request)] * (1.3 if has_step else 1.0)

    world.pace = pace
    begun = start(world)
    report = begun.run(slots=fleet(*speeds))
    assert report.outcome == "too small"
    assert BISECT.status(report).exit_code == 4
    (text,) = [text for text in report.summary if "the ends differ on" in text]
    assert "the ends differ on b alone, by +" in text
    assert report.next.startswith("bisect on b alone")
    assert "machine" not in begun.kinds, "it is no fault of the machine"
