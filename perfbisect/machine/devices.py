"""The devices of this machine (NVIDIA, or none): what stays, what changes, and who computes on them."""

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
from typing import Literal

from perfbisect.system import environ

_PATIENCE = 20.0
"""Seconds. Without persistence mode the driver initialises every device at each call."""

_NOT_VALID = re.compile(r'Field "([^"]+)" is not a valid field to query')
_NOTHING = re.compile(r"^\[.*\]$|^(?:N/A|ERR!|)$", re.IGNORECASE)

Row = Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """Rows in the order told, or why there are none.

    A field that the driver does not know or tell (``[N/A]``, ``[Not Supported]``, ``[Insufficient
    Permissions]``, ``[Unknown Error]``) is missing in its row.
    """

    rows: tuple[Row, ...] = ()
    problem: str = ""


@dataclass
class Smi:
    """The command of the driver. ``command``: its path; None where there is none: then nothing is started.

    Remembers which fields this driver does not have, so that each is refused once.
    """

    command: str | None = field(default_factory=lambda: shutil.which("nvidia-smi"))
    patience: float = _PATIENCE
    _unknown: set[str] = field(default_factory=set, repr=False)

    def devices(self, fields: Sequence[str], only: Sequence[str] = ()) -> Answer:
        """A row for each device, or for those of these UUIDs."""
        return self._query("--query-gpu", fields, only)

    def processes(self, fields: Sequence[str]) -> Answer:
        """A row for each process that computes on a device, where the driver tells them."""
        return self._query("--query-compute-apps", fields)

    def listing(self) -> str:
        """What ``nvidia-smi -L`` prints: devices and, below them, their MIG instances; empty if it fails."""
        return self._run("-L").stdout

    def topology(self) -> str:
        """What ``nvidia-smi topo -m`` prints; empty if it fails."""
        return self._run("topo", "-m").stdout

    def _query(self, option: str, fields: Sequence[str], only: Sequence[str] = ()) -> Answer:
        while True:
            asked = [name for name in fields if name not in self._unknown]
            told = self._run(
                f"{option}={','.join(asked)}",
                "--format=csv,noheader,nounits",
                *((f"--id={','.join(only)}",) if only else ()),
            )
            unknown = _NOT_VALID.search(told.stdout + told.said)
            if unknown is None or unknown[1] not in asked or len(asked) == 1:
                break
            self._unknown.add(unknown[1])
        if told.said:
            return Answer(problem=told.said)
        return Answer(parse_rows(told.stdout, asked))

    def _run(self, *arguments: str) -> Told:
        if self.command is None:
            return Told("", "no nvidia-smi")
        return ask((self.command, *arguments), self.patience)


@dataclass(frozen=True)
class Told:
    """What a command printed; ``said``: why it is of no use, empty if it is."""

    stdout: str
    said: str


def ask(argv: Sequence[str], patience: float) -> Told:
    """What a command that tells of devices prints within so many seconds."""
    name = Path(argv[0]).name
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**environ.allowed(os.environ), "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return Told("", f"{name} did not answer within {patience:.0f} s")
    except OSError as error:
        return Told("", f"{name} cannot be started: {error.strerror or error}")
    if done.returncode != 0:
        said = " ".join((done.stdout + " " + done.stderr).split())
        return Told("", said or f"{name} ended with exit code {done.returncode}")
    return Told(done.stdout, "")


def parse_rows(text: str, fields: Sequence[str]) -> tuple[Row, ...]:
    """Lines of ``--format=csv,noheader,nounits`` -> rows; a line of another length is none."""
    rows = []
    for values in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(values) == len(fields):
            told = {name: value.strip() for name, value in zip(fields, values, strict=True)}
            rows.append({name: value for name, value in told.items() if not _NOTHING.match(value)})
    return tuple(rows)


def number(row: Row, name: str) -> float | None:
    """The value of a field; None if it is missing or no number."""
    try:
        return float(row[name])
    except (KeyError, ValueError):
        return None


