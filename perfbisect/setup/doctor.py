"""The checks of ``perfbisect doctor``: what measuring needs, the state found, and advice."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import Field

from perfbisect.common.quantities import counted
from perfbisect.environments import uv
from perfbisect.environments.base import Builder
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders import wheel
from perfbisect.environments.builders.cached import CachedBuilder
from perfbisect.environments.builders.image import ImageSettings
from perfbisect.environments.builders.nearest_wheel import NearestWheel
from perfbisect.environments.builders.wheel import WheelSettings
from perfbisect.environments.factory import ChainBuilder
from perfbisect.errors import BuildError, PerfbisectError
from perfbisect.jobs.documents import Document
from perfbisect.jobs.machines import DoctorCheckDocument, MachineDocument
from perfbisect.machine import devices, leases, sampler
from perfbisect.machine.devices import DeviceProcess, DeviceReading, Gpu, Smi
from perfbisect.machine.interference import SLOWED, InterferenceLimits
from perfbisect.machine.profile import CommandQuery, Profile
from perfbisect.measure.profiling import find_py_spy, sampling_problem
from perfbisect.model.attempt import is_same_class
from perfbisect.model.change import Change
from perfbisect.setup.checkout import SETTINGS_FILE
from perfbisect.system import clock, ports, processes
from perfbisect.system.logs import excerpt

State = Literal["good", "note", "warning", "bad"]
"""``note``: nothing is wrong, but something is missing that some jobs use."""

_GIB = 1024**3
_ENOUGH_DISK, _MIN_DISK = 20 * _GIB, 2 * _GIB
_ENOUGH_MEMORY_MIB, _MIN_MEMORY_MIB = 4096.0, 2048.0
_MIN_SHARED = _GIB // 4
_TIMEOUT_S, _REGISTRY_TIMEOUT_S = 20.0, 120.0
_LOAD_S = 0.5
_MAX_SKEW_S = 5.0
_EARLIEST = 1_700_000_000
_IN_FILE = "in the machine file"


class DoctorDocument(Document):
    """``perfbisect doctor``."""

    schema_: Literal["perfbisect.doctor/2"] = Field(default="perfbisect.doctor/2", alias="schema")
    fit: bool
    checks: tuple[DoctorCheckDocument, ...]


@dataclass(frozen=True)
class Finding:
    state: State
    found: str
    advice: str = ""


Check = tuple[str, Callable[[], Finding]]
"""A name and a function; errors that it raises make the check bad."""


def run_checks(checks: Sequence[Check]) -> tuple[DoctorCheckDocument, ...]:
    """Run every check; none raises."""
    results = []
    for name, check in checks:
        try:
            finding = check()
        except (PerfbisectError, OSError, subprocess.SubprocessError) as error:
            finding = _failure(error)
        results.append(DoctorCheckDocument(name=name, **asdict(finding)))
    return tuple(results)


def _failure(error: Exception) -> Finding:
    message, advice = str(error) or type(error).__name__, ""
    if isinstance(error, PerfbisectError):
        message, advice = error.message, error.next_step or ""
    return Finding("bad", " ".join(message.split()), advice or "the check failed; see the message")


def check_settings(root: Path | None, machine: str | None) -> Finding:
    """Which ``perfbisect.yaml`` was read; ``root``: of the repository."""
    if root is None:
        return Finding("note", f"no {SETTINGS_FILE}: {Path.cwd()} is in no repository; --repo names one")
    path = root / SETTINGS_FILE
    if not path.is_file():
        return Finding("note", f"none: there is no {path}; perfbisect init writes one")
    return Finding("good", f"{path}, machine {machine}" if machine else str(path))


def fleet_checks(
    machines: Sequence[MachineDocument], spec: str, builders: Sequence[MachineDocument] = ()
) -> list[Check]:
    """What each machine of a fleet is, and each check there that is not good.

    ``spec``: the fleet as it was typed; ``builders``: machines that build and do not measure.
    """
    usable = [machine for machine in machines if machine.slots]
    rows: list[Check] = []
    for machine in (*machines, *builders):
        rows.append((machine.name, partial(_check_of_fleet, machine, usable, spec, machine in builders)))
        problems = [
            partial(Finding, check.state, f"{check.name}: {check.found}", check.advice)
            for check in machine.checks
            if check.state in ("warning", "bad")
        ]
        if machine.skew > _MAX_SKEW_S:
            found = f"clock: at least {machine.skew:.0f} s from the one here, which dates the job"
            problems.append(partial(Finding, "warning", found, f"set the clock of {machine.name}"))
        rows += [(machine.name, problem) for problem in problems]
    return rows


def _check_of_fleet(
    machine: MachineDocument, usable: Sequence[MachineDocument], spec: str, builds: bool
) -> Finding:
    if not machine.slots:
        advice = "ask the cluster for its state"
        if spec.startswith(("ssh", "ray")):
            install = f"perfbisect agent install {machine.name} --fleet {spec}"
            advice = f"where perfbisect or its version is missing: {install}"
        return Finding("bad", machine.problem or "no slot", advice)
    count = len(machine.slots)
    work = "builds" if builds else counted(count, "slot")
    found = f"{machine.machine_class}, {work}, {counted(len(machine.environments), 'environment')}"
    if machine.leased:
        found += f", {counted(len(machine.leased), 'lock')} held by others"
    if not builds:
        ((common, _),) = Counter(other.machine_class for other in usable).most_common(1)
        if not is_same_class(machine.machine_class, common):
            advice = f"another class than most ({common}): a job uses machines of one class"
            return Finding("warning", found, advice)
    return Finding("good", found)


def machine_checks(
    *, state: Path, cache: Path, shell: Mapping[str, str], profile: Profile
) -> tuple[Check, ...]:
    """The checks of a machine, in the order in which a measurement depends on them."""
    return (
        ("python", lambda: Finding("good", f"{platform.python_version()} at {sys.executable}")),
        ("system", _check_system),
        ("git", _check_git),
        ("uv", lambda: check_command(uv.find_uv())),
        ("state", partial(check_disk, "state", state)),
        ("cache", partial(check_disk, "cache", cache)),
        ("memory", check_memory),
        ("shm", _check_shared_memory),
        ("ports", lambda: Finding("good", f"free on 127.0.0.1, for example {ports.free_port()}")),
        *device_checks(shell, profile),
        ("leases", lambda: check_leases(leases.lock_folder(shell))),
        ("load", check_load),
        ("clock", _check_clock),
        ("py-spy", lambda: check_sampling(find_py_spy())),
    )


def check_sampling(py_spy: Path | None) -> Finding:
    """Whether profile launches can sample stacks; only ``explain --profile`` needs that."""
    problem = sampling_problem(py_spy, is_root=os.geteuid() == 0)
    if py_spy is None:
        return Finding("note", f"{problem}: explain --profile needs pip install 'perfbisect[explain]'")
    if problem:
        return Finding("warning", problem, "for explain --profile: sudo sysctl kernel.yama.ptrace_scope=0")
    return Finding("good", str(py_spy))


def device_checks(shell: Mapping[str, str], profile: Profile) -> Iterator[Check]:
    """Checks of a machine kind: device queries, device selection and lease command."""
    yield "machine", partial(check_device_command, profile)
    if profile.devices != "none":
        smi = profile.smi()
        yield "devices", partial(check_devices, shell, smi, profile)
        yield "select", partial(check_selection, shell, smi, profile)
        if profile.devices == "nvidia-smi":
            yield "cuda", partial(check_cuda, shell, smi)
        queries = (
            ("driver", "driver", profile.driver),
            ("device memory", "memory", profile.memory),
            ("tenants", "tenants", profile.tenants),
        )
        for name, key, query in queries:
            if query is not None:
                yield name, partial(check_query, key, query)
    if profile.lease is not None:
        yield "lease command", partial(_check_lease_command, profile, profile.lease.lost)


def check_device_command(profile: Profile) -> Finding:
    """Whether the command that lists devices is on the PATH."""
    if profile.devices == "none":
        return Finding("good", f"{profile.name}: no devices, cells with `gpus: 0` only")
    command = profile.query.command[0] if profile.query else "nvidia-smi"
    path = shutil.which(command)
    if path is not None:
        return Finding("good", f"{profile.name}: {path} lists devices")
    instead = f"fix devices.command {_IN_FILE}" if profile.query else "cells with `gpus: 0`: --machine cpu"
    return Finding("bad", f"{profile.name}: no {command} on the PATH", f"install it; or {instead}")


def check_devices(shell: Mapping[str, str], smi: Smi, profile: Profile) -> Finding:
    """The devices that the mask in ``shell`` leaves, and who uses them."""
    known = devices.list_devices(smi)
    if not known:
        return _no_devices(smi, profile)
    mask = shell.get(profile.variable)
    visible = devices.visible(known, mask)
    found = _count_devices(visible) + ("" if mask is None else f" ({profile.variable}={mask})")
    if not visible:
        none = f"none of {_count_devices(devices.usable(known))}{found}"
        return Finding("bad", none, f"unset or fix {profile.variable}")
    if any(gpu.compute_mode == "Prohibited" for gpu in visible):
        return Finding("bad", f"{found}; compute mode Prohibited", "as root: nvidia-smi --compute-mode=0")
    readings = devices.readings(smi)
    problems = [
        *_users(visible, readings, devices.tenants(smi)),
        *(f"{one.uuid} is throttled: {why}" for one in readings for why in one.reasons if why in SLOWED),
    ]
    if problems:
        advice = "slots use these last; runs beside other processes are discarded"
        return Finding("warning", "; ".join([found, *problems]), advice)
    if any(gpu.parent for gpu in visible):
        advice = "many versions of vLLM end on the name of a MIG instance (vLLM issue 41848)"
        return Finding("warning", found, advice)
    return Finding("good", found)


def _no_devices(smi: Smi, profile: Profile) -> Finding:
    problem = smi.devices(("uuid",)).problem
    advice = "fix the driver, or pass devices to the container; `gpus: 0` works without"
    if profile.query is not None:
        unread = "" if problem else ": its expression finds none in what the command prints"
        advice = f"fix the driver, or devices {_IN_FILE}{unread}"
    return Finding("bad", problem or "no devices were found", advice)


def check_selection(shell: Mapping[str, str], smi: Smi, profile: Profile) -> Finding:
    """The variable that selects devices, and its value for the first of them."""
    mask = shell.get(profile.variable)
    visible = devices.visible(devices.list_devices(smi), mask)
    if not visible:
        return Finding("warning", f"{profile.variable} has nothing to select from", "see devices above")
    use = "is not set here: all are used" if mask is None else "is set here: only these are used"
    given = " ".join(f"{name}={value}" for name, value in sorted(profile.mask(visible[:1]).items()))
    return Finding("good", f"{profile.variable} {use}; the engine on the first gets {given}")


def check_cuda(shell: Mapping[str, str], smi: Smi) -> Finding:
    """What the driver can run, and whether CUDA's compiler is there, on which kernels depend."""
    driver = wheel.driver_cuda(smi)
    if driver is None:
        return Finding("warning", "the driver does not say which CUDA it is for", "name variant= in --env")
    found = f"driver for CUDA {driver[0]}.{driver[1]}, runs {' '.join(wheel.variants(driver))}"
    nvcc = shutil.which("nvcc", path=shell.get("PATH"))
    if nvcc is None:
        return Finding(
            "note", f"{found}; no nvcc: vLLM uses FlashInfer only where flashinfer-cubin is installed"
        )
    return Finding("good", f"{found}; {nvcc}: FlashInfer may compile kernels")


