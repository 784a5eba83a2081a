"""Waiting for whoever works on a job."""

from __future__ import annotations

import math
import time

from perfbisect.store.jobs import Job

_TICK = 0.5


def until_left(job: Job, minutes: float | None) -> bool:
    """Waits until nobody works on a job, at most so long; True if nobody does."""
    deadline = time.monotonic() + (math.inf if minutes is None else 60 * minutes)
    while job.holder is not None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_TICK)
    return True
