"""``perfbisect check`` against a known level: launches of one change until it is told on which side it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfbisect.compare.check_documents import CheckedDocument
from perfbisect.compare.check_plan import CheckPlan, Recorded, refuse_other_place, refuse_other_workload
from perfbisect.compare.check_report import check_document, guards_told, told_of
from perfbisect.compare.job import RUNS, SideRefusedError
from perfbisect.compare.sides import in_turn
from perfbisect.environments.base import Builder
from perfbisect.errors import UsageError
from perfbisect.jobs.admission import admit
from perfbisect.jobs.capabilities import runs_per_launch
from perfbisect.jobs.events import Launched
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.plans import cell_data, cell_of, require_plan
from perfbisect.jobs.replay import Launch, launches
from perfbisect.jobs.runner import Order, Tools, clear_up
from perfbisect.jobs.sequential import affordable, one_by_one, plainly_told
from perfbisect.jobs.settings import Setting
from perfbisect.jobs.workers import Crew
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.stats import threshold


@dataclass(frozen=True)
class Level:
    """What a change is held against: a ``baseline`` with the share by which it may be worse, two ``ends``, or
    a good and a bad value."""

    baseline: Recorded | None = None
    fail_over: float = 0.0
    ends: tuple[Recorded, Recorded] | None = None
    values: tuple[float, float] | None = None

    @property
    def recorded(self) -> tuple[Recorded, ...]:
        return self.ends or ((self.baseline,) if self.baseline else ())


def make_check_plan(
    *,
    cell: Cell,
    change: Change,
    level: Level,
    builder: Builder,
    metric: MetricRef,
    setting: Setting,
    launches: int,
    budget: float,
    machine_class: str | None = None,
    told: Sequence[str] = (),
) -> CheckPlan:
    """The plan of a check against a level; ``machine_class``: that of this machine.

    :raises UsageError: the level is of another workload or machine, or is none; or --env is wrong.
    :raises SideRefusedError: the change cannot be built.
    """
    builder.prepare([change])
    refusal = builder.refuses(change)
    if refusal is not None and refusal.error:
        raise UsageError(refusal.reason, next_step="mend --env")
    if refusal is not None:
        raise SideRefusedError(
            "b",
            f"{change.short} cannot be built: {refusal.reason}",
            next_step="choose another --env or --at",
        )
    for one in level.recorded:
        refuse_other_workload(one, cell, metric)
        refuse_other_place(one, machine_class=machine_class)
    most = min(RUNS, runs_per_launch(cell))
    recorded_runs = [len(attempt.runs) for one in level.recorded for attempt in one.launches]
    plan = CheckPlan(
        cell=cell_data(cell),
        digest=cell.digest,
        setting=setting,
        metric=str(metric),
        change=change,
        how="values" if level.values else "ends" if level.ends else "baseline",
        recorded=level.recorded,
        values=level.values,
        fail_over=level.fail_over,
        launches=launches,
        # What comes second in a launch has a bias of its own, so launches are as long as they were.
        runs=min(recorded_runs, default=most),
        budget=budget,
        told=tuple(told),
    )
    if launches < threshold.STEP:
        raise UsageError(f"--launches {launches}: at least {threshold.STEP}, or nothing can be told")
    try:
        _ = plan.line
    except ValueError as error:
        raise UsageError(f"there is no line to hold {change.short} against: {error}") from None
    return plan


def check(job: Job, tools: Tools) -> CheckedDocument:
    """Goes on with a check, new or resumed, until its verdict. Hold the job meanwhile.

    :raises BuildError, ServerError: the change cannot be built or served.
    :raises ClientError, MachineError: they failed too often; the job can be resumed.
    :raises UsageError: the client does not report the metric, or is not the one of the recorded level.
    :raises Interrupted: Ctrl-C or a stop.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = require_plan(job, journal.events, CheckPlan)
        if not finished(journal.events):
            clear_up(job, journal, tools)
            cell = cell_of(plan)
            with Crew(job, journal, tools, cell) as crew:
                one_by_one(job, journal, tools, crew, _Launches(plan, cell))
            told = told_of(plan, in_turn(launches(journal.events)))
            journal.append("verdict", {"word": told.word, "launches": told.launches})
        return check_document(job, journal.events)


@dataclass(frozen=True)
class _Launches:
    """Launches of one change, two at a time, until it is told."""

    plan: CheckPlan
    served: Cell
    advice: str = "read the log; another --at or --env may do"

    def next(self, seen: Sequence[Launch]) -> Order | str:
        plan, made = self.plan, in_turn(seen)
        if len(made) % threshold.STEP == 0 and self._settled(made):
            return ""
        if not affordable(seen, plan.budget):
            return ""
        why = f"launch {len(made) + 1} of {plan.launches} at most"
        return Order(0, plan.change, "run", plan.runs, why)

    def _settled(self, made: Sequence[Launch]) -> bool:
        """True if it is told, good news by its guards as well, or there are no launches left."""
        plan = self.plan
        told = told_of(plan, made)
        if told.word == "within" and len(made) + threshold.STEP <= plan.launches:
            return all(guard.word != "inconclusive" for _, guard in guards_told(plan, self.served, made))
        return told.settled

    def cell(self, _: Order) -> Cell:
        return self.served

    def name(self, _: Order) -> str:
        return f"change {self.plan.change.short}"

    def admit(self, attempt: Attempt, seen: Sequence[Launch]) -> None:
        admit(attempt, seen, self.plan.ref, "measure all of a check")
        made = attempt.provenance
        for one in self.plan.recorded:
            refuse_other_place(
                one, machine_class=made.machine_class, client=(made.client_digest, made.client_era)
            )

    def told(self, ended: Launch, seen: Sequence[Launch], order: Order) -> Launched:
        return plainly_told(ended, seen, order, self.plan.ref, self.plan.budget)
