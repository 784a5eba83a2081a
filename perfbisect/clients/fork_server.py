"""Run by the client's interpreter, not by ours: imports the client once, then forks one process a run.

What a run costs before its first request is mostly imports; here they are done while the server starts. Only
the standard library is used, and nothing of perfbisect. A run is as ``python -m MODULE ARGUMENTS`` would be:
a session of its own, the same environment, output in its own log, the module run as ``__main__``.

``argv``: a descriptor number, then the modules to import. On that descriptor, JSON lines. Told first:
``{"ready": true, "seconds": s, "cpu": s}`` or ``{"failed": why}``. Asked for each run: ``{"argv": ["-m",
module, ...], "env": {...}, "log": path, "cwd": path}``; told: ``{"pid": id}``, then ``{"code": status, "cpu":
seconds}`` (negative: a signal), or ``{"refused": why}``. Where the other side is gone, all of it ends.
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
    """Threads of this process, those that Python does not know included."""
    try:
        return max(threading.active_count(), len(os.listdir("/proc/self/task")))  # noqa: PTH208
    except OSError:
        return threading.active_count()


def load(names: Sequence[str]) -> None:
    """Import the modules; one that this version of the client does not have is left out."""
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise


def settle() -> None:
    """Fork once for nothing: libraries that know how to end their idle threads before a fork do it now.

    (OpenBLAS does, and starts them again where they are needed.) A thread that is still there afterwards
    would be missing in a run.
    """
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def tell(channel: socket.socket, **values: Any) -> None:
    channel.sendall(json.dumps(values).encode() + b"\n")


class Host:
    """The process that waits for runs. ``serve`` returns in the child of a run, with what was asked for.

    It sleeps meanwhile: the end of a run comes as a byte in a pipe, the end of the other side as one in the
    channel.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.lines = channel.makefile("rb")
        self.woken, self.waker = os.pipe()
        os.set_blocking(self.waker, False)
        self.before = signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.waker)

    def serve(self) -> dict[str, Any] | None:
        """None once nobody asks any more."""
        while line := self.lines.readline():
            asked: dict[str, Any] = json.loads(line)
            if threads() > 1:
                tell(self.channel, refused=f"{threads()} threads run in it")
                continue
            sys.stdout.flush()
            sys.stderr.flush()
            try:
                child = os.fork()
            except OSError as error:
                tell(self.channel, refused=str(error))
                continue
            if child == 0:
                self.leave()
                return asked
            tell(self.channel, pid=child)
            self.wait(child)
        return None

    def wait(self, child: int) -> None:
        """Until the run has ended; where the other side is gone, the run is ended."""
        woken, channel = self.woken, self.channel.fileno()
        while True:
            heard, _, _ = select.select([woken, channel], [], [])
            if channel in heard:  # nothing is asked during a run
                os.kill(child, signal.SIGKILL)
            if woken in heard:
                os.read(woken, 64)
            ended, status, used = os.wait4(child, 0 if channel in heard else os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                tell(self.channel, code=code, cpu=used.ru_utime + used.ru_stime)
                return

    def leave(self) -> None:
        """In the child of a run: nothing of the host stays."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, self.before)
        os.close(self.woken)
        os.close(self.waker)
        self.lines.close()
        self.channel.close()


def become(asked: dict[str, Any]) -> str:
    """Make this process the run: session, folder, output, environment, arguments. Returns the module."""
    os.setsid()
    os.chdir(asked["cwd"])
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.update(asked["env"])
    flag, module, *arguments = asked["argv"]
    if flag != "-m":
        raise ValueError(f"not a module: {asked['argv']}")
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # it is run as __main__, from its beginning
    return str(module)


def main() -> str | None:
    """The module to run, in the child of a run; None in the host, once nobody asks any more."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    if sys.path and sys.path[0] == "":
        sys.path[0] = os.getcwd()  # as ``-m`` has it  # noqa: PTH109
    began, used = time.monotonic(), time.process_time()
    try:
        load(sys.argv[2:])
        settle()
    except BaseException as error:
        tell(channel, failed=f"{type(error).__name__}: {error}")
        raise
    host = Host(channel)
    if threads() > 1:
        tell(channel, failed=f"{threads()} threads run after its imports")
        return None
    tell(channel, ready=True, seconds=time.monotonic() - began, cpu=time.process_time() - used)
    asked = host.serve()
    return None if asked is None else become(asked)


if __name__ == "__main__":
    to_run = main()
    if to_run is not None:
        runpy.run_module(to_run, run_name="__main__", alter_sys=True)
