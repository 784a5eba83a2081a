"""Checks of the machine: what measuring needs, the state found, and advice."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfbisect.environments import uv
from perfbisect.environments.base import Builder
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.chain import ChainBuilder
from perfbisect.environments.builders.overrides import OverrideBuilder
from perfbisect.environments.builders.wheel import WheelBuilder
from perfbisect.errors import BuildError, MachineError, PerfbisectError
from perfbisect.machine import devices, leases, sampler
from perfbisect.machine.device_commands import CommandQuery
from perfbisect.machine.devices import DeviceProcess, DeviceReading, Gpu, Smi
from perfbisect.machine.interference import SLOWED, InterferenceLimits
from perfbisect.machine.profile import CUDA, Profile
from perfbisect.model.change import Change
from perfbisect.system import clock, ports, processes
from perfbisect.system.processes import process

State = Literal["good", "warning", "bad"]


@dataclass(frozen=True)
class Check:
    """The result of one check. ``advice`` is empty if it is good."""

    name: str
    state: State
    found: str
    advice: str = ""


def guarded(name: str, check: Callable[[], Check]) -> Check:
    """Run a check; an error makes it bad."""
    try:
        return check()
    except PerfbisectError as error:
        return _failed(name, error.message, error.next_step)
    except (OSError, subprocess.SubprocessError) as error:
        return _failed(name, str(error) or type(error).__name__, None)


def _failed(name: str, said: str, advice: str | None) -> Check:
    return Check(name, "bad", " ".join(said.split()), advice or "the check failed; see the message")


_DEVICE_CHECKS_PATIENCE = 20.0
_IN_FILE = "in the machine file"


def device_checks(shell: Mapping[str, str], profile: Profile) -> list[tuple[str, Callable[[], Check]]]:
    """Checks of a machine kind: device queries, device selection and lease command."""
    checks: list[tuple[str, Callable[[], Check]]] = [("machine", lambda: machine(profile))]
    if profile.devices == "none":
        return checks + _lease(profile)
    smi = profile.smi()
    checks += [
        ("devices", lambda: look(shell, smi, profile)),
        ("select", lambda: select(shell, smi, profile)),
    ]
    queries = (
        ("driver", "driver", profile.driver),
        ("memory", "device memory", profile.memory),
        ("tenants", "tenants", profile.tenants),
    )
    checks += [(name, _query_check(key, name, query)) for key, name, query in queries if query is not None]
    return checks + _lease(profile)


def machine(profile: Profile) -> Check:
    """Whether the command that lists devices is on the PATH."""
    if profile.devices == "none":
        return Check("machine", "good", f"{profile.name}: no devices, cells with `gpus: 0` only")
    own = profile.query.command[0] if profile.query else "nvidia-smi"
    path = shutil.which(own)
    if path is not None:
        return Check("machine", "good", f"{profile.name}: {path} lists devices")
    instead = f"fix devices.command {_IN_FILE}" if profile.query else "cells with `gpus: 0`: --machine cpu"
    return Check("machine", "bad", f"{profile.name}: no {own} on the PATH", f"install it; or {instead}")


def look(shell: Mapping[str, str], smi: Smi, profile: Profile) -> Check:
    """The devices that the mask in ``shell`` leaves, and who uses them."""
    known = devices.list_devices(smi)
    if not known:
        problem = smi.devices(("uuid",)).problem
        advice = "fix the driver, or pass devices to the container; `gpus: 0` works without"
        if profile.query is not None:
            unread = "" if problem else ": its expression finds none in what the command prints"
            advice = f"fix the driver, or devices {_IN_FILE}{unread}"
        return Check("devices", "bad", problem or "no devices were found", advice)
    mask = shell.get(profile.variable)
    visible = devices.visible(known, mask)
    found = _listed(visible) + ("" if mask is None else f" ({profile.variable}={mask})")
    if not visible:
        none = f"none of {_listed(devices.usable(known))}{found}"
        return Check("devices", "bad", none, f"unset or fix {profile.variable}")
    if any(gpu.compute_mode == "Prohibited" for gpu in visible):
        return Check(
            "devices", "bad", f"{found}; compute mode Prohibited", "as root: nvidia-smi --compute-mode=0"
        )
    now = devices.readings(smi)
    troubles = [*_used(visible, now, devices.tenants(smi)), *_slowed(now)]
    if troubles:
        advice = "slots use these last; runs beside other processes are discarded"
        return Check("devices", "warning", "; ".join([found, *troubles]), advice)
    if any(gpu.parent for gpu in visible):
        advice = "many versions of vLLM end on the name of a MIG instance (vLLM issue 41848)"
        return Check("devices", "warning", found, advice)
    return Check("devices", "good", found)


def select(shell: Mapping[str, str], smi: Smi, profile: Profile) -> Check:
    """The variable that selects devices, and its value for the first of them."""
    mask = shell.get(profile.variable)
    visible = devices.visible(devices.list_devices(smi), mask)
    if not visible:
        return Check(
            "select", "warning", f"{profile.variable} has nothing to select from", "see devices above"
        )
    said = "is not set here: all are used" if mask is None else "is set here: only these are used"
    given = " ".join(f"{name}={value}" for name, value in sorted(profile.mask(visible[:1]).items()))
    return Check("select", "good", f"{profile.variable} {said}; the engine on the first gets {given}")


def _query_check(key: str, name: str, query: CommandQuery) -> Callable[[], Check]:
    """Check a further command of the machine file; only ``tenants`` may print nothing."""

    def check() -> Check:
        command = " ".join(query.command)
        rows, problem = query.rows(_DEVICE_CHECKS_PATIENCE)
        if problem:
            return Check(name, "bad", f"{command}: {problem}", f"install it; or fix {key} {_IN_FILE}")
        if not rows and key != "tenants":
            found = f"{command}: {key}.each finds nothing in what it prints"
            return Check(name, "warning", found, f"fix {key}.each {_IN_FILE}: without it this is not checked")
        told = rows[0].get("driver", "") if key == "driver" else f"{len(rows)} found"
        return Check(name, "good", f"{command}: {told}")

    return check


def _lease(profile: Profile) -> list[tuple[str, Callable[[], Check]]]:
    if profile.lease is None:
        return []
    lost = ", ".join(map(str, profile.lease.lost)) or "none"

    def check() -> Check:
        words = profile.before(1, {profile.variable: "0"})
        found = f"{shutil.which(words[0])} precedes every server command ({' '.join(words)}); lost: {lost}"
        return Check("lease command", "good", found)

    return [("lease command", check)]


def _listed(gpus: Iterable[Gpu]) -> str:
    names = Counter(f"{gpu.name}, driver {gpu.driver}" for gpu in gpus)
    return "; ".join(f"{count} x {name}" for name, count in names.items())


def _used(gpus: Sequence[Gpu], now: Sequence[DeviceReading], tenants: Sequence[DeviceProcess]) -> list[str]:
    labels = {gpu.parent or gpu.uuid: f"gpu{gpu.index}" for gpu in gpus}
    told = []
    for one in now:
        if (
            one.uuid in labels
            and one.used is not None
            and one.total
            and one.used > devices.IN_USE * one.total
        ):
            here = [str(process(t.pid) or f"pid {t.pid}") for t in tenants if t.uuid == one.uuid]
            who = ", ".join(here) or "a process the driver does not name (another container?)"
            told.append(f"{labels[one.uuid]}: {one.used:.0f} of {one.total:.0f} MiB in use by {who}")
    return told


def _slowed(now: Iterable[DeviceReading]) -> list[str]:
    return [
        f"{reading.uuid} is throttled: {reason}"
        for reading in now
        for reason in reading.reasons
        if reason in SLOWED
    ]


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
    """Run every check, in the order in which a measurement depends on them; none raises.

    ``state``, ``cache``: folders of jobs and environments; ``uv`` finds that command.
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
        return Check("system", "bad", found, "servers are found and stopped through /proc: measure on Linux")
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
    """The version a command prints."""
    done = subprocess.run(
        [str(path), "--version"], capture_output=True, text=True, timeout=_PATIENCE, check=True
    )
    return Check(name, "good", done.stdout.strip())


