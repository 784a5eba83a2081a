"""Listening ports and the processes that hold them; engines share ports with SO_REUSEPORT."""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.errors import MachineError
from perfbisect.system import held_files, processes
from perfbisect.system.processes import Process

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_LOWEST = 15000
_TRIES = 200
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_LOW = 32768
"""The kernel's default."""
_CHECK_PAUSES_S = (0.0, 0.1, 0.2)


@dataclass(frozen=True)
class Listener:
    """One listening socket; ``holders`` is empty for processes of another user."""

    address: str
    port: int
    inode: int
    user: int
    holders: tuple[Process, ...] = ()

    def __str__(self) -> str:
        who = ", ".join(map(str, self.holders)) or f"an invisible process of user {self.user}"
        return f"{self.address}:{self.port} held by {who}"


def listeners(port: int) -> tuple[Listener, ...]:
    """Every TCP socket that listens on ``port``, on any address of this machine.

    psutil names one holder of a socket only, and forked engines share theirs.
    """
    found: list[Listener] = []
    for table in _TABLES:
        with suppress(OSError):
            rows = [line.split() for line in table.read_text("ascii", "replace").splitlines()[1:]]
            found += [
                Listener(_address(address), port, int(row[9]), int(row[7]))
                for row in rows
                for address, _, number in [row[1].partition(":")]
                if row[3] == _LISTEN and int(number, 16) == port
            ]
    if not found:
        return ()
    wanted = {listener.inode for listener in found}
    holders: dict[int, list[Process]] = {}
    for process in processes.table().values():
        # A listening socket is found by its inode: forked workers hold the same one.
        held = {int(link[1]) for path in held_files.opened(process.pid) if (link := _SOCKET.fullmatch(path))}
        for inode in held & wanted:
            holders.setdefault(inode, []).append(process)
    return tuple(replace(listener, holders=tuple(holders.get(listener.inode, ()))) for listener in found)


def _address(text: str) -> str:
    """The kernel writes addresses as words of four bytes in the machine's order."""
    raw = b"".join(bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8))
    return str(ipaddress.ip_address(raw))


def answers(host: str, port: int) -> bool:
    """Whether a connection is accepted: much cheaper than :func:`listeners`."""
    with suppress(OSError), socket.create_connection((host, port), timeout=0.5):
        return True
    return False


def foreign(found: Iterable[Listener], ours: Iterable[Process]) -> tuple[Listener, ...]:
    """The listeners that other processes hold or share."""
    identities = {process.identity for process in ours}
    return tuple(
        listener
        for listener in found
        if not listener.holders or any(holder.identity not in identities for holder in listener.holders)
    )


def free_port() -> int:
    """A random free port outside the kernel's ephemeral range. :raises MachineError: none was found."""
    # Inside the ephemeral range the kernel may give the port to any outgoing connection before the server
    # binds it.
    low, high = _LOWEST, _EPHEMERAL_LOW - 1
    with suppress(OSError, ValueError):
        high = int(_EPHEMERAL.read_text("ascii").split()[0]) - 1
    if high - low < 1000:
        low, high = _LOWEST, 65000
    for _ in range(_TRIES):
        # At random: two jobs that start at once would both take the first free one.
        port = low + secrets.randbelow(high - low + 1)
        if listeners(port):
            continue
        with suppress(OSError):
            # Both: a listener on ::1 does not prevent these binds.
            for host in ("0.0.0.0", "127.0.0.1"):
                with socket.socket() as probe:
                    probe.bind((host, port))
            return port
    raise MachineError(f"found no free port in {_TRIES} tries between {low} and {high}")


def wait_free(port: int, seconds: float) -> None:
    """Wait until ``port`` is free. :raises MachineError: it is still in use after ``seconds``."""
    deadline = time.monotonic() + seconds
    # A socket stays open for a moment while the kernel releases what its process had.
    while found := listeners(port):
        if time.monotonic() > deadline:
            raise MachineError(
                f"port {port} is still in use after its server stopped: {'; '.join(map(str, found))}",
                code="port_taken",
            )
        time.sleep(0.05)


class SharedPortError(MachineError):
    """Another process listens on an attempt's port, so results may be another server's."""


def check_ours(port: int, ours: Callable[[], Iterable[Process]], when: str) -> bool:
    """Whether ``port`` has a listener, all of them ours.

    A foreign listener is checked again: a process of ours may end, or fork, between two reads.

    Raises:
        SharedPortError: another process listens on the port.
    """
    for pause in _CHECK_PAUSES_S:
        time.sleep(pause)
        found = listeners(port)
        others = foreign(found, ours()) if found else ()
        if not others:
            return bool(found)
    raise SharedPortError(
        f"{when}: another process also listens on port {port}: {'; '.join(map(str, others))}",
        next_step="end that process; results from this port are discarded",
        code="port_taken",
    )
