"""The bisection: ask the core, launch, write it down, ask again. Resuming is starting the same loop."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial

from perfbisect.bisect.control_runs import disagreement, standing
from perfbisect.bisect.decision import decide
from perfbisect.bisect.documents import ReportDocument, report_launch
from perfbisect.bisect.other_metric import check_reported
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.projection import likely_next, pending, project
from perfbisect.bisect.rebase import measured_first
from perfbisect.bisect.result import bisect_document, outcome_of
from perfbisect.bisect.revert import confirm_revert
from perfbisect.bisect.sentences import end_name, reason_sentence
from perfbisect.errors import MachineError, PerfbisectError, ServerError, UsageError
from perfbisect.jobs.events import JobEnded
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.kind import Amendment
from perfbisect.jobs.plans import plan_cell, require_plan
from perfbisect.jobs.replay import JournalReplay, LaunchRecord, launches, require_comparable, retry_due
from perfbisect.jobs.retry import Failures
from perfbisect.jobs.runner import JobContext, LaunchRequest, SpareCores, launch_started, recover_interrupted
from perfbisect.jobs.workers import WorkerPool
from perfbisect.machine.slots import Slot


def next_step(
    plan: BisectPlan, seen: Sequence[LaunchRecord], slot: str, slots: Sequence[str]
) -> LaunchRequest | decide.Wait | decide.SearchOutcome:
    """What to launch on a free slot now, that nothing is worth launching there, or how the search ended.

    ``slots``: the names of all that will ask, this one among them.

    :raises ValueError: an end of the range cannot be measured.
    """
    again = retry_due(seen, slot, slots)
    if again is not None:
        return _order(
            plan, again.position, again.purpose, again.runs, f"once more: it failed ({again.reason})"
        )
    action = decide.next_action(plan.question, project(seen, plan), pending(seen), slot, slots)
    if isinstance(action, decide.SearchEnd):
        return action.outcome
    if isinstance(action, decide.Wait):
        return action
    first = _first(plan, seen, action.index) if action.purpose == "search" else None
    if first is not None:
        return _order(plan, first[0], "search", action.runs, first[1])
    past = standing(seen, slot)
    if action.purpose == "search" and past.doubted and not past.of(action.index):
        anchor = past.anchor(plan)
        if anchor is not None:
            why = "an anchor, since the machine failed: is it what it was?"
            return _order(plan, anchor.position, "search", anchor.runs, why)
    return _order(plan, action.index, action.purpose, action.runs, reason_sentence(action.why, plan))


def _first(plan: BisectPlan, seen: Sequence[LaunchRecord], asked: int) -> tuple[int, str] | None:
    """A position that is to be measured before the one that the search asks for, and why."""
    base = _merge_base(plan, seen)
    if base is not None:
        return base, f"the merge base: is the step in {end_name(plan, 0)}'s own commits?"

    def likely() -> Sequence[float]:
        return decide.beliefs(plan.question, project(seen, plan)).p

    index = measured_first(plan, seen, likely, asked)
    return None if index is None else (index, "beside a moved pin: is the step the rebase?")


def _merge_base(plan: BisectPlan, seen: Sequence[LaunchRecord]) -> int | None:
    """The merge base's position where good is no ancestor of bad and nobody has measured it yet."""
    position = plan.merge_base
    if position is None or plan.positions[position].skip:
        return None
    return None if any(launch.position == position for launch in seen) else position


def _order(plan: BisectPlan, index: int, purpose: str, runs: int, why: str) -> LaunchRequest:
    kind: decide.Purpose = "end" if purpose == "end" else "confirm" if purpose == "confirm" else "search"
    return LaunchRequest(index, plan.positions[index].change, kind, runs, why)


