"""The bisection as a kind of job: ask the search, launch, record, ask again.

Resuming is starting the same loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, replace
from functools import partial
from typing import Final

from perfbisect.bisect.checks import BisectRun, confirm_revert, replicate_step
from perfbisect.bisect.decision import decide
from perfbisect.bisect.decision.ahead import likely_next
from perfbisect.bisect.decision.machines import (
    LEAST_MACHINES,
    MachineOffset,
    machine_offsets,
    outlying_machines,
)
from perfbisect.bisect.decision.model import SearchOutcome, Wait
from perfbisect.bisect.decision.state import MAX_END_SKIPS
from perfbisect.bisect.documents import (
    ReportDocument,
    bisect_document,
    document_for_metric,
    shown_probability,
)
from perfbisect.bisect.plan import BisectPlan, next_beside_pin
from perfbisect.bisect.report import build_report
from perfbisect.bisect.result import outcome_of, require_reported
from perfbisect.bisect.search_events import (
    SEARCHING,
    beliefs_after,
    disagreement,
    launch_under_way,
    machines_out,
    pending_launches,
    put_out,
    slot_record,
    to_search_events,
    why_out,
    with_builds,
)
from perfbisect.bisect.summary import reason_sentence
from perfbisect.common.quantities import percent, probability
from perfbisect.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_OK,
    EXIT_REGRESSION,
    MachineError,
    PerfbisectError,
    ServerError,
)
from perfbisect.jobs.events import EventListener, JobEnded
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.loop import Failures, launch_ended
from perfbisect.jobs.plans import plan_cell, require_more_budget, require_plan
from perfbisect.jobs.replay import (
    JournalReplay,
    LaunchRecord,
    launches,
    require_comparable,
    retry_due,
)
from perfbisect.jobs.runner import JobContext, LaunchRequest, SpareCores, launch_started, recover_interrupted
from perfbisect.jobs.workers import WorkerPool
from perfbisect.machine.slots import Slot
from perfbisect.model.attempt import Purpose
from perfbisect.report.console import CandidatesUpdated
from perfbisect.report.kind import Amendment, Candidate, JobKind, JobStatus

_LEADING = 3
"""Candidates that the line of a launch names."""

_EXIT_CODES = {"found": EXIT_REGRESSION, "not reproduced": EXIT_OK}
_CANDIDATES = 5
_NAMED = 3
"""Changes of a verdict that are named in one line."""
_LEAST_PROBABILITY = 0.005
"""A change less likely than this is no candidate."""


def next_step(
    plan: BisectPlan, records: Sequence[LaunchRecord], slot: str, slots: Sequence[str]
) -> LaunchRequest | Wait | SearchOutcome:
    """What to launch on a free slot now, or how the search ended; ``slots``: all that will ask.

    Raises:
        ValueError: an end of the range cannot be measured.
    """

    def request(index: int, purpose: Purpose, runs: int, why: str) -> LaunchRequest:
        return LaunchRequest(index, plan.positions[index].change, purpose, runs, why)

    failed = retry_due([x for x in records if x.purpose in SEARCHING], slot, slots)
    if failed is not None:
        why = f"once more: it failed ({failed.reason})"
        return replace(request(failed.position, failed.purpose, failed.runs, why), trial=failed.trial)
    events = to_search_events(records, plan)
    action = decide.next_action(plan.search, events, pending_launches(records), slot, slots)
    if isinstance(action, SearchOutcome | Wait):
        return action
    if action.purpose != "search":
        order = request(action.index, action.purpose, action.runs, reason_sentence(action.why, plan))
        mate = None if action.mate is None else plan.positions[action.mate].change
        return replace(order, mate=mate, trial=astuple(action.trial) if action.trial else ())
    launched, base = {launch.position for launch in records}, plan.merge_base
    if base is not None and base not in launched and not plan.positions[base].skip:
        why = f"the merge base: is the step in {plan.end_name(0)}'s own commits?"
        return request(base, "search", action.runs, why)
    index = next_beside_pin(
        plan.positions, launched, lambda: decide.beliefs(plan.search, events).p, action.index
    )
    if index is not None:
        return request(index, "search", action.runs, "beside a moved pin: is the step the rebase?")
    record = slot_record(records, slot)
    control = record.control(plan) if record.doubted and not record.of(action.index) else None
    if control is not None:
        why = "a control run, since the machine failed: is it what it was?"
        return request(control.position, "search", control.runs, why)
    return request(action.index, "search", action.runs, reason_sentence(action.why, plan))


def amend(job: Job, tools: JobContext, amendment: Amendment) -> None:
    """Extend a bisection: more minutes, another metric, or the later end without its culprit.

    What was measured stays; the search continues where the new plan needs it.

    Raises:
        UsageError: the job is no bisection, or nothing would change.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = require_plan(job, journal.events, BisectPlan)
        budget, metric = amendment.budget, amendment.metric
        changed: dict[str, object] = {}
        if metric is not None and str(metric) != plan.metric:
            require_reported(launches(journal.events), metric)
            changed["metric"] = str(metric)
        if amendment.confirm_revert and not plan.confirm_revert:
            changed["confirm_revert"] = True
        outcome = outcome_of(journal.events)
        if budget is not None:
            is_settled = outcome is not None and outcome.verdict != "out of budget" and not changed
            require_more_budget(job, plan, budget, outcome.verdict if outcome and is_settled else "")
            changed["budget"] = budget
        if changed:
            journal.append("plan", plan.model_copy(update=changed).model_dump(mode="json"))