_FIXED = (
    "index", "name", "memory.total", "driver_version", "uuid", "pci.bus_id", "compute_mode",
    "mig.mode.current",
)  # fmt: skip
_EVENT, _THROTTLE = "clocks_event_reasons.active", "clocks_throttle_reasons.active"
"""One bit mask under two names: drivers from 535 on call it the first, older ones know only the second."""
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
"""Why clocks are below their maximum: the bits of NVML's ``nvmlClocksEventReason*``."""

IN_USE = 0.05
"""Share of a device's memory from which on it counts as used; a driver itself takes less."""

_GPU_LINE = re.compile(r"^GPU (\d+): (.+?) \(UUID: (GPU-[^)]+)\)")
_MIG_LINE = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+):\s*\(UUID:\s*(MIG-[^)]+)\)")
_PROFILE_MEMORY = re.compile(r"\.(\d+)gb")


@dataclass(frozen=True)
class Gpu:
    """A device as ``nvidia-smi`` tells it; ``memory`` in MiB, 0 if it is not told.

    ``index``: the driver's count, in the order of the PCI bus; of a MIG instance that of the device it is
    on, ``parent`` that device's UUID, ``instance`` its own number there. ``mig``: the device is partitioned:
    nothing computes on it but on its instances.
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
class Reading:
    """What a device is doing now; None where the driver does not tell.

    Memory in MiB, clocks in MHz, temperature in degrees Celsius, power in watts, ``utilization`` in per
    cent of the last sample period in which a kernel ran.
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
class Tenant:
    """A process that holds memory of a device (MiB, None if not told); ``pid`` as the driver counts.

    In a container that has its own process ids the driver's are the host's: they name nobody here.
    """

    pid: int
    uuid: str
    memory: float | None


@lru_cache(maxsize=1)
def gpus() -> tuple[Gpu, ...]:
    """The devices that stay the same while this process runs; empty where there is no driver or it fails.

    Where a device is partitioned its MIG instances follow it.
    """
    return look(Smi())


def look(smi: Smi) -> tuple[Gpu, ...]:
    """The devices that one command tells of."""
    found = parse_gpus(smi.devices(_FIXED).rows)
    return with_instances(found, smi.listing()) if any(gpu.mig for gpu in found) else found


def parse_gpus(rows: Iterable[Row]) -> tuple[Gpu, ...]:
    """Rows -> devices; a row without name or UUID is none."""
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
    """Each device, followed by its MIG instances as ``nvidia-smi -L`` lists them.

    An instance's memory is the nominal one of its profile (``2g.20gb``).
    """
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
    """Those that something can compute on: whole devices and instances, not the devices they are on."""
    return tuple(gpu for gpu in devices if not gpu.mig)


def visible(devices: Sequence[Gpu], mask: str | None) -> tuple[Gpu, ...]:
    """What a mask of indices or UUIDs (``CUDA_VISIBLE_DEVICES``) leaves of the usable devices.

    Like CUDA it ends at an entry that names none, takes the first characters of a UUID where they are
    enough, and of a partitioned device that is named by its index the first instance.
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


def readings(smi: Smi, only: Sequence[str] = ()) -> tuple[Reading, ...]:
    """What every device (or those of these UUIDs) is doing now; empty where the driver fails."""
    return parse_readings(smi.devices(_CHANGING, only).rows)


def parse_readings(rows: Iterable[Row]) -> tuple[Reading, ...]:
    """Rows -> readings; a row without UUID is none."""
    return tuple(
        Reading(
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
    """The names of a bit mask (``0x0000000000000044``); a bit without a name is named by itself."""
    try:
        left = int(mask, 16)
    except ValueError:
        return ()
    return tuple(REASONS.get(1 << bit, hex(1 << bit)) for bit in range(left.bit_length()) if left >> bit & 1)


def tenants(smi: Smi) -> tuple[Tenant, ...]:
    """The processes that compute on the devices, as far as the driver tells."""
    return parse_tenants(smi.processes(_PROCESS).rows)


def in_use(smi: Smi) -> frozenset[str]:
    """UUIDs of the devices of whose memory somebody holds more than a driver itself does."""
    return frozenset(
        one.uuid
        for one in readings(smi)
        if one.used is not None and one.total and one.used > IN_USE * one.total
    )


def parse_tenants(rows: Iterable[Row]) -> tuple[Tenant, ...]:
    """Rows -> processes; a row without process id or UUID is none."""
    return tuple(
        Tenant(int(row["pid"]), row["gpu_uuid"], number(row, "used_memory"))
        for row in rows
        if row.get("pid", "").isdigit() and "gpu_uuid" in row
    )


FIELDS = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "bus": "pci.bus_id",
    "driver": "driver_version",
    "total": "memory.total",
    "used": "memory.used",
    "temperature": "temperature.gpu",
    "power": "power.draw",
    "utilization": "utilization.gpu",
    "clock": "clocks.sm",
    "top_clock": "clocks.max.sm",
}
"""Name of a group in an expression (:mod:`perfbisect.machine.profile`) -> the driver's field for it."""