def amend(job: Job, tools: JobContext, asked: Amendment) -> None:
    """Asks a bisection for more: minutes, another metric, or the later end less its culprit.

    What was measured stays; the search goes on where the new question needs it.

    :raises UsageError: no bisection, or nothing that would change anything.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = require_plan(job, journal.events, BisectPlan)
        budget, metric = asked.budget, asked.metric
        changed: dict[str, object] = {}
        if metric is not None and str(metric) != plan.metric:
            check_reported(launches(journal.events), metric)
            changed["metric"] = str(metric)
        if asked.confirm_revert and not plan.extras.confirm_revert:
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


def bisect(job: Job, tools: JobContext) -> ReportDocument:
    """Goes on with a job, new or resumed, until its verdict, which is in the journal when this returns.

    Hold the job (``job.held()``) meanwhile.

    :raises BuildError, ServerError: an end of the range cannot be built or served.
    :raises ClientError, MachineError: they failed too often; the job can be resumed.
    :raises UsageError: the client does not report the metric.
    :raises Interrupted: Ctrl-C or a stop.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = require_plan(job, journal.events, BisectPlan)
        if not finished(journal.events):
            recover_interrupted(job, journal, tools)
            cell = plan_cell(plan)
            with WorkerPool(job, journal, tools, cell) as crew:
                outcome = _Search(job, journal, plan, tools, crew).run()
                if outcome.word == "found" and plan.extras.confirm_revert:
                    crew.stop()
                    confirm_revert(job, journal, plan, tools, crew, outcome)
            journal.append("verdict", asdict(outcome))
        document = bisect_document(job, journal.events)
    tools.sink(JobEnded(document))
    return document


class _Search:
    """The loop of a bisection: a launch on every slot that is free, an event for each that ended."""

    def __init__(
        self, job: Job, journal: Journal, plan: BisectPlan, tools: JobContext, crew: WorkerPool
    ) -> None:
        self.job, self.journal, self.plan, self.tools, self.crew = job, journal, plan, tools, crew
        self.failures, self.ledger = Failures(job, tools), JournalReplay()

    def run(self) -> decide.SearchOutcome:
        while True:
            for slot in self.failures.ready(self.crew.busy):
                step = self._next(slot.name)
                if isinstance(step, decide.SearchOutcome):
                    return step
                if isinstance(step, LaunchRequest):
                    self._launch(step, slot)
            if not self.crew.busy:
                if self.failures.rest is None:
                    raise PerfbisectError("the search waits for a launch, and none is under way")
                self.failures.wait()
                continue
            ended = self.crew.ended(self.failures.rest)
            if ended is not None:
                self._after(ended)

    def _next(self, slot: str) -> LaunchRequest | decide.Wait | decide.SearchOutcome:
        seen = self.ledger.read(self.journal.events)
        try:
            return next_step(self.plan, seen, slot, self.failures.slots)
        except ValueError as error:
            raise ServerError(
                f"this range cannot be bisected: {error}",
                where=self.job.path,
                next_step="choose other ends",
            ) from error

    def _launch(self, order: LaunchRequest, slot: Slot) -> None:
        number = len(self.ledger.read(self.journal.events)) + 1
        self.tools.sink(launch_started(number, order, self.plan.last, slot.name))
        self.crew.start(order, slot)
        self._build_ahead(slot.name)

    def _build_ahead(self, slot: str) -> None:
        """While the new launch runs: the environment that is likely to be needed after it."""
        ahead, plan = self.tools.ahead, self.plan
        if ahead is None:
            return
        seen = self.ledger.read(self.journal.events)
        running = next(x for x in reversed(seen) if x.end is None and x.slot == slot)
        wanted = [i for i in likely_next(plan, seen, running, self.failures.slots) if i != running.position]
        for position in wanted:
            if ahead.wanted(plan.positions[position].change):
                self.crew.beside(partial(self._built, ahead, position))
                return

    def _built(self, ahead: SpareCores, position: int) -> None:
        log = self.job.path / "ahead" / f"{position}.log"
        seconds = ahead.build(self.plan.positions[position].change, log, self.tools.limits.build)
        if seconds is not None:
            with suppress(MachineError):  # a full disk is told by the next event of the search
                self.journal.append("built", {"position": position, "seconds": round(seconds, 3)})

    def _after(self, attempt_id: str) -> None:
        plan, seen = self.plan, self.ledger.read(self.journal.events)
        ended = next(launch for launch in seen if launch.attempt_id == attempt_id)
        if ended.attempt is not None and ended.attempt.failure is None:
            require_comparable(ended.attempt, seen, plan.ref)
            void = disagreement(ended, seen, plan)
            if void:
                self.journal.append("discarded", {"attempt": attempt_id, "reason": void})
                seen = self.ledger.read(self.journal.events)
                ended = next(launch for launch in seen if launch.attempt_id == attempt_id)
        report_launch(ended, seen, plan, self.tools.sink)
        _check_end(ended, seen, plan, self.failures)
        self.failures.after(ended)


def _check_end(
    ended: LaunchRecord, seen: Sequence[LaunchRecord], plan: BisectPlan, failures: Failures
) -> None:
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
