"""Samples the machine during a run in a thread, about once a second."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import psutil

from perfbisect.machine import devices
from perfbisect.machine.devices import DeviceProcess, Gpu, Smi
from perfbisect.machine.interference import DeviceSamples, RunSamples, SampleSeries
from perfbisect.machine.slots import Slot
from perfbisect.system.processes import Process, process
from perfbisect.system.threads import start_thread

_INTERVAL_S = 1.0
_DEVICE_INTERVAL_S = 2.0
_PROCESS_SHARE, _DEVICE_SHARE = 50.0, 20.0
"""A sample that took s seconds is not repeated within this many times s, which bounds the sampler's share of
a core to 2 % for the process table and 5 % for the driver's command."""
_DRIVER_TIMEOUT_S = 5.0
_SHORTEST_S = 0.2
"""The kernel counts processor time in hundredths of a second, so shorter intervals are noise."""
_TICKS = os.sysconf("SC_CLK_TCK")

AttemptProcesses = Callable[[], Iterable[Process]]
"""The live processes of the attempt: server, client and their descendants."""


_Values = defaultdict[str, list[float]]
"""Sampled values by quantity."""


def _series(values: _Values) -> dict[str, SampleSeries]:
    return {name: SampleSeries(tuple(sampled)) for name, sampled in values.items()}


class _DeviceSampler:
    """Samples devices; a MIG instance is sampled as the device it is on."""

    def __init__(self, smi: Smi, known: Sequence[Gpu], uuids: Sequence[str]) -> None:
        self._smi = replace(smi, timeout_s=_DRIVER_TIMEOUT_S)
        parents = {gpu.uuid: gpu.parent for gpu in known if gpu.parent and gpu.uuid in uuids}
        self._shared = frozenset(parents.values())
        self._leased = self._shared | frozenset(uuids)
        self._uuids = tuple(dict.fromkeys(parents.get(uuid, uuid) for uuid in uuids))
        self._values = {uuid: _Values(list) for uuid in self._uuids}
        self._reasons: dict[str, Counter[str]] = {uuid: Counter() for uuid in self._uuids}
        self._readings: Counter[str] = Counter()
        self._foreign: dict[str, dict[str, float | None]] = {uuid: {} for uuid in self._leased}
        self.strayed: dict[str, None] = {}
        """Our processes on devices outside the slot."""
        self.samples = 0
        self.hidden = False
        """The driver listed processes or none, and never one of ours."""
        self._identified = False

    def take(self, own_pids: Callable[[], Collection[int]]) -> None:
        for reading in devices.readings(self._smi, self._uuids):
            values = self._values[reading.uuid]
            # A share of the maximum: the limits are then the same for all kinds of devices.
            if reading.clock is not None and reading.top_clock:
                values["clock"].append(reading.clock / reading.top_clock)
            for name in ("temperature", "power", "power_limit", "used", "utilization"):
                if (value := getattr(reading, name)) is not None:
                    values[name].append(value)
            self._reasons[reading.uuid].update(reading.reasons)
            self._readings[reading.uuid] += 1
        self.samples += 1
        tenants = devices.tenants(self._smi)
        # Our processes are read after the driver's list, so that they contain every process in it.
        own = own_pids() if tenants else ()
        is_identified = any(tenant.pid in own for tenant in tenants)
        self._identified = self._identified or is_identified
        # In a container the driver lists the host's process ids: own and foreign processes cannot be told
        # apart.
        self.hidden = not self._identified
        if is_identified:
            for tenant in tenants:
                self._attribute(tenant, tenant.pid in own)

    def _attribute(self, tenant: DeviceProcess, is_own: bool) -> None:
        row = process(tenant.pid)
        if row is None:
            # The process has ended since the driver listed it.
            return
        inside = tenant.uuid in self._leased
        if is_own and not inside:
            self.strayed.setdefault(f"{row} on {tenant.uuid}")
        # A device with MIG instances is shared by design: other instances are no conflict.
        elif inside and not is_own and tenant.uuid not in self._shared:
            foreign = self._foreign[tenant.uuid]
            before = foreign.get(str(row))
            foreign[str(row)] = tenant.memory if before is None else max(before, tenant.memory or 0.0)

    def sampled(self) -> tuple[DeviceSamples, ...]:
        return tuple(
            DeviceSamples(
                _series(values),
                uuid=uuid,
                reasons={
                    name: round(count / self._readings[uuid], 4)
                    for name, count in self._reasons[uuid].items()
                },
                foreign=dict(self._foreign.get(uuid, {})),
            )
            for uuid, values in self._values.items()
        )


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
    # A processor that went offline has no row, and sums of different sets cannot be subtracted.
    if len(rows) != len(wanted) or any(len(row) < 8 for row in rows):
        return None
    user, nice, system, _, _, irq, soft, steal = (sum(column) for column in zip(*rows, strict=True))
    return CpuTimes(user + nice + system + irq + soft, steal, sum(map(sum, rows)))


