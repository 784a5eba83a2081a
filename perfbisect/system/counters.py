"""The kernel's counters: processor times, pressure, memory."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuTimes:
    """Seconds since boot, summed over some processors: working, taken by the hypervisor, and all."""

    busy: float
    steal: float
    total: float

    def shares(self, before: CpuTimes) -> tuple[float, float] | None:
        """(busy, steal) as shares of the time since ``before``; None if no time has passed."""
        total = self.total - before.total
        if total <= 0:
            return None
        return (self.busy - before.busy) / total, (self.steal - before.steal) / total


def cpu_times(processors: Collection[int] = ()) -> CpuTimes | None:
    """Of these processors, or of all where none are named; None where the kernel does not tell.

    Busy: user, nice, system, interrupts (``proc(5)``, ``/proc/stat``; a guest's time is in user and nice).
    """
    # Not psutil: it lists processors by place, which is not their number where some are offline.
    wanted = {f"cpu{number}" for number in processors} or {"cpu"}
    rows = []
    with suppress(OSError, ValueError):
        for line in Path("/proc/stat").read_text("ascii").splitlines():
            name, *fields = line.split()
            if name in wanted:
                rows.append([int(field) / _TICKS for field in fields[:8]])
    if len(rows) != len(wanted) or any(len(row) < 8 for row in rows):
        return None
    user, nice, system, _, _, irq, soft, steal = (sum(column) for column in zip(*rows, strict=True))
    return CpuTimes(user + nice + system + irq + soft, steal, sum(map(sum, rows)))


def pressure() -> dict[str, float]:
    """Seconds since boot in which some, or all (``full``), tasks waited: ``cpu.some``, ``memory.full``, ...

    Pressure stall information, which psutil does not read; empty where the kernel has none.
    """
    found = {}
    for name in ("cpu", "memory", "io"):
        with suppress(OSError, ValueError):
            for line in Path("/proc/pressure", name).read_text("ascii").splitlines():
                kind, *fields = line.split()
                told = dict(field.split("=") for field in fields)
                found[f"{name}.{kind}"] = int(told["total"]) / 1e6
    return found


def memory() -> tuple[float, float]:
    """(total, available) MiB."""
    machine = psutil.virtual_memory()
    return machine.total / 2**20, machine.available / 2**20


def resident(pid: int) -> float:
    """MiB of a process's memory that is not files or shared memory; 0 if it is gone."""
    with suppress(psutil.Error):
        used = psutil.Process(pid).memory_info()
        return (used.rss - used.shared) / 2**20
    return 0.0
