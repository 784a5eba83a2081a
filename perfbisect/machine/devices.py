"""Devices of this machine, their current state and processes, from ``nvidia-smi``."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from perfbisect.system import environ

_TIMEOUT_S = 20.0
"""Seconds. Without persistence mode the driver initialises every device at each call."""

_NOT_VALID = re.compile(r'Field "([^"]+)" is not a valid field to query')
_NOTHING = re.compile(r"^\[.*\]$|^(?:N/A|ERR!|)$", re.IGNORECASE)

Row = Mapping[str, str]


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
        """A row for each device, or for these UUIDs."""
        return self._query("--query-gpu", fields, only)

    def processes(self, fields: Sequence[str]) -> SmiRows:
        """A row for each compute process that the driver lists."""
        return self._query("--query-compute-apps", fields)

    def listing(self) -> str:
        """What ``nvidia-smi -L`` prints: devices and, below them, their MIG instances; empty if it fails."""
        return self._run("-L").stdout

    def topology(self) -> str:
        """What ``nvidia-smi topo -m`` prints; empty if it fails."""
        return self._run("topo", "-m").stdout

    def _query(self, option: str, fields: Sequence[str], only: Sequence[str] = ()) -> SmiRows:
        while True:
            asked = [name for name in fields if name not in self._unknown]
            output = self._run(
                f"{option}={','.join(asked)}",
                "--format=csv,noheader,nounits",
                *((f"--id={','.join(only)}",) if only else ()),
            )
            unknown = _NOT_VALID.search(output.stdout + output.problem)
            if unknown is None or unknown[1] not in asked or len(asked) == 1:
                break
            self._unknown.add(unknown[1])
        if output.problem:
            return SmiRows(problem=output.problem)
        return SmiRows(parse_rows(output.stdout, asked))

    def _run(self, *arguments: str) -> CommandOutput:
        if self.command is None:
            return CommandOutput("", "no nvidia-smi")
        return run_command((self.command, *arguments), self.timeout_s)


@dataclass(frozen=True)
class CommandOutput:
    """Output of a command; ``problem``: why it failed, empty if it did not."""

    stdout: str
    problem: str


def run_command(argv: Sequence[str], timeout_s: float) -> CommandOutput:
    """Run a command that lists devices."""
    name = Path(argv[0]).name
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**environ.allowed(os.environ), "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return CommandOutput("", f"{name} did not answer within {timeout_s:.0f} s")
    except OSError as error:
        return CommandOutput("", f"{name} cannot be started: {error.strerror or error}")
    if done.returncode != 0:
        problem = " ".join((done.stdout + " " + done.stderr).split())
        return CommandOutput("", problem or f"{name} ended with exit code {done.returncode}")
    return CommandOutput(done.stdout, "")


def parse_rows(text: str, fields: Sequence[str]) -> tuple[Row, ...]:
    """Parse ``--format=csv,noheader,nounits``; lines of another length are skipped."""
    rows = []
    for values in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(values) == len(fields):
            row = {name: value.strip() for name, value in zip(fields, values, strict=True)}
            rows.append({name: value for name, value in row.items() if not _NOTHING.match(value)})
    return tuple(rows)


def number(row: Row, name: str) -> float | None:
    """A field's value; None if it is missing or no number."""
    try:
        return float(row[name])
    except (KeyError, ValueError):
        return None


_FIXED = (
    "index", "name", "memory.total", "driver_version", "uuid", "pci.bus_id", "compute_mode",
    "mig.mode.current",
)  # fmt: skip
_EVENT, _THROTTLE = "clocks_event_reasons.active", "clocks_throttle_reasons.active"
"""One bit mask: the first name is for drivers from 535 on, the second for older ones."""
_CHANGING = (
    "uuid", "memory.total", "memory.used", "memory.free", "clocks.sm", "clocks.max.sm",
    "temperature.gpu", "power.draw", "power.limit", "utilization.gpu", _EVENT, _THROTTLE,
)  # fmt: skip
_PROCESS = ("pid", "gpu_uuid", "used_memory")

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

IN_USE = 0.05
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
    free: float | None = None
    sm_clock: float | None = None
    max_sm_clock: float | None = None
    temperature: float | None = None
    power: float | None = None
    power_limit: float | None = None
    utilization: float | None = None
    reasons: tuple[str, ...] = ()


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
    found = parse_gpus(smi.devices(_FIXED).rows)
    return with_instances(found, smi.listing()) if any(gpu.mig for gpu in found) else found


