"""Environments built beside a running attempt: which, where, and what that saves."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perfbisect.bisect.decision.state import observed_prices
from perfbisect.bisect.search_events import with_builds
from perfbisect.commands import slots
from perfbisect.errors import BuildError
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.runner import SpareCores
from perfbisect.machine.slots import Slot
from perfbisect.model.change import Change
from tests.fixtures.jobs import MakePlan, Start
from tests.jobs.world import FakeBuilder, World, history


@dataclass
class Builds:
    """Says that every build took a minute."""

    at_once: int = 1
    made: list[str] = field(default_factory=list)

    def wanted(self, change: Change) -> bool:
        return change.id not in self.made

    def build(self, change: Change, log: Path, timeout: float) -> float | None:
        del log, timeout
        self.made.append(change.id)
        return 60.0


def test_what_is_likely_next_is_built_and_the_minutes_are_told(start: Start) -> None:
    world, builds = World(history(40).changes, slow=23, factor=1.3), Builds()
    begun = start(world)
    report = begun.run(ahead=builds)
    assert report.outcome == "found"
    built = {int(e.data["position"]) for e in begun.events if e.kind == "built"}
    used = built & {x.position for x in report.launches}
    assert used, "some of what was built was measured afterwards"
    assert report.minutes.saved == pytest.approx(len(used))
    first = next(i for i, event in enumerate(begun.events) if event.kind == "built")
    ends = [i for i, event in enumerate(begun.events) if event.kind == "finished"]
    assert first < ends[1], "before both ends are measured"
    alone = World(world.changes, slow=23, factor=1.3)
    assert start(alone).run().minutes.saved == 0


def test_a_launch_of_what_was_built_ahead_costs_no_build(plan_for: MakePlan) -> None:
    plan = plan_for(World(history(40).changes, slow=23))
    built = JournalEvent(1, "", "built", {"position": 7, "seconds": 60.0})
    known = with_builds(plan, [built])
    assert known.search.cached == plan.search.cached | {7}
    prices = [observed_prices(search, ()).visit(7, 1) for search in (plan.search, known.search)]
    assert prices[0] - prices[1] == pytest.approx(plan.costs.build)


def test_as_many_are_built_at_once_as_may_be(start: Start) -> None:
    have_met, under_way = threading.Event(), list[str]()

    @dataclass
    class Meeting(Builds):
        def build(self, change: Change, log: Path, timeout: float) -> float | None:
            under_way.append(change.id)
            if len(under_way) == 2:
                have_met.set()
            have_met.wait(60)
            under_way.remove(change.id)
            return super().build(change, log, timeout)

    builds = Meeting(at_once=2)
    start(World(history(40).changes, slow=23, factor=1.3)).run(ahead=builds, slots=(Slot("one"), Slot("two")))
    assert len(builds.made) >= 2
    assert have_met.is_set()


class Recording(FakeBuilder):
    """Notes where and how a build runs."""

    def ensure(self, change: Change, *, log: Path, timeout: float):  # type: ignore[no-untyped-def]
        del log, timeout
        self.where = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        if change.subject == "Change 1":
            raise BuildError("no wheel")


def test_a_build_has_cores_of_its_own_and_gives_way(tmp_path: Path) -> None:
    builder, before = Recording(), os.sched_getaffinity(0)
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    core = min(before)
    leased: list[str] = []

    @contextlib.contextmanager
    def leasing():  # type: ignore[no-untyped-def]
        leased.append("taken")
        try:
            yield
        finally:
            leased.append("given back")

    ahead = SpareCores(builder, frozenset({core}), leasing)
    took: list[float | None] = []
    changes = history(3).changes
    for change in changes[:2]:
        thread = threading.Thread(target=lambda c=change: took.append(ahead.build(c, tmp_path / "log", 1.0)))
        thread.start()
        thread.join()
    assert builder.where == ({core}, 15)
    assert os.sched_getaffinity(0) == before, "the thread's own, and no other's"
    assert os.getpriority(os.PRIO_PROCESS, 0) == priority
    assert leased == ["taken", "given back"] * 2
    assert took[0] is not None
    assert took[1] is None, "what cannot be built is found out by its launch"


def test_nothing_is_built_ahead_without_cores_to_spare() -> None:
    here = sorted(os.sched_getaffinity(0))
    whole = (Slot(""),)
    assert slots.reason_not_prebuilding(whole) == "the attempt has the whole machine"
    all_of_them = (Slot("cores", server_cores=tuple(here[1:]), client_cores=(here[0],)),)
    assert slots.spare_cores(all_of_them) == frozenset()
    assert slots.reason_not_prebuilding(all_of_them) == "0 processors are on no slot, and it takes 2"
