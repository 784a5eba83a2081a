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
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from pydantic import Field

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
from perfbisect.report.template import render_sentences
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


class DoctorDocument(Document):
    """``perfbisect doctor``."""

    schema_: Literal["perfbisect.doctor/2"] = Field(default="perfbisect.doctor/2", alias="schema")
    fit: bool
    checks: tuple[DoctorCheckDocument, ...]


@dataclass(frozen=True)
class Finding:
    """What a check found: the template has the words of each ``kind``."""

    state: State
    kind: str
    values: Mapping[str, object]

    @cached_property
    def _texts(self) -> tuple[str, ...]:
        values = {"kind": self.kind, "state": self.state, "v": self.values}
        return render_sentences("setup/templates/doctor.jinja", values)

    @property
    def found(self) -> str:
        return self._texts[0]

    @property
    def advice(self) -> str:
        """What to do; empty where nothing is wrong."""
        return "".join(self._texts[1:])


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
        results.append(
            DoctorCheckDocument(name=name, state=finding.state, found=finding.found, advice=finding.advice)
        )
    return tuple(results)


def _failure(error: Exception) -> Finding:
    message, advice = str(error) or type(error).__name__, ""
    if isinstance(error, PerfbisectError):
        message, advice = error.message, error.next_step or ""
    return Finding("bad", "failed", {"message": " ".join(message.split()), "advice": advice})


def check_settings(root: Path | None, machine: str | None) -> Finding:
    """Which ``perfbisect.yaml`` was read; ``root``: of the repository."""
    if root is None:
        return Finding("note", "no repository", {"file": SETTINGS_FILE, "folder": str(Path.cwd())})
    path = root / SETTINGS_FILE
    if not path.is_file():
        return Finding("note", "no settings", {"file": str(path)})
    return Finding("good", "settings", {"file": str(path), "machine": machine or ""})


def fleet_checks(
    machines: Sequence[MachineDocument], spec: str, builders: Sequence[MachineDocument] = ()
) -> list[Check]:
    """What each machine of a fleet is, and each check there that is not good.

    ``spec``: the fleet as it was typed; ``builders``: machines that build and do not measure.
    """
    classes = Counter(machine.machine_class for machine in machines if machine.slots).most_common(1)
    is_reached = spec.startswith(("ssh", "ray"))
    rows: list[Check] = []
    for machine in (*machines, *builders):
        if machine.slots:
            builds = machine in builders
            common = "" if builds else classes[0][0]
            is_usual = builds or is_same_class(machine.machine_class, common)
            of_machine = {"machine": machine, "builds": builds, "common": "" if is_usual else common}
            found = partial(Finding, "good" if is_usual else "warning", "machine", of_machine)
        else:
            install = f"perfbisect agent install {machine.name} --fleet {spec}"
            without = {"problem": machine.problem, "install": install if is_reached else ""}
            found = partial(Finding, "bad", "machine without a slot", without)
        problems = [
            partial(Finding, check.state, "check of a machine", check.model_dump())
            for check in machine.checks
            if check.state in ("warning", "bad")
        ]
        if machine.skew > _MAX_SKEW_S:
            values = {"seconds": round(machine.skew), "machine": machine.name}
            problems.append(partial(Finding, "warning", "clock of a machine", values))
        rows += [(machine.name, finding) for finding in (found, *problems)]
    return rows


def machine_checks(
    *, state: Path, cache: Path, shell: Mapping[str, str], profile: Profile
) -> tuple[Check, ...]:
    """The checks of a machine, in the order in which a measurement depends on them."""
    return (
        ("python", lambda: _fact(f"{platform.python_version()} at {sys.executable}")),
        ("system", _check_system),
        ("git", partial(check_tool, "git", prints_version=True)),
        ("uv", lambda: check_command(uv.find_uv())),
        ("state", partial(check_disk, "state", state)),
        ("cache", partial(check_disk, "cache", cache)),
        ("memory", check_memory),
        ("shm", _check_shared_memory),
        ("ports", lambda: Finding("good", "port", {"port": ports.free_port()})),
        *device_checks(shell, profile),
        ("leases", lambda: check_leases(leases.lock_folder(shell))),
        ("load", check_load),
        ("clock", _check_clock),
        ("py-spy", lambda: check_sampling(find_py_spy())),
    )


def check_sampling(py_spy: Path | None) -> Finding:
    """Whether profile launches can sample stacks; only ``explain --profile`` needs that."""
    problem = sampling_problem(py_spy, is_root=os.geteuid() == 0)
    if problem:
        return Finding("warning" if py_spy else "note", "no stacks", {"problem": problem})
    return _fact(str(py_spy))


