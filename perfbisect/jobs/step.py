"""What a free slot does next: what is owed, what the core asks for, and what must be measured before that."""

from __future__ import annotations

from collections.abc import Sequence

from perfbisect.core import bisect as core
from perfbisect.jobs.anchors import standing
from perfbisect.jobs.fold import Launch, owed, pending, project
from perfbisect.jobs.plan import BisectPlan
from perfbisect.jobs.rebase import measured_first
from perfbisect.jobs.words import end_name, reason_sentence
from perfbisect.jobs.work import Order


def next_step(
    plan: BisectPlan, seen: Sequence[Launch], slot: str, slots: Sequence[str]
) -> Order | core.Wait | core.Outcome:
    """What to launch on a free slot now, that nothing is worth launching there, or how the search ended.

    ``slots``: the names of all that will ask, this one among them.

    :raises ValueError: an end of the range cannot be measured.
    """
    again = owed(seen, slot, slots)
    if again is not None:
        return _order(
            plan, again.position, again.purpose, again.runs, f"once more: it failed ({again.reason})"
        )
    action = core.next_action(plan.question, project(seen, plan), pending(seen), slot, slots)
    if isinstance(action, core.Done):
        return action.outcome
    if isinstance(action, core.Wait):
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


def _first(plan: BisectPlan, seen: Sequence[Launch], asked: int) -> tuple[int, str] | None:
    """A position that is to be measured before the one that the search asks for, and why."""
    base = _merge_base(plan, seen)
    if base is not None:
        return base, f"the merge base: is the step in {end_name(plan, 0)}'s own commits?"

    def likely() -> Sequence[float]:
        return core.beliefs(plan.question, project(seen, plan)).p

    index = measured_first(plan, seen, likely, asked)
    return None if index is None else (index, "beside a moved pin: is the step the rebase?")


def _merge_base(plan: BisectPlan, seen: Sequence[Launch]) -> int | None:
    """The merge base's position where good is no ancestor of bad and nobody has measured it yet."""
    position = plan.merge_base
    if position is None or plan.positions[position].skip:
        return None
    return None if any(launch.position == position for launch in seen) else position


def _order(plan: BisectPlan, index: int, purpose: str, runs: int, why: str) -> Order:
    kind: core.Purpose = "end" if purpose == "end" else "confirm" if purpose == "confirm" else "search"
    return Order(index, plan.positions[index].change, kind, runs, why)
