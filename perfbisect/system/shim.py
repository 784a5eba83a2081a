"""Runs one command, owns its orphans and writes its log: the process between perfbisect and what it starts.

A child subreaper: what loses its parent becomes a child of this process, after any number of forks, sessions
and closed descriptors. So the kernel says to which launch a process belongs, also where several run at once,
and says it on after perfbisect was killed: this process ends only after its last child.

Standard input is a socket of JSON lines. Requests: ``{"argv", "env", "cwd", "log", "token", "secrets",
"cores", "inherit"}``, then ``{}`` once the command's row in the process table was read, then any number of
``{"log": path}``, which continue the log elsewhere. Answers: ``{"pid": id}`` or ``{"errno": number}``, then
``{"log": path}`` each, and ``{"code": status, "cpu": seconds}`` (negative: a signal) after the command has
ended and its output is written. A peer that is gone changes nothing.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import termios
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfbisect.system.log_writer import LogWriter

MARK = "PERFBISECT_SHIM"
"""Environment variable with the token of what this process runs."""

_PR_SET_CHILD_SUBREAPER = 36
_READ = 64 << 10
_RLIMIT_LOCKS = 10
_PART_BITS = 30


class Channel:
    """JSON lines over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._buffer = connection, b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, **values: Any) -> None:
        with suppress(OSError):
            # The peer was killed.
            self._socket.sendall(json.dumps(values).encode() + b"\n")

    def has_message(self, timeout: float) -> bool:
        """Whether :meth:`receive` has something to say, also that the peer is gone."""
        return b"\n" in self._buffer or bool(select.select([self._socket], [], [], max(0.0, timeout))[0])

    def close(self) -> None:
        self._socket.close()

    def receive(self) -> dict[str, Any] | None:
        """The next message, waited for; None without a peer."""
        while b"\n" not in self._buffer:
            try:
                received = self._socket.recv(_READ)
            except OSError:
                received = b""
            if not received:
                return None
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


