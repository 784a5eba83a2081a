"""What surrounded a run: the samples as plain values, and whether others spoilt it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SLOWED = (
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "hardware power brake",
)
"""Reasons for low clocks that say the device is not what it was. A power cap is how such devices work under
load, application clocks are somebody's choice, and idle is no limit: they are written down, not judged."""


@dataclass(frozen=True)
class Series:
    """One quantity over a run, in the order sampled."""

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

    def over(self, limit: float) -> float:
        """Share of the samples beyond a limit."""
        return sum(value > limit for value in self.values) / len(self.values) if self.values else 0.0

    def facts(self, limit: float | None = None) -> dict[str, float]:
        """Median, mean, lowest and highest, and the share beyond the limit; empty without samples."""
        if not self.values:
            return {}
        told = {
            "median": statistics.median(self.values),
            "mean": self.mean,
            "min": self.low,
            "max": self.high,
        }
        if limit is not None:
            told["over"] = self.over(limit)
        return {name: round(value, 4) for name, value in told.items()}


@dataclass(frozen=True)
class DeviceSampled:
    """A device over a run. ``clock``: SM clock as a share of its maximum; temperature in degrees Celsius,
    power in watts, memory in MiB; ``reasons``: share of the samples in which clocks were held for each.

    ``foreign``: processes of others that computed on it, each with the most memory it held (None: not told).
    """

    uuid: str
    clock: Series = Series()
    temperature: Series = Series()
    power: Series = Series()
    used: Series = Series()
    utilization: Series = Series()
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
class Sampled:
    """What surrounded a run.

    Shares of the processors that the run had (``processors`` of them: its slot's, or all): ``own_cpu``,
    ``foreign_cpu`` (busy with what is not this attempt's; a sample may lie a little below 0, since processors
    and processes are not read at one instant), ``steal`` (given to other guests of the host).
    ``load``: of the whole machine, the average of the last minute for each processor, ours included.
    ``available``, ``foreign_memory``: MiB; ``pressure``: share of the time in which tasks waited for it,
    ours included (``memory.some``). ``strayed``: what of ours computed on devices outside the slot.
    ``hidden``: the driver does not say which of its processes are ours (as in a container).
    """

    seconds: float
    samples: int
    processors: int
    own_cpu: Series = Series()
    foreign_cpu: Series = Series()
    steal: Series = Series()
    load: Series = Series()
    total_memory: float = 0.0
    available: Series = Series()
    foreign_memory: Series = Series()
    pressure: Mapping[str, Series] = field(default_factory=dict)
    devices: tuple[DeviceSampled, ...] = ()
    strayed: tuple[str, ...] = ()
    hidden: bool = False
    clock_set: float = 0.0
    """Seconds by which the wall clock was set meanwhile, below 0: back. Only dates go by it."""
    problem: str = ""
    cost: float = 0.0
    """CPU seconds of the sampler's own thread, without the driver's command."""

    def facts(self, limits: Limits) -> dict[str, Any]:
        """For the provenance: what was seen, and what it was judged by."""
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
class Limits:
    """From where on a run says more about the machine than about the change. None: not judged.

    Only what others do counts: that server and client fill the cores is the workload. The defaults void what
    is plainly spoilt and leave the rest to the noise model, which sees it as spread: docs/machine.md.
    """

    foreign_cpu: float | None = 0.25
    """Mean share of the slot's processors that others used."""
    burst: float = 0.2
    """Share of the samples in which others may use twice that."""
    steal: float | None = 0.1
    """Mean share of the processors' time that the hypervisor gave to others."""
    available: float | None = 0.02
    """Least share of the memory that stays available: below, the kernel takes pages away to serve others."""
    memory_pressure: float | None = 0.1
    """Mean share of the time in which some task waited for memory."""
    device_memory: float | None = 64.0
    """MiB that a process of others may hold on a device of the slot; a bare CUDA context holds more."""
    slowed: float | None = 0.05
    """Share of the samples in which a device was slowed for heat or by its power supply."""
    clock: float | None = 0.3
    """Least median SM clock of a busy device, as a share of its maximum: no power cap goes so low."""


UNJUDGED = Limits(
    foreign_cpu=None,
    steal=None,
    available=None,
    memory_pressure=None,
    device_memory=None,
    slowed=None,
    clock=None,
)
"""Nothing is void for what others do, but for a device outside the slot."""

_BUSY_DEVICE = 50.0


def judge(sampled: Sampled, limits: Limits) -> str | None:
    """Why a run says nothing about the change; None if it may be believed."""
    said = [
        *(f"the engine used a device outside its slot: {one}" for one in sampled.strayed),
        *_processors(sampled, limits),
        *_memory(sampled, limits),
        *(why for device in sampled.devices for why in _device(device, limits)),
    ]
    return "; ".join(said) or None


def _processors(sampled: Sampled, limits: Limits) -> list[str]:
    said = []
    limit, foreign = limits.foreign_cpu, sampled.foreign_cpu
    on = f"of {sampled.processors} processor(s)"
    if limit is not None and foreign.mean > limit:
        said.append(f"other work used {foreign.mean:.0%} {on} (limit {limit:.0%})")
    elif limit is not None and foreign.over(2 * limit) > limits.burst:
        said.append(
            f"other work used more than {2 * limit:.0%} {on} in {foreign.over(2 * limit):.0%} of the samples "
            f"(limit {limits.burst:.0%})"
        )
    if limits.steal is not None and sampled.steal.mean > limits.steal:
        said.append(
            f"the hypervisor took {sampled.steal.mean:.0%} {on} for other guests (limit {limits.steal:.0%})"
        )
    return said


def _memory(sampled: Sampled, limits: Limits) -> list[str]:
    said = []
    least = None if limits.available is None else limits.available * sampled.total_memory
    if least is not None and sampled.available.values and sampled.available.low < least:
        said.append(
            f"{sampled.available.low:.0f} MiB of memory were left, of {sampled.total_memory:.0f} "
            f"(limit {least:.0f}); others held {sampled.foreign_memory.high:.0f} MiB"
        )
    waited = sampled.pressure.get("memory.some", Series()).mean
    if limits.memory_pressure is not None and waited > limits.memory_pressure:
        said.append(f"tasks waited for memory {waited:.0%} of the time (limit {limits.memory_pressure:.0%})")
    return said


def _device(device: DeviceSampled, limits: Limits) -> list[str]:
    said = []
    if limits.device_memory is not None:
        others = {
            name: memory
            for name, memory in device.foreign.items()
            if memory is None or memory > limits.device_memory
        }
        told = ", ".join(
            f"{name} with {'unknown' if memory is None else format(memory, '.0f')} MiB"
            for name, memory in others.items()
        )
        if others:
            said.append(f"others computed on device {device.uuid}: {told}")
    if limits.slowed is not None:
        for reason in SLOWED:
            if (share := device.reasons.get(reason, 0.0)) > limits.slowed:
                said.append(
                    f"device {device.uuid} was held back ({reason}) in {share:.0%} of the samples, at up to "
                    f"{device.temperature.high:.0f} degrees (limit {limits.slowed:.0%})"
                )
    busy = statistics.median(device.utilization.values) if device.utilization.values else 0.0
    clock = statistics.median(device.clock.values) if device.clock.values else 1.0
    if limits.clock is not None and busy >= _BUSY_DEVICE and clock < limits.clock:
        said.append(
            f"device {device.uuid} ran at {clock:.0%} of its highest clock (limit {limits.clock:.0%})"
        )
    return said
