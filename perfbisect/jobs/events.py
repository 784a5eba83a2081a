"""Progress events of a running job, for display only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from perfbisect.jobs.documents import BeliefDocument, Document, LaunchDocument, PlanDocument, PositionDocument


@dataclass(frozen=True)
class JobNote:
    """A message, such as a dirty work tree or a recovered attempt."""

    text: str


@dataclass(frozen=True)
class PlanReady:
    """The plan, before the first launch."""

    job: str
    plan: PlanDocument


@dataclass(frozen=True)
class LaunchStarted:
    """A launch starts. ``slot``: the part of the machine; empty: all of it."""

    number: int
    change: str
    position: int
    of: int
    purpose: str
    runs: int
    why: str
    slot: str = ""
    subject: str = ""
    """Subject of the commit."""


@dataclass(frozen=True)
class PhaseStarted:
    """The launch on a slot entered a phase."""

    phase: str
    detail: Mapping[str, object]
    slot: str = ""


@dataclass(frozen=True)
class LaunchEnded:
    """A launch ended. ``leading``: candidates by probability; ``none``: P(no change), None if unknown.

    ``history``: the positions of ``beliefs.by_position``, from the good end.
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
class MachineBackoff:
    """The machine failed; the slot backs off before a retry."""

    seconds: float
    reason: str
    slot: str = ""


@dataclass(frozen=True)
class JobEnded:
    """The job has finished."""

    document: Document


JobEvent = JobNote | PlanReady | LaunchStarted | PhaseStarted | LaunchEnded | MachineBackoff | JobEnded
EventListener = Callable[[JobEvent], None]
