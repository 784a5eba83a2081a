"""When a launch began, in minutes from the first: by a clock that nobody can set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from perfbisect.jobs.fold import Launch


class Timeline:
    """Minutes of a job, over its interruptions.

    Within one process they are those of ``seconds``, a monotonic clock. A resumed job goes on where its
    last launch ended, later by what the wall clock says has passed since; a wall clock that was set back
    adds nothing.
    """

    def __init__(self, seen: Sequence[Launch], seconds: Callable[[], float], now: datetime) -> None:
        known = [launch for launch in seen if launch.at is not None]
        self._seconds = seconds
        self._first: float | None = None
        self._offset = 0.0
        if known:
            last = max(known, key=lambda launch: (launch.at or 0.0) + launch.minutes)
            reached = (last.at or 0.0) + last.minutes
            began = datetime.fromisoformat(last.started_at)
            passed = (now - began).total_seconds() / 60 - last.minutes
            self._offset, self._first = reached + max(0.0, passed), seconds()

    def minutes(self) -> float:
        """Minutes from the job's first launch to now; the first call of a new job is that launch."""
        now = self._seconds()
        if self._first is None:
            self._first = now
        return self._offset + (now - self._first) / 60