def device_checks(shell: Mapping[str, str], profile: Profile) -> Iterator[Check]:
    """Checks of a machine kind: device queries, device selection and lease command."""
    if profile.devices == "none":
        yield "machine", partial(Finding, "good", "no devices needed", {"machine": profile.name})
    else:
        command = profile.query.command[0] if profile.query else "nvidia-smi"
        path = shutil.which(command)
        found = {"machine": profile.name, "path": path, "command": command, "in_file": bool(profile.query)}
        yield "machine", partial(Finding, "good" if path else "bad", "device command", found)
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


def check_devices(shell: Mapping[str, str], smi: Smi, profile: Profile) -> Finding:
    """The devices that the mask in ``shell`` leaves, and who uses them."""
    known = devices.list_devices(smi)
    if not known:
        problem = smi.devices(("uuid",)).problem
        return Finding("bad", "no devices", {"problem": problem, "in_file": profile.query is not None})
    mask = shell.get(profile.variable)
    visible = devices.visible(known, mask)
    kinds = Counter((gpu.name, gpu.driver) for gpu in visible or devices.usable(known))
    values: dict[str, object] = {
        "devices": [(count, name, driver) for (name, driver), count in kinds.items()],
        "variable": profile.variable,
        "mask": mask,
    }
    if not visible:
        return Finding("bad", "no device selected", values)
    if any(gpu.compute_mode == "Prohibited" for gpu in visible):
        return Finding("bad", "devices prohibited", values)
    readings = devices.readings(smi)
    values["users"] = list(_users(visible, readings, devices.tenants(smi)))
    values["slowed"] = [(one.uuid, why) for one in readings for why in one.reasons if why in SLOWED]
    if values["users"] or values["slowed"]:
        return Finding("warning", "devices in use", values)
    if any(gpu.parent for gpu in visible):
        return Finding("warning", "devices of MIG", values)
    return Finding("good", "devices", values)


def check_selection(shell: Mapping[str, str], smi: Smi, profile: Profile) -> Finding:
    """The variable that selects devices, and its value for the first of them."""
    mask = shell.get(profile.variable)
    visible = devices.visible(devices.list_devices(smi), mask)
    if not visible:
        return Finding("warning", "nothing to select", {"variable": profile.variable})
    given = " ".join(f"{name}={value}" for name, value in sorted(profile.mask(visible[:1]).items()))
    values = {"variable": profile.variable, "is_set": mask is not None, "given": given}
    return Finding("good", "selection", values)


def check_cuda(shell: Mapping[str, str], smi: Smi) -> Finding:
    """What the driver can run, and whether CUDA's compiler is there, on which kernels depend."""
    driver = wheel.driver_cuda(smi)
    if driver is None:
        return Finding("warning", "unknown CUDA", {})
    nvcc = shutil.which("nvcc", path=shell.get("PATH"))
    values = {"driver": driver, "variants": wheel.variants(driver), "nvcc": nvcc}
    return Finding("good" if nvcc else "note", "CUDA", values)


def check_query(key: str, query: CommandQuery) -> Finding:
    """Check a further command of the machine file; only ``tenants`` may print nothing."""
    listed = query.rows(_TIMEOUT_S)
    rows = listed.rows
    values = {"command": " ".join(query.command), "key": key, "problem": listed.problem, "rows": rows}
    if listed.problem:
        return Finding("bad", "failed query", values)
    return Finding("good" if rows or key == "tenants" else "warning", "query", values)


def _check_lease_command(profile: Profile, lost: Sequence[int]) -> Finding:
    words = profile.before(1, {profile.variable: "0"})
    values = {"path": str(shutil.which(words[0])), "command": " ".join(words), "lost": lost}
    return Finding("good", "lease command", values)


def _users(
    gpus: Sequence[Gpu], readings: Sequence[DeviceReading], tenants: Sequence[DeviceProcess]
) -> Iterator[tuple[str, DeviceReading, list[str]]]:
    """Devices whose memory is in use, with the processes on them."""
    labels = {gpu.parent or gpu.uuid: f"gpu{gpu.index}" for gpu in gpus}
    for reading in readings:
        if reading.uuid in labels and reading.in_use:
            pids = [tenant.pid for tenant in tenants if tenant.uuid == reading.uuid]
            users = [str(processes.process(pid) or f"pid {pid}") for pid in pids]
            yield labels[reading.uuid], reading, users


def _check_system() -> Finding:
    values = {"system": platform.system(), "release": platform.release(), "processors": os.cpu_count()}
    if platform.system() != "Linux":
        return Finding("bad", "another system", values)
    return Finding("good", "system", {**values, "usable": len(os.sched_getaffinity(0))})


def check_tool(name: str, *, prints_version: bool = False) -> Finding:
    """Whether a command is on the PATH, and which version it is."""
    path = shutil.which(name)
    if path is None:
        return Finding("bad", "no command", {"name": name})
    return check_command(Path(path)) if prints_version else _fact(path)


def _fact(text: str) -> Finding:
    """A name, a path or what a command printed."""
    return Finding("good", "fact", {"text": text})


