"""Samples the machine during a run in a thread, about once a second."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil

from perfbisect.machine import devices
from perfbisect.machine.devices import DeviceProcess, Gpu, Smi
from perfbisect.machine.interference import DeviceSamples, RunSamples, SampleSeries
from perfbisect.machine.slots import Slot
from perfbisect.system.clock import ClockShift
from perfbisect.system.processes import Process, process, start_thread

_FIELDS = ("clock", "temperature", "power", "used", "utilization")


class DeviceSampler:
    """Samples devices; a MIG instance is sampled as the device it is on."""

    def __init__(self, smi: Smi, known: Sequence[Gpu], uuids: Sequence[str]) -> None:
        self._smi = smi
        parents = {gpu.uuid: gpu.parent for gpu in known if gpu.parent}
        self._leased = frozenset(uuids) | {parents[uuid] for uuid in uuids if uuid in parents}
        self._looked = tuple(dict.fromkeys(parents.get(uuid, uuid) for uuid in uuids))
        self._shared = frozenset(parents[uuid] for uuid in uuids if uuid in parents)
        self._values: dict[str, dict[str, list[float]]] = {}
        self._reasons: dict[str, dict[str, int]] = {}
        self._foreign: dict[str, dict[str, float | None]] = {}
        self._strayed: dict[str, None] = {}
        self.samples = 0
        self.hidden = False

    @property
    def strayed(self) -> tuple[str, ...]:
        """Our processes on devices outside the slot."""
        return tuple(self._strayed)

    def take(self, ours: Callable[[], Collection[int]]) -> None:
        """Take one sample. ``ours``: process ids of the attempt."""
        for reading in devices.readings(self._smi, self._looked):
            ratio = (
                reading.sm_clock / reading.max_sm_clock
                if reading.sm_clock is not None and reading.max_sm_clock
                else None
            )
            values = (ratio, reading.temperature, reading.power, reading.used, reading.utilization)
            into = self._values.setdefault(reading.uuid, {})
            for name, value in zip(_FIELDS, values, strict=True):
                if value is not None:
                    into.setdefault(name, []).append(value)
            counts = self._reasons.setdefault(reading.uuid, {})
            for reason in reading.reasons:
                counts[reason] = counts.get(reason, 0) + 1
        self.samples += 1
        tenants = devices.tenants(self._smi)
        mine = (
            ours() if tenants else ()
        )  # read after the driver's list, so that it contains every process in it
        self.hidden = not any(tenant.pid in mine for tenant in tenants)
        if not self.hidden:
            self._attribute(tenants, mine)

    def _attribute(self, tenants: Sequence[DeviceProcess], ours: Collection[int]) -> None:
        for tenant in tenants:
            row = process(tenant.pid)
            if row is None:  # it has ended since
                continue
            inside = tenant.uuid in self._leased
            if tenant.pid in ours and not inside:
                self._strayed.setdefault(f"{row} on {tenant.uuid}")
            elif inside and tenant.pid not in ours and tenant.uuid not in self._shared:
                into = self._foreign.setdefault(tenant.uuid, {})
                before = into.get(str(row))
                into[str(row)] = tenant.memory if before is None else max(before, tenant.memory or 0.0)

    def sampled(self) -> tuple[DeviceSamples, ...]:
        return tuple(self._device(uuid) for uuid in self._looked)

    def _device(self, uuid: str) -> DeviceSamples:
        values: Mapping[str, list[float]] = self._values.get(uuid, {})
        series = {name: SampleSeries(tuple(values.get(name, ()))) for name in _FIELDS}
        counts = self._reasons.get(uuid, {})
        return DeviceSamples(
            uuid,
            reasons={name: round(count / self.samples, 4) for name, count in counts.items()},
            foreign=dict(self._foreign.get(uuid, {})),
            **series,
        )


_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuTimes:
    """Seconds since boot, summed over processors: busy, stolen by the hypervisor, and total."""

    busy: float
    steal: float
    total: float

    def shares(self, before: CpuTimes) -> tuple[float, float] | None:
        """(busy, steal) as shares of the time since ``before``; None if no time has passed."""
        total = self.total - before.total
        if total <= 0:
            return None
        return (self.busy - before.busy) / total, (self.steal - before.steal) / total


def cpu_times(processors: Collection[int] = ()) -> CpuTimes | None:
    """CPU times of these processors, by default of all; None if the kernel does not report them.

    Busy: user, nice, system, interrupts (``proc(5)``, ``/proc/stat``; a guest's time is in user and nice).
    """
    # Not psutil: it lists processors by place, which is not their number where some are offline.
    wanted = {f"cpu{number}" for number in processors} or {"cpu"}
    rows = []
    with suppress(OSError, ValueError):
        for line in Path("/proc/stat").read_text("ascii").splitlines():
            name, *fields = line.split()
            if name in wanted:
                rows.append([int(field) / _TICKS for field in fields[:8]])
    if len(rows) != len(wanted) or any(len(row) < 8 for row in rows):
        return None
    user, nice, system, _, _, irq, soft, steal = (sum(column) for column in zip(*rows, strict=True))
    return CpuTimes(user + nice + system + irq + soft, steal, sum(map(sum, rows)))


def pressure() -> dict[str, float]:
    """Pressure stall information: seconds since boot, by ``cpu.some``, ``memory.full``, ...; empty without
    it.
    """
    found = {}
    for name in ("cpu", "memory", "io"):
        with suppress(OSError, ValueError):
            for line in Path("/proc/pressure", name).read_text("ascii").splitlines():
                kind, *fields = line.split()
                values = dict(field.split("=") for field in fields)
                found[f"{name}.{kind}"] = int(values["total"]) / 1e6
    return found


def memory() -> tuple[float, float]:
    """(total, available) MiB."""
    machine = psutil.virtual_memory()
    return machine.total / 2**20, machine.available / 2**20


def resident(pid: int) -> float:
    """Private resident memory of a process in MiB; 0 if it has ended."""
    with suppress(psutil.Error):
        used = psutil.Process(pid).memory_info()
        return (used.rss - used.shared) / 2**20
    return 0.0


_INTERVAL = 1.0
_DEVICE_INTERVAL = 2.0
_PROCESS_SHARE, _DEVICE_SHARE = 50.0, 20.0
"""A sample that took s seconds is not repeated within this many times s, which bounds the sampler's share of
a core to 2 % for the process table and 5 % for the driver's command."""
_DRIVER_TIMEOUT_S = 5.0
_SHORTEST = 0.2
"""Seconds; the kernel counts processor time in hundredths, so shorter intervals are noise."""

Ours = Callable[[], Iterable[Process]]
"""The live processes of the attempt: server, client and their descendants."""


@dataclass
class _CpuAccount:
    """CPU seconds of a changing set of processes, including those that have ended.

    A child that was waited for counts with its parent; one whose parent is outside the set keeps its last
    value.
    """

    since: float
    """Seconds after boot; older processes are counted from the first sample on."""
    _first: dict[tuple[int, float], float] = field(default_factory=dict)
    _last: dict[tuple[int, float], Process] = field(default_factory=dict)
    _ended: float = 0.0

    def total(self, living: Iterable[Process]) -> float:
        now = {row.identity: row for row in living}
        for identity, row in now.items():
            self._first.setdefault(identity, 0.0 if row.created >= self.since else _used(row))
        pids = {row.pid for row in now.values()}
        for identity, row in self._last.items():
            if identity not in now and row.parent not in pids:
                self._ended += _used(row) - self._first[identity]
        self._last = now
        return self._ended + sum(_used(row) - self._first[identity] for identity, row in now.items())


def _used(row: Process) -> float:
    return row.cpu_seconds + row.waited_seconds


@dataclass
class _Rows:
    """The values so far, by name."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def series(self, name: str) -> SampleSeries:
        return SampleSeries(tuple(self.values.get(name, ())))


class Sampler:
    """Context manager that samples the machine; then :meth:`summary`. Failures to sample are recorded, not
    raised.

    ``ours`` is called in the sampler's thread. ``slot``: None or without cores: all processors that this
    process may use. ``uuids``: devices to sample, by default the slot's. ``every``: seconds between samples.
    """

    def __init__(
        self,
        ours: Ours,
        *,
        slot: Slot | None = None,
        uuids: Sequence[str] | None = None,
        smi: Smi | None = None,
        every: float = _INTERVAL,
    ) -> None:
        self._ours = ours
        self._slot_cores = slot.cores if slot else ()
        self._every = every
        wanted = tuple(uuids) if uuids is not None else slot.devices if slot else ()
        self._smi = smi or Smi(timeout_s=_DRIVER_TIMEOUT_S)
        self._devices: DeviceSampler | None = None
        if wanted:
            known = devices.list_devices(self._smi) if smi else devices.gpus()
            self._devices = DeviceSampler(self._smi, known, wanted)
        self._rows = _Rows()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._problem = ""
        self._cost = 0.0
        self._began = self._ended = time.monotonic()
        self._drift, self._clock_set = ClockShift(), 0.0
        self._processors = 0
        self._memory = 0.0

    def __enter__(self) -> Sampler:
        self._began, self._drift = time.monotonic(), ClockShift()
        start_thread(self._thread)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._ended, self._clock_set = time.monotonic(), self._drift.seconds()

    def summary(self) -> RunSamples:
        """The samples; call it after the end."""
        devices = self._devices
        return RunSamples(
            seconds=self._ended - self._began,
            samples=len(self._rows.values.get("available", ())),
            processors=self._processors,
            own_cpu=self._rows.series("own"),
            foreign_cpu=self._rows.series("foreign"),
            steal=self._rows.series("steal"),
            load=self._rows.series("load"),
            total_memory=self._memory,
            available=self._rows.series("available"),
            foreign_memory=self._rows.series("foreign memory"),
            pressure={
                name: self._rows.series(name)
                for name in sorted(self._rows.values)
                if name.startswith(("cpu.", "memory.", "io."))
            },
            devices=devices.sampled() if devices else (),
            strayed=devices.strayed if devices else (),
            hidden=devices.hidden if devices else False,
            clock_set=self._clock_set,
            problem=self._problem,
            cost=self._cost,
        )

    def _run(self) -> None:
        try:
            host = _HostSampler(self._ours, self._slot_cores, self._rows)
            self._processors = host.processors
            next_device = time.monotonic()
            while True:
                last = self._stop.wait(self._every)
                self._memory = host.take(last)
                now = time.monotonic()
                if self._devices and (now >= next_device or (last and not self._devices.samples)):
                    self._devices.take(host.pids)
                    took = time.monotonic() - now
                    next_device = now + max(_DEVICE_INTERVAL, _DEVICE_SHARE * took)
                if last:
                    break
        except Exception as error:  # a sampler that fails must not end a measurement
            self._problem = f"{type(error).__name__}: {error}"
        self._cost = time.thread_time()


class _HostSampler:
    """Samples processors, processes and memory; each value covers the time since the previous sample."""

    def __init__(self, ours: Ours, cores: tuple[int, ...], rows: _Rows) -> None:
        self._ours, self._rows = ours, rows
        self._pinned = bool(cores)
        self._cores = cores or tuple(sorted(os.sched_getaffinity(0)))
        self._account = _CpuAccount(time.clock_gettime(time.CLOCK_BOOTTIME))
        self.processors = len(self._cores)
        self._next = 0.0
        self._cpu: CpuTimes | None = None
        self._own = self._at = 0.0
        self._pressure: Mapping[str, float] = {}
        self._pressed = time.monotonic()
        self._processes(record=False)
        self._waits(record=False)

    def pids(self) -> frozenset[int]:
        """The processes of the attempt now."""
        return frozenset(row.pid for row in self._ours())

    def take(self, last: bool) -> float:
        """Add one sample; returns the machine's memory in MiB."""
        resident = self._processes() if last or time.monotonic() >= self._next else None
        self._waits()
        self._rows.add("load", os.getloadavg()[0] / (psutil.cpu_count() or 1))
        total, available = memory()
        self._rows.add("available", available)
        if resident is not None:
            self._rows.add("foreign memory", max(0.0, total - available - resident))
        return total

    def _processes(self, record: bool = True) -> float:
        """Attribute processor time; returns our memory in MiB."""
        began = time.monotonic()
        living = tuple(self._ours())
        own = self._account.total(living) + self._here()
        cpu = cpu_times(self._cores)
        now = time.monotonic()
        self._next = began + _PROCESS_SHARE * (now - began)
        if not record or now - self._at >= _SHORTEST or not self._rows.values.get("own"):
            if record and cpu and self._cpu:
                self._shares(cpu, self._cpu, own - self._own)
            self._cpu, self._own, self._at = cpu, own, now
        return sum(resident(row.pid) for row in living)

    def _shares(self, cpu: CpuTimes, before: CpuTimes, own: float) -> None:
        shares = cpu.shares(before)
        if shares is not None:
            busy, steal = shares
            mine = own / (cpu.total - before.total)
            self._rows.add("own", mine)
            self._rows.add("foreign", busy - mine)  # not clipped at 0, which would bias the mean
            self._rows.add("steal", steal)

    def _here(self) -> float:
        """CPU seconds of this process; 0 with a pinned slot, outside which it may run."""
        times = os.times()
        return 0.0 if self._pinned else times.user + times.system

    def _waits(self, record: bool = True) -> None:
        now, stalled = time.monotonic(), pressure()
        for name in stalled.keys() & self._pressure.keys() if record else ():
            seconds = max(1e-6, now - self._pressed)
            self._rows.add(name, min(1.0, (stalled[name] - self._pressure[name]) / seconds))
        self._pressure, self._pressed = stalled, now