def memory() -> tuple[float, float]:
    """(total, available) MiB."""
    machine = psutil.virtual_memory()
    return machine.total / 2**20, machine.available / 2**20


def host_memory(rows: Iterable[Process]) -> float:
    """MiB of processes; a page that several share counts once, if the kernel tells."""
    used = 0.0
    for row in rows:
        with suppress(psutil.Error):
            one = psutil.Process(row.pid)
            try:
                used += one.memory_full_info().pss
            except psutil.AccessDenied:
                # Another user namespace: shared pages are left out, which would count for each process.
                plain = one.memory_info()
                used += plain.rss - plain.shared
    return used / 2**20


def _cpu_seconds(row: Process) -> float:
    return row.cpu_seconds + row.waited_seconds


class _HostSampler:
    """Samples processors, processes and memory; each value covers the time since the previous sample."""

    def __init__(self, ours: AttemptProcesses, cores: tuple[int, ...], values: _Values) -> None:
        self._ours, self._values = ours, values
        self._pinned = bool(cores)
        self._cores = cores or tuple(sorted(os.sched_getaffinity(0)))
        self._since = time.clock_gettime(time.CLOCK_BOOTTIME)
        """Seconds after boot; older processes are counted from the first sample on."""
        self._first: dict[tuple[int, float], float] = {}
        self._last: dict[tuple[int, float], Process] = {}
        self._ended = 0.0
        self.processors = len(self._cores)
        self._next = 0.0
        self._cpu: CpuTimes | None = None
        self._own = self._at = 0.0
        self._attributed = False
        self._stalled: Mapping[str, float] = {}
        self._stalled_at = time.monotonic()
        # The first reading is the zero of the counters since boot.
        self._sample_processes(record=False)
        self._sample_pressure(record=False)

    def pids(self) -> frozenset[int]:
        """The processes of the attempt now."""
        return frozenset(row.pid for row in self._ours())

    def take(self, last: bool) -> float:
        """Add one sample; returns the machine's memory in MiB."""
        resident = self._sample_processes() if last or time.monotonic() >= self._next else None
        self._sample_pressure()
        # The load average counts tasks that wait for a disk as well: it is recorded, no limit uses it.
        self._values["load"].append(os.getloadavg()[0] / (psutil.cpu_count() or 1))
        total, available = memory()
        self._values["available_memory"].append(available)
        if resident is not None:
            self._values["foreign_memory"].append(max(0.0, total - available - resident))
        return total

    def _sample_processes(self, record: bool = True) -> float:
        """Attribute processor time; returns our memory in MiB."""
        began = time.monotonic()
        living = tuple(self._ours())
        times = os.times()
        # With a pinned slot this process may run outside it.
        own = self._cpu_total(living) + (0.0 if self._pinned else times.user + times.system)
        cpu = cpu_times(self._cores)
        now = time.monotonic()
        # With many processes a look takes longer and is made less often: it must not become a load itself.
        self._next = began + _PROCESS_SHARE * (now - began)
        # A short interval is added to the next one, unless there is no other.
        if not record or now - self._at >= _SHORTEST_S or not self._attributed:
            if record and cpu and self._cpu and (shares := cpu.shares(self._cpu)):
                busy, steal = shares
                mine = (own - self._own) / (cpu.total - self._cpu.total)
                self._values["own_cpu"].append(mine)
                # Not clipped at 0, which would bias the mean.
                self._values["foreign_cpu"].append(busy - mine)
                self._values["steal"].append(steal)
                self._attributed = True
            self._cpu, self._own, self._at = cpu, own, now
        resident = 0.0
        for row in living:
            with suppress(psutil.Error):
                used = psutil.Process(row.pid).memory_info()
                # Shared pages, such as weights in shared memory, would count once for each process.
                resident += float(used.rss - used.shared) / 2**20
        return resident

    def _cpu_total(self, living: Iterable[Process]) -> float:
        """CPU seconds of a changing set of processes, including those that have ended.

        A child that was waited for counts with its parent; one whose parent is outside the set keeps its last
        value.
        """
        current = {row.identity: row for row in living}
        for identity, row in current.items():
            # CPU time that a process used before the run belongs to no sample.
            self._first.setdefault(identity, 0.0 if row.created >= self._since else _cpu_seconds(row))
        pids = {row.pid for row in current.values()}
        for identity, row in self._last.items():
            # A parent in the set gets the time of a child that it waited for: counted there, not twice.
            if identity not in current and row.parent not in pids:
                self._ended += _cpu_seconds(row) - self._first[identity]
        self._last = current
        return self._ended + sum(
            _cpu_seconds(row) - self._first[identity] for identity, row in current.items()
        )

    def _sample_pressure(self, record: bool = True) -> None:
        """Pressure stall information: shares of the time, as ``cpu.some``, ``memory.full``, if known."""
        now, stalled = time.monotonic(), dict[str, float]()
        for resource in ("cpu", "memory", "io"):
            with suppress(OSError, ValueError):
                for line in Path("/proc/pressure", resource).read_text("ascii").splitlines():
                    kind, *fields = line.split()
                    values = dict(field.split("=") for field in fields)
                    # Microseconds since boot.
                    stalled[f"{resource}.{kind}"] = int(values["total"]) / 1e6
        for name in stalled.keys() & self._stalled.keys() if record else ():
            seconds = max(1e-6, now - self._stalled_at)
            self._values[name].append(min(1.0, (stalled[name] - self._stalled[name]) / seconds))
        self._stalled, self._stalled_at = stalled, now


