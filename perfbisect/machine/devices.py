"""Devices of this machine, their state, processes and free memory."""

from __future__ import annotations

import csv
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from perfbisect.errors import Interrupted, MachineError
from perfbisect.system import environ
from perfbisect.system.commands import capture
from perfbisect.system.logs import excerpt
from perfbisect.system.processes import StopRequested, never, process

_TIMEOUT_S = 20.0
"""Seconds. Without persistence mode the driver initialises every device at each call."""

_NOT_VALID = re.compile(r'Field "([^"]+)" is not a valid field to query')
_NOTHING = re.compile(r"^\[.*\]$|^(?:N/A|ERR!|)$", re.IGNORECASE)

Row = Mapping[str, str]

DEVICE_FIELDS = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "bus": "pci.bus_id",
    "driver": "driver_version",
    "total": "memory.total",
    "used": "memory.used",
    "temperature": "temperature.gpu",
    "power": "power.draw",
    "power_limit": "power.limit",
    "utilization": "utilization.gpu",
    "clock": "clocks.sm",
    "top_clock": "clocks.max.sm",
    "compute_mode": "compute_mode",
    "mig": "mig.mode.current",
    "reasons": "clocks_event_reasons.active",
    "reasons_before_535": "clocks_throttle_reasons.active",
}
"""Name of a field in a row -> the driver's: MiB, degrees Celsius, watts, per cent, MHz."""

_PROCESS_FIELDS = {"pid": "pid", "uuid": "gpu_uuid", "used": "used_memory"}
_FIXED = ("index", "name", "total", "driver", "uuid", "bus", "compute_mode", "mig")
_READ = ("total", "used", "clock", "top_clock", "temperature", "power", "power_limit", "utilization")
_REASONS = ("reasons", "reasons_before_535")


@dataclass(frozen=True)
class SmiRows:
    """Rows in the driver's order, or why there are none.

    A field without a value (``[N/A]``, ``[Not Supported]``, ``[Insufficient Permissions]``, ``[Unknown
    Error]``) is missing in its row.
    """

    rows: tuple[Row, ...] = ()
    problem: str = ""


@dataclass
class Smi:
    """The driver's ``nvidia-smi``. ``command``: its path; None if there is none.

    Remembers the fields that this driver does not have.
    """

    command: str | None = field(default_factory=lambda: shutil.which("nvidia-smi"))
    timeout_s: float = _TIMEOUT_S
    _unknown: set[str] = field(default_factory=set, repr=False)

    def devices(self, fields: Sequence[str], only: Sequence[str] = ()) -> SmiRows:
        """A row for each device, or for these UUIDs, with these of ``DEVICE_FIELDS``."""
        return self._query("--query-gpu", {name: DEVICE_FIELDS[name] for name in fields}, only)

    def processes(self) -> SmiRows:
        """A row for each compute process that the driver lists: ``pid``, ``uuid``, ``used``."""
        return self._query("--query-compute-apps", _PROCESS_FIELDS)

    def text(self, *arguments: str) -> str:
        """What the command prints; empty if it fails."""
        return self._run(*arguments)[0]

    def _query(self, option: str, fields: Mapping[str, str], only: Sequence[str] = ()) -> SmiRows:
        selection = (f"--id={','.join(only)}",) if only else ()
        while True:
            # A driver refuses a whole query for one field that it does not know: that field is left out
            # from then on.
            known = {name: field for name, field in fields.items() if field not in self._unknown}
            query = f"{option}={','.join(known.values())}"
            output, problem = self._run(query, "--format=csv,noheader,nounits", *selection)
            unknown = _NOT_VALID.search(output + problem)
            if unknown is None or unknown[1] not in known.values() or len(known) == 1:
                break
            self._unknown.add(unknown[1])
        lines = csv.reader(output.splitlines(), skipinitialspace=True)
        # Lines of another length are messages between the rows.
        rows = [zip(known, map(str.strip, line), strict=True) for line in lines if len(line) == len(known)]
        return SmiRows(
            tuple({name: value for name, value in row if not _NOTHING.match(value)} for row in rows), problem
        )

    def _run(self, *arguments: str) -> tuple[str, str]:
        if self.command is None:
            return "", "no nvidia-smi"
        return run_command((self.command, *arguments), self.timeout_s)


def run_command(argv: Sequence[str], timeout_s: float) -> tuple[str, str]:
    """Run a command that lists devices: its output, and why it failed, empty if it did not."""
    # Some locales print numbers with a decimal comma.
    done = capture(argv, timeout_s, {**environ.allowed(os.environ), "LC_ALL": "C"})
    if done.returncode != 0:
        problem = excerpt(" ".join((done.stdout + " " + done.stderr).split()), 1000)
        return "", problem or f"{Path(argv[0]).name} ended with exit code {done.returncode}"
    return done.stdout, ""


