"""The clock: durations are monotonic, so one that is set matters only for dates; here is whether it was."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field

_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
_ROOM = 512  # more than struct timex has anywhere; its first field, the modes, is 0: only read


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
