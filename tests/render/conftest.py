"""The jobs' fixtures: reports are made from real jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from perfbisect.core.attempt import Failure
from perfbisect.core.change import History
from perfbisect.environments import Refusal
from perfbisect.jobs.bisect import bisect
from perfbisect.jobs.bisect_plan import BisectPlan
from perfbisect.render.documents import EffectDocument, ReportDocument, StepDocument
from perfbisect.store.jobs import Job
from tests.fakes.history import HOSTILE_SUBJECT
from tests.jobs.conftest import MakePlan, new_job, plan_for
from tests.jobs.world import FakeBuilder, Watch, World, history

__all__ = ["new_job", "plan_for"]

SCRIPT = (
    "</script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>\u2028\"'{{7*7}}@end"
)


def hostile() -> World:
    """Ten commits whose authors mean harm to terminals, Markdown and browsers."""
    subjects = (HOSTILE_SUBJECT, SCRIPT)
    changes = [
        replace(c, subject=subjects[i % 2], author="@everyone \x1b[2J<b>")
        for i, c in enumerate(history(10).changes)
    ]
    return World(History(tuple(changes)).changes, slow=6)


@pytest.fixture
def told(
    plan_for: MakePlan, new_job: Callable[[BisectPlan, Watch, World], Job]
) -> tuple[ReportDocument, Watch]:
    """A bisection with a skip known beforehand, a failure when tried, and merged neighbours."""
    world, watch = hostile(), Watch()
    failure = Failure("launch", "change", f"died: \x1b[31m| `x` {SCRIPT}", "/log")
    world.fault = lambda _, request: failure if request.change.id == world.changes[5].id else None
    builder = FakeBuilder(
        merged=frozenset({world.changes[2].id}),
        refused={world.changes[4].id: Refusal("csrc differs | \x1b[2J<script>")},
    )
    job = new_job(plan_for(world, builder), watch, world)
    with job.held():
        return bisect(job, watch.tools(world)), watch


@pytest.fixture
def rich(told: tuple[ReportDocument, Watch]) -> ReportDocument:
    """The same with everything that a report can have: two slots, steps, a revert, what the logs say."""
    report = told[0]
    assert report.confirmed is not None
    culprit = report.culprits[-1]
    slots = [
        x.model_copy(update={"slot": "gpu0" if x.purpose == "confirm" else f"gpu{i % 2}", "at": i * 1.5})
        for i, x in enumerate(report.launches)
    ]
    reverted = EffectDocument(
        left=report.bad, right=report.bad, effect=-0.3, low=-0.35, high=-0.25, launches=2
    )
    return report.model_copy(
        update={
            "culprit": culprit.changes[0],
            "culprits": (culprit,),
            "launches": tuple(slots),
            "log_differences": (("attention", "FLASH_ATTN", SCRIPT), ("cache", "100 tokens", "90 tokens")),
            "steps": (StepDocument(culprits=(culprit,), probability=0.97, confirmed=report.confirmed),),
            "revert": reverted,
            "revert_note": f"not clean: {SCRIPT}",
            "cherry_picks": (report.good,),
            "minutes": report.minutes.model_copy(update={"saved": 3.25}),
        }
    )
