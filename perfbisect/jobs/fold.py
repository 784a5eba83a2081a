"""The journal folded: what was launched, what the core sees of it, and what the runner owes a retry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from perfbisect.core import bisect as core
from perfbisect.core.attempt import Attempt, Purpose
from perfbisect.core.metric import MetricRef
from perfbisect.errors import UsageError
from perfbisect.jobs.plan import BisectPlan
from perfbisect.store import attempts
from perfbisect.store.events import Event

_LAUNCH_PHASES = ("fetch", "launch", "first_request", "warm", "stop")


@dataclass(frozen=True)
class Launch:
    """One attempt as the journal tells it; ``end`` is None while it runs, or if its process died."""

    number: int
    attempt_id: str
    position: int
    change_id: str
    purpose: Purpose
    runs: int
    why: str
    folder: str
    token: str
    started_at: str
    pid: int = 0
    created: float = 0.0
    end: Literal["finished", "failed", "abandoned"] | None = None
    attempt: Attempt | None = None
    reason: str = ""
    lost: float = 0.0

    @property
    def minutes(self) -> float:
        """Wall minutes that the attempt took, waiting for builds included."""
        return self.lost if self.attempt is None else sum(self.attempt.seconds.values()) / 60

    @property
    def refused(self) -> bool:
        """True if the change itself failed (DESIGN rule 3)."""
        failure = self.attempt.failure if self.attempt else None
        return failure is not None and failure.fault == "change"

    @property
    def built(self) -> bool:
        """False if it failed before there was an environment: then another launch would only build again."""
        failure = self.attempt.failure if self.attempt else None
        return failure is None or failure.phase != "build"


class Ledger:
    """The attempts of a job, in the order in which they began; reads each event of its journal once."""

    def __init__(self) -> None:
        self._found: dict[str, Launch] = {}
        self._read = 0

    def read(self, events: Sequence[Event]) -> tuple[Launch, ...]:
        """The attempts as of these events, of which earlier calls saw the first.

        :raises UsageError: an event of an attempt that never began, or an attempt that is none.
        """
        for event in events[self._read :]:
            if event.kind == "started":
                launch = _started(event, len(self._found) + 1)
                self._found[launch.attempt_id] = launch
            elif event.kind in ("launched", "abandoned", "finished", "failed"):
                identity = _identity(event)
                if identity not in self._found:
                    raise UsageError(
                        f"the journal's event {event.seq} ends attempt {identity!r}, which never began"
                    )
                self._found[identity] = _after(self._found[identity], event)
        self._read = len(events)
        return tuple(self._found.values())


def launches(events: Sequence[Event]) -> tuple[Launch, ...]:
    """The attempts of a job. :raises UsageError: as :meth:`Ledger.read`."""
    return Ledger().read(events)


def project(seen: Iterable[Launch], plan: BisectPlan) -> tuple[core.Event, ...]:
    """What the core sees: values, skips after the runner's one retry, minutes that are no evidence.

    A failure of an end that never gave a value is no skip: it is an error about the range.
    """
    events: list[core.Event] = []
    failed: set[int] = set()
    never = {0, plan.last}
    for launch in seen:
        if launch.end == "finished" and launch.attempt is not None:
            failed.discard(launch.position)
            never.discard(launch.position)
            events.append(measured(launch, launch.attempt, plan.ref))
        elif launch.end == "failed" and launch.refused and launch.position not in never:
            if launch.built and launch.position not in failed:
                failed.add(launch.position)
                events.append(core.Lost(launch.minutes))
            else:
                failed.discard(launch.position)
                events.append(core.Skipped(launch.position, _core_purpose(launch.purpose), launch.minutes))
        elif launch.end is not None:
            events.append(core.Lost(launch.minutes))
    return tuple(events)


def owed(seen: Iterable[Launch]) -> Launch | None:
    """The launch whose change failed for the first time and is to be tried once more, first of all."""
    last: Launch | None = None
    failures = 0
    for launch in seen:
        if launch.end == "finished":
            last, failures = None, 0
        elif launch.end == "failed" and launch.refused:
            failures = failures + 1 if last is not None and last.position == launch.position else 1
            last = launch
            if failures > 1 or not launch.built:
                last, failures = None, 0
    return last


def measured(launch: Launch, attempt: Attempt, metric: MetricRef) -> core.Measured:
    """A launch with its values and its minutes.

    :raises KeyError: the client does not report the metric.
    """
    seconds: Mapping[str, float] = attempt.seconds
    return core.Measured(
        launch.position,
        _core_purpose(launch.purpose),
        attempt.values(metric),
        build=seconds.get("build", 0.0) / 60,
        launch=sum(seconds.get(phase, 0.0) for phase in _LAUNCH_PHASES) / 60,
        run=seconds.get("bench", 0.0) / 60,
    )


def _core_purpose(purpose: Purpose) -> core.Purpose:
    if purpose == "run":
        raise ValueError("a launch of perfbisect run is no part of a bisection")
    return purpose


def _identity(event: Event) -> str:
    attempt = event.data.get("attempt")
    return str(attempt.get("id") if isinstance(attempt, Mapping) else attempt)


def _started(event: Event, number: int) -> Launch:
    data = event.data
    try:
        return Launch(
            number=number,
            attempt_id=str(data["attempt"]),
            position=int(data["position"]),
            change_id=str(data["change"]),
            purpose=data["purpose"],
            runs=int(data["runs"]),
            why=str(data["why"]),
            folder=str(data["folder"]),
            token=str(data.get("token", "")),
            started_at=event.time,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the journal's event {event.seq} starts no attempt: {error!r}") from error


def _after(launch: Launch, event: Event) -> Launch:
    data: Mapping[str, Any] = event.data
    try:
        if event.kind == "launched":
            return replace(
                launch, token=str(data["token"]), pid=int(data["pid"]), created=float(data["created"])
            )
        if launch.end is not None:
            raise ValueError(f"attempt {launch.attempt_id} ended twice")
        if event.kind == "abandoned":
            return replace(launch, end="abandoned", reason=str(data["reason"]), lost=float(data["minutes"]))
        attempt = attempts.from_dict(data["attempt"])
        reason = attempt.failure.reason if attempt.failure else ""
        return replace(
            launch, end="finished" if event.kind == "finished" else "failed", attempt=attempt, reason=reason
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the journal's event {event.seq} cannot be read: {error}") from error