def check_query(key: str, query: CommandQuery) -> Finding:
    """Check a further command of the machine file; only ``tenants`` may print nothing."""
    command = " ".join(query.command)
    listed = query.rows(_TIMEOUT_S)
    rows = listed.rows
    if listed.problem:
        return Finding("bad", f"{command}: {listed.problem}", f"install it; or fix {key} {_IN_FILE}")
    if not rows and key != "tenants":
        found = f"{command}: {key}.each finds nothing in what it prints"
        return Finding("warning", found, f"fix {key}.each {_IN_FILE}: without it this is not checked")
    result = rows[0].get("driver", "") if key == "driver" else f"{len(rows)} found"
    return Finding("good", f"{command}: {result}")


def _check_lease_command(profile: Profile, lost: Sequence[int]) -> Finding:
    words = profile.before(1, {profile.variable: "0"})
    codes = ", ".join(map(str, lost)) or "none"
    path = shutil.which(words[0])
    return Finding("good", f"{path} precedes every server command ({' '.join(words)}); lost: {codes}")


def _count_devices(gpus: Sequence[Gpu]) -> str:
    names = Counter(f"{gpu.name}, driver {gpu.driver}" for gpu in gpus)
    return "; ".join(f"{count} x {name}" for name, count in names.items())


def _users(
    gpus: Sequence[Gpu], readings: Sequence[DeviceReading], tenants: Sequence[DeviceProcess]
) -> Iterator[str]:
    """Devices whose memory is in use, with the processes on them."""
    labels = {gpu.parent or gpu.uuid: f"gpu{gpu.index}" for gpu in gpus}
    for reading in readings:
        if reading.uuid in labels and reading.in_use:
            pids = [tenant.pid for tenant in tenants if tenant.uuid == reading.uuid]
            users = ", ".join(str(processes.process(pid) or f"pid {pid}") for pid in pids)
            unknown = "a process the driver does not name (another container?)"
            yield (
                f"{labels[reading.uuid]}: {reading.used:.0f} of {reading.total:.0f} MiB in use by "
                f"{users or unknown}"
            )


