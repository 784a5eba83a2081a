"""Machines that OpenSSH reaches: ``--fleet ssh:hosts.yaml``.

The agent runs in a session of its own, which outlives the connection and the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from perfbisect.common.yaml_source import load, validate
from perfbisect.errors import MachineError
from perfbisect.fleet.base import Ticket
from perfbisect.fleet.bundle import Bundle
from perfbisect.fleet.connection import SshConnection, run_script
from perfbisect.fleet.folders import AGENT_SCRIPT, KILLED_WITHIN_S, FleetHost, FolderFleet, escalate

FOLDER = ".perfbisect"
"""perfbisect's folder on a machine, in the user's home folder."""

_START = """\
cd "$1" || exit 1
script=$2
shift 2
exec 9>>alive
flock -n 9 || exit 0
setsid sh -c "$script" sh . "$@" > /dev/null 2>&1 < /dev/null &
"""
"""The agent's session inherits the lock of ``alive``, which the kernel releases when it ends."""

_IS_GONE = 'cd "$1" 2>/dev/null && [ -e alive ] || exit 0; exec 9>>alive; flock -n 9'

_SIGNAL = """\
cd "$1" 2>/dev/null && [ -e alive ] || exit 0
(exec 9>>alive; flock -n 9) && exit 0
kill -s "$2" -- "-$(cat pid)" 2>/dev/null
true
"""
"""While the lock is held the session lives, and its process id is nobody else's."""


class HostEntry(BaseModel):
    """A machine in a file of hosts; what it leaves out is as in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="its name in reports")
    role: Literal["measure", "build"] = Field(
        default="measure", description="measure, or build: it makes environments and launches nothing"
    )
    address: str = Field(default="", description="as ssh takes it, by default the name: user@10.0.0.7")
    options: tuple[str, ...] = Field(default=(), description="more arguments of ssh: ['-p', '2222']")
    folder: str = Field(default="", description="perfbisect's folder on it")
    command: tuple[str, ...] = Field(default=(), description="how perfbisect is called on it")
    profile: str = Field(default="", description="its machine profile, by default detected there")

    @field_validator("address")
    @classmethod
    def _no_option(cls, address: str) -> str:
        if address.startswith("-"):
            raise ValueError("an address does not begin with a hyphen")
        return address


class HostsFile(BaseModel):
    """``hosts.yaml``: the machines that ssh reaches, and what they have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hosts: tuple[HostEntry, ...]
    options: tuple[str, ...] = ()
    folder: str = FOLDER
    command: tuple[str, ...] = ()
    profile: str = ""

    @field_validator("hosts", mode="before")
    @classmethod
    def _named(cls, hosts: object) -> object:
        if not isinstance(hosts, list):
            return hosts
        return [{"name": host} if isinstance(host, str) else host for host in hosts]

    @field_validator("hosts")
    @classmethod
    def _once(cls, hosts: tuple[HostEntry, ...]) -> tuple[HostEntry, ...]:
        names = [host.name for host in hosts]
        if not names:
            raise ValueError("it names no host")
        if len(set(names)) < len(names):
            raise ValueError("two hosts have one name")
        if all(host.role == "build" for host in hosts):
            raise ValueError("no host measures: each has the role build")
        return hosts


def read_hosts(path: Path) -> tuple[FleetHost, ...]:
    """The machines of a file, those that build too. :raises LocatedError: it is invalid."""
    file = validate(load(path), HostsFile)
    found = []
    for entry in file.hosts:
        folder = entry.folder or file.folder
        command = entry.command or file.command or (f"{folder}/agent/bin/perfbisect",)
        connection = SshConnection(entry.address or entry.name, (*file.options, *entry.options))
        profile = entry.profile or file.profile
        found.append(FleetHost(entry.name, connection, folder, command, profile, entry.role == "build"))
    return tuple(found)


class HostFleet(FolderFleet):
    """Machines that commands reach at any time: by ssh or Ray, or this one."""

    def __init__(
        self, name: str, hosts: Sequence[FleetHost], *, devices: int = 0, workers: int | None = None
    ) -> None:
        super().__init__(devices=devices, workers=workers)
        self.name, self._hosts = name, tuple(hosts)

    def hosts(self) -> Sequence[FleetHost]:
        return self._hosts

    def start(self, host: FleetHost, ticket: Ticket, argv: Sequence[str], bundle: Bundle) -> None:
        del bundle
        folder = host.bundle(ticket.token)
        started = run_script(host.connection, _START, folder, AGENT_SCRIPT, *argv)
        started.checked(f"start an agent on {host.name}", folder)

    def lives(self, host: FleetHost, ticket: Ticket) -> bool:
        return run_script(host.connection, _IS_GONE, host.bundle(ticket.token)).code != 0

    def end(self, host: FleetHost, ticket: Ticket, grace: float) -> None:
        folder = host.bundle(ticket.token)

        def send(number: int) -> None:
            run_script(host.connection, _SIGNAL, folder, str(number))

        if not escalate(send, lambda: not self.lives(host, ticket), grace, KILLED_WITHIN_S):
            raise MachineError(f"the agent of bundle {ticket.token} cannot be ended on {host.name}")
