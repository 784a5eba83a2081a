"""The launches of a bisection as the events of its search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfbisect.core import bisect as core
from perfbisect.core.attempt import Attempt, Purpose
from perfbisect.core.metric import MetricRef
from perfbisect.jobs.bisect_plan import BisectPlan
from perfbisect.jobs.fold import Launch, in_order

_BEFORE_BENCH = ("build", "fetch", "launch", "first_request", "warm")
_LAUNCH_PHASES = (*_BEFORE_BENCH[1:], "stop")
SEARCHING = ("end", "search", "confirm")
"""Purposes of launches that the search rests on."""


def project(seen: Iterable[Launch], plan: BisectPlan) -> tuple[core.Event, ...]:
    """What the core sees, in the order in which launches ended: values, skips after the runner's one retry,
    minutes that are no evidence.

    A failure of an end that never gave a value is no skip: it is an error about the range. Launches for
    other purposes than the search are left out.
    """
    events: list[core.Event] = []
    failed: set[int] = set()
    never = {0, plan.last}
    for launch in in_order(seen):
        if launch.purpose not in SEARCHING:
            continue
        if launch.end == "finished" and launch.attempt is not None:
            failed.discard(launch.position)
            never.discard(launch.position)
            events.append(measured(launch, launch.attempt, plan.ref))
        elif launch.end == "failed" and launch.refused and launch.position not in never:
            if launch.built and launch.position not in failed:
                failed.add(launch.position)
                events.append(core.Lost(launch.minutes))
            else:
                failed.discard(launch.position)
                events.append(core.Skipped(launch.position, _core_purpose(launch.purpose), launch.minutes))
        elif launch.end is not None:
            events.append(core.Lost(launch.minutes))
    return tuple(events)


def pending(seen: Iterable[Launch]) -> tuple[core.Pending, ...]:
    """The launches under way."""
    return tuple(
        core.Pending(launch.position, launch.runs, _core_purpose(launch.purpose), launch.slot)
        for launch in seen
        if launch.end is None and launch.purpose in SEARCHING
    )


def measured(launch: Launch, attempt: Attempt, metric: MetricRef) -> core.Measured:
    """A launch with its values and its minutes.

    :raises KeyError: the client does not report the metric.
    """
    seconds: Mapping[str, float] = attempt.seconds
    before = sum(seconds.get(phase, 0.0) for phase in _BEFORE_BENCH) / 60
    return core.Measured(
        launch.position,
        _core_purpose(launch.purpose),
        attempt.values(metric),
        build=seconds.get("build", 0.0) / 60,
        launch=sum(seconds.get(phase, 0.0) for phase in _LAUNCH_PHASES) / 60,
        run=seconds.get("bench", 0.0) / 60,
        slot=launch.slot,
        at=None if launch.at is None else launch.at + before,
    )


def _core_purpose(purpose: Purpose) -> core.Purpose:
    if purpose == "end" or purpose == "search" or purpose == "confirm":
        return purpose
    raise ValueError(f"a launch for {purpose!r} is no part of a search")
