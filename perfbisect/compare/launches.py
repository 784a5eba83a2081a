"""Launches of comparisons, checks and runs: by side, and the loop that makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from perfbisect.compare.plan import CheckPlan, RunPlan
from perfbisect.environments.base import Builder
from perfbisect.errors import BuildError, UsageError
from perfbisect.jobs.events import LaunchEnded
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import Journal, JournalEvent
from perfbisect.jobs.plans import PlanT, plan_cell, require_plan
from perfbisect.jobs.replay import LaunchRecord, launches
from perfbisect.jobs.runner import JobContext, LaunchRequest, recover_interrupted
from perfbisect.jobs.sequential import LaunchPolicy, launch_ended, run_sequentially
from perfbisect.jobs.workers import WorkerPool
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.stats import ab_test

SIDES: tuple[ab_test.Side, ab_test.Side] = ("a", "b")
"""Position 0 and 1 of a comparison."""

RUNS = 2
"""Runs a launch, where the engine can empty its caches between them: the second is nearly free."""


class SideRefusedError(BuildError):
    """A side cannot be built, as is known before anything is started; ``side`` is ``a`` or ``b``."""

    def __init__(self, side: str, message: str, *, next_step: str) -> None:
        super().__init__(message, next_step=next_step)
        self.side = side


def require_buildable(
    builder: Builder, change: Change, name: str, *, next_step: str, side: ab_test.Side = "b"
) -> None:
    """Refuses a change that the builder cannot build; ``name``: of the change in the message.

    :raises UsageError: --env is wrong.
    :raises SideRefusedError: the change cannot be built.
    """
    refusal = builder.refuses(change)
    if refusal is None:
        return
    if refusal.error:
        raise UsageError(refusal.reason, next_step="correct --env")
    raise SideRefusedError(side, f"{name} cannot be built: {refusal.reason}", next_step=next_step)


def measure_launches(
    job: Job,
    tools: JobContext,
    plan_type: type[PlanT],
    policy: Callable[[PlanT, Cell], LaunchPolicy],
    conclude: Callable[[PlanT, Sequence[LaunchRecord]], Mapping[str, object] | None],
) -> tuple[JournalEvent, ...]:
    """Launches as the policy says, then writes the verdict of ``conclude``; returns the journal's events.

    ``conclude`` gives None where the job goes on later. A job that has its verdict is left as it is.

    :raises BuildError, ServerError: a change cannot be built or served.
    :raises ClientError, MachineError: they failed too often; the job can be resumed.
    :raises UsageError: the journal is of another kind, or a launch cannot be compared.
    :raises Interrupted: Ctrl-C or a stop.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = require_plan(job, journal.events, plan_type)
        if not finished(journal.events):
            recover_interrupted(job, journal, tools)
            cell = plan_cell(plan)
            with WorkerPool(job, journal, tools, cell) as crew:
                run_sequentially(job, journal, tools, crew, policy(plan, cell))
            verdict = conclude(plan, launches(journal.events))
            if verdict is not None:
                journal.append("verdict", dict(verdict))
        return tuple(journal.events)


@dataclass(frozen=True)
class OneChange:
    """The part of a launch policy that all jobs of one change share."""

    plan: RunPlan | CheckPlan
    served: Cell
    budget: float = 0.0
    advice: str = "read the log; choose another --at or --env"

    def cell(self, _: LaunchRequest) -> Cell:
        return self.served

    def name(self, _: LaunchRequest) -> str:
        return f"change {self.plan.change.short}"

    def told(self, ended: LaunchRecord, seen: Sequence[LaunchRecord], order: LaunchRequest) -> LaunchEnded:
        return launch_ended(ended, seen, order, self.plan.ref, self.budget)


def in_turn(seen: Sequence[LaunchRecord]) -> tuple[LaunchRecord, ...]:
    """The launches that gave values, in order."""
    return tuple(launch for launch in seen if launch.end == "finished" and launch.attempt is not None)


def attempts_of(seen: Sequence[LaunchRecord], side: ab_test.Side) -> tuple[Attempt, ...]:
    """The attempts of one side that gave values."""
    index = SIDES.index(side)
    return tuple(x.attempt for x in in_turn(seen) if x.position == index and x.attempt is not None)


def observations(measured: Sequence[LaunchRecord], metric: MetricRef) -> tuple[ab_test.AbLaunch, ...]:
    """The launches as the A/B test takes them. :raises KeyError: one does not report the metric."""
    return tuple(
        ab_test.AbLaunch(SIDES[launch.position], launch.attempt.values(metric))
        for launch in measured
        if launch.attempt is not None
    )


def shared_metrics(measured: Sequence[LaunchRecord]) -> tuple[str, ...]:
    """Names that every run of every launch reports, in the order of the first."""
    runs = [run.values for launch in measured if launch.attempt is not None for run in launch.attempt.runs]
    if not runs:
        return ()
    return tuple(name for name in runs[0] if all(name in run for run in runs))


def require_shared_metrics(seen: Sequence[LaunchRecord]) -> None:
    """:raises UsageError: the sides report no metric in common."""
    measured = in_turn(seen)
    if shared_metrics(measured) or len(measured) < 2:
        return
    reported = [
        sorted({name for attempt in attempts_of(seen, side) for run in attempt.runs for name in run.values})
        for side in SIDES
    ]
    raise UsageError(
        "the sides report no metric in common, so nothing can be compared: "
        f"A reports {', '.join(reported[0])}; B reports {', '.join(reported[1])}",
        where=measured[-1].attempt.folder if measured[-1].attempt else None,
        next_step="measure both with one client: --client",
    )
