"""One server start with its runs: the unit of replication."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Literal

from perfbisect.errors import FaultCode
from perfbisect.model.metric import MetricRef

Phase = Literal["build", "fetch", "launch", "first_request", "warm", "bench", "stop"]
"""Where an attempt's time goes, and where it can fail."""

Fault = Literal["change", "machine", "client", "ours"]
"""Whose a failure is (DESIGN rule 3): only ``change`` is data about a change."""

Purpose = Literal["run", "end", "search", "confirm", "revert"]


@dataclass(frozen=True)
class Costs:
    """Minutes that a build, a launch (start, readiness, discarded run, stop) and a run take: expected, then
    as observed."""

    build: float = 4.0
    launch: float = 3.0
    run: float = 1.5


@dataclass(frozen=True)
class Failure:
    """Why an attempt has no measurement, or not all of them."""

    phase: Phase
    fault: Fault
    reason: str
    log: str = ""
    code: FaultCode | None = None


@dataclass(frozen=True)
class RunResult:
    """One bench run: the numbers the client reported, by metric (``tpot:median``, ``output_throughput``).

    ``values`` are in the units of the metric table. ``spread`` is the robust coefficient of variation over a
    run's requests for metrics that have requests (MAD x 1.4826 / median). ``warnings`` are guards that were
    touched (some failed requests, short outputs): the run counts, but supports no claim of improvement.
    """

    index: int
    seed: int
    values: Mapping[str, float]
    spread: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    raw: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Covariates: completed, failed, token counts, prefix-cache hit rate before and after, load."""


@dataclass(frozen=True)
class Provenance:
    """Under which conditions an attempt was made: what must agree for a comparison, and what is kept."""

    cell_digest: str
    machine_class: str
    client_digest: str
    engine_version: str = ""
    engine_commit: str = ""
    environment_key: str = ""
    client_era: str = ""
    """In which declared way the client measures; empty where no table says so."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Host, CPU or GPUs, driver, load, versions, process environment (redacted), serve and bench argv."""


@dataclass(frozen=True)
class Attempt:
    """One server start, its discarded warm run and its measured runs; or the failure that ended it."""

    id: str
    change_id: str
    purpose: Purpose
    provenance: Provenance
    runs: tuple[RunResult, ...] = ()
    failure: Failure | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds of each phase."""
    folder: str = ""
    cold: bool = False
    """The environment's compile and kernel caches were empty at the start."""
    started_at: str = ""
    slot: str = ""
    """Name of the part of the machine it ran on; empty: the whole of it."""

    def values(self, metric: MetricRef) -> tuple[float, ...]:
        """The metric of each run, in run order. :raises KeyError: a run does not report it."""
        return tuple(run.values[key(metric)] for run in self.runs)

    def value(self, metric: MetricRef) -> float:
        """The value of the launch: see :func:`value_of_runs`.

        :raises KeyError: a run does not report it.
        :raises ValueError: no run.
        """
        return value_of_runs(self.values(metric), absolute=metric.metric.absolute)

    def log_value(self, metric: MetricRef) -> float:
        """The log of the value of the launch.

        :raises KeyError: a run does not report it.
        :raises ValueError: no run, or a run's value is not positive and finite.
        """
        values = self.values(metric)
        if not values or any(not math.isfinite(v) or v <= 0 for v in values):
            raise ValueError(f"attempt {self.id}: {metric} has no usable value: {values}")
        return math.log(self.value(metric))


def value_of_runs(runs: Sequence[float], *, absolute: bool = False) -> float:
    """The value of a launch, from its runs: exp of the centre of their logs.

    Without logs, of the values themselves, for shares (``absolute``) and where a run is not positive.

    :raises ValueError: no run.
    """
    if not runs:
        raise ValueError("a launch without a run has no value")
    least = min(runs)
    if absolute or least <= 0:
        return robust_center(runs)
    # Relative to the least run: equal runs have exactly their own value.
    return least * math.exp(robust_center([math.log(run / least) for run in runs]))


def robust_center(values: Sequence[float]) -> float:
    """The mean of one or two values, the median of three or four, else the mean without both extremes.

    Symmetric under a change of sign and of order.
    """
    if len(values) < 3:
        return fmean(values)
    return median(values) if len(values) < 5 else fmean(sorted(values)[1:-1])


def key(metric: MetricRef) -> str:
    """The name under which a run reports a metric: always with its statistic where it has one."""
    return f"{metric.name}:{metric.statistic}" if metric.statistic else metric.name


def provenance_differences(a: Provenance, b: Provenance) -> tuple[tuple[str, str, str], ...]:
    """Fields that differ and forbid a comparison: (field, left, right); empty if comparable.

    Clients of different digests are comparable where both are of one declared era.
    """
    fields = ["cell_digest", "machine_class"]
    if not a.client_era or a.client_era != b.client_era:
        fields.append("client_digest")
    return tuple((f, getattr(a, f), getattr(b, f)) for f in fields if getattr(a, f) != getattr(b, f))