def _number(row: Row, name: str) -> float | None:
    """A field's value; None if it is missing or no number."""
    try:
        return float(row[name])
    except (KeyError, ValueError):
        return None


REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
"""Why clocks are below their maximum: bits of NVML's ``nvmlClocksEventReason*``."""

_IN_USE = 0.05
"""Share of its memory above which a device counts as in use; a driver itself takes less."""

_GPU_LINE = re.compile(r"^GPU (\d+): (.+?) \(UUID: (GPU-[^)]+)\)")
_MIG_LINE = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+):\s*\(UUID:\s*(MIG-[^)]+)\)")
_PROFILE_MEMORY = re.compile(r"\.(\d+)gb")


@dataclass(frozen=True)
class Gpu:
    """A device or MIG instance; ``memory`` in MiB, 0 if unknown.

    ``index``: the driver's number, in PCI order. Of a MIG instance it is its device's, with ``parent`` that
    device's UUID and ``instance`` its number there. ``mig``: partitioned, so that only its instances compute.
    """

    name: str
    memory: int
    driver: str
    uuid: str
    index: int = 0
    bus: str = ""
    compute_mode: str = ""
    mig: bool = False
    parent: str = ""
    instance: int | None = None

    @property
    def label(self) -> str:
        """Short and unique on this machine: ``gpu3``, ``gpu3.1`` for instance 1 on it."""
        return f"gpu{self.index}" if self.instance is None else f"gpu{self.index}.{self.instance}"


@dataclass(frozen=True)
class DeviceReading:
    """Current state of a device; None where the driver has no value.

    Memory in MiB, clocks in MHz, temperature in degrees Celsius, power in watts, ``utilization``: per cent of
    the last sample period in which a kernel ran.
    """

    uuid: str
    total: float | None = None
    used: float | None = None
    clock: float | None = None
    top_clock: float | None = None
    temperature: float | None = None
    power: float | None = None
    power_limit: float | None = None
    utilization: float | None = None
    reasons: tuple[str, ...] = ()

    @property
    def share_used(self) -> float:
        """Share of its memory that is in use; 0 if the driver does not report it."""
        return self.used / self.total if self.used is not None and self.total else 0.0

    @property
    def in_use(self) -> bool:
        """True if more of its memory is in use than the driver takes."""
        return self.share_used > _IN_USE


@dataclass(frozen=True)
class DeviceProcess:
    """A process with device memory (MiB, None if unknown); ``pid``: the host's, also in a container."""

    pid: int
    uuid: str
    memory: float | None


@lru_cache(maxsize=1)
def gpus() -> tuple[Gpu, ...]:
    """The devices of this machine, read once; empty without a working driver."""
    return list_devices(Smi())


def list_devices(smi: Smi) -> tuple[Gpu, ...]:
    """The devices that a command lists, each followed by its MIG instances."""
    devices = tuple(
        Gpu(
            name=row["name"],
            memory=int(_number(row, "total") or 0),
            driver=row.get("driver", ""),
            uuid=row["uuid"],
            index=int(_number(row, "index") or 0),
            bus=row.get("bus", ""),
            compute_mode=row.get("compute_mode", ""),
            mig=row.get("mig") == "Enabled",
        )
        for row in smi.devices(_FIXED).rows
        if "name" in row and "uuid" in row
    )
    if not any(gpu.mig for gpu in devices):
        return devices
    below: dict[str, list[Gpu]] = {gpu.uuid: [] for gpu in devices}
    parent: Gpu | None = None
    for line in smi.text("-L").splitlines():
        if head := _GPU_LINE.match(line):
            parent = next((gpu for gpu in devices if gpu.uuid == head[3]), None)
        elif parent is not None and (instance := _MIG_LINE.match(line)):
            # nvidia-smi has no column for the memory of an instance: the profile's name (2g.20gb) has it.
            size = _PROFILE_MEMORY.search(instance[1])
            below[parent.uuid].append(
                replace(
                    parent,
                    name=f"{parent.name} MIG {instance[1]}",
                    memory=int(size[1]) * 1024 if size else 0,
                    uuid=instance[3],
                    mig=False,
                    parent=parent.uuid,
                    instance=int(instance[2]),
                )
            )
    return tuple(device for gpu in devices for device in (gpu, *below[gpu.uuid]))


