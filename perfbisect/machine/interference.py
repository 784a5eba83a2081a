"""Samples of the machine during a run, and whether other work interfered with it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SLOWED = (
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "hardware power brake",
)
"""Clock reasons that indicate a degraded device. Power caps, application clocks and idle are normal:
recorded only."""


@dataclass(frozen=True)
class SampleSeries:
    """Samples of one quantity, in order."""

    values: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values) if self.values else 0.0

    @property
    def low(self) -> float:
        return min(self.values, default=0.0)

    @property
    def high(self) -> float:
        return max(self.values, default=0.0)

    def median(self, default: float = 0.0) -> float:
        return statistics.median(self.values) if self.values else default

    def over(self, limit: float) -> float:
        """Share of the samples above a limit."""
        return sum(value > limit for value in self.values) / len(self.values) if self.values else 0.0

    def facts(self, limit: float | None = None) -> dict[str, float]:
        """Median, mean, minimum, maximum and share above the limit; empty without samples."""
        if not self.values:
            return {}
        facts = {"median": self.median(), "mean": self.mean, "min": self.low, "max": self.high}
        if limit is not None:
            facts["over"] = self.over(limit)
        return {name: round(value, 4) for name, value in facts.items()}


@dataclass(frozen=True)
class DeviceSamples:
    """Samples of a device. ``clock``: SM clock as a share of its maximum; temperature in degrees Celsius,
    power in watts, memory in MiB; ``reasons``: share of the samples with each clock reason.

    ``foreign``: processes of others on it, each with its maximum memory (None: unknown).
    """

    uuid: str
    clock: SampleSeries = SampleSeries()
    temperature: SampleSeries = SampleSeries()
    power: SampleSeries = SampleSeries()
    used: SampleSeries = SampleSeries()
    utilization: SampleSeries = SampleSeries()
    reasons: Mapping[str, float] = field(default_factory=dict)
    foreign: Mapping[str, float | None] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        series = ("clock", "temperature", "power", "used", "utilization")
        return {
            "uuid": self.uuid,
            **{name: getattr(self, name).facts() for name in series},
            "reasons": dict(self.reasons),
            "foreign": dict(self.foreign),
        }


@dataclass(frozen=True)
class RunSamples:
    """Samples of the machine during a run.

    ``own_cpu``, ``foreign_cpu``, ``steal``: shares of the run's ``processors`` used by the attempt, by
    others, and by other guests of the host. A foreign sample may be slightly below 0, since processors and
    processes are not read at one instant. ``load``: of the whole machine, 1-minute average for each
    processor. ``available``, ``foreign_memory``: MiB. ``pressure``: share of the time in which tasks stalled
    (``memory.some``). ``strayed``: our processes on devices outside the slot. ``hidden``: the driver does
    not identify our processes (containers).
    """

    seconds: float
    samples: int
    processors: int
    own_cpu: SampleSeries = SampleSeries()
    foreign_cpu: SampleSeries = SampleSeries()
    steal: SampleSeries = SampleSeries()
    load: SampleSeries = SampleSeries()
    total_memory: float = 0.0
    available: SampleSeries = SampleSeries()
    foreign_memory: SampleSeries = SampleSeries()
    pressure: Mapping[str, SampleSeries] = field(default_factory=dict)
    devices: tuple[DeviceSamples, ...] = ()
    strayed: tuple[str, ...] = ()
    hidden: bool = False
    clock_set: float = 0.0
    """Seconds by which the wall clock was set during the run; only dates depend on it."""
    problem: str = ""
    cost: float = 0.0
    """CPU seconds of the sampler's thread, without the driver's command."""

    def facts(self, limits: InterferenceLimits) -> dict[str, Any]:
        """Facts for the provenance."""
        return {
            "seconds": round(self.seconds, 3),
            "samples": self.samples,
            "processors": self.processors,
            "own_cpu": self.own_cpu.facts(),
            "foreign_cpu": self.foreign_cpu.facts(limits.foreign_cpu),
            "steal": self.steal.facts(limits.steal),
            "load": self.load.facts(),
            "available_memory": self.available.facts(),
            "foreign_memory": self.foreign_memory.facts(),
            "pressure": {name: series.facts() for name, series in self.pressure.items()},
            "devices": [device.facts() for device in self.devices],
            "strayed": list(self.strayed),
            "hidden_processes": self.hidden,
            "clock_set": round(self.clock_set, 3),
            "problem": self.problem,
            "cost": round(self.cost, 4),
        }


@dataclass(frozen=True)
class InterferenceLimits:
    """Limits of interference above which a run is discarded; None: not checked.

    Only other work counts. The defaults discard clear interference; the noise model covers the rest.
    """

    foreign_cpu: float | None = 0.25
    """Maximum mean share of the slot's processors used by others."""
    burst: float = 0.2
    """Maximum share of the samples in which others use twice that."""
    steal: float | None = 0.1
    """Maximum mean share of processor time given to other guests."""
    available: float | None = 0.02
    """Minimum share of available memory; below it the kernel reclaims pages."""
    memory_pressure: float | None = 0.1
    """Maximum mean share of the time in which a task stalled on memory."""
    device_memory: float | None = 64.0
    """Maximum MiB of another process on a device of the slot; a bare CUDA context has more."""
    slowed: float | None = 0.05
    """Maximum share of the samples in which heat or power supply slowed a device."""
    clock: float | None = 0.3
    """Minimum median SM clock of a busy device, as a share of its maximum; power caps stay above it."""


