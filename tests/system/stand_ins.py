"""Small real processes and servers that behave as a test asks, and how to look for them."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from perfbisect.system import processes
from perfbisect.system.processes import OwnedProcess, alive, process

ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}

LISTEN = """
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.socket(family)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind((sys.argv[1], int(sys.argv[2])))
s.listen()
print("listening", flush=True)
time.sleep(60)
"""

IDLE = "import time; time.sleep(60)"

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(60)
"""

# The leader starts a child that leaves the session, then prints the child's id. `{env}`: what the child keeps
# of its environment; `{output}`: whether it keeps the log open.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"],
    start_new_session=True, env={env}, stdin=subprocess.DEVNULL, stdout={output}, stderr={output},
)
time.sleep({pause})
print("child", child.pid, flush=True)
{then}
"""


def family_script(*, keeps_token: bool = True, keeps_log: bool = True, then: str = "time.sleep(60)") -> str:
    return FAMILY.format(
        env="None" if keeps_token else "{'PATH': os.environ['PATH']}",
        output="None" if keeps_log else "subprocess.DEVNULL",
        pause=0.2,
        then=then,
    )


def start(
    folder: Path, script: str, *arguments: str, token: str | None = None, name: str = "out"
) -> OwnedProcess:
    argv = [sys.executable, "-c", script, *arguments]
    return processes.spawn(
        argv, env=ENV, cwd=folder, log=folder / f"{name}.log", token=token or secrets.token_hex(16)
    )


@contextmanager
def running(
    folder: Path, script: str, *arguments: str, token: str | None = None, name: str = "out"
) -> Iterator[OwnedProcess]:
    """As :func:`start`, until the block ends."""
    owned = start(folder, script, *arguments, token=token, name=name)
    try:
        yield owned
    finally:
        processes.stop(owned, 0.0)


def until(true: Callable[[], object], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def told(log: Path, word: str) -> str:
    """What the process wrote after ``word`` on a line of its log, once it has."""
    found: list[str] = []

    def look() -> bool:
        for line in log.read_text().splitlines():
            if line.startswith(word):
                found.append(line.removeprefix(word).strip())
                return True
        return False

    until(look)
    return found[0]


def child_of(log: Path) -> tuple[int, float]:
    """The identity of the child whose id the leader wrote."""
    pid = int(told(log, "child "))
    row = process(pid)
    assert row is not None
    return row.identity


def ended_child(log: Path) -> bool:
    """True if the child whose id the leader wrote lives no more."""
    row = process(int(told(log, "child ")))
    return row is None or not row.living


def gone(identity: tuple[int, float]) -> bool:
    return not alive(*identity)


def listen(folder: Path, port: int, host: str = "127.0.0.1", name: str = "out") -> OwnedProcess:
    """A process that listens on a port and shares it with whoever wants to."""
    owned = start(folder, LISTEN, host, str(port), name=name)
    told(folder / f"{name}.log", "listening")
    return owned
