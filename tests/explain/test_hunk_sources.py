"""Which jobs have a step whose hunks can be searched."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.commands.explain import measured_step
from perfbisect.errors import UsageError
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read
from tests.fixtures.jobs import MakePlan, NewJob, new_job, plan_for
from tests.jobs.world import PowerCut, Watch, World, history, verdict

__all__ = ["new_job", "plan_for"]


def bisected(plan_for: MakePlan, new_job: NewJob, world: World) -> Job:
    watch = Watch()
    job = new_job(plan_for(world), watch, world)
    verdict(job, watch, world)
    return job


def test_a_bisection_has_the_step_of_its_culprit(plan_for: MakePlan, new_job: NewJob) -> None:
    world = World(history(6).changes, slow=4, factor=1.5)
    job = bisected(plan_for, new_job, world)
    step = measured_step(job, read(job.journal).events)
    assert step.b.change == world.changes[4]
    assert step.effect == pytest.approx(0.5, abs=0.1)


def test_a_bisection_without_a_culprit_has_none(plan_for: MakePlan, new_job: NewJob) -> None:
    job = bisected(plan_for, new_job, World(history(6).changes, slow=None))
    with pytest.raises(UsageError, match="names no single culprit") as caught:
        measured_step(job, read(job.journal).events)
    assert caught.value.next_step == f"perfbisect report {job.id}"


def test_a_bisection_under_way_has_none_yet(plan_for: MakePlan, new_job: NewJob, tmp_path: Path) -> None:
    del tmp_path
    world, watch = World(history(6).changes, slow=4), Watch()
    world.fault = lambda number, _: PowerCut() if number == 4 else None
    job = new_job(plan_for(world), watch, world)
    with pytest.raises(PowerCut):
        verdict(job, watch, world)
    with pytest.raises(UsageError, match="is not finished") as caught:
        measured_step(job, read(job.journal).events)
    assert caught.value.next_step == f"perfbisect resume {job.id}"
