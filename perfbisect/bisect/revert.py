"""``--confirm-revert``: the later end of a range against itself without the culprit.

Its launches are judged by themselves and do not enter the search. A culprit that does not revert cleanly, or
a tree that cannot be built or served, is noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import TypeAdapter

from perfbisect.bisect.decision.model import SearchOutcome
from perfbisect.bisect.plan import BisectPlan, discard_text
from perfbisect.bisect.search_events import machines_out
from perfbisect.errors import BuildError, PerfbisectError, ServerError
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.loop import Decision, Fact, JobState, SlotView, fits_budget
from perfbisect.jobs.replay import Launch, LaunchRequest, ended_launches
from perfbisect.jobs.runner import Revert
from perfbisect.jobs.sequence import turn
from perfbisect.machine.slots import Slot
from perfbisect.model.change import Change
from perfbisect.stats import ab_test

PURPOSE: Final = "revert"

MAX_BLOCKS = 4
"""Blocks of launches of the later end with and without the culprit."""

_CHANGE = TypeAdapter(Change)


@dataclass(frozen=True)
class RevertCheck:
    """``change``: the later end without the culprit; ``note``: why it was not (all) measured."""

    change: Change | None = None
    verdict: ab_test.AbVerdict | None = None
    note: str = ""
    done: bool = False


def revert_check(events: Sequence[JournalEvent], plan: BisectPlan, records: Sequence[Launch]) -> RevertCheck:
    """The last check in a journal."""
    check = RevertCheck()
    for event in events:
        if event.kind == PURPOSE and event.data.get("change") is not None:
            check = RevertCheck(_CHANGE.validate_python(dict(event.data["change"])))
        elif event.kind == PURPOSE:
            check = replace(check, note=str(event.data["note"]), done=True)
    if check.change is None:
        return check
    return replace(check, verdict=ab_test.judge_blocks(_test(plan), _sides(records, plan, check.change)))


def next_launch(
    plan: BisectPlan,
    outcome: SearchOutcome,
    state: JobState,
    view: SlotView,
    revert: Revert | None,
) -> Decision | None:
    """The next launch with or without the culprit; None: there is nothing more to do."""
    check = revert_check(state.events, plan, state.launches)
    if check.done:
        return None
    if check.change is None:
        change = _reverted_end(plan, revert, outcome)
        if isinstance(change, str):
            return Fact(PURPOSE, {"note": change})
        return Fact(PURPOSE, {"change": _CHANGE.dump_python(change, mode="json")})
    reverted = check.change

    def next_in_block(state: JobState) -> LaunchRequest | Fact:
        records = state.launches
        sides = _sides(records, plan, reverted)
        side = ab_test.next_side(_test(plan), sides)
        if side is None:
            return Fact(PURPOSE, {"note": ""})
        if not fits_budget(records, plan.budget):
            return Fact(PURPOSE, {"note": discard_text("budget", minutes=plan.budget)})
        position, change, name = plan.last, plan.positions[plan.last].change, "the later end"
        if side == "b":
            position, change, name = position + 1, reverted, f"{name} less the culprit"
        runs = next((launch.runs for launch in reversed(records) if launch.purpose == "confirm"), 1)
        why = f"{name}, launch {len(sides) + 1}"
        return LaunchRequest(position, change, PURPOSE, runs, why, side=f"{change.short}, {name},")

    return turn(next_in_block, state, view, _slot(state, view))


def noted(error: PerfbisectError) -> Sequence[Fact]:
    """The fact that an error ended it."""
    is_change = isinstance(error, BuildError | ServerError)
    return (Fact(PURPOSE, {"note": error.message}),) if is_change else ()


def _slot(state: JobState, view: SlotView) -> Slot:
    """On a fleet that of the last A/B, else one of a machine that is in use."""
    if not any(slot.machine for slot in view.in_use):
        return view.in_use[0]
    used = [launch.slot for launch in state.launches if launch.purpose == "confirm"]
    out = machines_out(state.events)
    return max(view.in_use, key=lambda slot: (slot.name in used[-1:], slot.machine not in out))


def _reverted_end(plan: BisectPlan, revert: Revert | None, outcome: SearchOutcome) -> Change | str:
    """The later end without the culprit, or why there is none."""
    if len(outcome.culprits) != 1:
        return discard_text("several changes")
    if outcome.culprits[0] == plan.merge_base:
        return discard_text("own commits")
    head, culprit = plan.positions[plan.last].changes[-1], plan.positions[outcome.culprits[0]].change
    if culprit.kind != "commit" or revert is None:
        return discard_text("release")
    return revert(head, culprit)


def _test(plan: BisectPlan) -> ab_test.AbTest:
    return ab_test.AbTest(
        plan.search.sign, plan.smallest_effect, MAX_BLOCKS, plan.seed, absolute=plan.ref.metric.absolute
    )


def _sides(records: Sequence[Launch], plan: BisectPlan, reverted: Change) -> list[ab_test.AbLaunch]:
    """The launches that count: a is the later end, b the one without the culprit."""
    return [
        ab_test.AbLaunch("b" if launch.change.id == reverted.id else "a", launch.measurement.values(plan.ref))
        for launch in ended_launches(records)
        if launch.purpose == PURPOSE and launch.outcome == "measured"
    ]
