"""The next environment's build beside a running attempt: on cores that no slot has, or not at all."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from perfbisect.core import bisect as core
from perfbisect.core.change import Change
from perfbisect.environments import Builder
from perfbisect.errors import BuildError, MachineError
from perfbisect.jobs.fold import Launch, pending, project
from perfbisect.jobs.plan import BisectPlan

LEAST_CORES = 2
"""Processors without which nothing is built ahead: a build on fewer would hardly be done in time."""

_NICE = 15
_SHORT = 0.05
"""Minutes of a build below which it is not worth a thread."""


@dataclass(frozen=True)
class SpareCores:
    """Builds in the calling thread, niced, on cores of its own that nobody on this host measures on.

    ``leasing`` gives them to us alone for as long as a build takes.
    """

    builder: Builder
    cores: frozenset[int]
    leasing: Callable[[], AbstractContextManager[object]]

    def wanted(self, change: Change) -> bool:
        """True if a build would take long enough to be worth it."""
        if self.builder.cached(change):
            return False
        minutes = self.builder.minutes(change)
        return minutes is None or minutes > _SHORT

    def build(self, change: Change, log: Path, timeout: float) -> float | None:
        """Seconds that it took; None where it could not be built now, which a launch will find out."""
        began = time.monotonic()
        try:
            with self.leasing():
                # On Linux both are a thread's own, and what it starts inherits them.
                os.sched_setaffinity(0, self.cores)
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
                log.parent.mkdir(parents=True, exist_ok=True)
                self.builder.ensure(change, log=log, timeout=timeout)
        except (BuildError, MachineError, OSError):
            return None
        return time.monotonic() - began


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
        purpose: core.Purpose = "confirm" if running.purpose == "confirm" else "search"
        as_if = core.Measured(running.position, purpose, (value,) * running.runs, slot=running.slot)
        try:
            action = core.next_action(
                plan.question, (*events, replace(as_if, at=running.at)), pending(others), running.slot, slots
            )
        except ValueError:
            continue
        if isinstance(action, core.Measure):
            found[action.index] = None
    return tuple(found)
