"""The launches of a bisection as the events of its search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from perfbisect.bisect.decision import decide
from perfbisect.bisect.plan import BisectPlan
from perfbisect.jobs.replay import LaunchRecord, ended_launches
from perfbisect.model.attempt import Attempt, Purpose
from perfbisect.model.metric import MetricRef

_BEFORE_BENCH = ("build", "fetch", "launch", "first_request", "warm")
_LAUNCH_PHASES = (*_BEFORE_BENCH[1:], "stop")
SEARCHING = ("end", "search", "confirm")
"""Purposes of launches that the search rests on."""


def project(seen: Iterable[LaunchRecord], plan: BisectPlan) -> tuple[decide.Event, ...]:
    """What the core sees, in the order in which launches ended: values, skips after the runner's one retry,
    minutes that are no evidence.

    A failure of an end that never gave a value is no skip: it is an error about the range. Launches for
    other purposes than the search are left out.
    """
    events: list[decide.Event] = []
    failed: set[int] = set()
    never = {0, plan.last}
    for launch in ended_launches(seen):
        if launch.purpose not in SEARCHING:
            continue
        if launch.end == "finished" and launch.attempt is not None:
            failed.discard(launch.position)
            never.discard(launch.position)
            events.append(measured(launch, launch.attempt, plan.ref))
        elif launch.end == "failed" and launch.refused and launch.position not in never:
            if launch.built and launch.position not in failed:
                failed.add(launch.position)
                events.append(decide.Lost(launch.minutes))
            else:
                failed.discard(launch.position)
                events.append(decide.Skipped(launch.position, _core_purpose(launch.purpose), launch.minutes))
        elif launch.end is not None:
            events.append(decide.Lost(launch.minutes))
    return tuple(events)


def pending(seen: Iterable[LaunchRecord]) -> tuple[decide.Pending, ...]:
    """The launches under way."""
    return tuple(
        decide.Pending(launch.position, launch.runs, _core_purpose(launch.purpose), launch.slot)
        for launch in seen
        if launch.end is None and launch.purpose in SEARCHING
    )


def measured(launch: LaunchRecord, attempt: Attempt, metric: MetricRef) -> decide.Measured:
    """A launch with its values and its minutes.

    :raises KeyError: the client does not report the metric.
    """
    seconds: Mapping[str, float] = attempt.seconds
    before = sum(seconds.get(phase, 0.0) for phase in _BEFORE_BENCH) / 60
    return decide.Measured(
        launch.position,
        _core_purpose(launch.purpose),
        attempt.values(metric),
        build=seconds.get("build", 0.0) / 60,
        launch=sum(seconds.get(phase, 0.0) for phase in _LAUNCH_PHASES) / 60,
        run=seconds.get("bench", 0.0) / 60,
        slot=launch.slot,
        at=None if launch.at is None else launch.at + before,
    )


def likely_next(
    plan: BisectPlan, seen: Sequence[LaunchRecord], running: LaunchRecord, slots: Sequence[str]
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


def _core_purpose(purpose: Purpose) -> decide.Purpose:
    if purpose == "end" or purpose == "search" or purpose == "confirm":
        return purpose
    raise ValueError(f"a launch for {purpose!r} is no part of a search")
