"""Jobs in a temporary state folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.core.costs import Costs
from perfbisect.jobs.bisect_plan import BisectPlan
from perfbisect.jobs.capabilities import metric_of
from perfbisect.jobs.plan import begin
from perfbisect.jobs.prepare import make_plan
from perfbisect.jobs.setting import Setting
from perfbisect.store.jobs import Job, Jobs
from tests.jobs.world import Clock, FakeBuilder, Watch, World, cell

MakePlan = Callable[..., BisectPlan]
SETTING = Setting(environment="fake:it", typed="perfbisect bisect tiny --good A --bad B")


@pytest.fixture
def plan_for() -> MakePlan:
    """A plan over a world's changes."""

    def make(world: World, builder: FakeBuilder | None = None, **changed: object) -> BisectPlan:
        from perfbisect.core.change import History

        measured = changed.pop("cell", None) or cell()
        metric = changed.pop("metric", None)
        return make_plan(
            cell=measured,
            history=History(world.changes),
            builder=builder or FakeBuilder(),
            metric=metric_of(measured, metric),
            setting=SETTING,
            **{"budget": 600.0, "costs": Costs(0.1, 1.0, 0.3)} | changed,
        )

    return make


@pytest.fixture
def new_job(tmp_path: Path) -> Callable[[BisectPlan, Watch, World], Job]:
    """A job that has its plan."""
    clock = Clock()

    def make(plan: BisectPlan, watch: Watch, world: World) -> Job:
        job = Jobs(tmp_path).new(clock(), "abcd")
        begin(job, plan, watch.tools(world).clock)
        return job

    return make
