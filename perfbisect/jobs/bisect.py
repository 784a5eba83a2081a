"""The bisection: ask the core, launch, write it down, ask again. Resuming is starting the same loop."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial

from perfbisect.core import bisect as core
from perfbisect.core.metric import MetricRef
from perfbisect.errors import MachineError, PerfbisectError, ServerError, UsageError
from perfbisect.jobs.admit import admit
from perfbisect.jobs.again import check_reported
from perfbisect.jobs.ahead import likely
from perfbisect.jobs.anchors import disagreement
from perfbisect.jobs.crew import Crew
from perfbisect.jobs.fold import Launch, Ledger, launches
from perfbisect.jobs.plan import BisectPlan, JobPlan, cell_of, plan_of
from perfbisect.jobs.policy import Failures
from perfbisect.jobs.report import outcome_of, report
from perfbisect.jobs.revert import confirm_revert
from perfbisect.jobs.step import next_step
from perfbisect.jobs.tell import launched, launching
from perfbisect.jobs.words import end_name
from perfbisect.jobs.work import Ahead, Order, Tools, clear_up
from perfbisect.render.documents import ReportDocument
from perfbisect.render.notices import Ended
from perfbisect.store.events import Clock
from perfbisect.store.jobs import Job, finished
from perfbisect.store.journal import Journal
from perfbisect.system.slots import Slot


def begin(job: Job, plan: JobPlan, clock: Clock) -> None:
    """Writes the plan into the job's journal: from here on the job can be resumed."""
    with Journal(job.journal, clock=clock) as journal:
        journal.append("plan", plan.model_dump(mode="json"))


def amend(
    job: Job,
    tools: Tools,
    *,
    budget: float | None = None,
    metric: MetricRef | None = None,
    confirm_revert: bool = False,
) -> None:
    """Asks a bisection for more: minutes, another metric, or the later end less its culprit.

    What was measured stays; the search goes on where the new question needs it.

    :raises UsageError: no bisection, or nothing that would change anything.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = plan_of(journal.events)
        if not isinstance(plan, BisectPlan):
            raise UsageError(
                f"job {job.id} is no bisection: it has no budget and no other question",
                next_step=f"perfbisect resume {job.id}, without options",
            )
        changed: dict[str, object] = {}
        if metric is not None and str(metric) != plan.metric:
            check_reported(launches(journal.events), metric)
            changed["metric"] = str(metric)
        if confirm_revert and not plan.extras.confirm_revert:
            changed["extras"] = plan.extras.model_copy(update={"confirm_revert": True})
        outcome = outcome_of(journal.events)
        if budget is not None:
            if outcome is not None and outcome.word != "out of budget" and not changed:
                raise UsageError(
                    f"job {job.id} has its verdict, {outcome.word!r}: more minutes would change nothing",
                    next_step=f"perfbisect report {job.id}",
                )
            if budget <= plan.budget:
                raise UsageError(
                    f"the budget was {plan.budget:.0f} minutes already, and {budget:.0f} are no more",
                    next_step=f"--budget with more than {plan.budget:.0f}m",
                )
            changed["budget"] = budget
        if changed:
            journal.append("plan", plan.model_copy(update=changed).model_dump(mode="json"))


def bisect(job: Job, tools: Tools) -> ReportDocument:
    """Goes on with a job, new or resumed, until its verdict, which is in the journal when this returns.

    Hold the job (``job.held()``) meanwhile.

    :raises BuildError, ServerError: an end of the range cannot be built or served.
    :raises ClientError, MachineError: they failed too often; the job can be resumed.
    :raises UsageError: the client does not report the metric.
    :raises Interrupted: Ctrl-C or a stop.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = plan_of(journal.events)
        if not isinstance(plan, BisectPlan):
            raise UsageError(f"job {job.id} is no bisection")
        if not finished(journal.events):
            clear_up(job, journal, tools)
            cell = cell_of(plan)
            with Crew(job, journal, tools, cell) as crew:
                outcome = _Search(job, journal, plan, tools, crew).run()
                if outcome.word == "found" and plan.extras.confirm_revert:
                    crew.stop()
                    confirm_revert(job, journal, plan, tools, crew, outcome)
            journal.append("verdict", asdict(outcome))
        document = report(job, journal.events)
    tools.sink(Ended(document))
    return document


