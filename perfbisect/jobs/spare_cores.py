"""Builds environments beside running attempts, on processors outside all slots."""

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
"""Minimum number of processors to build ahead."""

_NICE = 15
_SHORT = 0.05
"""Shortest build in minutes that is built ahead."""


@dataclass(frozen=True)
class SpareCores:
    """Builds in the calling thread, niced, on processors without measurements.

    ``leasing`` reserves the processors during a build.
    """

    builder: Builder
    cores: frozenset[int]
    leasing: Callable[[], AbstractContextManager[object]]

    def wanted(self, change: Change) -> bool:
        """True if the build takes long enough to be worth a thread."""
        if self.builder.cached(change):
            return False
        minutes = self.builder.minutes(change)
        return minutes is None or minutes > _SHORT

    def build(self, change: Change, log: Path, timeout: float) -> float | None:
        """Build and return the seconds; None if it failed, which the launch will report."""
        began = time.monotonic()
        try:
            with self.leasing():
                # On Linux both apply to the thread and its children.
                os.sched_setaffinity(0, self.cores)
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
                log.parent.mkdir(parents=True, exist_ok=True)
                self.builder.ensure(change, log=log, timeout=timeout)
        except (BuildError, MachineError, OSError):
            return None
        return time.monotonic() - began
