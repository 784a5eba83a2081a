"""Fork server in the client's interpreter: imports the client once, then forks a process for each run.

Imports are most of a run's start-up cost; here they overlap with the server's start. Uses the standard
library only. A run equals ``python -m MODULE ARGUMENTS``: own session, same environment, the server's
output, module run as ``__main__``.

``argv``: a descriptor number, then the modules to import. The descriptor carries JSON lines. First response:
``{"ready": true, "seconds": s, "cpu": s}`` or ``{"failed": why}``. Request of a run: ``{"argv": ["-m",
module, ...], "env": {...}, "cwd": path}``; responses: ``{"pid": id}``, then ``{"code": status,
"cpu": seconds}`` (negative: a signal), or ``{"refused": why}``. Everything ends when the peer closes.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any


def threads() -> int:
    """Number of threads, including native ones."""
    try:
        return max(threading.active_count(), len(os.listdir("/proc/self/task")))  # noqa: PTH208
    except OSError:
        return threading.active_count()


def load(names: Sequence[str]) -> None:
    """Import the modules; skip those that this version of the client lacks."""
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            # If a module exists and one of its own imports is missing, the client is broken.
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise


def send(channel: socket.socket, **values: Any) -> None:
    channel.sendall(json.dumps(values).encode() + b"\n")


class Host:
    """Waits for runs; ``serve`` returns in the child of a run, with its request.

    The end of a run wakes it through a pipe, the end of the peer through the channel.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.lines = channel.makefile("rb")
        self.woken, self.waker = os.pipe()
        # Python's signal handler writes to it and must not block on a full pipe.
        os.set_blocking(self.waker, False)
        # By default SIGCHLD is discarded and would not wake the select.
        self.before = signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.waker)

    def serve(self) -> dict[str, Any] | None:
        """The request, in the child of a run; None once the peer closed."""
        while line := self.lines.readline():
            request: dict[str, Any] = json.loads(line)
            # A fork copies one thread only: locks that others hold would stay locked in the run.
            if threads() > 1:
                send(self.channel, refused=f"{threads()} threads run in it")
                continue
            # Buffered text would be printed by the host and the run.
            sys.stdout.flush()
            sys.stderr.flush()
            try:
                child = os.fork()
            except OSError as error:
                send(self.channel, refused=str(error))
                continue
            if child == 0:
                self.leave()
                return request
            send(self.channel, pid=child)
            self.wait(child)
        return None

    def wait(self, child: int) -> None:
        """Wait for the run; kill it if the peer closes."""
        woken, channel = self.woken, self.channel.fileno()
        while True:
            readable, _, _ = select.select([woken, channel], [], [])
            if channel in readable:
                # The peer sends nothing during a run: a readable channel means that it is closed.
                os.kill(child, signal.SIGKILL)
            if woken in readable:
                os.read(woken, 64)
            ended, status, used = os.wait4(child, 0 if channel in readable else os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                send(self.channel, code=code, cpu=used.ru_utime + used.ru_stime)
                return

    def leave(self) -> None:
        """Drop the host's state in the child of a run."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, self.before)
        os.close(self.woken)
        os.close(self.waker)
        self.lines.close()
        self.channel.close()


def main() -> str | None:
    """The module to run, in the child of a run; None in the host."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    # Programs that the client starts would keep the channel open.
    channel.set_inheritable(False)
    if sys.path and sys.path[0] == "":
        # ``python -m`` has the current folder there, not the empty string.
        sys.path[0] = os.getcwd()  # noqa: PTH109
    began, used = time.monotonic(), time.process_time()
    try:
        load(sys.argv[2:])
        # A fork makes libraries such as OpenBLAS end their idle threads now; a thread that remains would be
        # missing in a run.
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    except BaseException as error:
        send(channel, failed=f"{type(error).__name__}: {error}")
        raise
    host = Host(channel)
    if threads() > 1:
        send(channel, failed=f"{threads()} threads run after its imports")
        return None
    send(channel, ready=True, seconds=time.monotonic() - began, cpu=time.process_time() - used)
    request = host.serve()
    if request is None:
        return None
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    flag, module, *arguments = request["argv"]
    if flag != "-m":
        raise ValueError(f"not a module: {request['argv']}")
    sys.argv = [module, *arguments]
    # The host has imported the module already: runpy warns of one that is in sys.modules.
    sys.modules.pop(module, None)
    return str(module)


if __name__ == "__main__":
    to_run = main()
    if to_run is not None:
        runpy.run_module(to_run, run_name="__main__", alter_sys=True)