class _Search:
    """The loop of a bisection: a launch on every slot that is free, an event for each that ended."""

    def __init__(self, job: Job, journal: Journal, plan: BisectPlan, tools: Tools, crew: Crew) -> None:
        self.job, self.journal, self.plan, self.tools, self.crew = job, journal, plan, tools, crew
        self.failures, self.ledger = Failures(job, tools), Ledger()

    def run(self) -> core.Outcome:
        while True:
            for slot in self.failures.ready(self.crew.busy):
                step = self._next(slot.name)
                if isinstance(step, core.Outcome):
                    return step
                if isinstance(step, Order):
                    self._launch(step, slot)
            if not self.crew.busy:
                if self.failures.rest is None:
                    raise PerfbisectError("the search waits for a launch, and none is under way")
                self.failures.wait()
                continue
            ended = self.crew.ended(self.failures.rest)
            if ended is not None:
                self._after(ended)

    def _next(self, slot: str) -> Order | core.Wait | core.Outcome:
        seen = self.ledger.read(self.journal.events)
        try:
            return next_step(self.plan, seen, slot, self.failures.slots)
        except ValueError as error:
            raise ServerError(
                f"this range cannot be bisected: {error}",
                where=self.job.path,
                next_step="choose other ends",
            ) from error

    def _launch(self, order: Order, slot: Slot) -> None:
        number = len(self.ledger.read(self.journal.events)) + 1
        self.tools.sink(launching(number, order, self.plan.last, slot.name))
        self.crew.start(order, slot)
        self._build_ahead(slot.name)

    def _build_ahead(self, slot: str) -> None:
        """While the new launch runs: the environment that is likely to be needed after it."""
        ahead, plan = self.tools.ahead, self.plan
        if ahead is None:
            return
        seen = self.ledger.read(self.journal.events)
        running = next(x for x in reversed(seen) if x.end is None and x.slot == slot)
        wanted = [i for i in likely(plan, seen, running, self.failures.slots) if i != running.position]
        for position in wanted:
            if ahead.wanted(plan.positions[position].change):
                self.crew.beside(partial(self._built, ahead, position))
                return

    def _built(self, ahead: Ahead, position: int) -> None:
        log = self.job.path / "ahead" / f"{position}.log"
        seconds = ahead.build(self.plan.positions[position].change, log, self.tools.limits.build)
        if seconds is not None:
            with suppress(MachineError):  # a full disk is told by the next event of the search
                self.journal.append("built", {"position": position, "seconds": round(seconds, 3)})

    def _after(self, attempt_id: str) -> None:
        plan, seen = self.plan, self.ledger.read(self.journal.events)
        ended = next(launch for launch in seen if launch.attempt_id == attempt_id)
        if ended.attempt is not None and ended.attempt.failure is None:
            admit(ended.attempt, seen, plan.ref)
            void = disagreement(ended, seen, plan)
            if void:
                self.journal.append("voided", {"attempt": attempt_id, "reason": void})
                seen = self.ledger.read(self.journal.events)
                ended = next(launch for launch in seen if launch.attempt_id == attempt_id)
        self.tools.sink(launched(ended, seen, plan))
        _check_end(ended, seen, plan, self.failures)
        self.failures.after(ended)


def _check_end(ended: Launch, seen: Sequence[Launch], plan: BisectPlan, failures: Failures) -> None:
    """:raises BuildError, ServerError: an end that never gave a value failed again: the range is wrong."""
    if ended.position not in (0, plan.last) or not ended.refused:
        return
    same = [x for x in seen if x.position == ended.position]
    if any(x.end == "finished" for x in same):
        return
    if ended.built and sum(x.refused for x in same) < 2:
        return
    end = end_name(plan, ended.position)
    change = plan.positions[ended.position].change
    advice = f"choose another --{end}; `git log {change.short}` shows its neighbours"
    raise failures.broken(ended, f"the {end} end {change.short}", advice)
