"""Whose a port is, with real listeners: also the stale one that shares it by SO_REUSEPORT."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from perfbisect.errors import MachineError
from perfbisect.system import ports, processes
from tests.system.stand_ins import listen, running, until


def test_free_port_is_free_and_not_the_kernels() -> None:
    found = {ports.free_port() for _ in range(8)}
    assert len(found) > 1
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(port > 1024 and (port < low or low < 16000) for port in found)
    with socket.socket() as server:
        server.bind(("127.0.0.1", found.pop()))


@pytest.mark.parametrize("host", ["127.1.2.3", "0.0.0.0", "::1", "::"])
def test_listener_is_told_with_its_process(tmp_path: Path, host: str) -> None:
    if ":" in host and not Path("/proc/net/tcp6").exists():
        pytest.skip("no IPv6 here")
    port = ports.free_port()
    owned = listen(tmp_path, port, host)
    try:
        (found,) = ports.listeners(port)
        assert (found.address, found.port, found.user) == (host, port, os.getuid())
        assert [holder.pid for holder in found.holders] == [owned.pid]
        assert ports.check_ours(port, owned.living, "now") is True
        assert str(owned.pid) in str(found)
    finally:
        processes.stop(owned, 0.0)
    ports.wait_free(port, 5.0)


def test_stale_server_on_a_shared_port(tmp_path: Path) -> None:
    """Both listen, the kernel deals connections to either: only the holders of the sockets tell."""
    port = ports.free_port()
    stale = listen(tmp_path, port, name="stale")
    ours = listen(tmp_path, port, name="ours")
    try:
        assert len(ports.listeners(port)) == 2
        with pytest.raises(
            ports.SharedPortError, match=rf"before run 1: another process .* {port}: .* \(pid {stale.pid}\)"
        ) as told:
            ports.check_ours(port, ours.living, "before run 1")
        assert str(ours.pid) not in told.value.message
        assert [found.holders[0].pid for found in ports.foreign(ports.listeners(port), ours.living())] == [
            stale.pid
        ]
        processes.stop(ours, 0.0)
        with pytest.raises(MachineError, match=rf"port {port} is still in use .* \(pid {stale.pid}\)"):
            ports.wait_free(port, 0.2)
    finally:
        processes.stop(ours, 0.0)
        processes.stop(stale, 0.0)


def test_socket_that_children_inherited_is_ours(tmp_path: Path) -> None:
    port = ports.free_port()
    script = f"""
import os, socket, time
s = socket.socket()
s.bind(("127.0.0.1", {port}))
s.listen()
os.fork()
time.sleep(60)
"""
    with running(tmp_path, script) as owned:
        until(lambda: sum(len(listener.holders) for listener in ports.listeners(port)) == 2)
        assert ports.check_ours(port, owned.living, "now")
        assert ports.foreign(ports.listeners(port), [row for row in owned.living() if row.pid == owned.pid])


def test_taken_ports_are_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(ports, "_LOWEST", taken)
        monkeypatch.setattr(ports, "_TRIES", 3)
        (tmp_path / "range").write_text(f"{taken + 2000}\t60999\n")
        monkeypatch.setattr(ports, "_EPHEMERAL", tmp_path / "range")
        monkeypatch.setattr(ports.secrets, "randbelow", lambda _: 0)
        with pytest.raises(MachineError, match="found no free port"):
            ports.free_port()


def test_listener_whose_process_goes_between_two_looks_is_no_stranger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel still lists the socket of a process that has just ended: the second look finds nobody."""
    dying = ports.Listener("127.0.0.1", 4711, 1, 0, ())
    looks = iter([(dying,), ()])
    monkeypatch.setattr(ports, "listeners", lambda _: next(looks))
    assert ports.check_ours(4711, tuple, "now") is False


def test_listener_that_nobody_can_be_seen_to_hold_is_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = ports.Listener("0.0.0.0", 4711, 1, 1234, ())
    monkeypatch.setattr(ports, "listeners", lambda _: (hidden,))
    with pytest.raises(ports.SharedPortError, match="invisible process of user 1234"):
        ports.check_ours(4711, tuple, "now")