def parse_gpus(rows: Iterable[Row]) -> tuple[Gpu, ...]:
    """Parse devices; rows without name or UUID are skipped."""
    found = []
    for row in rows:
        if "name" not in row or "uuid" not in row:
            continue
        found.append(
            Gpu(
                name=row["name"],
                memory=int(number(row, "memory.total") or 0),
                driver=row.get("driver_version", ""),
                uuid=row["uuid"],
                index=int(number(row, "index") or 0),
                bus=row.get("pci.bus_id", ""),
                compute_mode=row.get("compute_mode", ""),
                mig=row.get("mig.mode.current") == "Enabled",
            )
        )
    return tuple(found)


def with_instances(devices: Sequence[Gpu], listing: str) -> tuple[Gpu, ...]:
    """Add the MIG instances of ``nvidia-smi -L`` after their devices, with nominal memory (``2g.20gb``)."""
    below: dict[str, list[Gpu]] = {gpu.uuid: [] for gpu in devices}
    parent: Gpu | None = None
    for line in listing.splitlines():
        if head := _GPU_LINE.match(line):
            parent = next((gpu for gpu in devices if gpu.uuid == head[3]), None)
        elif parent is not None and (found := _MIG_LINE.match(line)):
            size = _PROFILE_MEMORY.search(found[1])
            below[parent.uuid].append(
                replace(
                    parent,
                    name=f"{parent.name} MIG {found[1]}",
                    memory=int(size[1]) * 1024 if size else 0,
                    uuid=found[3],
                    mig=False,
                    parent=parent.uuid,
                    instance=int(found[2]),
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
    for entry in (part.strip() for part in mask.split(",")):
        named = _named(devices, entry)
        if named is None:
            break
        chosen.append(named)
    return tuple(chosen)


def _named(devices: Sequence[Gpu], entry: str) -> Gpu | None:
    if entry.isdigit():
        on_it = [gpu for gpu in usable(devices) if gpu.index == int(entry)]
        return on_it[0] if on_it else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    found = [gpu for gpu in devices if gpu.uuid.startswith(entry)]
    if len(found) != 1:
        return None
    if found[0].mig:
        return next((gpu for gpu in devices if gpu.parent == found[0].uuid), None)
    return found[0]


def readings(smi: Smi, only: Sequence[str] = ()) -> tuple[DeviceReading, ...]:
    """Current state of all devices, or of these UUIDs; empty if the driver fails."""
    return parse_readings(smi.devices(_CHANGING, only).rows)


def parse_readings(rows: Iterable[Row]) -> tuple[DeviceReading, ...]:
    """Parse readings; rows without UUID are skipped."""
    return tuple(
        DeviceReading(
            uuid=row["uuid"],
            total=number(row, "memory.total"),
            used=number(row, "memory.used"),
            free=number(row, "memory.free"),
            sm_clock=number(row, "clocks.sm"),
            max_sm_clock=number(row, "clocks.max.sm"),
            temperature=number(row, "temperature.gpu"),
            power=number(row, "power.draw"),
            power_limit=number(row, "power.limit"),
            utilization=number(row, "utilization.gpu"),
            reasons=reasons(row.get(_EVENT) or row.get(_THROTTLE) or ""),
        )
        for row in rows
        if "uuid" in row
    )


def reasons(mask: str) -> tuple[str, ...]:
    """Names of the bits of a mask (``0x0000000000000044``); unknown bits in hex."""
    try:
        left = int(mask, 16)
    except ValueError:
        return ()
    return tuple(REASONS.get(1 << bit, hex(1 << bit)) for bit in range(left.bit_length()) if left >> bit & 1)


def tenants(smi: Smi) -> tuple[DeviceProcess, ...]:
    """The processes on the devices that the driver lists."""
    return parse_tenants(smi.processes(_PROCESS).rows)


def in_use(smi: Smi) -> frozenset[str]:
    """UUIDs of the devices whose memory is in use by more than the driver."""
    return frozenset(
        reading.uuid
        for reading in readings(smi)
        if reading.used is not None and reading.total and reading.used > IN_USE * reading.total
    )


def parse_tenants(rows: Iterable[Row]) -> tuple[DeviceProcess, ...]:
    """Parse processes; rows without process id or UUID are skipped."""
    return tuple(
        DeviceProcess(int(row["pid"]), row["gpu_uuid"], number(row, "used_memory"))
        for row in rows
        if row.get("pid", "").isdigit() and "gpu_uuid" in row
    )
