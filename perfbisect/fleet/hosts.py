"""Machines of a fleet that commands reach at any time, by ssh or Ray: ``--fleet ssh:hosts.yaml``.

The agent runs in a session of its own, which outlives the connection and the driver.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from perfbisect.common.yaml_source import load, validate
from perfbisect.errors import MachineError
from perfbisect.fleet.bundle import Bundle
from perfbisect.fleet.connection import Answer, Connection, SshConnection

FOLDER = ".perfbisect"
"""perfbisect's folder on a machine, in the user's home folder."""

_KILLED_WITHIN_S = 30.0
"""Seconds that an agent may take to end after SIGKILL."""

# Renamed last: an agent never reads half of a request.
_PUT_REQUEST = """\
umask 077
mkdir -p "$1" && cd "$1" || exit 1
echo "$2" > machine && cat > request.part && mv request.part request.json
"""
"""Writes standard input to request.json in the folder $1, for the machine $2."""

# mkdir is atomic on every file system: of two that start a bundle one runs the agent.
AGENT_SCRIPT = """\
cd "$1" || exit 1
shift
mkdir started 2>/dev/null || exit 0
echo $$ > pid
trap : TERM INT
"$@" > agent.log 2>&1 < /dev/null
echo $? > exit.part
mv exit.part exit
"""
"""Runs the agent in the folder $1, once; a signal to the whole session ends the agent, not this script."""

# Its streams are closed: sshd keeps a connection open for as long as a process has them.
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


class HostSettings(BaseModel):
    """How a machine is reached, and perfbisect on it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str = Field(default="", description="perfbisect's folder on it")
    command: tuple[str, ...] = Field(default=(), description="how perfbisect is called on it")
    profile: str = Field(default="", description="its machine profile, by default detected there")
    options: tuple[str, ...] = Field(default=(), description="more arguments of ssh: ['-p', '2222']")

    @property
    def is_relative(self) -> bool:
        """Whether its paths are below the user's home folder there."""
        return not self.folder.startswith("/") or any(map(_is_below, self.command[:1]))

    def below(self, home: str) -> HostSettings:
        """With the home folder in its paths."""
        program = [f"{home}/{word}" if _is_below(word) else word for word in self.command[:1]]
        folder, command = str(PurePosixPath(home, self.folder)), (*program, *self.command[1:])
        return self.model_copy(update={"folder": folder, "command": command})


@dataclass(frozen=True)
class FleetHost:
    """A machine of a fleet; without a command it is called as it is installed in the folder."""

    name: str
    connection: Connection
    settings: HostSettings

    @property
    def folder(self) -> str:
        """perfbisect's folder on it."""
        return self.settings.folder

    def home(self) -> str:
        """The user's home folder there. :raises UnreachableError: it does not answer."""
        return self.connection.run(["pwd"]).checked(f"use {self.name}").text

    def below(self, home: str) -> FleetHost:
        """With the home folder in its paths."""
        return replace(self, settings=self.settings.below(home))

    def bundle(self, token: str) -> str:
        return f"{self.folder}/bundles/{token}"

    def agent(self, *words: str) -> tuple[str, ...]:
        """The command of an agent there."""
        return (*(self.settings.command or (f"{self.folder}/agent/bin/perfbisect",)), "agent", *words)

    def put_request(self, folder: str, request: bytes) -> None:
        """Write ``request.json`` into a folder. :raises MachineError: it cannot be written."""
        written = self.connection.run_script(_PUT_REQUEST, folder, self.name, given=request)
        written.checked(f"write {folder} on {self.name}")

    def ask(self, argv: Sequence[str]) -> Answer:
        """Run a command of the agent's that ends soon. :raises UnreachableError: it does not answer."""
        return self.connection.run(argv)

    def start(self, bundle: Bundle, argv: Sequence[str]) -> None:
        """Start the agent's command in its bundle's folder by :data:`AGENT_SCRIPT`."""
        folder = self.bundle(bundle.token)
        started = self.connection.run_script(_START, folder, AGENT_SCRIPT, *argv)
        started.checked(f"start an agent on {self.name}", folder)

    def lives(self, token: str) -> bool:
        """Whether an agent that was started, and has not ended, is still there."""
        return self.connection.run_script(_IS_GONE, self.bundle(token)).code != 0

    def end(self, token: str, grace: float) -> None:
        """End the agent: a signal, ``grace`` seconds, and force; returns once it is gone.

        Raises:
            MachineError: it lives on.
        """
        folder = self.bundle(token)
        self.end_agent(
            token,
            lambda number: self.connection.run_script(_SIGNAL, folder, str(number)),
            lambda: not self.lives(token),
            grace,
        )

    def end_agent(
        self, token: str, send: Callable[[int], object], is_gone: Callable[[], bool], grace: float
    ) -> None:
        if not escalate(send, is_gone, grace, _KILLED_WITHIN_S):
            raise MachineError(f"the agent of bundle {token} cannot be ended on {self.name}")


def _is_below(program: str) -> bool:
    """Whether a program is named by a relative path; a bare name is looked up."""
    return "/" in program and not program.startswith("/")


def escalate(send: Callable[[int], object], is_gone: Callable[[], bool], *waits: float) -> bool:
    """End something by SIGTERM, then by SIGKILL, each with so many seconds; returns whether it is gone."""
    for number, seconds in zip((signal.SIGTERM, signal.SIGKILL), waits, strict=True):
        send(int(number))
        deadline = time.monotonic() + seconds
        while not (gone := is_gone()) and time.monotonic() < deadline:
            time.sleep(0.2)
        if gone:
            return True
    return False


class HostEntry(HostSettings):
    """A machine in a file of hosts; what it leaves out is as in the file."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="its name in reports")
    role: Literal["measure", "build"] = Field(
        default="measure", description="measure, or build: it makes environments and launches nothing"
    )
    address: str = Field(default="", description="as ssh takes it, by default the name: user@10.0.0.7")

    @field_validator("address")
    @classmethod
    def _no_option(cls, address: str) -> str:
        # ssh would take it for an option, and -oProxyCommand runs any command.
        if address.startswith("-"):
            raise ValueError("an address does not begin with a hyphen")
        return address


class HostsFile(HostSettings):
    """``hosts.yaml``: the machines that ssh reaches, and what they have in common."""

    hosts: tuple[HostEntry, ...]

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


def read_hosts(path: Path, *, builds: bool = False) -> tuple[FleetHost, ...]:
    """The machines of a file that measure, or those that build. :raises LocatedError: it is invalid."""
    file = validate(load(path), HostsFile)
    return tuple(
        FleetHost(
            host.name,
            # ssh takes the first of a repeated option: a host's own precede those of all hosts.
            SshConnection(host.address or host.name, (*host.options, *file.options)),
            HostSettings(
                folder=host.folder or file.folder or FOLDER,
                command=host.command or file.command,
                profile=host.profile or file.profile,
            ),
        )
        for host in file.hosts
        if (host.role == "build") == builds
    )