def _check_system() -> Finding:
    found = f"{platform.system()} {platform.release()}, {os.cpu_count()} processors"
    if platform.system() != "Linux":
        return Finding("bad", found, "servers are found and stopped through /proc: measure on Linux")
    usable = len(os.sched_getaffinity(0))
    if usable != os.cpu_count():
        found += f", {usable} of them for this process"
    return Finding("good", found)


def _check_git() -> Finding:
    path = shutil.which("git")
    if path is None:
        return Finding("bad", "no git command", "install git; only releases can be bisected without it")
    return check_command(Path(path))


def check_flock() -> Finding:
    """The command that holds the lock of an agent."""
    path = shutil.which("flock")
    if path is None:
        return Finding("bad", "no flock command", "install util-linux: ssh and Ray start agents by it")
    return Finding("good", path)


def check_command(path: Path) -> Finding:
    """The version a command prints."""
    command = [str(path), "--version"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    return Finding("good", excerpt(output.stdout.strip()))


def check_disk(name: str, folder: Path) -> Finding:
    """Free space in the folder, or in its nearest existing parent."""
    # The folder is made at first use; its file system is that of the parent.
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    found = f"{free / _GIB:.1f} GiB free for {folder}"
    elsewhere = f"choose another folder: PERFBISECT_{name.upper()}"
    if not os.access(existing, os.W_OK):
        return Finding("bad", f"{existing} cannot be written", elsewhere)
    if free < _MIN_DISK:
        return Finding("bad", found, f"make room, or {elsewhere}")
    if name == "cache" and free < _ENOUGH_DISK:
        return Finding("warning", found, "an environment of vLLM takes 3 to 10 GiB: perfbisect env gc")
    return Finding("good", found)


def check_memory() -> Finding:
    total, available = sampler.memory()
    found = f"{available / 1024:.1f} of {total / 1024:.1f} GiB available"
    need = "vLLM on a CPU takes 3 GiB for the smallest model"
    if available < _MIN_MEMORY_MIB:
        return Finding("bad", found, f"stop other work: {need}")
    if available < _ENOUGH_MEMORY_MIB:
        return Finding("warning", found, need)
    return Finding("good", found)


def _check_shared_memory() -> Finding:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Finding("warning", "no /dev/shm", "the engine's processes communicate through it: mount it")
    free = shutil.disk_usage(folder).free
    found = f"{free / _GIB:.1f} GiB free in /dev/shm"
    if free < _MIN_SHARED:
        return Finding("warning", found, "in a container: increase it, for example --shm-size 2g")
    return Finding("good", found)


def check_leases(folder: Path) -> Finding:
    """Leases of this host's devices and cores."""
    found = leases.describe_holders(leases.holders(folder))
    if not found:
        return Finding("good", "no other perfbisect measures on this host")
    return Finding("warning", found, "jobs that need the same wait, or are refused")


def check_load() -> Finding:
    """Processor load, and the processes that cause most of it."""
    table, times = processes.table(), sampler.cpu_times()
    # Shares are differences of counters: one reading says what was used since boot.
    time.sleep(_LOAD_S)
    later, now = processes.table(), sampler.cpu_times()
    shares = now.shares(times) if now and times else None
    if shares is None:
        return Finding("warning", "the kernel does not report it", "mount /proc")
    busy, steal = shares
    found, limits = f"{busy:.0%} of the processors are busy", InterferenceLimits()
    if limits.steal is not None and steal > limits.steal:
        return Finding("warning", f"{found}, the hypervisor takes {steal:.0%}", "measure on another host")
    if limits.foreign_cpu is not None and busy > limits.foreign_cpu:
        used = {
            row: row.cpu_seconds - (table[pid].cpu_seconds if pid in table else 0.0)
            for pid, row in later.items()
            if pid != os.getpid()
        }
        most = sorted(used, key=lambda row: used[row], reverse=True)[:3]
        users = ", ".join(f"{row} {used[row] / _LOAD_S:.0%} of one" for row in most if used[row] > 0)
        found += f": {users}" if users else ""
        return Finding("warning", found, "stop it, or measure elsewhere: runs beside it are discarded")
    return Finding("good", found)


def _check_clock() -> Finding:
    """Check the wall clock, which dates jobs; durations use a monotonic clock."""
    # A network file system dates files by its server's clock.
    with tempfile.NamedTemporaryFile() as file:
        skew = abs(Path(file.name).stat().st_mtime - time.time())
    if skew > _MAX_SKEW_S:
        return Finding("warning", f"clock and file system differ by {skew:.0f} s", "set the clock")
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if time.time() < _EARLIEST:
        return Finding("warning", now, "the clock is wrong: job ids sort by it")
    if clock.synchronised() is False:
        return Finding("note", f"{now}, not synchronised: dates may jump, durations do not")
    return Finding("good", now)


def index_checks(make_builder: Callable[[], Builder] | None, change: Change | None) -> Iterator[Check]:
    """The package registry with uv's settings, and each source of a builder, queried for ``change``."""
    try:
        builder = make_builder() if make_builder is not None else None
    except PerfbisectError as error:
        yield "indices", partial(_failure, error)
        return
    yield "index", check_registry
    builders = builder.builders if isinstance(builder, ChainBuilder) else (builder,)
    for part in builders:
        settings = part.settings if isinstance(part, CachedBuilder) else None
        if isinstance(settings, NearestWheel):
            part, settings = settings.base, settings.base.settings
        if part is None or change is None:
            continue
        if isinstance(settings, WheelSettings):
            yield "index", partial(check_wheel_index, part, settings, change)
        if isinstance(settings, ImageSettings):
            yield "images", partial(check_images, part, settings, change)


def check_registry() -> Finding:
    """Query the package registry, bypassing the cache."""
    what = "package registry"
    with tempfile.TemporaryDirectory(prefix="perfbisect-") as folder:
        run = BuildRun(Path(folder) / "registry.log", _REGISTRY_TIMEOUT_S)
        try:
            return Finding("good", f"{what}: {uv.find_package(run, 'pip', folder=Path(folder))}")
        except BuildError as error:
            return Finding("bad", f"{what}: {error.message}", "check uv's index settings (UV_DEFAULT_INDEX)")
        except PerfbisectError as error:
            return _unreachable(what, error)


def check_wheel_index(builder: Builder, settings: WheelSettings, change: Change) -> Finding:
    what = f"wheel index {settings.index.template}"
    try:
        refusal = builder.refuses(change)
    except PerfbisectError as error:
        return _unreachable(what, error)
    if refusal is not None:
        return Finding("note", f"{what}: answers, but for {change.short}: {refusal.reason}")
    return Finding("good", f"{what}: has a wheel for {change.short}")


def check_images(builder: Builder, settings: ImageSettings, change: Change) -> Finding:
    """Whether the tool works for this user, and finds the image of a change."""
    try:
        what = f"images {settings.template} by {settings.store.version()}"
        refusal = builder.refuses(change)
    except PerfbisectError as error:
        return _unreachable(f"images {settings.template}", error)
    if refusal is not None:
        return Finding("note", f"{what}: works, but for {change.short}: {refusal.reason}")
    return Finding("good", f"{what}: has one for {change.short}")


def _unreachable(what: str, error: PerfbisectError) -> Finding:
    advice = error.next_step or "look at the network and the proxies"
    return Finding("bad", f"{what}: {error.message}", advice)