UNJUDGED = InterferenceLimits(
    foreign_cpu=None, steal=None, available=None, memory_pressure=None, device_memory=None, slowed=None,
    clock=None,
)  # fmt: skip
"""No limits; only devices outside the slot are reported."""

_BUSY_DEVICE = 50.0


def interference_reason(samples: RunSamples, limits: InterferenceLimits) -> str | None:
    """Why a run must be discarded; None if it is valid."""
    reasons = [
        *(f"the engine used a device outside its slot: {process}" for process in samples.strayed),
        *_processor_reasons(samples, limits),
        *_memory_reasons(samples, limits),
        *(reason for device in samples.devices for reason in _device_reasons(device, limits)),
    ]
    return "; ".join(reasons) or None


def _processor_reasons(samples: RunSamples, limits: InterferenceLimits) -> Iterator[str]:
    limit, foreign, steal = limits.foreign_cpu, samples.foreign_cpu, samples.steal.mean
    processors = f"of {samples.processors} processor(s)"
    if limit is not None and foreign.mean > limit:
        yield f"other work used {foreign.mean:.0%} {processors} (limit {limit:.0%})"
    elif limit is not None and foreign.over(2 * limit) > limits.burst:
        yield (
            f"other work used more than {2 * limit:.0%} {processors} in {foreign.over(2 * limit):.0%} of the "
            f"samples (limit {limits.burst:.0%})"
        )
    if limits.steal is not None and steal > limits.steal:
        yield f"the hypervisor took {steal:.0%} {processors} for other guests (limit {limits.steal:.0%})"


def _memory_reasons(samples: RunSamples, limits: InterferenceLimits) -> Iterator[str]:
    available, total = samples.available, samples.total_memory
    if limits.available is not None and available.values and available.low < limits.available * total:
        yield (
            f"{available.low:.0f} MiB of memory were left, of {total:.0f} "
            f"(limit {limits.available * total:.0f}); others held {samples.foreign_memory.high:.0f} MiB"
        )
    stalled = samples.pressure.get("memory.some", SampleSeries()).mean
    if limits.memory_pressure is not None and stalled > limits.memory_pressure:
        yield f"tasks waited for memory {stalled:.0%} of the time (limit {limits.memory_pressure:.0%})"


def _device_reasons(device: DeviceSamples, limits: InterferenceLimits) -> Iterator[str]:
    if limits.device_memory is not None:
        holders = ", ".join(
            f"{name} with {'unknown' if memory is None else format(memory, '.0f')} MiB"
            for name, memory in device.foreign.items()
            if memory is None or memory > limits.device_memory
        )
        if holders:
            yield f"others computed on device {device.uuid}: {holders}"
    for reason in SLOWED:
        if limits.slowed is not None and (share := device.reasons.get(reason, 0.0)) > limits.slowed:
            yield (
                f"device {device.uuid} was held back ({reason}) in {share:.0%} of the samples, at up to "
                f"{device.temperature.high:.0f} degrees (limit {limits.slowed:.0%})"
            )
    clock = device.clock.median(default=1.0)
    if limits.clock is not None and device.utilization.median() >= _BUSY_DEVICE and clock < limits.clock:
        yield f"device {device.uuid} ran at {clock:.0%} of its highest clock (limit {limits.clock:.0%})"
