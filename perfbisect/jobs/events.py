"""What a job tells while it works: values for whoever watches. Nothing is decided on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from perfbisect.jobs.documents import BeliefDocument, Document, LaunchDocument, PlanDocument, PositionDocument


@dataclass(frozen=True)
class Told:
    """Something a reader must know: a dirty work tree, a torn line, what a dead process left."""

    text: str


@dataclass(frozen=True)
class Planned:
    """The plan, before anything starts."""

    job: str
    plan: PlanDocument


@dataclass(frozen=True)
class Launching:
    """An attempt begins. ``slot``: the part of the machine it runs on; empty: the whole of it."""

    number: int
    change: str
    position: int
    of: int
    purpose: str
    runs: int
    why: str
    slot: str = ""
    subject: str = ""
    """The change's, as its author wrote it."""


@dataclass(frozen=True)
class PhaseBegan:
    """The attempt on a slot is in another phase."""

    phase: str
    detail: Mapping[str, object]
    slot: str = ""


@dataclass(frozen=True)
class Launched:
    """An attempt ended. ``leading``: candidates by probability; ``none``: P(no change), None if too early.

    ``history`` is what ``beliefs.by_position`` counts through, the good end first.
    """

    launch: LaunchDocument
    unit: str
    leading: tuple[tuple[str, float], ...]
    none: float | None
    used: float
    budget: float
    beliefs: BeliefDocument | None = None
    history: tuple[PositionDocument, ...] = ()


@dataclass(frozen=True)
class Waiting:
    """The machine failed: it is waited for, then tried again."""

    seconds: float
    reason: str
    slot: str = ""


@dataclass(frozen=True)
class Ended:
    """The job is done."""

    document: Document


JobEvent = Told | Planned | Launching | PhaseBegan | Launched | Waiting | Ended
Sink = Callable[[JobEvent], None]
