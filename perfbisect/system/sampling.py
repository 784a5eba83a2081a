"""Samples the machine while a run is measured: a thread of its own, about one look a second."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import psutil

from perfbisect.system import counters, devices, threads
from perfbisect.system.clock import Drift
from perfbisect.system.counters import CpuTimes
from perfbisect.system.device_samples import DeviceSamples
from perfbisect.system.nvidia_smi import Smi
from perfbisect.system.processes import Process
from perfbisect.system.sampled import Sampled, Series
from perfbisect.system.slots import Slot

_INTERVAL = 1.0
_DEVICE_INTERVAL = 2.0
_PROCESS_SHARE, _DEVICE_SHARE = 50.0, 20.0
"""A look that took s seconds is not taken again within so many times s: the sampler's own share of a core
stays below 2 % for the process table and 5 % for the driver's command, however slow these are."""
_DRIVER_PATIENCE = 5.0
_SHORTEST = 0.2
"""Seconds. The kernel counts processor time in hundredths: over less a share is noise."""

Ours = Callable[[], Iterable[Process]]
"""The living processes of the attempt: its server, its client and all they started."""


@dataclass
class _Account:
    """CPU seconds of a changing family of processes: who has ended still counts.

    A child that is waited for is in its parent's account from then on; one whose parent is not of the family
    (the leaders) keeps what it had at the last look.
    """

    since: float
    """Seconds after boot; who is older is counted from the first look on."""
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

    def series(self, name: str) -> Series:
        return Series(tuple(self.values.get(name, ())))


class Sampler:
    """Samples from ``with`` to its end; then :meth:`summary`. Never raises for what it cannot see.

    ``ours`` is called in the sampler's thread. ``slot``: what the run has; None or one without cores: all
    processors that this process may use. ``uuids``: the devices to look at; None: the slot's. ``every``:
    seconds between two looks.
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
        self._smi = smi or Smi(patience=_DRIVER_PATIENCE)
        self._devices: DeviceSamples | None = None
        if wanted:
            known = devices.look(self._smi) if smi else devices.gpus()
            self._devices = DeviceSamples(self._smi, known, wanted)
        self._rows = _Rows()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._problem = ""
        self._cost = 0.0
        self._began = self._ended = time.monotonic()
        self._drift, self._clock_set = Drift(), 0.0
        self._processors = 0
        self._memory = 0.0

    def __enter__(self) -> Sampler:
        self._began, self._drift = time.monotonic(), Drift()
        threads.start(self._thread)
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

    def summary(self) -> Sampled:
        """What was seen; to be asked after the end."""
        seen = self._devices
        return Sampled(
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
            devices=seen.sampled() if seen else (),
            strayed=seen.strayed if seen else (),
            hidden=seen.hidden if seen else False,
            clock_set=self._clock_set,
            problem=self._problem,
            cost=self._cost,
        )

    def _run(self) -> None:
        try:
            look = _Look(self._ours, self._slot_cores, self._rows)
            self._processors = look.processors
            next_device = time.monotonic()
            while True:
                last = self._stop.wait(self._every)
                self._memory = look.take(last)
                now = time.monotonic()
                if self._devices and (now >= next_device or (last and not self._devices.samples)):
                    self._devices.take(look.pids)
                    took = time.monotonic() - now
                    next_device = now + max(_DEVICE_INTERVAL, _DEVICE_SHARE * took)
                if last:
                    break
        except Exception as error:  # a sampler that fails must not end a measurement
            self._problem = f"{type(error).__name__}: {error}"
        self._cost = time.thread_time()


class _Look:
    """Looks at processors, processes and memory; each value covers the time since the look before."""

    def __init__(self, ours: Ours, cores: tuple[int, ...], rows: _Rows) -> None:
        self._ours, self._rows = ours, rows
        self._pinned = bool(cores)
        self._cores = cores or tuple(sorted(os.sched_getaffinity(0)))
        self._account = _Account(time.clock_gettime(time.CLOCK_BOOTTIME))
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
        """Adds to the rows; returns the machine's memory in MiB."""
        resident = self._processes() if last or time.monotonic() >= self._next else None
        self._waits()
        self._rows.add("load", os.getloadavg()[0] / (psutil.cpu_count() or 1))
        total, available = counters.memory()
        self._rows.add("available", available)
        if resident is not None:
            self._rows.add("foreign memory", max(0.0, total - available - resident))
        return total

    def _processes(self, record: bool = True) -> float:
        """Whose the processors' time was; returns our own memory in MiB."""
        began = time.monotonic()
        living = tuple(self._ours())
        own = self._account.total(living) + self._here()
        cpu = counters.cpu_times(self._cores)
        now = time.monotonic()
        self._next = began + _PROCESS_SHARE * (now - began)
        if not record or now - self._at >= _SHORTEST or not self._rows.values.get("own"):
            if record and cpu and self._cpu:
                self._shares(cpu, self._cpu, own - self._own)
            self._cpu, self._own, self._at = cpu, own, now
        return sum(counters.resident(row.pid) for row in living)

    def _shares(self, cpu: CpuTimes, before: CpuTimes, own: float) -> None:
        shares = cpu.shares(before)
        if shares is not None:
            busy, steal = shares
            mine = own / (cpu.total - before.total)
            self._rows.add("own", mine)
            self._rows.add("foreign", busy - mine)  # not cut at 0: the mean would come out too high
            self._rows.add("steal", steal)

    def _here(self) -> float:
        """CPU seconds of this process: ours where nothing is pinned; else it runs anywhere."""
        times = os.times()
        return 0.0 if self._pinned else times.user + times.system

    def _waits(self, record: bool = True) -> None:
        now, told = time.monotonic(), counters.pressure()
        for name in told.keys() & self._pressure.keys() if record else ():
            seconds = max(1e-6, now - self._pressed)
            self._rows.add(name, min(1.0, (told[name] - self._pressure[name]) / seconds))
        self._pressure, self._pressed = told, now