def disk(name: str, folder: Path) -> Check:
    """Free space in the folder, or in its nearest existing parent."""
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
    total, available = sampler.memory()
    found = f"{available / 1024:.1f} of {total / 1024:.1f} GiB available"
    if available < _LITTLE_MEMORY:
        return Check(
            "memory", "bad", found, "stop other work: vLLM on a CPU takes 3 GiB for the smallest model"
        )
    if available < _ENOUGH_MEMORY:
        return Check("memory", "warning", found, "vLLM on a CPU takes 3 GiB for the smallest model")
    return Check("memory", "good", found)


def shared_memory() -> Check:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check(
            "shm", "warning", "no /dev/shm", "the engine's processes communicate through it: mount it"
        )
    free = shutil.disk_usage(folder).free
    found = f"{free / _GIB:.1f} GiB free in /dev/shm"
    if free < _LITTLE_SHARED:
        return Check("shm", "warning", found, "in a container: increase it, for example --shm-size 2g")
    return Check("shm", "good", found)


def free_ports() -> Check:
    return Check("ports", "good", f"free on 127.0.0.1, for example {ports.free_port()}")


def held(folder: Path) -> Check:
    """Leases of this host's devices and cores."""
    by_holder: dict[str, list[leases.HeldLock]] = {}
    for lease in leases.holders(folder):
        by_holder.setdefault(str(lease.holder), []).append(lease)
    if not by_holder:
        return Check("leases", "good", "no other perfbisect measures on this host")
    found = "; ".join(f"{who} has {leases.describe_locks(what)}" for who, what in by_holder.items())
    return Check("leases", "warning", found, "jobs that need the same wait, or are refused")


