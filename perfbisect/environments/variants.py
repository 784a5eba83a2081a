"""Which build of a wheel a machine can run: by its CUDA driver."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

CPU = "cpu"
DEFAULT = "default"
"""As the index has it at the commit's own address, whatever that was built for."""

_TABLE: tuple[tuple[tuple[int, int], tuple[str, ...]], ...] = (
    ((13, 0), ("cu130", "cu129", "cu128", "cu126")),
    ((12, 0), ("cu129", "cu128", "cu126", "cu124", "cu121")),
    ((11, 8), ("cu118",)),
)
"""CUDA version that a driver supports, at least -> builds that run on it, best first.

Within a major version a newer build runs on an older driver (CUDA's minor version compatibility), and a
driver runs what was built for an earlier major version.
"""
_DRIVERS: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = (
    ((580, 0), (13, 0)),
    ((525, 60), (12, 0)),
    ((520, 61), (11, 8)),
)
"""Driver for Linux, at least -> the CUDA version it supports (NVIDIA's release notes of the CUDA toolkit)."""


def variants(cuda: tuple[int, int] | None) -> tuple[str, ...]:
    """Builds that a machine can run, best first; ``cuda``: what its driver supports, None without one."""
    if cuda is None:
        return (CPU,)
    return next((names for least, names in _TABLE if cuda >= least), (CPU,))


def cuda_of(told: str) -> tuple[int, int] | None:
    """The CUDA version that a driver supports, from ``nvidia-smi -q``; by the driver's number if need be."""
    said = re.search(r"^CUDA[\w ]*Version\s*:\s*(\d+)\.(\d+)", told, re.MULTILINE)
    if said:
        return int(said[1]), int(said[2])
    driver = re.search(r"^Driver Version\s*:\s*(\d+)\.(\d+)", told, re.MULTILINE)
    if driver is None:
        return None
    number = (int(driver[1]), int(driver[2]))
    return next((cuda for least, cuda in _DRIVERS if number >= least), None)


def driver_cuda() -> tuple[int, int] | None:
    """The CUDA version that this machine's driver supports; None without a driver that answers."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        done = subprocess.run(
            [command, "-q"], capture_output=True, text=True, timeout=60, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return cuda_of(done.stdout) if done.returncode == 0 else None
