"""Builds environments beside running attempts, on processors that no slot has."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from perfbisect.environments.base import Builder
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change

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
