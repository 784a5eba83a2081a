"""A plan as a document, and what earlier jobs taught about the cell."""

from __future__ import annotations

import contextlib

from perfbisect.core.attempt import Attempt
from perfbisect.errors import PerfbisectError
from perfbisect.jobs.expect import Noise, expected
from perfbisect.jobs.fold import launches
from perfbisect.jobs.plan import BisectPlan, cell_of
from perfbisect.jobs.views import (
    cell_document,
    change_document,
    commands_document,
    metric_document,
    position_document,
)
from perfbisect.render.documents import PlanDocument, SkipDocument
from perfbisect.store.jobs import Jobs
from perfbisect.store.journal import read

_JOBS_BACK = 20


def plan_document(plan: BisectPlan, noise: Noise) -> PlanDocument:
    """What will be done, what it will take, and with which commands."""
    cell, good, bad = cell_of(plan), plan.positions[0].changes[0], plan.positions[-1].changes[-1]
    return PlanDocument(
        cell=cell_document(cell, plan.ref),
        metric=metric_document(plan.ref),
        repository=plan.setting.repository,
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        good=change_document(good),
        bad=change_document(bad),
        changes=sum(len(position.changes) for position in plan.positions),
        positions=tuple(position_document(i, p) for i, p in enumerate(plan.positions)),
        skips=tuple(
            SkipDocument(change=change_document(p.change), reason=p.skip, known="before")
            for p in plan.positions
            if p.skip
        ),
        runs_per_launch=plan.max_runs,
        budget_minutes=plan.budget,
        expected=expected(plan, noise),
        commands=commands_document(cell, plan.setting, good, None),
        told=plan.told,
    )


def earlier_attempts(jobs: Jobs, digest: str) -> tuple[Attempt, ...]:
    """Attempts of the last jobs that measured this cell: for prices and noise, never as evidence."""
    found: list[Attempt] = []
    for job in jobs.all()[-_JOBS_BACK:]:
        with contextlib.suppress(PerfbisectError):
            seen = launches(read(job.journal).events)
            attempts = [x.attempt for x in seen if x.end == "finished" and x.attempt is not None]
            found += [a for a in attempts if a.provenance.cell_digest == digest]
    return tuple(found)
