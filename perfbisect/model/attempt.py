"""One server start with its runs: the unit of replication."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Annotated, Any, Literal

from pydantic import WrapValidator

from perfbisect.common.json_text import PackedObject
from perfbisect.errors import FaultCode
from perfbisect.model.counters import RunCounters
from perfbisect.model.launch_facts import counted_value, launch_value
from perfbisect.model.metric import METRICS, MetricRef
from perfbisect.model.trace import Trace, constant_text

Phase = Literal["build", "fetch", "launch", "first_request", "warm", "bench", "stop"]

Fault = Literal["change", "machine", "client"]
"""Whose a failure is: only ``change`` is data about a change."""

Purpose = Literal["run", "end", "search", "confirm", "replicate", "revert", "profile"]
"""``profile``: recorded where time goes; has no runs and is never a measurement."""


Facts = Annotated[
    Mapping[str, Any],
    WrapValidator(lambda value, validate: value if isinstance(value, PackedObject) else validate(value)),
]
"""What was recorded and is not compared; packed where it was read from a journal."""


@dataclass(frozen=True)
class Costs:
    """Minutes of a build, a launch (start, readiness, discarded run, stop) and a run."""

    build: float = 4.0
    launch: float = 3.0
    run: float = 1.5


_MOMENTS: Mapping[Phase, str] = {
    "build": "import",
    "launch": "start",
    "first_request": "first request",
    "warm": "under load",
    "bench": "under load",
}
"""When a launch failed; whether a crash under load comes in the discarded run or later is chance."""


@dataclass(frozen=True)
class Failure:
    """Why an attempt has no measurement, or not all of them. ``trace``: the error that its log names."""

    phase: Phase
    fault: Fault
    reason: str
    log: str = ""
    code: FaultCode | None = None
    trace: Trace | None = None

    @property
    def signature(self) -> str:
        """When and how it failed, without what differs between launches: equal for the same failure."""
        how = self.trace.signature if self.trace else constant_text(self.reason)
        return f"{_MOMENTS.get(self.phase, self.phase)}: {how}"


@dataclass(frozen=True)
class RunResult:
    """One benchmark run: ``values`` by metric key (``tpot:median``), in the units of the metric table.

    ``spread``: robust coefficient of variation over the run's requests (MAD x 1.4826 / median). A run with
    ``warnings`` (some failed requests, short outputs) counts, but supports no claim of improvement.
    """

    index: int
    seed: int
    values: Mapping[str, float]
    spread: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    raw: str = ""
    facts: Facts = field(default_factory=dict)
    """Covariates: completed, failed, token counts, prefix-cache hit rate before and after, load."""


@dataclass(frozen=True)
class Provenance:
    """The conditions of an attempt: those that must agree for a comparison, and those that are recorded."""

    cell_digest: str
    machine_class: str
    client_digest: str
    engine_version: str = ""
    engine_commit: str = ""
    environment_key: str = ""
    client_era: str = ""
    """Declared era of the client's definitions; empty if unknown."""
    facts: Facts = field(default_factory=dict)
    """Host, CPU or GPUs, driver, load, versions, process environment (redacted), serve and bench argv."""

    @property
    def engine(self) -> Mapping[str, Any]:
        """Facts of the engine's environment; none where they were not recorded."""
        found = self.facts.get("engine")
        return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True)
class Attempt:
    """One server start with a discarded and measured runs, or the failure that ended it."""

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
    """Name of the slot; empty for the whole machine."""

    def values(self, metric: MetricRef) -> tuple[float, ...]:
        """The metric of each run, or the one value of a launch. :raises KeyError: it is not reported."""
        # A benchmark of starts reports times to ready itself, several a launch.
        is_reported = bool(self.runs) and all(key(metric) in run.values for run in self.runs)
        if metric.metric.is_of_launch and not is_reported:
            facts = self.provenance.facts
            value = launch_value(metric.metric, facts, self.seconds, cold=self.cold)
            if value is None or not self.runs:
                raise KeyError(key(metric))
            return (value,)
        return tuple(run_value(run, metric) for run in self.runs)

    @property
    def reported(self) -> tuple[str, ...]:
        """Keys of what all runs report, in the order of the first, then of what the launch has beside."""
        if not self.runs:
            return ()
        first, *others = self.runs
        found = [name for name in first.values if all(name in run.values for run in others)]
        for name, row in METRICS.items():
            if row.source != "client" and name not in found:
                with suppress(KeyError):
                    self.values(MetricRef(name))
                    found.append(name)
        return tuple(found)

    def value(self, metric: MetricRef) -> float:
        """The value of the launch: see :func:`value_of_runs`."""
        return value_of_runs(self.values(metric), absolute=metric.metric.absolute)


def run_value(run: RunResult, metric: MetricRef) -> float:
    """The metric of a run: as its client says, else by the engine's counters. :raises KeyError: neither."""
    name = key(metric)
    if name not in run.values and metric.metric.source == "engine counters":
        counted = counted_value(metric.metric, RunCounters.of_run(run).engine)
        if counted is not None:
            return counted
    return run.values[name]


def value_of_runs(runs: Sequence[float], *, absolute: bool = False) -> float:
    """The value of a launch: exp of the robust centre of the logs of its runs.

    For shares (``absolute``) and where a run is not positive, the centre of the values themselves.

    Raises:
        ValueError: no run.
    """
    if not runs:
        raise ValueError("a launch without a run has no value")
    # A log needs positive values; shares may be zero, and their differences are what counts.
    least = min(runs)
    if absolute or least <= 0:
        return robust_center(runs)
    # Relative to the least run: equal runs have exactly their own value.
    return least * math.exp(robust_center([math.log(run / least) for run in runs]))


def robust_center(values: Sequence[float]) -> float:
    """The mean of one or two values, the median of three or four, else the mean without both extremes."""
    if len(values) < 3:
        return fmean(values)
    return median(values) if len(values) < 5 else fmean(sorted(values)[1:-1])


def relative_spread(values: Sequence[float]) -> float:
    """The robust coefficient of variation: MAD x 1.4826 / median; 0 where the median is not positive."""
    middle = median(values)
    # A normal distribution has a standard deviation of 1.4826 MAD.
    return 1.4826 * median(abs(value - middle) for value in values) / middle if middle > 0 else 0.0


def key(metric: MetricRef) -> str:
    """The key of a metric in :class:`RunResult`, always with its statistic."""
    return f"{metric.name}:{metric.statistic}" if metric.statistic else metric.name


def provenance_differences(a: Provenance, b: Provenance) -> tuple[tuple[str, str, str], ...]:
    """Differences that forbid a comparison: (field, left, right).

    Clients of different digests are comparable within one declared era.
    """
    fields = ["cell_digest", "machine_class"]
    # Within an era clients of several digests define their metrics alike; none declared: by digest alone.
    if not a.client_era or a.client_era != b.client_era:
        fields.append("client_digest")
    differing = ((f, getattr(a, f), getattr(b, f)) for f in fields)
    return tuple(
        (f, x, y) for f, x, y in differing if x != y and not (f == "machine_class" and is_same_class(x, y))
    )


CPU = "cpu "
"""Begins the part of a machine class that names the processors beside devices."""


def is_same_class(a: str, b: str) -> bool:
    """Whether two machine classes are equal, or differ in that one does not name its processors."""
    parts = [kind.split(", ") for kind in (a, b)]
    rest = [[part for part in own if not part.startswith(CPU)] for own in parts]
    return a == b or (rest[0] == rest[1] and any(map(list.__eq__, parts, rest)))