@dataclass(frozen=True)
class Query:
    """``each`` is searched in all that ``command`` prints, again and again; it may span lines."""

    command: tuple[str, ...]
    each: str

    def rows(self, patience: float) -> tuple[tuple[Row, ...], str]:
        """Its groups for each match, or why there are none."""
        told = ask(self.command, patience)
        found = re.finditer(self.each, told.stdout, re.MULTILINE)
        return tuple(
            {name: value.strip() for name, value in match.groupdict().items() if value and value.strip()}
            for match in found
        ), told.said


@dataclass(frozen=True)
class Queries:
    """``count``: whether an engine counts devices by the command's numbers or by their place in its list."""

    devices: Query
    driver: Query | None = None
    memory: Query | None = None
    tenants: Query | None = None
    count: Literal["index", "position"] = "index"


@dataclass
class CommandSmi(Smi):
    """Answers as ``nvidia-smi`` would, from other commands. ``name`` of the machine is part of its UUIDs."""

    queries: Queries = field(default_factory=lambda: Queries(Query((), "")))
    name: str = ""

    def devices(self, fields: Sequence[str], only: Sequence[str] = ()) -> Answer:
        found, problem = self.queries.devices.rows(self.patience)
        if problem:
            return Answer(problem=problem)
        memory = dict[str, Row]()
        if self.queries.memory is not None:
            memory = {self._uuid(row): row for row in self.queries.memory.rows(self.patience)[0]}
        above: Row = {}
        if self.queries.driver is not None and "driver_version" in fields:
            above = next(iter(self.queries.driver.rows(self.patience)[0]), {})
        rows = []
        for place, row in enumerate(found):
            uuid = self._uuid(row)
            told = {
                FIELDS[name]: value
                for name, value in {**above, **row, **memory.get(uuid, {})}.items()
                if name in FIELDS
            }
            told |= {"uuid": uuid}
            if self.queries.count == "position":
                told["index"] = str(place)
            if not only or uuid in only:
                rows.append({name: value for name, value in told.items() if name in fields})
        return Answer(tuple(rows))

    def processes(self, fields: Sequence[str]) -> Answer:
        if self.queries.tenants is None:
            return Answer()
        found, problem = self.queries.tenants.rows(self.patience)
        if problem:
            return Answer(problem=problem)
        rows = tuple(
            {
                "pid": row["pid"],
                "gpu_uuid": self._uuid(row),
                **({"used_memory": row["used"]} if "used" in row else {}),
            }
            for row in found
            if "pid" in row
        )
        return Answer(tuple({name: row[name] for name in fields if name in row} for row in rows))

    def listing(self) -> str:
        return ""

    def topology(self) -> str:
        return ""

    def _uuid(self, row: Row) -> str:
        """The device's own, or one made of the command's numbers."""
        numbers = ".".join(row[name] for name in ("index", "chip") if name in row)
        return row.get("uuid") or f"{self.name}-{numbers}"
