"""The contract of a fleet, on which a bundle can be measured: six functions.

A fleet knows no statistics, assigns no faults and repeats nothing by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from perfbisect.environments.base import Environment
from perfbisect.errors import MachineError
from perfbisect.fleet.bundle import Bundle


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


class Fleet(Protocol):
    """Machines that make bundles."""

    def place(self, machine: str, environments: Sequence[Environment]) -> None:
        """Bring environments to a machine, by key; those that it has stay.

        Raises:
            MachineError: no disk there, or another path.
        """
        ...

    def submit(self, ticket: Ticket, bundle: Bundle) -> None:
        """Start a bundle; submitting it twice starts it once.

        Raises:
            MachineError: it cannot be started there.
        """
        ...

    def state(self, ticket: Ticket) -> BundleState: ...

    def fetch(self, ticket: Ticket, into: Path) -> bool:
        """Copy the folder of a bundle that has ended; what is there already is not copied again.

        Returns True if all files have the digests of the manifest.
        """
        ...

    def cancel(self, ticket: Ticket, grace: float) -> None:
        """End a bundle; returns once none of its processes lives and it can be fetched, as far as it came.

        Raises:
            UnreachableError: the machine does not answer.
        """
        ...

    def find(self, token: str) -> Ticket | None:
        """The bundle that was submitted with a token; None if there is none.

        Raises:
            UnreachableError: a machine that may have it does not answer.
        """
        ...
