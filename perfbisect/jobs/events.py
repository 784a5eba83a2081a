"""Progress events of a running job, for display only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from perfbisect.jobs.replay import Launch, LaunchRequest


@dataclass(frozen=True)
class JobEvent:
    """An event of a job; a kind of job may derive its own."""


@dataclass(frozen=True)
class JobNote(JobEvent):
    """A message, such as a dirty work tree or a recovered attempt."""

    text: str


@dataclass(frozen=True)
class LaunchStarted(JobEvent):
    """A launch starts. ``last``: the highest position of the job."""

    number: int
    request: LaunchRequest
    last: int
    slot: str = ""
    """The part of the machine; empty: all of it."""


@dataclass(frozen=True)
class PhaseStarted(JobEvent):
    """The launch on a slot entered a phase."""

    phase: str
    detail: Mapping[str, object]
    slot: str = ""


@dataclass(frozen=True)
class LaunchEnded(JobEvent):
    """A launch ended. ``used``, ``budget``, ``lost``: minutes of the job; ``detail``: what is known since."""

    launch: Launch
    unit: str
    used: float
    budget: float
    lost: float
    detail: str = ""


@dataclass(frozen=True)
class MachineBackoff(JobEvent):
    """The machine failed; the slot backs off before a retry."""

    seconds: float
    reason: str
    slot: str = ""


EventListener = Callable[[JobEvent], None]
