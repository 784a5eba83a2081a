"""Both ways to ask the kernel who listens give the same sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfbisect.system import ports
from perfbisect.system.ports import Socket


@pytest.fixture(params=["asked", "tables"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kernel that answers, and one that does not."""
    if request.param == "tables":

        def refused(_: int) -> Iterator[Socket]:
            raise OSError(93, "Protocol not supported")

        monkeypatch.setattr(ports, "_dumped", refused)
    else:
        try:
            tuple(ports._dumped(socket.AF_INET))
        except OSError as error:
            pytest.skip(f"this kernel answers no sock_diag: {error}")
        monkeypatch.setattr(ports, "_TABLES", dict.fromkeys(ports._TABLES, Path("/no/such/table")))
    return str(request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::"])
def test_who_listens_is_told_with_address_inode_and_user(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if family == socket.AF_INET6 and not Path("/proc/net/tcp6").exists():
        pytest.skip("this machine has no IPv6")
    with socket.socket(family) as held, socket.socket(family) as again, socket.socket(family) as bound:
        for one in (held, again):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, 0))
        port = held.getsockname()[1]
        assert ports.listening(port) == ()
        held.listen()
        again.bind((host, port))
        again.listen()
        bound.bind((host, 0))
        with socket.create_connection((host if host != "::" else "::1", port)):
            found = ports.listening(port)
        expected = {Socket(host, port, os.fstat(one.fileno()).st_ino, os.getuid()) for one in (held, again)}
        assert len(found) == 2
        assert set(found) == expected
        assert ports.listening(bound.getsockname()[1]) == ()
    assert ports.listening(port) == ()


def test_a_refusal_of_the_kernel_is_an_error() -> None:
    with pytest.raises(OSError):
        tuple(ports._dumped(250))


def test_a_kernel_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, silent = socket.socketpair()
    with socket.socket() as held, silent:
        held.bind(("127.0.0.1", 0))
        held.listen()
        monkeypatch.setattr(ports, "_TIMEOUT_S", 0.01)
        monkeypatch.setattr(ports.socket, "socket", lambda *_: ours)
        with pytest.raises(TimeoutError):
            tuple(ports._dumped(socket.AF_INET))
        (found,) = ports.listening(held.getsockname()[1])
    assert found.address == "127.0.0.1"
