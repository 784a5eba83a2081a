"""Wall clock: the current time, and whether the clock was set. Durations use the monotonic clock."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from datetime import datetime, timezone

import psutil

from perfbisect.common.quantities import moment as parse_moment
from perfbisect.errors import UsageError

VARIABLE = "PERFBISECT_NOW"

# TIME_ERROR of adjtimex(2).
_UNSYNCHRONISED = 5
# More than struct timex has anywhere; its modes are 0: read only.
_TIMEX_SIZE = 512


def now(environment: Mapping[str, str] = os.environ) -> datetime:
    """Current time in UTC, shifted so that this process started at ``PERFBISECT_NOW`` if that is set."""
    return local_moment(time.time(), environment)


def local_moment(seconds: float, environment: Mapping[str, str] = os.environ) -> datetime:
    """Unix seconds, such as a file's, as a time of :func:`now`."""
    real = datetime.fromtimestamp(seconds, timezone.utc)
    text = environment.get(VARIABLE)
    if not text:
        return real
    try:
        start = parse_moment(text)
    except ValueError:
        raise UsageError(
            f"{VARIABLE}={text!r} is no time with a zone", next_step=f"{VARIABLE}=2026-11-01T02:00:00+00:00"
        ) from None
    # Shifted and not frozen: durations between two readings stay real.
    real_start = datetime.fromtimestamp(psutil.Process().create_time(), timezone.utc)
    return start.astimezone(timezone.utc) + (real - real_start)


def synchronised() -> bool | None:
    """Whether NTP disciplines the clock (``adjtimex(2)``); None if unknown."""
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_SIZE))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _UNSYNCHRONISED
