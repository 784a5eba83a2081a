"""The clock: durations are monotonic, so one that is set matters only for dates; here is whether it was."""

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
    """The time now, in UTC. With ``PERFBISECT_NOW`` this process began at that moment, and time goes on from
    there: for rehearsals of many nights in one day. What is measured are durations, which it does not touch.

    :raises UsageError: ``PERFBISECT_NOW`` is no time with its zone.
    """
    return moment(time.time(), environment)


def moment(seconds: float, environment: Mapping[str, str] = os.environ) -> datetime:
    """A time of the machine (since 1970, such as a file's) as :func:`now` tells it. Raises what that does."""
    here = datetime.fromtimestamp(seconds, timezone.utc)
    told = environment.get(VARIABLE)
    if not told:
        return here
    try:
        begun = parse_moment(told)
    except ValueError:
        raise UsageError(
            f"{VARIABLE}={told!r} is no time with its zone", next_step=f"{VARIABLE}=2026-11-01T02:00:00+00:00"
        ) from None
    real = datetime.fromtimestamp(psutil.Process().create_time(), timezone.utc)
    return begun.astimezone(timezone.utc) + (here - real)


@dataclass(frozen=True)
class Drift:
    """Tells, from its making on, by how far the wall clock was set."""

    _wall: float = field(default_factory=time.time)
    _monotonic: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        """How far the wall clock ran ahead of the time that passed; below 0: it was set back."""
        return (time.time() - self._wall) - (time.monotonic() - self._monotonic)


def synchronised() -> bool | None:
    """True if the kernel's clock is disciplined (NTP), None where that cannot be asked (``adjtimex(2)``)."""
    try:
        call = ctypes.CDLL(None, use_errno=True).adjtimex
        state = call(ctypes.create_string_buffer(_ROOM))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _UNSYNCHRONISED