def usable(devices: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The devices that can compute: whole devices and MIG instances, not partitioned devices."""
    return tuple(gpu for gpu in devices if not gpu.mig)


def visible(devices: Sequence[Gpu], mask: str | None) -> tuple[Gpu, ...]:
    """The usable devices that a mask of indices or UUIDs (``CUDA_VISIBLE_DEVICES``) selects.

    As in CUDA, the mask ends at an invalid entry, a unique prefix of a UUID is enough, and the index of a
    partitioned device means its first instance.
    """
    if mask is None:
        return usable(devices)
    chosen: list[Gpu] = []
    for entry in map(str.strip, mask.split(",")):
        gpu: Gpu | None = None
        matching = [gpu for gpu in devices if gpu.uuid.startswith(entry)]
        if entry.isdigit():
            gpu = next((gpu for gpu in usable(devices) if gpu.index == int(entry)), None)
        elif entry.startswith(("GPU-", "MIG-")) and len(matching) == 1:
            gpu = matching[0]
            if gpu.mig:
                gpu = next((instance for instance in devices if instance.parent == matching[0].uuid), None)
        if gpu is None:
            break
        chosen.append(gpu)
    return tuple(chosen)


def readings(smi: Smi, only: Sequence[str] = ()) -> tuple[DeviceReading, ...]:
    """Current state of all devices, or of these UUIDs; empty if the driver fails."""
    rows = smi.devices(("uuid", *_READ, *_REASONS), only).rows
    return tuple(
        DeviceReading(
            uuid=row["uuid"],
            reasons=reasons(next((row[name] for name in _REASONS if row.get(name)), "")),
            **{name: _number(row, name) for name in _READ},
        )
        for row in rows
        if "uuid" in row
    )


def reasons(mask: str) -> tuple[str, ...]:
    """Names of the bits of a mask (``0x0000000000000044``); unknown bits in hex."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return ()
    return tuple(REASONS.get(1 << bit, hex(1 << bit)) for bit in range(bits.bit_length()) if bits >> bit & 1)


def tenants(smi: Smi) -> tuple[DeviceProcess, ...]:
    """The processes on the devices that the driver lists."""
    return tuple(
        DeviceProcess(int(row["pid"]), row["uuid"], _number(row, "used"))
        for row in smi.processes().rows
        if row.get("pid", "").isdigit() and "uuid" in row
    )


_UNNAMED = "a process that the driver does not name (another container, or one that just ended)"


def wait_for_memory(
    uuids: Sequence[str],
    *,
    share: float,
    timeout: float,
    smi: Smi,
    on_wait: Callable[[str], None] = lambda _: None,
    stop_requested: StopRequested = never,
    every: float = 1.0,
) -> None:
    """Wait until ``share`` of the memory of whole devices is free.

    An ended engine releases memory slowly. ``on_wait`` is called once with the holders. MIG instances are
    skipped: the driver reports memory of whole devices only.

    Raises:
        MachineError: memory is still in use after ``timeout`` seconds, or a device is no longer listed.
        Interrupted: ``stop_requested`` returned true.
    """
    # The driver reports the memory of whole devices, not that of one instance.
    whole = [uuid for uuid in uuids if not uuid.startswith("MIG-")]
    if not whole:
        return
    deadline = time.monotonic() + timeout
    is_reported = False
    while True:
        current = {reading.uuid: reading for reading in readings(smi, whole)}
        # The engine takes a share of the whole memory, and refuses to start if less is free.
        full = [reading for reading in current.values() if 1.0 - reading.share_used < share]
        # A device that fell off the bus is no longer listed; the wait may outlast a driver that is slow to
        # answer.
        lost = [uuid for uuid in whole if uuid not in current]
        if not full and not lost:
            return
        processes = tenants(smi) if full else ()
        problems = []
        for device in full:
            names = ", ".join(
                str(process(holder.pid) or f"pid {holder.pid}, not of this container or gone")
                + ("" if holder.memory is None else f" with {holder.memory:.0f} MiB")
                for holder in processes
                if holder.uuid == device.uuid
            )
            problems.append(
                f"device {device.uuid}: {device.used or 0:.0f} of {device.total or 0:.0f} MiB are in use, "
                f"{share:.0%} must be free; held by {names or _UNNAMED}"
            )
        problem = smi.devices(("uuid",)).problem if lost else ""
        because = f": {problem}" if problem else ""
        problems += [f"the driver does not list device {uuid}{because}" for uuid in lost]
        why = "; ".join(problems)
        if not is_reported:
            on_wait(f"waits for memory of devices: {why}")
            is_reported = True
        if stop_requested():
            raise Interrupted(f"stopped while it waited for memory: {why}")
        if time.monotonic() >= deadline:
            raise MachineError(
                f"{why} (waited {timeout:.0f} s)",
                next_step="nvidia-smi shows who uses the devices; choose others with CUDA_VISIBLE_DEVICES",
                code="device_memory_taken" if full else "device_failed",
            )
        time.sleep(min(every, max(0.0, deadline - time.monotonic())))
