"""Whose a port is: every listener on it and who holds it. Engines share ports by SO_REUSEPORT."""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfbisect.errors import MachineError
from perfbisect.system import processes
from perfbisect.system.listening import listening
from perfbisect.system.processes import Process

_SOCKET = re.compile(r"socket:\[(\d+)\]")
_LOWEST = 15000
_TRIES = 200
_LOOKS = (0.0, 0.1, 0.2)


@dataclass(frozen=True)
class Listener:
    """One listening socket; ``holders`` is empty where its processes cannot be seen (another user's)."""

    address: str
    port: int
    inode: int
    user: int
    holders: tuple[Process, ...]

    def __str__(self) -> str:
        who = ", ".join(map(str, self.holders)) or f"a process of user {self.user} that cannot be seen"
        return f"{self.address}:{self.port} held by {who}"


def listeners(port: int) -> tuple[Listener, ...]:
    """Every TCP socket that listens on ``port``, on any address of this machine."""
    sockets = listening(port)
    if not sockets:
        return ()
    wanted = {found.inode for found in sockets}
    holders: dict[int, list[Process]] = {}
    for process in processes.table().values():
        held = {int(found[1]) for link in processes.opened(process.pid) if (found := _SOCKET.fullmatch(link))}
        for inode in held & wanted:
            holders.setdefault(inode, []).append(process)
    return tuple(
        Listener(found.address, port, found.inode, found.user, tuple(holders.get(found.inode, ())))
        for found in sockets
    )


def answers(host: str, port: int) -> bool:
    """True if somebody accepts a connection there: far cheaper than to look who listens."""
    with suppress(OSError), socket.create_connection((host, port), timeout=0.5):
        return True
    return False


def foreign(port: int, ours: Iterable[Process]) -> tuple[Listener, ...]:
    """The listeners on ``port`` that are not held by our processes alone."""
    return _foreign(listeners(port), ours)


def _foreign(found: Iterable[Listener], ours: Iterable[Process]) -> tuple[Listener, ...]:
    identities = {process.identity for process in ours}
    return tuple(
        listener
        for listener in found
        if not listener.holders or any(holder.identity not in identities for holder in listener.holders)
    )


def free_port() -> int:
    """A random port that nobody listens on, outside the range from which the kernel serves other connections.

    :raises MachineError: none was found.
    """
    low, high = _LOWEST, _ephemeral_low() - 1
    if high - low < 1000:
        low, high = _LOWEST, 65000
    for _ in range(_TRIES):
        port = low + secrets.randbelow(high - low + 1)
        if not listeners(port) and all(_bindable(host, port) for host in ("0.0.0.0", "127.0.0.1")):
            return port
    raise MachineError(f"no free port among {_TRIES} tried between {low} and {high}")


def wait_free(port: int, seconds: float) -> None:
    """Return once nobody listens on ``port``.

    :raises MachineError: somebody still does after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while found := listeners(port):
        if time.monotonic() > deadline:
            raise MachineError(
                f"port {port} is not free after its server was stopped: {_listed(found)}", code="port_taken"
            )
        time.sleep(0.05)


class SharedPortError(MachineError):
    """Somebody else listens on an attempt's port: what was measured there may be another server's."""


def check_ours(port: int, ours: Callable[[], Iterable[Process]], when: str) -> bool:
    """True if somebody listens on ``port``, False if nobody does.

    A stranger is looked at again: between two looks at the kernel's tables a process of ours can end with its
    socket still listed, or be born holding its parent's.

    :raises SharedPortError: somebody who is not ours, and stays.
    """
    for pause in _LOOKS:
        time.sleep(pause)
        found = listeners(port)
        others = _foreign(found, ours()) if found else ()
        if not others:
            return bool(found)
    raise SharedPortError(
        f"{when}: port {port} is shared with what is not this attempt's: {_listed(others)}",
        next_step="end that process; nothing measured on this port is kept",
        code="port_taken",
    )


def _listed(found: Iterable[Listener]) -> str:
    return "; ".join(map(str, found))


def _ephemeral_low() -> int:
    with suppress(OSError, ValueError):
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    return 32768


def _bindable(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
