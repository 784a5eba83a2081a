"""The attempts of a job, replayed from its journal, and the launch that is due for a retry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from perfbisect.errors import UsageError
from perfbisect.jobs.journal import Event
from perfbisect.measure import attempt as attempts
from perfbisect.model.attempt import Attempt, Purpose


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
    slot: str = ""
    at: float | None = None
    """Minutes from the job's first launch to the beginning of this one; None in journals without it."""
    ended: int = -1
    """Number of the event that ended it."""
    pid: int = 0
    created: float = 0.0
    end: Literal["finished", "failed", "abandoned"] | None = None
    attempt: Attempt | None = None
    reason: str = ""
    lost: float = 0.0
    void: bool = False
    """It finished, and its values are no evidence after all: ``reason``."""

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
            elif event.kind in ("launched", "abandoned", "finished", "failed", "voided"):
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


def in_order(seen: Iterable[Launch]) -> list[Launch]:
    """Those that have ended, in the order in which they did: times may go backwards, numbers do not."""
    return sorted((launch for launch in seen if launch.end is not None), key=lambda launch: launch.ended)


def owed(seen: Sequence[Launch], slot: str = "", slots: Collection[str] = ("",)) -> Launch | None:
    """The launch whose change failed for the first time and is to be tried once more on this slot, first of
    all: there where it failed, so that a pair stays together, or anywhere if that slot is no more."""
    failed: dict[int, Launch] = {}
    for launch in in_order(seen):
        if launch.end == "finished":
            failed.pop(launch.position, None)
        elif launch.end == "failed" and launch.refused:
            again = launch.position in failed
            failed.pop(launch.position, None)
            if launch.built and not again:
                failed[launch.position] = launch
    running = {launch.position for launch in seen if launch.end is None}
    for launch in failed.values():
        if launch.position not in running and (launch.slot == slot or launch.slot not in slots):
            return launch
    return None


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
            slot=str(data.get("slot", "")),
            at=None if data.get("at") is None else float(data["at"]),
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
        if event.kind == "voided" and launch.end == "finished":
            reason, minutes = str(data["reason"]), launch.minutes
            return replace(launch, end="abandoned", attempt=None, reason=reason, lost=minutes, void=True)
        if launch.end is not None:
            raise ValueError(f"attempt {launch.attempt_id} ended twice")
        launch = replace(launch, ended=event.seq)
        if event.kind == "abandoned":
            return replace(launch, end="abandoned", reason=str(data["reason"]), lost=float(data["minutes"]))
        attempt = attempts.from_dict(data["attempt"])
        reason = attempt.failure.reason if attempt.failure else ""
        return replace(
            launch, end="finished" if event.kind == "finished" else "failed", attempt=attempt, reason=reason
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the journal's event {event.seq} cannot be read: {error}") from error


class Timeline:
    """Minutes of a job, over its interruptions.

    Within one process they are those of ``seconds``, a monotonic clock. A resumed job goes on where its
    last launch ended, later by what the wall clock says has passed since; a wall clock that was set back
    adds nothing.
    """

    def __init__(self, seen: Sequence[Launch], seconds: Callable[[], float], now: datetime) -> None:
        known = [launch for launch in seen if launch.at is not None]
        self._seconds = seconds
        self._first: float | None = None
        self._offset = 0.0
        if known:
            last = max(known, key=lambda launch: (launch.at or 0.0) + launch.minutes)
            reached = (last.at or 0.0) + last.minutes
            began = datetime.fromisoformat(last.started_at)
            passed = (now - began).total_seconds() / 60 - last.minutes
            self._offset, self._first = reached + max(0.0, passed), seconds()

    def minutes(self) -> float:
        """Minutes from the job's first launch to now; the first call of a new job is that launch."""
        now = self._seconds()
        if self._first is None:
            self._first = now
        return self._offset + (now - self._first) / 60


def saved(events: Iterable[Event], seen: Sequence[Launch]) -> float:
    """Minutes saved so far: a client that imported while its server started, and an environment that was
    built beside a running attempt and used by a later launch."""
    facts = [launch.attempt.provenance.facts for launch in seen if launch.attempt is not None]
    seconds = sum(float(fact.get("saved_seconds") or 0.0) for fact in facts)
    used = {launch.position for launch in seen}
    built = {
        int(event.data["position"]): float(event.data["seconds"]) for event in events if event.kind == "built"
    }
    return (seconds + sum(took for position, took in built.items() if position in used)) / 60
