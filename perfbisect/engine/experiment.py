"""A kind of experiment: its plan, what is launched next, its result, and the report of that."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from perfbisect.jobs.documents import MeasuredDocument
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import Journal, JournalEvent
from perfbisect.jobs.loop import (
    Decision,
    Done,
    Idle,
    JobState,
    LaunchPolicy,
    SlotView,
    fits_budget,
    launch_in_steps,
)
from perfbisect.jobs.plans import BudgetedPlan, PlanT, plan_cell, require_plan
from perfbisect.jobs.replay import LaunchRequest
from perfbisect.jobs.runner import JobContext, recover_interrupted
from perfbisect.jobs.workers import WorkerPool
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.report.document import Report

ResultT = TypeVar("ResultT", bound=MeasuredDocument)
Verdict = Mapping[str, object]


@dataclass(frozen=True)
class Candidate:
    """A possible culprit with its probability."""

    position: int
    change: str
    subject: str
    probability: float


@dataclass(frozen=True)
class JobStatus:
    """A job's progress. ``outcome``: the verdict in a word, ``unfinished`` before.

    ``exit_code``: of the command, were this the end; ``verdict``: the outcome's subject, such as culprit or
    effect; ``next``: the next command, by default the report.
    """

    outcome: str
    exit_code: int
    verdict: str
    next: str = ""
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Amendment:
    """Changes to a plan on resume: budget in minutes, metric, confirmation by revert."""

    budget: float | None = None
    metric: MetricRef | None = None
    confirm_revert: bool = False


@dataclass(frozen=True)
class Experiment(Generic[PlanT, ResultT]):
    """A kind of experiment. A result is its value, its public JSON, and what its report is made from."""

    plan: type[PlanT]
    policy: Callable[[Job, PlanT, JobContext], LaunchPolicy]
    """What is launched next, and the verdict."""
    result: Callable[[Job, Sequence[JournalEvent]], ResultT]
    """The result of a job, finished or not."""
    status: Callable[[ResultT], JobStatus]
    report: Callable[[ResultT], Report]
    client_change: Callable[[PlanT], Change]
    """The change whose environment provides the client by default."""
    conclude: Callable[[Job, PlanT, Verdict], Verdict] = lambda _job, _plan, verdict: verdict
    """What the journal keeps of the policy's verdict; files are written before."""
    workers: Callable[[PlanT], int] = lambda _: 1
    """Concurrent launches."""
    amend: Callable[[Job, JobContext, Amendment], None] | None = None
    result_for_metric: Callable[[Job, Sequence[JournalEvent], MetricRef], ResultT] | None = None
    """The result for another metric of the same launches."""


AnyExperiment = Experiment[Any, Any]
"""An experiment whose types only the table knows."""


def run_experiment(
    kind: Experiment[PlanT, ResultT], job: Job, tools: JobContext, *, until: int = 0
) -> ResultT:
    """Continue a job, new or resumed, to its verdict; ``until``: stop, unfinished, after so many launches.

    The caller holds the job. A job that has its verdict is left as it is.

    Raises:
        BuildError, ServerError: a change cannot be built or served.
        ClientError, MachineError: they failed too often; the job can be resumed.
        UsageError: the journal is of another kind, or a launch cannot be compared.
        Interrupted: Ctrl-C or a stop.
    """
    steps = run_in_steps(kind, job, tools, until=until, poll=None)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: ResultT = end.value
            return result


def run_in_steps(
    kind: Experiment[PlanT, ResultT], job: Job, tools: JobContext, *, until: int, poll: float | None
) -> Generator[float, None, ResultT]:
    """:func:`run_experiment` beside other jobs of this thread, see :func:`launch_in_steps`."""
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = require_plan(job, journal.events, kind.plan)
        # A job with a verdict stays as it is: recovery would append to a journal that is closed.
        if not finished(journal.events):
            recover_interrupted(job, journal, tools.sink, tools.stop_leftovers, tools.reclaim)
            policy = kind.policy(job, plan, tools)
            # A policy that has a budget decides itself what fits into it.
            own = plan.budget if isinstance(plan, BudgetedPlan) and not policy.budget else None
            policy = _bounded(policy, own or 0.0, until)
            with WorkerPool(job, journal, tools, plan_cell(plan)) as pool:
                verdict = yield from launch_in_steps(job, journal, tools, pool, policy, poll=poll)
            if verdict:
                journal.append("verdict", kind.conclude(job, plan, verdict))
        return kind.result(job, journal.events)


def _bounded(policy: LaunchPolicy, budget: float, until: int) -> LaunchPolicy:
    """A policy that ends where no further launch fits into so many minutes, or after so many launches.

    Each bound is 0 where there is none; after so many launches there is no verdict.
    """

    def next_or_end(state: JobState, view: SlotView) -> Decision:
        decision = policy.next(state, view)
        if not isinstance(decision, LaunchRequest):
            return decision
        if budget and not fits_budget(state.launches, budget):
            return Idle() if state.is_running else Done({"verdict": "out of budget"})
        measured = sum(launch.outcome == "measured" for launch in state.launches)
        return Done() if until and measured >= until else decision

    return replace(policy, next=next_or_end, budget=budget or policy.budget)
