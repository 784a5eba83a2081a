"""The listening TCP sockets of this machine: the kernel is asked directly, else its tables are read.

Not with psutil: it names one holder of a socket where several processes share it, and reads every table and
every process's descriptors, which takes a hundred times as long.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TABLES = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
_LISTEN = 10

_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST, _DUMP = 0x1, 0x300
_PATIENCE = 1.0
"""Seconds for an answer: a sandbox may take the question and never give one."""
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ASKED = struct.Struct("=BBBBI48x")  # struct inet_diag_req_v2: family, protocol, ext, pad, states, any socket
_TOLD = struct.Struct("=BBBB2s2s16s16s4s8sIIIII")  # struct inet_diag_msg; port and addresses as on the wire


@dataclass(frozen=True)
class Socket:
    """A listening socket; ``inode`` is what the links of its holders' descriptors name."""

    address: str
    port: int
    inode: int
    user: int


def listening(port: int) -> tuple[Socket, ...]:
    """The sockets that listen on ``port``, of IPv4 and IPv6.

    The tables of ``/proc`` hold every connection too, and the kernel walks all of its hash table to write
    them: milliseconds each, and they are read many times an attempt. They serve where it answers no
    ``sock_diag(7)``.
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
    """All that listen, by ``sock_diag(7)``. :raises OSError: the kernel does not answer that."""
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _LISTEN)
    head = _HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST | _DUMP, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_PATIENCE)
        kernel.send(head + asked)
        while True:
            heard = kernel.recv(1 << 16)
            while heard:
                size, kind, *_ = _HEADER.unpack_from(heard)
                message, heard = heard[_HEADER.size : size], heard[(size + 3) & ~3 :]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", message)[0]
                    raise OSError(number, os.strerror(number))
                _, _, _, _, port, _, source, *_, user, inode = _TOLD.unpack_from(message)
                raw = source if family == socket.AF_INET6 else source[:4]
                yield Socket(str(ipaddress.ip_address(raw)), int.from_bytes(port, "big"), inode, user)


def tabled(table: Path) -> Iterator[Socket]:
    """All that listen, by one of the kernel's tables; none where it does not exist."""
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
