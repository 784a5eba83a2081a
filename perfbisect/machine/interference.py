"""Samples of the machine during a run, and whether other work interfered with it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from perfbisect.common.quantities import counted
from perfbisect.errors import UsageError

VARIABLE = "PERFBISECT_LIMITS"

SLOWED = (
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "hardware power brake",
)
"""Clock reasons that indicate a degraded device. Power caps, application clocks and idle are normal:
recorded only."""

_HOST_SERIES = ("own_cpu", "foreign_cpu", "steal", "load", "available_memory", "foreign_memory")
"""Shares of the run's processors used by the attempt, by others and by other guests of the host; the whole
machine's load average of a minute for each processor; MiB. A foreign sample may be slightly below 0, since
processors and processes are not read at one instant."""
_DEVICE_SERIES = ("clock", "temperature", "power", "power_limit", "used", "utilization")
"""SM clock as a share of its maximum, degrees Celsius, watts (twice), MiB, per cent."""


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
class Samples:
    """Sampled values by quantity."""

    series: Mapping[str, SampleSeries]

    def __getitem__(self, name: str) -> SampleSeries:
        return self.series.get(name, SampleSeries())


@dataclass(frozen=True)
class DeviceSamples(Samples):
    """Samples of a device: ``_DEVICE_SERIES``, and the share of the samples with each clock reason.

    ``foreign``: processes of others on it, each with its maximum memory (None: unknown).
    """

    uuid: str
    reasons: Mapping[str, float]
    foreign: Mapping[str, float | None]

    def facts(self) -> dict[str, Any]:
        return {
            "uuid": self.uuid,
            **{name: self[name].facts() for name in _DEVICE_SERIES},
            "reasons": dict(self.reasons),
            "foreign": dict(self.foreign),
        }


@dataclass(frozen=True)
class RunSamples(Samples):
    """Samples of the machine during a run: ``_HOST_SERIES`` and pressure.

    Pressure is the share of the time in which tasks stalled (``memory.some``). ``strayed``: our processes on
    devices outside the slot. ``hidden``: the driver does not identify our processes (containers).
    """

    seconds: float
    processors: int
    total_memory: float
    devices: tuple[DeviceSamples, ...]
    strayed: tuple[str, ...]
    hidden: bool
    problem: str
    cost: float
    """CPU seconds of the sampler's thread, without the driver's command."""

    def facts(self, limits: InterferenceLimits) -> dict[str, Any]:
        """Facts for the provenance."""
        known = {"foreign_cpu": limits.foreign_cpu, "steal": limits.steal}
        return {
            "seconds": round(self.seconds, 3),
            "samples": len(self["available_memory"].values),
            "processors": self.processors,
            **{name: self[name].facts(known.get(name)) for name in _HOST_SERIES},
            "pressure": {name: self[name].facts() for name in sorted(self.series) if "." in name},
            "devices": [device.facts() for device in self.devices],
            "strayed": list(self.strayed),
            "hidden_processes": self.hidden,
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
    late_packets: float | None = 0.25
    """Maximum lateness of first packets at the client, as a share of the server's median TTFP; see
    :func:`perfbisect.machine.late_packets.late_packets_reason`."""
    clock: float | None = 0.3
    """Minimum median SM clock of a busy device, as a share of its maximum; power caps stay above it."""


UNJUDGED = InterferenceLimits(
    foreign_cpu=None, steal=None, available=None, memory_pressure=None, device_memory=None, slowed=None,
    late_packets=None, clock=None,
)  # fmt: skip
"""No limits; only devices outside the slot are reported."""

_BUSY_DEVICE = 50.0


def parse_limits(text: str) -> InterferenceLimits:
    """Parse ``PERFBISECT_LIMITS``: empty for defaults, ``off``, or ``foreign_cpu=0.5,steal=off``."""
    if text.strip() == "off":
        return UNJUDGED
    known = {field.name for field in fields(InterferenceLimits)}
    chosen: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        try:
            chosen[name] = None if value == "off" and name != "burst" else float(value)
        except ValueError:
            raise UsageError(f"{VARIABLE}: {part!r} is not NAME=NUMBER or NAME=off") from None
        if name not in known:
            raise UsageError(f"{VARIABLE}: no limit {name!r}; there are {', '.join(sorted(known))}")
    return replace(InterferenceLimits(), **chosen)


def interference_reason(samples: RunSamples, limits: InterferenceLimits) -> str | None:
    """Why a run must be discarded; None if it is valid."""
    reasons = [f"the engine used a device outside its slot: {process}" for process in samples.strayed]
    limit, foreign, steal = limits.foreign_cpu, samples["foreign_cpu"], samples["steal"].mean
    processors = f"of {counted(samples.processors, 'processor')}"
    if limit is not None and foreign.mean > limit:
        reasons.append(f"other work used {foreign.mean:.0%} {processors} (limit {limit:.0%})")
    # A mean hides a burst, which delays the requests under way and so the tail of the latencies.
    elif limit is not None and foreign.over(2 * limit) > limits.burst:
        reasons.append(
            f"other work used more than {2 * limit:.0%} {processors} in {foreign.over(2 * limit):.0%} of the "
            f"samples (limit {limits.burst:.0%})"
        )
    if limits.steal is not None and steal > limits.steal:
        took = f"the hypervisor took {steal:.0%} {processors} for other guests"
        reasons.append(f"{took} (limit {limits.steal:.0%})")
    available, total = samples["available_memory"], samples.total_memory
    # The lowest sample: pages that were reclaimed once are read again later.
    if limits.available is not None and available.values and available.low < limits.available * total:
        reasons.append(
            f"{available.low:.0f} MiB of memory were left, of {total:.0f} "
            f"(limit {limits.available * total:.0f}); others held {samples['foreign_memory'].high:.0f} MiB"
        )
    stalled, allowed = samples["memory.some"].mean, limits.memory_pressure
    if allowed is not None and stalled > allowed:
        reasons.append(f"tasks waited for memory {stalled:.0%} of the time (limit {allowed:.0%})")
    for device in samples.devices:
        allowed = limits.device_memory
        # A process whose memory the driver does not tell may have any amount.
        foreign_processes = ", ".join(
            f"{name} with {'unknown' if memory is None else format(memory, '.0f')} MiB"
            for name, memory in device.foreign.items()
            if allowed is not None and (memory is None or memory > allowed)
        )
        if foreign_processes:
            reasons.append(f"others computed on device {device.uuid}: {foreign_processes}")
        slowed = [(reason, device.reasons.get(reason, 0.0)) for reason in SLOWED]
        reasons += [
            f"device {device.uuid} was held back ({reason}) in {share:.0%} of the samples, at up to "
            f"{device['temperature'].high:.0f} degrees (limit {limits.slowed:.0%})"
            for reason, share in slowed
            if limits.slowed is not None and share > limits.slowed
        ]
        clock, busy = device["clock"].median(default=1.0), device["utilization"].median() >= _BUSY_DEVICE
        # An idle device lowers its clock by itself.
        if limits.clock is not None and busy and clock < limits.clock:
            at = f"at {clock:.0%} of its highest clock (limit {limits.clock:.0%})"
            reasons.append(f"device {device.uuid} ran {at}")
    return "; ".join(reasons) or None