def start(request: dict[str, Any], output: int) -> int:
    """Start the command and return its id; raises its OSError."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        with os.fdopen(reading) as failure:
            number = failure.read()
        if number:
            os.waitpid(pid, 0)
            raise OSError(int(number), os.strerror(int(number)))
        return pid
    try:
        # Ignored signals are inherited through exec, and a server that ignores SIGTERM cannot be stopped.
        # Python ignores SIGPIPE and SIGXFSZ.
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE", "SIGXFSZ", "SIGCHLD"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        # A Ctrl-C at the terminal reaches the foreground process group: perfbisect alone ends a launch.
        os.setsid()
        # What a launch writes does not depend on the user's umask.
        os.umask(0o022)
        # Before exec: the mark is inherited by everything that the command starts. Both limits: a process
        # may lower its hard limit and not raise it, so a descendant cannot restore it. Below another launch,
        # whose mark this one may not raise, it has no effect.
        mark = _mark(request["token"])
        with suppress(OSError, ValueError):
            resource.setrlimit(_RLIMIT_LOCKS, (mark, mark))
        if request["cores"]:
            os.sched_setaffinity(0, request["cores"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.chdir(request["cwd"])
        argv = request["argv"]
        os.execvpe(argv[0], argv, request["env"])
    except (OSError, ValueError) as error:
        # ValueError: a NUL in a word.
        os.write(writing, str(getattr(error, "errno", errno.EINVAL)).encode())
    finally:
        # Not sys.exit: buffers and handlers here are copies of the shim's, which would run twice.
        os._exit(127)


class Shim:
    """The command's output, its children and the peer's requests, each as it comes."""

    def __init__(
        self, channel: Channel, leader: int, output: int, log: LogWriter, secrets: list[str]
    ) -> None:
        self._channel, self._leader, self._output = channel, leader, output
        self._log, self._secrets = log, secrets

    def serve(self, woken: int) -> None:
        """Return once the last child has ended. ``woken``: readable when one did."""
        poller = select.poll()
        for descriptor in (self._output, woken, self._channel.fileno()):
            poller.register(descriptor, select.POLLIN)
        while self._reap():
            for descriptor, _ in poller.poll():
                if descriptor == woken:
                    os.read(woken, _READ)
                elif not (self._copy() if descriptor == self._output else self._obey()):
                    poller.unregister(descriptor)
        # Nobody of this launch can write any more; another holder of the pipe is not waited for.
        self._drain()
        self._log.close()

    def _copy(self) -> bool:
        """Write what was read of the output; False at its end."""
        data = os.read(self._output, _READ)
        self._log.write(data)
        return bool(data)

    def _drain(self) -> None:
        """Write what is in the pipe now, and no more: a daemon may write for ever."""
        (left,) = struct.unpack("i", fcntl.ioctl(self._output, termios.FIONREAD, bytes(4)))
        while left > 0:
            data = os.read(self._output, min(left, _READ))
            # The file ends early if the writer closed it between the two calls.
            left = left - len(data) if data else 0
            self._log.write(data)
        self._log.flush()

    def _obey(self) -> bool:
        request = self._channel.receive()
        if request is None:
            return False
        self._drain()
        try:
            log = _open_log(request["log"], self._secrets)
        except OSError as error:
            self._channel.send(errno=error.errno)
            return True
        self._log.close()
        self._log = log
        self._channel.send(log=request["log"])
        return True

    def _reap(self) -> bool:
        """Wait for the children that have ended; False if none is left."""
        while True:
            try:
                # One signal may stand for several children, so all that have ended are taken.
                pid, status, used = os.wait3(os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._leader:
                self._drain()
                code = os.waitstatus_to_exitcode(status)
                self._channel.send(code=code, cpu=used.ru_utime + used.ru_stime)


def _open_log(path: str, secrets: list[str]) -> LogWriter:
    from perfbisect.system.log_writer import LogWriter

    return LogWriter(path, secrets)


def has_mark(pid: int, token: str) -> bool:
    """Whether a process has the mark of ``token`` or of ``token.anything``.

    The mark is its resource limit of file locks (RLIMIT_LOCKS), which no descendant can shed. The kernel
    copies resource limits at fork and keeps them at exec. A daemon changes its parent, session, environment
    and descriptors, but nothing sets this limit, which Linux has not enforced since 2.4.25. So it tells whose
    an orphan is after the shim of its launch was killed. The parent of an orphan does not tell: init adopts
    all, and perfbisect as a subreaper would adopt those of git and ssh (a ControlMaster) too.
    """
    try:
        found = resource.prlimit(pid, _RLIMIT_LOCKS)[1]
    except OSError:
        # Gone, or another user's.
        return False
    # A token without a part stands for all parts of its owner: the low bits do not count.
    shift = 0 if "." in token else _PART_BITS
    return found != resource.RLIM_INFINITY and found >> shift == _mark(token) >> shift


def _mark(token: str) -> int:
    owner, _, part = token.partition(".")
    return zlib.crc32(owner.encode()) << _PART_BITS | zlib.crc32(part.encode()) >> 2


def main() -> None:
    # The shim must end last: it writes the log to the last line and reaps what is left.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Orphans below get this process as parent, not init: the kernel then says whose they are.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A copy, since the command gets its own standard input; it must not inherit the channel.
    connection = socket.socket(fileno=os.dup(0))
    connection.set_inheritable(False)
    channel = Channel(connection)
    request = channel.receive()
    if request is None:
        # Perfbisect ended before it asked for anything.
        return
    woken, waker = os.pipe()
    # Python's signal handler writes to it and must not block on a full pipe.
    os.set_blocking(waker, False)
    # A handler that does nothing: by default the signal is discarded and would not wake the poll.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    # A pipe and not the log itself: what is printed is redacted, and bounded, before it is on disk.
    output, writing = os.pipe()
    try:
        log = _open_log(request["log"], request["secrets"])
        leader = start(request, writing)
    except OSError as error:
        channel.send(errno=error.errno)
        return
    for descriptor in (writing, *request["inherit"]):
        os.close(descriptor)
    channel.send(pid=leader)
    # The leader stays in the process table until the peer has read its row.
    if channel.receive() is None:
        # The peer was killed or interrupted before it knew of the leader.
        os.killpg(leader, signal.SIGKILL)
    Shim(channel, leader, output, log, request["secrets"]).serve(woken)


if __name__ == "__main__":
    # Isolated from site-packages, which takes a tenth of the time to start.
    sys.path.append(str(Path(__file__).parents[2]))
    main()
