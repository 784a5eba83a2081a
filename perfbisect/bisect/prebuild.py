"""The positions that a bisection is likely to measure next: what to build beside a running attempt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from perfbisect.bisect.decision import decide
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.projection import pending, project
from perfbisect.jobs.replay import Launch


def likely(
    plan: BisectPlan, seen: Sequence[Launch], running: Launch, slots: Sequence[str]
) -> tuple[int, ...]:
    """The positions that would be measured after a running launch: if it is slow, and if it is fast.

    Asked of the core with each of the two as if it had been measured; none before both ends were.
    """
    values = {
        position: [
            x.attempt.log_value(plan.ref)
            for x in seen
            if x.position == position and x.end == "finished" and x.attempt is not None
        ]
        for position in (0, plan.last)
    }
    if not all(values.values()):
        return ()
    events, others = project(seen, plan), [x for x in seen if x.attempt_id != running.attempt_id]
    found: dict[int, None] = {}
    for position in (plan.last, 0):
        value = math.exp(fmean(values[position]))
        purpose: decide.Purpose = "confirm" if running.purpose == "confirm" else "search"
        as_if = decide.Measured(running.position, purpose, (value,) * running.runs, slot=running.slot)
        try:
            action = decide.next_action(
                plan.question, (*events, replace(as_if, at=running.at)), pending(others), running.slot, slots
            )
        except ValueError:
            continue
        if isinstance(action, decide.NextLaunch):
            found[action.index] = None
    return tuple(found)
