"""Which jobs have a step whose hunks can be searched."""

from __future__ import annotations

import pytest

from perfbisect.errors import UsageError
from perfbisect.explain.plans import measured_step
from tests.fixtures.jobs import Start
from tests.jobs.world import PowerCut, World, history


def test_a_bisection_has_the_step_of_its_culprit(start: Start) -> None:
    world = World(history(6).changes, slow=4, factor=1.5)
    begun = start(world)
    begun.run()
    step = measured_step(begun.job, begun.events)
    assert step.b.change == world.changes[4]
    assert step.effect == pytest.approx(0.5, abs=0.1)


def test_a_bisection_under_way_has_none_yet(start: Start) -> None:
    world = World(history(6).changes, slow=4)
    world.fault = lambda number, _: PowerCut() if number == 4 else None
    begun = start(world)
    begun.cut()
    with pytest.raises(UsageError, match="is not finished") as caught:
        measured_step(begun.job, begun.events)
    assert caught.value.next_step == f"perfbisect resume {begun.job.id}"
