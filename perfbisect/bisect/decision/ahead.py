"""Positions that a search is likely to launch next: their environments can be built meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from perfbisect.bisect.decision.decide import next_action
from perfbisect.bisect.decision.model import Event, Measured, NextLaunch, Pending, Plan

_CLEAR: Final = 1.5
"""Ratio of the ends for the first positions, before these are measured."""


def likely_next(
    plan: Plan, events: Sequence[Event], launch: Measured, others: Sequence[Pending], slots: Sequence[str]
) -> tuple[int, ...]:
    """The positions that follow a launch under way, if it is slow and if it is fast.

    ``launch``: with as many values as it has runs, which are not used; ``others``: what else is under way;
    ``slots``: all that will ask. Before both ends are measured: the first position of each slot, if the ends
    differ clearly.
    """
    measured = [event for event in events if isinstance(event, Measured)]
    levels = [
        [plan.scale.level(event.values) for event in measured if event.index == end] for end in (plan.n, 0)
    ]
    if not all(levels):
        return _first_positions(plan, [event for event in events if not isinstance(event, Measured)], slots)
    found = []
    for logs in levels:
        answer = replace(launch, values=(plan.scale.value(fmean(logs)),) * len(launch.values))
        try:
            action = next_action(plan, (*events, answer), others, launch.slot, slots)
        except ValueError:
            continue
        if isinstance(action, NextLaunch):
            found.append(action.index)
    return tuple(dict.fromkeys(found))


def _first_positions(plan: Plan, events: Sequence[Event], slots: Sequence[str]) -> tuple[int, ...]:
    """What each slot launches first once it has measured ends that differ clearly."""
    ends = ((0, 1.0), (plan.n, _CLEAR**plan.sign)) * 2
    known = [*events, *(Measured(end, "end", (value, value), slot=x) for x in slots for end, value in ends)]
    found: list[Pending] = []
    for slot in slots:
        action = next_action(plan, known, found, slot, slots)
        if isinstance(action, NextLaunch) and action.purpose == "search":
            found.append(Pending(action.index, action.purpose, action.runs, slot))
    return tuple(dict.fromkeys(position.index for position in found))