class Sampler:
    """Context manager that samples the machine; then :meth:`summary`. Failures to sample are recorded, not
    raised.

    ``ours`` is called in the sampler's thread. ``slot``: None or without cores: all processors that this
    process may use. ``known``: the machine's devices. ``every``: seconds between samples.
    """

    def __init__(
        self,
        ours: AttemptProcesses,
        *,
        slot: Slot | None = None,
        smi: Smi | None = None,
        known: Sequence[Gpu] = (),
        every: float = _INTERVAL_S,
    ) -> None:
        self._ours = ours
        self._cores = slot.cores if slot else ()
        self._every = every
        uuids = slot.devices if slot else ()
        self._devices = _DeviceSampler(smi or Smi(), known, uuids) if uuids else None
        self._values = _Values(list)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._problem = ""
        self._cost = self._memory = 0.0
        self._processors = 0
        self._began = self._ended = time.monotonic()

    def __enter__(self) -> Sampler:
        self._began = time.monotonic()
        start_thread(self._thread)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The thread takes a last sample, so that a run shorter than the interval has one.
        self._stop.set()
        self._thread.join()
        self._ended = time.monotonic()

    def summary(self) -> RunSamples:
        """The samples; call it after the end."""
        devices = self._devices
        return RunSamples(
            _series(self._values),
            seconds=self._ended - self._began,
            processors=self._processors,
            total_memory=self._memory,
            devices=devices.sampled() if devices else (),
            strayed=tuple(devices.strayed) if devices else (),
            hidden=devices.hidden if devices else False,
            problem=self._problem,
            cost=self._cost,
        )

    def _run(self) -> None:
        try:
            host = _HostSampler(self._ours, self._cores, self._values)
            self._processors = host.processors
            next_device = time.monotonic()
            while True:
                last = self._stop.wait(self._every)
                self._memory = host.take(last)
                now = time.monotonic()
                if self._devices and (now >= next_device or (last and not self._devices.samples)):
                    self._devices.take(host.pids)
                    next_device = now + max(_DEVICE_INTERVAL_S, _DEVICE_SHARE * (time.monotonic() - now))
                if last:
                    break
        except Exception as error:
            # A sampler that fails must not end a measurement.
            self._problem = f"{type(error).__name__}: {error}"
        self._cost = time.thread_time()
