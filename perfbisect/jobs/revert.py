"""``--confirm-revert``: the later end against itself less the culprit, in blocks of launches of its own.

Nothing of it enters the search: its launches have a purpose of their own and are judged by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pydantic import TypeAdapter

from perfbisect.core import bisect as core
from perfbisect.core import compare
from perfbisect.core.change import Change
from perfbisect.errors import BuildError, ServerError
from perfbisect.jobs.admit import admit
from perfbisect.jobs.crew import Crew
from perfbisect.jobs.fold import Launch, Ledger, in_order, owed
from perfbisect.jobs.plan import BisectPlan
from perfbisect.jobs.policy import Failures
from perfbisect.jobs.tell import launched, launching
from perfbisect.jobs.work import Order, Tools
from perfbisect.store.events import Event
from perfbisect.store.jobs import Job
from perfbisect.store.journal import Journal

BLOCKS = 4
"""Blocks of four launches at most."""

_CHANGE = TypeAdapter(Change)


@dataclass(frozen=True)
class Reverted:
    """How far it is: ``change`` is the later end less the culprit; ``note`` why it was not (all) measured."""

    change: Change | None = None
    verdict: compare.Verdict | None = None
    note: str = ""
    done: bool = False


def reverted(events: Sequence[Event], plan: BisectPlan, seen: Sequence[Launch]) -> Reverted:
    """What the journal says of it: of the last time it was asked for."""
    found = Reverted()
    for event in events:
        if event.kind != "revert":
            continue
        change = event.data.get("change")
        if change is not None:
            found = Reverted(_CHANGE.validate_python(dict(change)))
        else:
            found = Reverted(found.change, None, str(event.data["note"]), done=True)
    if found.change is None:
        return found
    sides = _sides(seen, plan, found.change)
    return Reverted(found.change, compare.judge(_question(plan), sides), found.note, found.done)


def confirm_revert(
    job: Job, journal: Journal, plan: BisectPlan, tools: Tools, crew: Crew, outcome: core.Outcome
) -> None:
    """Measures the later end with and without the culprit until that is told, or the budget is spent.

    A culprit that does not revert cleanly, or a tree that cannot be built or served, is told and no failure.

    :raises ClientError, MachineError: they failed too often; the job can be resumed.
    """
    seen = Ledger().read(journal.events)
    state = reverted(journal.events, plan, seen)
    if state.done:
        return
    if state.change is None:
        made = _made(plan, tools, outcome)
        if isinstance(made, str):
            journal.append("revert", {"note": made})
            return
        journal.append("revert", {"change": _CHANGE.dump_python(made, mode="json")})
        state = Reverted(made)
    assert state.change is not None
    try:
        note = _measure(job, journal, plan, tools, crew, state.change)
    except (BuildError, ServerError) as error:
        note = error.message
    journal.append("revert", {"note": note})


def _made(plan: BisectPlan, tools: Tools, outcome: core.Outcome) -> Change | str:
    """The later end less the culprit, or why there is none."""
    if len(outcome.culprits) != 1:
        return "several changes cannot be told apart: none of them was taken back"
    if outcome.culprits[0] == plan.merge_base:
        return "the step is in good's own commits: there is nothing to take back"
    head, culprit = plan.positions[plan.last].changes[-1], plan.positions[outcome.culprits[0]].change
    if culprit.kind != "commit" or tools.revert is None:
        return "releases cannot be taken back"
    return tools.revert(head, culprit)


def _measure(job: Job, journal: Journal, plan: BisectPlan, tools: Tools, crew: Crew, less: Change) -> str:
    """Launches in turn; why it ended before it was told, empty where it was."""
    slot, failures, ledger = tools.slots[0], Failures(job, tools), Ledger()
    question, head = _question(plan), plan.positions[plan.last].change
    while True:
        seen = ledger.read(journal.events)
        mine = [launch for launch in seen if launch.purpose == "revert"]
        side = compare.next_side(question, _sides(seen, plan, less))
        if side is None:
            return ""
        spent = sum(launch.minutes for launch in seen)
        each = median([x.minutes for x in seen if x.end == "finished"])
        if spent + each > plan.budget:
            return f"the budget of {plan.budget:.0f} minutes is spent"
        again = owed(mine, slot.name, (slot.name,))
        position, change = (plan.last, head) if side == "a" else (plan.last + 1, less)
        what = "the later end" if side == "a" else "the later end less the culprit"
        why = f"{what}, launch {sum(x.end == 'finished' for x in mine) + 1}"
        order = Order(position, change, "revert", _runs(seen), why + (", once more" if again else ""))
        tools.sink(launching(len(seen) + 1, order, 0, slot.name))
        crew.start(order, slot)
        identity = crew.ended()
        seen = ledger.read(journal.events)
        ended = next(launch for launch in seen if launch.attempt_id == identity)
        if ended.attempt is not None and ended.attempt.failure is None:
            admit(ended.attempt, seen, plan.ref)
        tools.sink(launched(ended, seen, plan, change))
        if ended.refused and (again is not None or not ended.built):
            raise failures.broken(ended, f"{change.short}, {what},", "")
        failures.after(ended)
        if failures.rest is not None:
            failures.wait()


def _runs(seen: Sequence[Launch]) -> int:
    """As many runs as the A/B's launches had."""
    confirming = [launch.runs for launch in seen if launch.purpose == "confirm"]
    return confirming[-1] if confirming else 1


def _question(plan: BisectPlan) -> compare.Question:
    question = plan.question
    return compare.Question(question.sign, question.min_effect, BLOCKS, plan.seed)


def _sides(seen: Sequence[Launch], plan: BisectPlan, less: Change) -> list[compare.Seen]:
    """The launches that count: a is the later end, b the one less the culprit."""
    return [
        compare.Seen("b" if launch.change_id == less.id else "a", launch.attempt.values(plan.ref))
        for launch in in_order(seen)
        if launch.purpose == "revert" and launch.end == "finished" and launch.attempt is not None
    ]
