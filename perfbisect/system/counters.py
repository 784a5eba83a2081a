"""The kernel's counters: processor times, pressure, memory. Read from ``/proc`` (Linux); nothing is kept."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


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


def cpu_times(processors: Collection[int] = (), root: Path = PROC) -> CpuTimes | None:
    """Of these processors, or of all where none are named; None where the kernel does not tell.

    Busy: user, nice, system, interrupts (``proc(5)``, ``/proc/stat``; a guest's time is in user and nice).
    """
    wanted = {f"cpu{number}" for number in processors} or {"cpu"}
    rows = []
    with suppress(OSError, ValueError):
        for line in (root / "stat").read_text("ascii").splitlines():
            name, *fields = line.split()
            if name in wanted:
                rows.append([int(field) / _TICKS for field in fields[:8]])
    if len(rows) != len(wanted) or any(len(row) < 8 for row in rows):
        return None
    user, nice, system, _, _, irq, soft, steal = (sum(column) for column in zip(*rows, strict=True))
    return CpuTimes(user + nice + system + irq + soft, steal, sum(map(sum, rows)))


def pressure(root: Path = PROC) -> dict[str, float]:
    """Seconds since boot in which some, or all (``full``), tasks waited: ``cpu.some``, ``memory.full``, ...

    Pressure stall information; empty where the kernel has none.
    """
    found = {}
    for name in ("cpu", "memory", "io"):
        with suppress(OSError, ValueError):
            for line in (root / "pressure" / name).read_text("ascii").splitlines():
                kind, *fields = line.split()
                told = dict(field.split("=") for field in fields)
                found[f"{name}.{kind}"] = int(told["total"]) / 1e6
    return found


def memory(root: Path = PROC) -> tuple[float, float] | None:
    """(total, available) MiB; None where the kernel does not tell."""
    found = {}
    with suppress(OSError, ValueError):
        for line in (root / "meminfo").read_text("ascii").splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(rest.split()[0]) / 1024
    return (found["MemTotal"], found["MemAvailable"]) if len(found) == 2 else None


def resident(pid: int, root: Path = PROC) -> float:
    """MiB of a process's memory that is not files or shared memory; 0 if it is gone."""
    with suppress(OSError, ValueError, IndexError):
        fields = (root / str(pid) / "statm").read_text("ascii").split()
        return (int(fields[1]) - int(fields[2])) * _PAGE / 2**20
    return 0.0


def load(root: Path = PROC) -> float | None:
    """Tasks that ran or waited, averaged over the last minute; None where the kernel does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return float((root / "loadavg").read_text("ascii").split()[0])
    return None


def processors(root: Path = PROC) -> int:
    """How many processors this machine has, usable by this process or not; at least 1."""
    with suppress(OSError):
        text = (root / "stat").read_text("ascii")
        return max(1, sum(line.startswith("cpu") and line[3:4].isdigit() for line in text.splitlines()))
    return 1
