"""What a bisection launches next: its search, then the step on other machines, then the end without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, replace
from functools import partial
from typing import Final

from perfbisect.bisect import replicate, revert
from perfbisect.bisect.bisection import OUTCOME
from perfbisect.bisect.decision import decide
from perfbisect.bisect.decision.ahead import likely_next
from perfbisect.bisect.decision.machines import LEAST_MACHINES, machine_offsets, outlying_machines
from perfbisect.bisect.decision.model import SearchOutcome, Wait
from perfbisect.bisect.decision.state import MAX_END_SKIPS
from perfbisect.bisect.plan import BisectPlan, launch_reason, next_beside_pin
from perfbisect.bisect.result import shown_probability
from perfbisect.bisect.search_events import (
    SEARCHING,
    as_pending,
    beliefs_after,
    disagreement,
    launch_under_way,
    machines_out,
    pending_launches,
    slot_record,
    to_search_events,
    why_out,
    with_builds,
)
from perfbisect.bisect.summary import reason_sentence
from perfbisect.common.quantities import probability
from perfbisect.errors import PerfbisectError, ServerError
from perfbisect.jobs.events import JobEvent
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.loop import Decision, Done, Fact, GiveUp, Idle, JobState, LaunchPolicy, SlotView
from perfbisect.jobs.plans import read_event
from perfbisect.jobs.replay import (
    Launch,
    LaunchRequest,
    awaiting_retry,
    require_reported,
    require_same_provenance,
)
from perfbisect.jobs.runner import Revert
from perfbisect.jobs.sequence import broken_twice
from perfbisect.machine.slots import Slot
from perfbisect.model.attempt import Purpose
from perfbisect.model.change import Change
from perfbisect.report.console import CandidatesUpdated

_LEADING = 3
"""Candidates that the line of a launch names."""

_NAMED: Final = "named"


def bisect_policy(job: Job, plan: BisectPlan, reverted: Revert | None) -> LaunchPolicy:
    """The launches of a bisection.

    The result of the search is a fact in the journal once it names a step: what is measured afterwards is
    about that step, and a resumed job does not search again.
    """
    return LaunchPolicy(
        partial(_next, job, plan, reverted, set()),
        plan.ref,
        plan.budget,
        plan.last,
        admit=partial(_admit, plan),
        broken=partial(_broken, plan),
        recover=_recover,
        progress=partial(_progress, plan),
        likely=partial(_likely, plan),
    )


def _next(
    job: Job, plan: BisectPlan, reverted: Revert | None, known: set[str], state: JobState, view: SlotView
) -> Decision:
    """``known``: launches that report the metric, each of which is asked once."""
    # Includes launches of a killed process: they were recovered from their folders and never admitted.
    for launch in state.launches:
        if launch.outcome == "measured" and launch.id not in known:
            require_reported(launch.measurement, plan.ref)
            known.add(launch.id)
    out_of_use = _out_of_use(plan, state, view)
    if out_of_use is not None:
        return out_of_use
    outcome = named_step(state.events)
    if outcome is None:
        try:
            step = next_step(with_builds(plan, state.events), state.launches, view.slot.name, view.names)
        except (ArithmeticError, ValueError) as error:
            raise ServerError(
                f"this range cannot be bisected: {error}",
                where=job.path,
                next_step="choose other ends",
            ) from error
        if not isinstance(step, SearchOutcome):
            return Idle() if isinstance(step, Wait) else step
        # A verdict without a name ends the job; a name is a fact, since checks of the step may follow.
        if step.verdict != "found":
            return Done(asdict(step))
        return Fact(_NAMED, OUTCOME.dump_python(step, mode="json"), ends_others=True)
    more = replicate.next_launch(plan, outcome, state, view)
    if more is None and plan.confirm_revert:
        more = revert.next_launch(plan, outcome, state, view, reverted)
    return more or Done(asdict(replicate.with_machines(plan, outcome, state)))


def named_step(events: Sequence[JournalEvent]) -> SearchOutcome | None:
    """How the search of the newest plan ended, if it named a step."""
    for event in reversed(events):
        if event.kind == _NAMED:
            return read_event(event, OUTCOME, "the named step")
        if event.kind == "plan":
            return None
    return None


def next_step(
    plan: BisectPlan, records: Sequence[Launch], slot: str, slots: Sequence[str]
) -> LaunchRequest | Wait | SearchOutcome:
    """What to launch on a free slot now, or how the search ended; ``slots``: all that will ask.

    Raises:
        ValueError: an end of the range cannot be measured.
    """

    def request(index: int, purpose: Purpose, runs: int, why: str) -> LaunchRequest:
        return LaunchRequest(index, plan.positions[index].change, purpose, runs, why)

    # Before the search: it sees a failed launch only as minutes until the retry has failed, too.
    searching = [launch for launch in records if launch.purpose in SEARCHING]
    # A retry that is running on another slot is not due again.
    running = {launch.position for launch in searching if launch.outcome == "running"}
    events, pending = to_search_events(records, plan), pending_launches(records)
    for failed in awaiting_retry(searching).values():
        # It is repeated where it failed, which keeps pairs together, or on any slot if that one is gone.
        is_here = failed.position not in running and (failed.slot == slot or failed.slot not in slots)
        # What waits for a retry was built before it failed.
        built = replace(plan.search, cached=plan.search.cached | {failed.position})
        if is_here and decide.fits(built, events, (*pending, as_pending(failed))):
            why = launch_reason(plan, "again", cause=failed.cause)
            return replace(request(failed.position, failed.purpose, failed.runs, why), trial=failed.trial)
    action = decide.next_action(plan.search, events, pending, slot, slots)
    if isinstance(action, SearchOutcome | Wait):
        return action
    if action.purpose != "search":
        order = request(action.index, action.purpose, action.runs, reason_sentence(action.why, plan))
        mate = None if action.mate is None else plan.positions[action.mate].change
        return replace(order, mate=mate, trial=astuple(action.trial) if action.trial else ())
    launched, base = {launch.position for launch in records}, plan.merge_base
    if base is not None and base not in launched and not plan.positions[base].skip:
        why = launch_reason(plan, "merge base")
        return request(base, "search", action.runs, why)
    index = next_beside_pin(
        plan.positions, launched, lambda: decide.beliefs(plan.search, events).p, action.index
    )
    if index is not None:
        return request(index, "search", action.runs, launch_reason(plan, "beside a pin"))
    record = slot_record(records, slot)
    control = record.control(plan) if record.doubted and not record.of(action.index) else None
    if control is not None:
        why = launch_reason(plan, "control run")
        return request(control.position, "search", control.runs, why)
    return request(action.index, "search", action.runs, reason_sentence(action.why, plan))


def _out_of_use(plan: BisectPlan, state: JobState, view: SlotView) -> Fact | GiveUp | None:
    """What puts a machine out of use that is unlike the others, unless it is the last one in use."""
    known, in_use = machines_out(state.events), {slot.machine for slot in view.in_use}
    for machine, offset in known.items():
        if machine in in_use and len(in_use) > 1:
            return GiveUp(machine, why_out(offset, plan))
        if machine not in in_use:
            for launch in state.launches:
                if launch.machine == machine and launch.outcome == "measured":
                    reason = why_out(offset, plan)
                    return Fact("discarded", {"attempt": launch.id, "reason": reason})
    if len({slot.machine for slot in view.all}) < LEAST_MACHINES or len(in_use) < 2:
        return None
    offsets = machine_offsets(to_search_events(state.launches, plan), plan.last, plan.search.scale)
    outlying = (offset for offset in outlying_machines(offsets) if offset.machine not in known)
    return next((Fact("machine", asdict(offset)) for offset in outlying), None)


def _admit(plan: BisectPlan, launch: Launch, state: JobState, in_use: Sequence[Slot]) -> str:
    require_same_provenance(launch.measurement, state.launches)
    # A value that is missing or no ratio ends the job at the next decision, whose error names the metric: a
    # discard would hide it.
    is_usable = launch.value is not None and (plan.search.absolute or min(launch.values) > 0)
    if launch.purpose not in SEARCHING or not is_usable:
        return ""
    out = machines_out(state.events).get(launch.machine)
    if out is not None and all(slot.machine != launch.machine for slot in in_use):
        return why_out(out, plan)
    return disagreement(launch, state.launches, plan)


def _broken(
    plan: BisectPlan, launch: Launch, order: LaunchRequest, state: JobState
) -> tuple[str, str] | None:
    """An end that never gave a value and failed for the last time: the range is wrong."""
    if launch.purpose not in SEARCHING:
        return broken_twice(launch, order, state)
    if launch.position not in (0, plan.last):
        return None
    same = [x for x in state.launches if x.position == launch.position]
    tries = sum(x.refused for x in same)
    if any(x.outcome == "measured" for x in same) or (launch.built and tries < 2 * MAX_END_SKIPS):
        return None
    end, change = plan.end_name(launch.position), plan.positions[launch.position].change
    since_when = plan.setting.request.failure_line if end == "bad" and launch.built else ""
    return (
        f"the {end} end {change.short}",
        since_when or f"choose another --{end}; `git log {change.short}` shows its neighbours",
    )


def _recover(error: PerfbisectError, launch: Launch, state: JobState) -> Sequence[Fact]:
    """A named step takes no harm from a check that fails: the failure is noted."""
    outcome = named_step(state.events)
    if outcome is None or launch.purpose in SEARCHING:
        return ()
    return revert.noted(error) if launch.purpose == revert.PURPOSE else replicate.noted(outcome, error)


def _progress(plan: BisectPlan, launch: Launch, state: JobState) -> tuple[str, Sequence[JobEvent]]:
    """The candidates, once both ends were measured."""
    positions = plan.positions
    both_ends = {0, plan.last} <= {x.position for x in state.launches if x.outcome == "measured"}
    searching = launch.purpose in SEARCHING and both_ends
    beliefs = beliefs_after(plan, state.launches) if searching else None
    if beliefs is None:
        return "", ()
    p, none = tuple(map(shown_probability, beliefs.p)), shown_probability(beliefs.none)
    best = sorted(range(1, plan.last + 1), key=lambda i: -beliefs.p[i])[:_LEADING]
    leading = ", ".join(f"{positions[i].change.short} {probability(p[i])}" for i in best)
    names = tuple((position.change.short, position.change.subject) for position in positions)
    untestable = frozenset(i for i, position in enumerate(positions) if position.skip)
    return (
        f"leading {leading}; P(no change) {probability(none)}",
        (CandidatesUpdated(names, p, none, untestable),),
    )


def _likely(
    plan: BisectPlan, state: JobState, running: Launch, view: SlotView
) -> Iterator[tuple[int, Change]]:
    """What the search will probably launch after the launch that has begun."""
    if named_step(state.events) is not None:
        return
    others = pending_launches(launch for launch in state.launches if launch is not running)
    events, search = to_search_events(state.launches, plan), with_builds(plan, state.events).search
    for position in likely_next(search, events, launch_under_way(running), others, view.names):
        yield position, plan.positions[position].change
