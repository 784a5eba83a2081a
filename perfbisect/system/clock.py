"""Wall clock: the current time, and whether the clock was set. Durations use the monotonic clock."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

import psutil

from perfbisect.common.durations import moment as parse_moment
from perfbisect.errors import UsageError

VARIABLE = "PERFBISECT_NOW"

_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
_ROOM = 512  # more than struct timex has anywhere; its first field, the modes, is 0: only read


def now(environment: Mapping[str, str] = os.environ) -> datetime:
    """Current time in UTC, shifted so that this process started at ``PERFBISECT_NOW`` if that is set.

    Raises:
        UsageError: ``PERFBISECT_NOW`` is not a time with a zone.
    """
    return local_moment(time.time(), environment)


def local_moment(seconds: float, environment: Mapping[str, str] = os.environ) -> datetime:
    """Convert Unix seconds, such as a file's, to the time of :func:`now`."""
    here = datetime.fromtimestamp(seconds, timezone.utc)
    text = environment.get(VARIABLE)
    if not text:
        return here
    try:
        begun = parse_moment(text)
    except ValueError:
        raise UsageError(
            f"{VARIABLE}={text!r} is no time with a zone", next_step=f"{VARIABLE}=2026-11-01T02:00:00+00:00"
        ) from None
    real = datetime.fromtimestamp(psutil.Process().create_time(), timezone.utc)
    return begun.astimezone(timezone.utc) + (here - real)


@dataclass(frozen=True)
class ClockShift:
    """Measures by how far the wall clock was set since this object was created."""

    _wall: float = field(default_factory=time.time)
    _monotonic: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        """Wall time minus elapsed time; negative if the clock was set back."""
        return (time.time() - self._wall) - (time.monotonic() - self._monotonic)


def synchronised() -> bool | None:
    """Whether NTP disciplines the clock (``adjtimex(2)``); None if unknown."""
    try:
        call = ctypes.CDLL(None, use_errno=True).adjtimex
        state = call(ctypes.create_string_buffer(_ROOM))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _UNSYNCHRONISED
