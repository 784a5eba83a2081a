"""The launches of a job: what is asked for, and what its journal says of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Literal

from pydantic import Field

from perfbisect.common.checked import InnerPath, Quantity, Token
from perfbisect.model.attempt import Attempt, Failure, Purpose, key
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef

_MOST_RUNS = 10_000
_MOST_POSITIONS = 10_000_000

_HIDDEN = Field(exclude=True)
"""Of the engine alone: not in the public JSON, and not compared: a document equals its JSON."""


@dataclass(frozen=True)
class LaunchRequest:
    """A launch to start, and why."""

    position: int
    change: Change
    purpose: Purpose
    runs: int
    why: str
    cell: Cell | None = None
    """None: the job's."""
    side: str = ""
    """Names the change in errors; empty: by its id."""
    mate: Change | None = None
    """The change of the next launch, if both are a pair."""
    trial: tuple[int, ...] = ()
    """The A/B of a search that it is made for, as the search writes it."""


@dataclass(frozen=True)
class Launch:
    """One server start of a job, from its first event on; its JSON is public.

    ``value`` is that of the launch, ``values`` those of its runs, in the unit of the job's metric.
    """

    number: int
    id: str
    position: Annotated[int, Field(ge=0, le=_MOST_POSITIONS)]
    change: Change
    """A journal knows it by its id: only results have its subject."""
    purpose: Purpose
    runs: Annotated[int, Field(ge=0, le=_MOST_RUNS)]
    """As many as were asked for."""
    why: str
    folder: InnerPath
    started_at: str
    slot: str = ""
    """Name of the part of the machine it ran on; empty: the whole of it."""
    machine: str = ""
    """Of a fleet; empty: this machine."""
    at: Quantity | None = None
    """Minutes from the beginning of the job's first launch to that of this one; None: not known."""
    outcome: Literal["running", "measured", "failed", "abandoned"] = "running"
    """``running``: until its end is recorded, also if its process died."""
    value: float | None = None
    values: tuple[float, ...] = ()
    spread: float | None = None
    """Robust coefficient of variation over one run's requests, median over the runs."""
    reason: str = ""
    """Why it has no value."""
    fault: str = ""
    warnings: tuple[str, ...] = ()
    minutes: float = 0.0
    """Wall minutes, including waiting for builds."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    cold: bool = False
    log: str = ""
    attempt: Annotated[Attempt | None, _HIDDEN] = field(default=None, compare=False)
    token: Annotated[Token, _HIDDEN] = field(default="", compare=False)
    pid: Annotated[int, _HIDDEN] = field(default=0, compare=False)
    created: Annotated[float, _HIDDEN] = field(default=0.0, compare=False)
    ended: Annotated[int, _HIDDEN] = field(default=-1, compare=False)
    """Sequence number of the event that ended it."""
    trial: Annotated[tuple[int, ...], _HIDDEN] = field(default=(), compare=False)
    """The A/B of a search that it was made for, as the search writes it."""
    discarded: Annotated[bool, _HIDDEN] = field(default=False, compare=False)
    """It was measured and was abandoned: its values do not count."""

    @property
    def measurement(self) -> Attempt:
        """The attempt of a launch that has one."""
        assert self.attempt is not None, f"launch {self.number} has no attempt"
        return self.attempt

    @property
    def failure(self) -> Failure | None:
        return self.attempt.failure if self.attempt else None

    @property
    def cause(self) -> str:
        """The reason without the phase."""
        return self.failure.reason if self.failure else self.reason

    @property
    def refused(self) -> bool:
        """True if the change itself failed."""
        return self.failure is not None and self.failure.fault == "change"

    @property
    def is_unresolved(self) -> bool:
        """True if it may go on on its machine of a fleet: it is open, or was given up there."""
        is_lost = self.failure is not None and self.failure.fault == "machine" and self.built
        return bool(self.machine) and (self.outcome in ("running", "abandoned") or is_lost)

    @property
    def built(self) -> bool:
        """False if the environment could not be built: a retry would only build again."""
        return self.failure is None or self.failure.phase != "build"

    def ended_by(self, attempt: Attempt, outcome: Literal["measured", "failed"]) -> Launch:
        """The launch with what came of it; its values are those of no metric yet."""
        failure = attempt.failure
        return replace(
            self,
            outcome=outcome,
            attempt=attempt,
            reason=f"{failure.phase}: {failure.reason}" if failure else "",
            fault=failure.fault if failure else "",
            warnings=tuple(dict.fromkeys(text for run in attempt.runs for text in run.warnings)),
            minutes=sum(attempt.seconds.values()) / 60,
            seconds=dict(attempt.seconds),
            cold=attempt.cold,
            log=failure.log if failure else "",
        )

    def abandoned(self, reason: str, minutes: float) -> Launch:
        """The launch without a result."""
        return replace(self, outcome="abandoned", reason=reason, minutes=minutes)

    def discard(self, reason: str) -> Launch:
        """The measured launch as one that took as long and is no evidence."""
        # Only its start is kept: nothing may find a value in it.
        bare = replace(
            self, attempt=None, value=None, values=(), spread=None, warnings=(), seconds={}, cold=False
        )
        return replace(bare.abandoned(reason, self.minutes), fault="", log="", discarded=True)

    def valued(self, metric: MetricRef | None) -> Launch:
        """The launch with its values of a metric."""
        if self.attempt is None or metric is None:
            return self
        runs = self.attempt.runs
        return replace(
            self,
            value=reported_value(self.attempt, metric),
            values=tuple(run.values[key(metric)] for run in runs if key(metric) in run.values),
            spread=spread(self.attempt, metric),
        )


def reported_value(attempt: Attempt, metric: MetricRef) -> float | None:
    """The value of a launch; None if a run does not report the metric, or there is no run."""
    try:
        return attempt.value(metric)
    except (KeyError, ValueError):
        return None


def spread(attempt: Attempt | None, metric: MetricRef) -> float | None:
    """Robust coefficient of variation over a run's requests, median over the runs; None without requests."""
    if attempt is None:
        return None
    known = [
        run.spread[name] for run in attempt.runs for name in (key(metric), metric.name) if name in run.spread
    ]
    return median(known) if known else None
