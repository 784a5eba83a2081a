"""A bundle: launches that one machine makes one after the other under one lease, and what came of them.

A fleet knows no statistics, assigns no faults and repeats nothing by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from perfbisect.common.checked import FileName, InnerPath, InnerPathOrNone, Token
from perfbisect.errors import MachineError
from perfbisect.jobs.documents import Document
from perfbisect.jobs.plans import JobPlan, PlanPart
from perfbisect.machine.slots import Slot
from perfbisect.model.attempt import Purpose
from perfbisect.model.change import Change

CLIENT = "client"
"""The name of the client's environment among those of the changes."""


class UnreachableError(MachineError):
    """A machine, or an engine's controller, does not answer; what runs there may go on."""


@dataclass(frozen=True)
class Ticket:
    """A bundle on a machine. The token is ours: an engine may give out an id of its own twice."""

    token: str
    machine: str


@dataclass(frozen=True)
class BundleState:
    """How far a bundle is.

    ``waiting``: for a machine or a lease. ``ended``: its manifest is written. ``failed``: the agent ended
    without one. ``gone``: the agent, the machine or the engine's record of it vanished. ``phase``: that the
    running launch ended last, with its ``detail``; ``why``: of ``failed`` and ``gone``.
    """

    kind: Literal["waiting", "running", "ended", "failed", "gone"]
    phase: str = ""
    why: str = ""
    detail: Mapping[str, object] = field(default_factory=dict)


class BundledLaunch(PlanPart):
    """One launch of a bundle."""

    change: Change
    purpose: Purpose = "run"
    runs: int = Field(ge=1)


class Bundle(JobPlan):
    """A request to an agent. Each launch is made once at most, however often the request is repeated.

    ``setting``: with the paths of the machine that measures. ``slot``: as :class:`MachineDocument` lists it.
    ``environments``: keys of the environments of changes (by id) and of the client, which were brought to the
    machine; empty: it builds them by ``setting``. ``limit``: minutes after which the launches are ended;
    ``wait``: minutes to wait for the slot.
    """

    noun: ClassVar[str] = "bundle"
    verb: Literal["bundle"] = "bundle"
    version: Literal[1] = 1
    token: Annotated[Token, Field(min_length=1)]
    slot: Slot = Slot("")
    launches: tuple[BundledLaunch, ...] = Field(min_length=1)
    environments: Mapping[str, FileName] = {}
    interference: str = ""
    """Tolerated load of others, as in ``PERFBISECT_LIMITS``; empty: as the machine's own variable says."""
    limit: float = Field(gt=0)
    wait: float = Field(default=0.0, ge=0)

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(dict.fromkeys(launch.change for launch in self.launches))


class BundleLaunchDocument(Document):
    """A launch of a bundle; ``outcome``: ``measured`` also where the attempt records a failure.

    ``folder`` has its ``attempt.json`` and is relative to the bundle's; ``began``: ISO 8601 in UTC.
    """

    change: str
    outcome: Literal["running", "measured", "lost", "not made"]
    reason: str = ""
    folder: InnerPathOrNone = ""
    began: str = ""


class BundleDocument(Document):
    """``perfbisect agent run``, and ``manifest.json`` in the folder of a bundle that has ended.

    ``leased``: from when to when the slot was leased without a gap, from the first launch to the end of the
    last (ISO 8601 in UTC); None where not all launches were made. ``files``: SHA-256 of every file of the
    launches, by its path in the folder; empty while it runs.
    """

    schema_: Literal["perfbisect.agent-run/1"] = Field(default="perfbisect.agent-run/1", alias="schema")
    token: str
    state: Literal["running", "ended"]
    machine: str
    leased: tuple[str, str] | None
    launches: tuple[BundleLaunchDocument, ...]
    files: Mapping[InnerPath, str] = {}