def check_command(path: Path) -> Finding:
    """The version a command prints."""
    command = [str(path), "--version"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    return _fact(excerpt(output.stdout.strip()))


def check_disk(name: str, folder: Path) -> Finding:
    """Free space in the folder, or in its nearest existing parent."""
    # The folder is made at first use; its file system is that of the parent.
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    values = {"free": free / _GIB, "folder": str(folder), "variable": f"PERFBISECT_{name.upper()}"}
    if not os.access(existing, os.W_OK):
        return Finding("bad", "no permission", {**values, "folder": str(existing)})
    if free < _MIN_DISK:
        return Finding("bad", "disk", values)
    return Finding("warning" if name == "cache" and free < _ENOUGH_DISK else "good", "disk", values)


def check_memory() -> Finding:
    total, available = sampler.memory()
    values = {"available": available / 1024, "total": total / 1024}
    is_low = available < _ENOUGH_MEMORY_MIB
    return Finding(
        "bad" if available < _MIN_MEMORY_MIB else "warning" if is_low else "good", "memory", values
    )


def _check_shared_memory() -> Finding:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Finding("warning", "no shared memory", {})
    free = shutil.disk_usage(folder).free
    return Finding("warning" if free < _MIN_SHARED else "good", "shared memory", {"free": free / _GIB})


def check_leases(folder: Path) -> Finding:
    """Leases of this host's devices and cores."""
    holders = leases.describe_holders(leases.holders(folder))
    return Finding("warning" if holders else "good", "leases", {"holders": holders})


def check_load() -> Finding:
    """Processor load, and the processes that cause most of it."""
    table, times = processes.table(), sampler.cpu_times()
    # Shares are differences of counters: one reading says what was used since boot.
    time.sleep(_LOAD_S)
    later, now = processes.table(), sampler.cpu_times()
    shares = now.shares(times) if now and times else None
    if shares is None:
        return Finding("warning", "unknown load", {})
    busy, steal = shares
    values, limits = {"busy": busy, "steal": steal}, InterferenceLimits()
    if limits.steal is not None and steal > limits.steal:
        return Finding("warning", "stolen processors", values)
    if limits.foreign_cpu is not None and busy > limits.foreign_cpu:
        used = {
            row: row.cpu_seconds - (table[pid].cpu_seconds if pid in table else 0.0)
            for pid, row in later.items()
            if pid != os.getpid()
        }
        most = sorted(used, key=lambda row: used[row], reverse=True)[:3]
        users = [(str(row), used[row] / _LOAD_S) for row in most if used[row] > 0]
        return Finding("warning", "load", {**values, "users": users})
    return Finding("good", "load", {**values, "users": ()})


def _check_clock() -> Finding:
    """Check the wall clock, which dates jobs; durations use a monotonic clock."""
    # A network file system dates files by its server's clock.
    with tempfile.NamedTemporaryFile() as file:
        skew = abs(Path(file.name).stat().st_mtime - time.time())
    if skew > _MAX_SKEW_S:
        return Finding("warning", "file system clock", {"seconds": round(skew)})
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if time.time() < _EARLIEST:
        return Finding("warning", "wrong clock", {"now": now})
    if clock.synchronised() is False:
        return Finding("note", "loose clock", {"now": now})
    return _fact(now)


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
            yield "index", partial(check_source, part, settings, change)
        if isinstance(settings, ImageSettings):
            yield "images", partial(check_source, part, settings, change)


def check_registry() -> Finding:
    """Query the package registry, bypassing the cache."""
    source = {"source": "package registry"}
    with tempfile.TemporaryDirectory(prefix="perfbisect-") as folder:
        run = BuildRun(Path(folder) / "registry.log", _REGISTRY_TIMEOUT_S)
        try:
            package = str(uv.find_package(run, "pip", folder=Path(folder)))
            return Finding("good", "registry", {**source, "message": package})
        except BuildError as error:
            return Finding("bad", "registry", {**source, "message": error.message})
        except PerfbisectError as error:
            return _unreachable(error, **source)


def check_source(builder: Builder, settings: WheelSettings | ImageSettings, change: Change) -> Finding:
    """Whether a wheel index or the tool for images answers this user, and has what a change needs."""
    if isinstance(settings, ImageSettings):
        source, version = f"images {settings.template}", settings.store.version
    else:
        source, version = f"wheel index {settings.index.template}", None
    try:
        tool = f" by {version()}" if version else ""
        refusal = builder.refuses(change)
    except PerfbisectError as error:
        return _unreachable(error, source)
    values = {"source": source + tool, "change": change.short, "refusal": refusal.reason if refusal else ""}
    return Finding("note" if refusal else "good", "source", {**values, "is_index": version is None})


def _unreachable(error: PerfbisectError, source: str) -> Finding:
    values = {"source": source, "message": error.message, "advice": error.next_step or ""}
    return Finding("bad", "no answer", values)
