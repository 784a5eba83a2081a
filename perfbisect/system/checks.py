"""What of this machine a measurement needs, looked at: each with what was seen and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from perfbisect.system import clock, counters, leases, ports, processes
from perfbisect.system.check import Check, guarded
from perfbisect.system.device_checks import device_checks
from perfbisect.system.profile import CUDA, Profile
from perfbisect.system.sampled import Limits

_GIB = 1024**3
_ENOUGH_DISK, _LITTLE_DISK = 20 * _GIB, 2 * _GIB
_ENOUGH_MEMORY, _LITTLE_MEMORY = 4096.0, 2048.0
_LITTLE_SHARED = _GIB // 4
_PATIENCE = 20.0
_LOOK = 0.5
_SKEW = 5.0
_EARLIEST = 1_700_000_000


def machine_checks(
    *,
    state: Path,
    cache: Path,
    shell: Mapping[str, str],
    uv: Callable[[], Path],
    profile: Profile = CUDA,
) -> tuple[Check, ...]:
    """Every check, in the order in which a measurement would need it; none of them raises.

    ``state``, ``cache``: the folders of jobs and of environments; ``uv`` finds that command; ``profile``: the
    kind of machine it is taken for.
    """
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("python", python),
        ("system", system),
        ("git", git),
        ("uv", lambda: command("uv", uv())),
        ("state", lambda: disk("state", state)),
        ("cache", lambda: disk("cache", cache)),
        ("memory", memory),
        ("shm", shared_memory),
        ("ports", free_ports),
        *device_checks(shell, profile),
        ("leases", lambda: held(leases.lock_folder(shell))),
        ("load", load),
        ("clock", clocks),
    ]
    return tuple(guarded(name, check) for name, check in checks)


def python() -> Check:
    return Check("python", "good", f"{platform.python_version()} at {sys.executable}")


def system() -> Check:
    found = f"{platform.system()} {platform.release()}, {os.cpu_count()} processors"
    if platform.system() != "Linux":
        return Check("system", "bad", found, "servers are found and ended through /proc: measure on Linux")
    mine = len(os.sched_getaffinity(0))
    if mine != os.cpu_count():
        found += f", {mine} of them for this process"
    return Check("system", "good", found)


def git() -> Check:
    found = shutil.which("git")
    if found is None:
        return Check("git", "bad", "no git command", "install git; only releases can be bisected without it")
    return command("git", Path(found))


def command(name: str, path: Path) -> Check:
    """What a command says of its version."""
    done = subprocess.run(
        [str(path), "--version"], capture_output=True, text=True, timeout=_PATIENCE, check=True
    )
    return Check(name, "good", done.stdout.strip())


def disk(name: str, folder: Path) -> Check:
    """Room in the folder, or in what will be its parent."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    found = f"{free / _GIB:.1f} GiB free for {folder}"
    elsewhere = f"choose another folder: PERFBISECT_{name.upper()}"
    if not os.access(there, os.W_OK):
        return Check(name, "bad", f"{there} cannot be written", elsewhere)
    if free < _LITTLE_DISK:
        return Check(name, "bad", found, f"make room, or {elsewhere}")
    if name == "cache" and free < _ENOUGH_DISK:
        return Check(name, "warning", found, "an environment of vLLM takes 3 to 10 GiB: perfbisect env gc")
    return Check(name, "good", found)


def memory() -> Check:
    total, available = counters.memory()
    found = f"{available / 1024:.1f} of {total / 1024:.1f} GiB available"
    if available < _LITTLE_MEMORY:
        return Check(
            "memory", "bad", found, "end other work: vLLM on a CPU takes 3 GiB for the smallest model"
        )
    if available < _ENOUGH_MEMORY:
        return Check("memory", "warning", found, "vLLM on a CPU takes 3 GiB for the smallest model")
    return Check("memory", "good", found)


def shared_memory() -> Check:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check("shm", "warning", "no /dev/shm", "the engine's processes talk through it: mount it")
    free = shutil.disk_usage(folder).free
    found = f"{free / _GIB:.1f} GiB free in /dev/shm"
    if free < _LITTLE_SHARED:
        return Check("shm", "warning", found, "in a container: give it more, for example --shm-size 2g")
    return Check("shm", "good", found)


def free_ports() -> Check:
    return Check("ports", "good", f"a free one was found on 127.0.0.1, for example {ports.free_port()}")


def held(folder: Path) -> Check:
    """Who has leased devices or cores of this host."""
    by: dict[str, list[leases.Held]] = {}
    for one in leases.holders(folder):
        by.setdefault(str(one.holder), []).append(one)
    if not by:
        return Check("leases", "good", "no other perfbisect measures on this host")
    found = "; ".join(f"{who} has {leases.few(what)}" for who, what in by.items())
    return Check("leases", "warning", found, "what needs the same waits for it, or is refused")


def load() -> Check:
    """How busy others keep the processors, and who does most of it."""
    before, cpu = processes.table(), counters.cpu_times()
    time.sleep(_LOOK)
    after, now = processes.table(), counters.cpu_times()
    shares = now.shares(cpu) if now and cpu else None
    if shares is None:
        return Check("load", "warning", "the kernel does not tell", "mount /proc")
    busy, steal = shares
    found = f"{busy:.0%} of the processors are busy"
    limits = Limits()
    if limits.steal is not None and steal > limits.steal:
        return Check(
            "load", "warning", f"{found}, the hypervisor takes {steal:.0%}", "measure on another host"
        )
    if limits.foreign_cpu is not None and busy > limits.foreign_cpu:
        used = {
            row: row.cpu_seconds - (before[pid].cpu_seconds if pid in before else 0.0)
            for pid, row in after.items()
            if pid != os.getpid()
        }
        most = sorted(used, key=lambda row: used[row], reverse=True)[:3]
        who = ", ".join(f"{row} {used[row] / _LOOK:.0%} of one" for row in most if used[row] > 0)
        found += f": {who}" if who else ""
        return Check("load", "warning", found, "end it, or measure elsewhere: runs beside it are void")
    return Check("load", "good", found)


def clocks() -> Check:
    """Dates only: durations are measured by a clock that nobody sets."""
    with tempfile.NamedTemporaryFile() as file:
        skew = abs(Path(file.name).stat().st_mtime - time.time())
    if skew > _SKEW:
        return Check("clock", "warning", f"clock and file system differ by {skew:.0f} s", "set the clock")
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if time.time() < _EARLIEST:
        return Check("clock", "warning", now, "the clock is wrong: job ids sort by it")
    if clock.synchronised() is False:
        now += ", kept by no time server (dates may jump, durations do not)"
    return Check("clock", "good", now)
