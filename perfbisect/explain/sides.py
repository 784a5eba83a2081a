"""The two sides that a finished job tells apart: what ``explain`` profiles and searches."""

from __future__ import annotations

from dataclasses import dataclass

from perfbisect.bisect.bisection import read_bisection
from perfbisect.bisect.plan import BisectPlan
from perfbisect.errors import UsageError
from perfbisect.experiments.compare import ComparePlan, read_comparison
from perfbisect.experiments.measure import SidePlan
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.plans import JobPlan, find_plan, require_plan


@dataclass(frozen=True)
class MeasuredSides:
    """A and B of a comparison, or the change before the culprit and the culprit.

    ``effect``: of B against A, None where none was shown; ``is_slower``: whether B was shown to be.
    """

    plan: JobPlan
    a: SidePlan
    b: SidePlan
    effect: float | None
    is_slower: bool
    finished: bool


def measured_sides(job: Job, events: tuple[JournalEvent, ...]) -> MeasuredSides:
    """The sides of a comparison, finished or not, or of a bisection that named its culprit.

    Raises:
        UsageError: the job has none.
    """
    if find_plan(events, BisectPlan) is not None:
        return _of_bisection(job, events)
    if find_plan(events, ComparePlan) is not None:
        return _of_comparison(job, events)
    raise UsageError(
        f"job {job.id} is neither a bisection nor a comparison: it has no two sides",
        next_step="perfbisect status lists the jobs",
    )


def _of_bisection(job: Job, events: tuple[JournalEvent, ...]) -> MeasuredSides:
    result = read_bisection(job, events)
    outcome, plan = result.outcome, result.plan
    if outcome is None or not result.found or outcome.confirmed is None or len(outcome.culprits) != 1:
        word, verb = ("names no single culprit", "report") if outcome else ("is not finished", "resume")
        raise UsageError(
            f"job {job.id} {word}: there are no two sides", next_step=f"perfbisect {verb} {job.id}"
        )
    (culprit,) = outcome.culprits
    before, after = (plan.positions[index].change for index in (culprit - 1, culprit))
    effect = outcome.confirmed.effect
    return MeasuredSides(
        plan,
        SidePlan(typed=before.short, change=before),
        SidePlan(typed=after.short, change=after),
        effect,
        effect * plan.ref.metric.sign > 0,
        finished=True,
    )


def _of_comparison(job: Job, events: tuple[JournalEvent, ...]) -> MeasuredSides:
    plan, result = require_plan(job, events, ComparePlan), read_comparison(job, events)
    row = result.headline
    effect = row.effect if row.verdict in ("regression", "improvement") else None
    return MeasuredSides(
        plan, plan.a, plan.b, effect, is_slower=row.verdict == "regression", finished=result.finished
    )