def load() -> Check:
    """Processor load, and the processes that cause most of it."""
    before, cpu = processes.table(), sampler.cpu_times()
    time.sleep(_LOOK)
    after, now = processes.table(), sampler.cpu_times()
    shares = now.shares(cpu) if now and cpu else None
    if shares is None:
        return Check("load", "warning", "the kernel does not report it", "mount /proc")
    busy, steal = shares
    found = f"{busy:.0%} of the processors are busy"
    limits = InterferenceLimits()
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
        return Check("load", "warning", found, "stop it, or measure elsewhere: runs beside it are discarded")
    return Check("load", "good", found)


def clocks() -> Check:
    """Check the wall clock, which dates jobs; durations use a monotonic clock."""
    with tempfile.NamedTemporaryFile() as file:
        skew = abs(Path(file.name).stat().st_mtime - time.time())
    if skew > _SKEW:
        return Check("clock", "warning", f"clock and file system differ by {skew:.0f} s", "set the clock")
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if time.time() < _EARLIEST:
        return Check("clock", "warning", now, "the clock is wrong: job ids sort by it")
    if clock.synchronised() is False:
        now += ", not synchronised (dates may jump, durations do not)"
    return Check("clock", "good", now)


@dataclass(frozen=True)
class Reach:
    """Whether a package source answers. ``told``: its answer or the error."""

    what: str
    ok: bool
    told: str
    next_step: str = ""


def check(builder: Builder | None, change: Change | None, *, log: Path) -> tuple[Reach, ...]:
    """Query the package registry with uv's settings, and each wheel index of a builder for ``change``."""
    found = [registry(log=log)]
    builder = builder.inner if isinstance(builder, OverrideBuilder) else builder
    builders = builder.builders if isinstance(builder, ChainBuilder) else (builder,)
    if change is not None:
        found += [_index(each, change) for each in builders if isinstance(each, WheelBuilder)]
    return tuple(found)


def registry(*, log: Path, timeout: float = 120.0) -> Reach:
    """Query the package registry, bypassing the cache."""
    try:
        with tempfile.TemporaryDirectory(prefix="perfbisect-") as folder:
            told = uv.find_package(BuildRun(log, timeout), "pip", folder=Path(folder))
    except MachineError as error:
        return Reach("package registry", False, error.message, error.next_step or f"see {log}")
    except BuildError as error:
        return Reach("package registry", False, error.message, "check uv's index settings (UV_DEFAULT_INDEX)")
    return Reach("package registry", True, told)


def _index(builder: WheelBuilder, change: Change) -> Reach:
    what = f"wheel index {builder.index.template}"
    try:
        refusal = builder.refuses(change)
    except MachineError as error:
        return Reach(what, False, error.message, error.next_step or "")
    if refusal is not None:
        return Reach(what, True, f"answers, but for {change.short}: {refusal.reason}")
    return Reach(what, True, f"has a wheel for {change.short}")
