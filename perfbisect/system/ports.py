"""Listening ports and the processes that hold them; engines share ports with SO_REUSEPORT."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfbisect.errors import MachineError
from perfbisect.system import processes
from perfbisect.system.processes import Process

_TABLES = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
_LISTEN = 10

_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST, _DUMP = 0x1, 0x300
_TIMEOUT_S = 1.0
"""A sandbox may accept a query and never answer it."""
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_REQUEST_V2 = struct.Struct("=BBBBI48x")  # inet_diag_req_v2: family, protocol, ext, pad, states, any socket
_MESSAGE = struct.Struct("=BBBB2s2s16s16s4s8sIIIII")  # inet_diag_msg


@dataclass(frozen=True)
class Socket:
    """A listening socket; ``inode`` is what the links of its holders' descriptors name."""

    address: str
    port: int
    inode: int
    user: int


def listening(port: int) -> tuple[Socket, ...]:
    """The sockets that listen on ``port``, of IPv4 and IPv6.

    Uses ``sock_diag(7)``; ``/proc/net/tcp`` lists every connection and takes milliseconds, so it is the
    fallback.
    """
    found: list[Socket] = []
    for family, table in _TABLES.items():
        try:
            rows = tuple(_dumped(family))
        except OSError:
            rows = tuple(tabled(table))
        found += (row for row in rows if row.port == port)
    return tuple(found)


def _dumped(family: int) -> Iterator[Socket]:
    """All listening sockets, from ``sock_diag(7)``. :raises OSError: the kernel does not support it."""
    query = _REQUEST_V2.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _LISTEN)
    head = _HEADER.pack(_HEADER.size + len(query), _BY_FAMILY, _REQUEST | _DUMP, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(head + query)
        while True:
            received = kernel.recv(1 << 16)
            while received:
                size, kind, *_ = _HEADER.unpack_from(received)
                message, received = received[_HEADER.size : size], received[(size + 3) & ~3 :]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", message)[0]
                    raise OSError(number, os.strerror(number))
                _, _, _, _, port, _, source, *_, user, inode = _MESSAGE.unpack_from(message)
                raw = source if family == socket.AF_INET6 else source[:4]
                yield Socket(str(ipaddress.ip_address(raw)), int.from_bytes(port, "big"), inode, user)


def tabled(table: Path) -> Iterator[Socket]:
    """All listening sockets from a table of ``/proc/net``; empty without that file."""
    try:
        lines = table.read_text("ascii", "replace").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if len(fields) > 9 and int(fields[3], 16) == _LISTEN:
            address, _, port = fields[1].partition(":")
            yield Socket(_address(address), int(port, 16), int(fields[9]), int(fields[7]))


def _address(text: str) -> str:
    """The kernel writes addresses as words of four bytes in the machine's order."""
    raw = b"".join(bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8))
    return str(ipaddress.ip_address(raw))


_SOCKET = re.compile(r"socket:\[(\d+)\]")
_LOWEST = 15000
_TRIES = 200
_LOOKS = (0.0, 0.1, 0.2)


@dataclass(frozen=True)
class Listener:
    """One listening socket; ``holders`` is empty for processes of another user."""

    address: str
    port: int
    inode: int
    user: int
    holders: tuple[Process, ...]

    def __str__(self) -> str:
        who = ", ".join(map(str, self.holders)) or f"an invisible process of user {self.user}"
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
    """Whether a connection is accepted: much cheaper than :func:`listeners`."""
    with suppress(OSError), socket.create_connection((host, port), timeout=0.5):
        return True
    return False


def foreign(port: int, ours: Iterable[Process]) -> tuple[Listener, ...]:
    """Listeners on ``port`` that other processes hold or share."""
    return _foreign(listeners(port), ours)


def _foreign(found: Iterable[Listener], ours: Iterable[Process]) -> tuple[Listener, ...]:
    identities = {process.identity for process in ours}
    return tuple(
        listener
        for listener in found
        if not listener.holders or any(holder.identity not in identities for holder in listener.holders)
    )


def free_port() -> int:
    """A random free port outside the kernel's ephemeral range. :raises MachineError: none was found."""
    low, high = _LOWEST, _ephemeral_low() - 1
    if high - low < 1000:
        low, high = _LOWEST, 65000
    for _ in range(_TRIES):
        port = low + secrets.randbelow(high - low + 1)
        if not listeners(port) and all(_bindable(host, port) for host in ("0.0.0.0", "127.0.0.1")):
            return port
    raise MachineError(f"found no free port in {_TRIES} tries between {low} and {high}")


def wait_free(port: int, seconds: float) -> None:
    """Wait until ``port`` is free. :raises MachineError: it is still in use after ``seconds``."""
    deadline = time.monotonic() + seconds
    while found := listeners(port):
        if time.monotonic() > deadline:
            raise MachineError(
                f"port {port} is still in use after its server stopped: {_listed(found)}", code="port_taken"
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
    for pause in _LOOKS:
        time.sleep(pause)
        found = listeners(port)
        others = _foreign(found, ours()) if found else ()
        if not others:
            return bool(found)
    raise SharedPortError(
        f"{when}: another process also listens on port {port}: {_listed(others)}",
        next_step="end that process; results from this port are discarded",
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
