"""The machine under the measurement: what it is, what the kernel ended on it, whether there is room."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from perfbisect.errors import MachineError
from perfbisect.system.devices import Gpu, visible
from perfbisect.system.devices import gpus as gpus
from perfbisect.system.profile import CUDA, Profile

_LEAST_DISK = 64 * 1024 * 1024


@dataclass(frozen=True)
class Machine:
    """What stays the same over a bisection. ``memory`` in bytes; ``cores``: those this process may use."""

    host: str
    cpu: str
    cores: int
    memory: int
    kernel: str
    gpus: tuple[Gpu, ...]
    mark: str = ""
    """What its profile adds to the machine class."""
    part: int = 0
    """Processors of the slot that an attempt ran on; 0: all of them."""

    @property
    def kind(self) -> str:
        """The machine class: attempts of different classes are never compared.

        Without devices it is the processors: those of the slot, where that is a part of the machine.
        """
        mark = f", {self.mark}" if self.mark else ""
        if not self.gpus:
            share = f"{self.part} of {self.cores}" if self.part else f"{self.cores}"
            return f"{self.cpu} x {share}{mark}"
        names = Counter(gpu.name for gpu in self.gpus)
        devices = " + ".join(f"{name} x {count}" for name, count in sorted(names.items()))
        drivers = "/".join(sorted({gpu.driver for gpu in self.gpus if gpu.driver}))
        return f"{devices}{f', driver {drivers}' if drivers else ''}{mark}"

    def facts(self) -> dict[str, Any]:
        """For the provenance."""
        return {**asdict(self), "machine_class": self.kind}


def machine(shell: Mapping[str, str], profile: Profile = CUDA, *, part: int = 0) -> Machine:
    """This machine; devices are those that the profile's variable in ``shell`` leaves visible.

    ``part``: how many of its processors an attempt has; 0: all.
    """
    return Machine(
        host=platform.node(),
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory=psutil.virtual_memory().total,
        kernel=platform.release(),
        gpus=visible(profile.devices() if profile.smi() else gpus(), shell.get(profile.variable)),
        mark=profile.mark,
        part=part,
    )


def _cpu_model() -> str:
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
        for label in ("model name", "Model", "Hardware"):
            if found := re.search(rf"^{label}\s*:\s*(.+)$", text, re.MULTILINE):
                return " ".join(found[1].split())
    return platform.machine() or "unknown CPU"


def oom_kills() -> int:
    """How many processes the kernel has killed for memory since boot; 0 where it does not tell."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text("ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def check_room(folder: Path) -> None:
    """:raises MachineError: the disk under ``folder`` has no room for an attempt's files."""
    free = shutil.disk_usage(folder).free
    if free < _LEAST_DISK:
        raise MachineError(
            f"{folder}: {free // 2**20} MiB free, an attempt needs {_LEAST_DISK // 2**20} MiB for its files",
            next_step="free some disk, or give another --state folder",
            code="disk_full",
        )
