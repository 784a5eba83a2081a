"""Several fleets as one: ``--fleet slurm+ssh:hosts.yaml``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from perfbisect.environments.base import Environment
from perfbisect.errors import MachineError, UsageError
from perfbisect.fleet.base import BundleState, Fleet, Ticket, UnreachableError
from perfbisect.fleet.bundle import Bundle, MachineDocument
from perfbisect.fleet.folders import FolderFleet


class JoinedFleet:
    """Implements :class:`perfbisect.fleet.base.Fleet` by the fleet that has the machine."""

    def __init__(self, fleets: Sequence[FolderFleet]) -> None:
        self.name = "+".join(fleet.name for fleet in fleets)
        self._fleets = tuple(fleets)
        self._owners: dict[str, Fleet] = {}

    def machines(self, *, checks: bool = False) -> Sequence[MachineDocument]:
        listed = [(fleet, machine) for fleet in self._fleets for machine in fleet.machines(checks=checks)]
        owners: dict[str, Fleet] = {}
        for fleet, machine in listed:
            if machine.name in owners:
                raise UsageError(
                    f"--fleet {self.name}: two machines are called {machine.name}",
                    next_step="give one of them another name in the file of hosts",
                )
            owners[machine.name] = fleet
        self._owners = owners
        return tuple(machine for _, machine in listed)

    def _owner(self, machine: str) -> Fleet:
        """The fleet that lists a machine; none is asked anything, since it may measure."""
        if machine not in self._owners:
            owner = next((fleet for name, fleet in self._listed() if name == machine), None)
            if owner is None:
                raise MachineError(f"{self.name} has no machine {machine} any more")
            self._owners[machine] = owner
        return self._owners[machine]

    def _listed(self) -> Iterator[tuple[str, Fleet]]:
        silent: UnreachableError | None = None
        for fleet in self._fleets:
            try:
                for host in fleet.hosts():
                    yield host.name, fleet
            except UnreachableError as error:
                silent = error
        if silent is not None:
            raise silent

    def place(self, machine: str, environments: Sequence[Environment]) -> None:
        self._owner(machine).place(machine, environments)

    def submit(self, ticket: Ticket, bundle: Bundle) -> None:
        self._owner(ticket.machine).submit(ticket, bundle)

    def state(self, ticket: Ticket) -> BundleState:
        return self._owner(ticket.machine).state(ticket)

    def fetch(self, ticket: Ticket, into: Path) -> bool:
        return self._owner(ticket.machine).fetch(ticket, into)

    def cancel(self, ticket: Ticket, grace: float) -> None:
        self._owner(ticket.machine).cancel(ticket, grace)

    def find(self, token: str) -> Ticket | None:
        silent: UnreachableError | None = None
        for fleet in self._fleets:
            try:
                ticket = fleet.find(token)
            except UnreachableError as error:
                silent = error
                continue
            if ticket is not None:
                return ticket
        if silent is not None:
            raise silent
        return None