def bisect(job: Job, tools: JobContext) -> ReportDocument:
    """Run a job, new or resumed, until its verdict is in the journal; the caller holds the job's lock.

    Raises:
        BuildError, ServerError: an end of the range cannot be built or served.
        ClientError, MachineError: they failed too often; the job can be resumed.
        UsageError: the client does not report the metric.
        Interrupted: Ctrl-C or a stop request.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = require_plan(job, journal.events, BisectPlan)
        if not finished(journal.events):
            recover_interrupted(job, journal, tools.sink, tools.stop_leftovers, tools.reclaim)
            with WorkerPool(job, journal, tools, plan_cell(plan)) as pool:
                run = BisectRun(job, journal, plan, tools, pool)
                outcome = _Search(run).conclude()
                if outcome.verdict == "found":
                    pool.stop()
                    outcome = replicate_step(run, outcome)
                    if plan.confirm_revert:
                        confirm_revert(run, outcome)
            journal.append("verdict", asdict(outcome))
        document = bisect_document(job, journal.events)
    tools.sink(JobEnded(document))
    return document


class _Search:
    """The loop of a bisection: a launch on every free slot, an event for each that ended."""

    def __init__(self, run: BisectRun) -> None:
        self.journal, self.plan, self.tools, self.pool = run.journal, run.plan, run.tools, run.pool
        self.job, self.failures, self.replay = run.job, Failures(run.job, run.tools), JournalReplay()
        self.begun_ahead: set[int] = set()
        """Positions whose environment this process has begun to build ahead."""
        self.out: dict[str, MachineOffset] = {}
        """Machines that are out of use."""
        for offset in machines_out(run.journal.events).values():
            self._give_up(offset)

    def conclude(self) -> SearchOutcome:
        while True:
            for slot in self.failures.ready(self.pool.busy):
                step = self._next(slot.name)
                if isinstance(step, SearchOutcome):
                    return step
                if isinstance(step, LaunchRequest):
                    self._launch(step, slot)
            if not self.pool.busy:
                if self.failures.rest is None:
                    raise PerfbisectError("the search waits for a launch, and none is under way")
                self.failures.wait()
                continue
            ended = self.pool.ended(self.failures.rest)
            if ended is not None:
                self._after(ended)

    def _seen(self) -> tuple[LaunchRecord, ...]:
        return self.replay.read(self.journal.events)

    def _next(self, slot: str) -> LaunchRequest | Wait | SearchOutcome:
        try:
            return next_step(self._known_plan(), self._seen(), slot, self.failures.slots)
        except (ArithmeticError, ValueError) as error:
            raise ServerError(
                f"this range cannot be bisected: {error}",
                where=self.job.path,
                next_step="choose other ends",
            ) from error

    def _launch(self, request: LaunchRequest, slot: Slot) -> None:
        number = len(self._seen()) + 1
        self.tools.sink(launch_started(number, request, self.plan.last, slot.name))
        self.pool.start(request, slot)
        ahead = self.tools.ahead
        if ahead is not None and self.pool.has_room_beside(ahead.at_once):
            self._build_ahead(ahead, slot.name)

    def _build_ahead(self, ahead: SpareCores, slot: str) -> None:
        """Build the environments that are likely to be needed after the new launch."""
        records, search = self._seen(), self._known_plan().search
        running = next(x for x in reversed(records) if x.end is None and x.slot == slot)
        others = pending_launches(x for x in records if x is not running)
        events, begun = to_search_events(records, self.plan), {launch.position for launch in records}
        likely = likely_next(search, events, launch_under_way(running), others, self.failures.slots)
        for position in likely:
            change = self.plan.positions[position].change
            if position in begun | self.begun_ahead or not ahead.wanted(change):
                continue
            if not self.pool.has_room_beside(ahead.at_once):
                return
            self.begun_ahead.add(position)
            self.pool.beside(partial(self._build, ahead, position))

    def _known_plan(self) -> BisectPlan:
        return with_builds(self.plan, self.journal.events)

    def _build(self, ahead: SpareCores, position: int) -> None:
        log = self.job.path / "ahead" / f"{position}.log"
        seconds = ahead.build(self.plan.positions[position].change, log, self.tools.limits.build)
        if seconds is not None:
            with suppress(MachineError):  # the search's next event meets the full disk, too
                self.journal.append("built", {"position": position, "seconds": round(seconds, 3)})

    def _after(self, attempt_id: str) -> None:
        ended = self._find(attempt_id)
        if ended.attempt is not None and ended.attempt.failure is None:
            require_comparable(ended.attempt, self._seen(), self.plan.ref)
            out = self.out.get(ended.machine)
            reason = why_out(out, self.plan) if out else disagreement(ended, self._seen(), self.plan)
            if reason:
                self.journal.append("discarded", {"attempt": attempt_id, "reason": reason})
                ended = self._find(attempt_id)
        _report_launch(ended, self._seen(), self.plan, self.tools.sink)
        self._check_end(ended)
        if ended.machine not in self.out:
            self.failures.after(ended)
            self._check_machines()

    def _check_machines(self) -> None:
        """Put machines out of use that are unlike the others."""
        if len({slot.machine for slot in self.tools.slots}) < LEAST_MACHINES:
            return
        events = to_search_events(self._seen(), self.plan)
        for offset in outlying_machines(machine_offsets(events, self.plan.last, self.plan.search.sign)):
            self._give_up(offset)

    def _give_up(self, offset: MachineOffset) -> None:
        """Put a machine out of use and discard its launches, unless it is the last one in use."""
        if not any(slot.machine != offset.machine for slot in self.failures.in_use):
            return
        self.out[offset.machine] = offset
        self.failures.give_up(offset.machine, why_out(offset, self.plan))
        put_out(self.journal, self._seen(), offset, self.plan)

    def _find(self, attempt_id: str) -> LaunchRecord:
        return next(launch for launch in self._seen() if launch.attempt_id == attempt_id)

    def _check_end(self, ended: LaunchRecord) -> None:
        """Raise if an end that never gave a value failed for the last time: the range is wrong."""
        if ended.position not in (0, self.plan.last) or not ended.refused:
            return
        same = [x for x in self._seen() if x.position == ended.position]
        tries = sum(x.refused for x in same)
        if any(x.end == "finished" for x in same) or (ended.built and tries < 2 * MAX_END_SKIPS):
            return
        end, change = self.plan.end_name(ended.position), self.plan.positions[ended.position].change
        advice = f"choose another --{end}; `git log {change.short}` shows its neighbours"
        raise self.failures.broken(ended, f"the {end} end {change.short}", advice)


def _report_launch(
    ended: LaunchRecord, records: Sequence[LaunchRecord], plan: BisectPlan, sink: EventListener
) -> None:
    """Send an ended launch, and the candidates once both ends were measured."""
    positions = plan.positions
    launch = launch_ended(ended, positions[ended.position].change, plan.ref, records, plan.budget)
    both_ends = {0, plan.last} <= {x.position for x in records if x.end == "finished"}
    beliefs = beliefs_after(plan, records) if both_ends else None
    if beliefs is None:
        sink(launch)
        return
    p, none = tuple(map(shown_probability, beliefs.p)), shown_probability(beliefs.none)
    best = sorted(range(1, plan.last + 1), key=lambda i: -beliefs.p[i])[:_LEADING]
    leading = ", ".join(f"{positions[i].change.short} {probability(p[i])}" for i in best)
    sink(replace(launch, detail=f"leading {leading}; P(no change) {probability(none)}"))
    names = tuple((position.change.short, position.change.subject) for position in positions)
    untestable = frozenset(i for i, position in enumerate(positions) if position.skip)
    sink(CandidatesUpdated(names, p, none, untestable))


def exit_code(document: ReportDocument) -> int:
    """3 a culprit is named, 0 not reproduced, 4 otherwise."""
    return _EXIT_CODES.get(document.outcome, EXIT_INCONCLUSIVE)


def _status(document: ReportDocument) -> JobStatus:
    return JobStatus(
        outcome=document.outcome,
        verdict=_verdict(document),
        metric=document.metric,
        next=document.next,
        candidates=_candidates(document),
    )


def _verdict(document: ReportDocument) -> str:
    """The culprits, and the effect of their step; of a narrowed range each with its probability."""
    step = document.confirmed or document.whole
    size = f"{document.metric.name} {percent(step.effect)}" if step else ""
    if document.candidates:
        names = [f"{x.position.changes[0].short} {probability(x.probability)}" for x in document.candidates]
        more = len(names) - _NAMED
        named = [*names[:_NAMED], *([f"{more} more"] if more > 0 else [])]
        who = f"one of {len(names)}: {', '.join(named)}" if len(names) > 1 else f"likely {named[0]}"
        return ", ".join(part for part in (who, size) if part)
    culprits = [position.changes[0] for position in document.culprits[:_NAMED]]
    names = [change.short for change in culprits]
    if len(culprits) == 1:
        names = [f"{culprits[0].short} {culprits[0].subject}"]
    more = len(document.culprits) - len(culprits)
    who = " or ".join([*names, *([f"{more} more"] if more else [])])
    return ", ".join(part for part in (who, size) if part)


def _candidates(document: ReportDocument) -> tuple[Candidate, ...]:
    """The likeliest positions, likeliest first."""
    p = document.beliefs.by_position if document.beliefs else ()
    best = sorted(range(len(p)), key=lambda index: -p[index])[:_CANDIDATES]
    changes = {position.index: position.changes[0] for position in document.history}
    return tuple(
        Candidate(index, changes[index].short, changes[index].subject, p[index])
        for index in best
        if index in changes and p[index] >= _LEAST_PROBABILITY
    )


BISECT: Final = JobKind(
    plan=BisectPlan,
    run=bisect,
    document=bisect_document,
    exit_code=exit_code,
    status=_status,
    report=build_report,
    client_change=lambda plan: plan.positions[-1].change,
    workers=lambda plan: plan.workers,
    amend=amend,
    document_for_metric=document_for_metric,
)
