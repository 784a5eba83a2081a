"""The launches of a job, replayed from its journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import median
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from perfbisect.common.checked import InnerPath, Quantity, Seconds, Token, first_problem
from perfbisect.errors import MachineError, UsageError
from perfbisect.jobs.journal import JournalEvent
from perfbisect.measure.attempt import from_dict
from perfbisect.measure.executor import PhaseLimits
from perfbisect.model.attempt import Attempt, Failure, Purpose, key, provenance_differences
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef, Source, parse_metric

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
    time_limits: PhaseLimits | None = None
    """None: the job's."""
    client: str = ""
    """The specification of the client of its side; empty: the job's client."""


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
        # Only its start is kept, so that no reader finds a value in it.
        bare = replace(
            self, attempt=None, value=None, values=(), spread=None, warnings=(), seconds={}, cold=False
        )
        return replace(bare.abandoned(reason, self.minutes), fault="", log="", discarded=True)

    def valued(self, metric: MetricRef | None) -> Launch:
        """The launch with its values of a metric: of the runs that report it, or the one of the launch."""
        if self.attempt is None or metric is None:
            return self
        try:
            values = self.attempt.values(metric)
        except KeyError:  # of the runs that report it
            name = key(metric)
            values = tuple(run.values[name] for run in self.attempt.runs if name in run.values)
        return replace(
            self,
            value=reported_value(self.attempt, metric),
            values=values,
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


_MOST_PID = 2**22
"""The largest process id of Linux."""


@dataclass(frozen=True)
class _Server:
    """The process of a launch; a later process of the job ends what is left of it."""

    token: Token
    pid: Annotated[int, Field(ge=0, le=_MOST_PID)]
    created: Seconds


@dataclass(frozen=True)
class _Abandoned:
    reason: str
    minutes: Seconds


_LAUNCH, _SERVER, _ABANDONED = TypeAdapter(Launch), TypeAdapter(_Server), TypeAdapter(_Abandoned)


class JournalReplay:
    """The launches of a job in start order; reads each event of its journal once."""

    def __init__(self) -> None:
        self._launches: dict[str, Launch] = {}
        self._read = 0
        self._metric: MetricRef | None = None

    def read(self, events: Sequence[JournalEvent]) -> tuple[Launch, ...]:
        """Return the launches after these events, which begin with those of earlier calls.

        Raises:
            LocatedError: an event ends an unknown attempt or cannot be parsed.
        """
        for event in events[self._read :]:
            try:
                if event.kind == "plan" and "metric" in event.data:
                    self._metric = parse_metric(event.data["metric"])
                    # A job that goes on with another metric is judged by it from the first launch on.
                    for identity, launch in self._launches.items():
                        self._launches[identity] = launch.valued(self._metric)
                elif event.kind == "started":
                    data = dict(event.data)
                    names = {"id": data.pop("attempt"), "change": Change.of(data.pop("change"))}
                    numbered = {**names, "number": len(self._launches) + 1, "started_at": event.time}
                    launch = _LAUNCH.validate_python({**data, **numbered})
                    self._launches[launch.id] = launch
                elif event.kind in ("launched", "abandoned", "finished", "failed", "discarded"):
                    attempt = event.data.get("attempt")
                    identity = str(attempt.get("id") if isinstance(attempt, Mapping) else attempt)
                    if identity not in self._launches:
                        raise ValueError(f"attempt {identity!r} never began")
                    self._launches[identity] = _updated(self._launches[identity], event).valued(self._metric)
            except ValidationError as error:
                raise event.error(first_problem(error)) from error
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                raise event.error(f"{type(error).__name__}: {error}") from error
        self._read = len(events)
        return tuple(self._launches.values())


def launches(events: Sequence[JournalEvent]) -> tuple[Launch, ...]:
    """All launches of a job; UsageError if an event cannot be parsed."""
    return JournalReplay().read(events)


def _updated(launch: Launch, event: JournalEvent) -> Launch:
    data = event.data
    if event.kind == "launched":
        server = _SERVER.validate_python(dict(data))
        # Without a token nothing says that the process is ours.
        pid = server.pid if server.token else 0
        return replace(launch, token=server.token, pid=pid, created=server.created)
    if event.kind == "discarded" and launch.outcome == "measured":
        return launch.discard(str(data["reason"]))
    if launch.outcome != "running":
        raise ValueError(f"attempt {launch.id} ended twice")
    launch = replace(launch, ended=event.seq)
    if event.kind == "abandoned":
        lost = _ABANDONED.validate_python(dict(data))
        return launch.abandoned(lost.reason, lost.minutes)
    attempt = from_dict(data["attempt"])
    if event.kind == "finished" and not attempt.runs and launch.purpose != "profile":
        raise ValueError(f"attempt {launch.id} finished without a run")
    return launch.ended_by(attempt, "measured" if event.kind == "finished" else "failed")


def ended_launches(records: Iterable[Launch]) -> list[Launch]:
    """Ended launches in the order of their final events, which wall clocks do not disturb."""
    return sorted((x for x in records if x.outcome != "running"), key=lambda launch: launch.ended)


def awaiting_retry(records: Iterable[Launch]) -> dict[int, Launch]:
    """The failed launches to repeat, by position: of a change that was built, after its first failure."""
    failed: dict[int, Launch] = {}
    for launch in ended_launches(records):
        if launch.outcome == "measured":
            failed.pop(launch.position, None)
        # A failure of the machine or the client says nothing about the change and uses up no retry.
        elif launch.outcome == "failed" and launch.refused:
            is_retry = failed.pop(launch.position, None) is not None
            if launch.built and not is_retry:
                failed[launch.position] = launch
    return failed


def require_comparable(
    attempt: Attempt,
    records: Sequence[Launch],
    metric: MetricRef,
    advice: str = "measure all of a bisection",
) -> None:
    """Require the job's metric, of which a ratio exists, and comparable provenance."""
    require_reported(attempt, metric)
    require_same_provenance(attempt, records, advice)


_SOURCES: Mapping[Source, str] = {
    "client": "the client",
    "engine counters": "neither client nor engine",
    "engine log": "the engine's log",
    "launch": "the launch",
}


def require_reported(attempt: Attempt, metric: MetricRef) -> None:
    """Require values of the metric in every run, of which a ratio exists."""
    try:
        values = attempt.values(metric)
    except KeyError:
        reported = sorted({*attempt.reported, *(name for run in attempt.runs for name in run.values)})
        raise UsageError(
            f"{_SOURCES[metric.metric.source]} did not report {key(metric)}; reported: {', '.join(reported)}",
            where=attempt.folder,
            next_step="name one of these with --metric",
        ) from None
    require_ratio(values, metric, where=attempt.folder)


def require_same_provenance(
    attempt: Attempt,
    records: Sequence[Launch],
    advice: str = "measure all of a bisection",
    *,
    any_client: bool = False,
) -> None:
    """Require the provenance of the first of these launches, but for its client if ``any_client``.

    ``advice`` begins the next step of the error.
    """
    measured = (x.measurement for x in ended_launches(records) if x.outcome == "measured")
    first = next(measured, attempt)
    for name, left, right in provenance_differences(first.provenance, attempt.provenance):
        if any_client and name == "client_digest":
            continue
        raise MachineError(
            f"attempt {attempt.id} cannot be compared with {first.id}: {name} was {left!r} and is {right!r}",
            where=attempt.folder,
            next_step=f"{advice} on one machine, with one client (--client), of one cell",
        )


def require_ratio(values: Sequence[float], metric: MetricRef, *, where: str | None = None) -> None:
    """Require values of which a ratio exists; else a UsageError."""
    if not metric.metric.absolute and min(values) <= 0:
        raise UsageError(
            f"{key(metric)} is {min(values):g} in a run, and effects are ratios of positive values",
            where=where,
            next_step="name another metric with --metric",
        )


def lost_minutes(records: Iterable[Launch]) -> float:
    """Minutes of ended launches that are no evidence: discarded, abandoned, or not the change's failure."""
    return sum(x.minutes for x in records if x.outcome != "measured" and not x.refused)


class Timeline:
    """Minutes since a job's first launch, continued over interruptions.

    Within a process they follow ``seconds``, a monotonic clock. A resumed job continues from the end of its
    last launch plus the wall-clock time since, if that is positive.
    """

    def __init__(self, records: Sequence[Launch], seconds: Callable[[], float], now: datetime) -> None:
        known = [launch for launch in records if launch.at is not None]
        self._seconds = seconds
        self._first: float | None = None
        self._offset = 0.0
        if known:
            last = max(known, key=lambda launch: (launch.at or 0.0) + launch.minutes)
            reached = (last.at or 0.0) + last.minutes
            began = datetime.fromisoformat(last.started_at)
            # Only the wall clock spans two processes; it may have been set back in between.
            passed = (now - began).total_seconds() / 60 - last.minutes
            self._offset, self._first = reached + max(0.0, passed), seconds()

    def minutes(self) -> float:
        """Minutes since the job's first launch; the first call of a new job returns 0."""
        now = self._seconds()
        if self._first is None:
            self._first = now
        return self._offset + (now - self._first) / 60


def minutes_saved(events: Iterable[JournalEvent], records: Sequence[Launch]) -> float:
    """Minutes saved by overlap: clients imported during server starts, environments built ahead and used."""
    facts = [launch.attempt.provenance.facts for launch in records if launch.attempt is not None]
    seconds = sum(float(fact.get("saved_seconds") or 0.0) for fact in facts)
    used = {launch.position for launch in records}
    built = {
        int(event.data["position"]): float(event.data["seconds"]) for event in events if event.kind == "built"
    }
    return (seconds + sum(took for position, took in built.items() if position in used)) / 60
