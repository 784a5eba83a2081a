"""Owned processes: start, find, stop (Linux). Each runs below a :mod:`perfbisect.system.shim`.

Reads ``/proc`` itself: psutil takes five times as long, beside what is measured, and has no session and no
start time in seconds after boot.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from perfbisect.common.checked import is_token
from perfbisect.common.quantities import counted
from perfbisect.errors import FaultCode, Interrupted, MachineError, ServerError
from perfbisect.redaction import command_secrets
from perfbisect.system import shim
from perfbisect.system.files import scratch_folder
from perfbisect.system.held_files import (
    Segment,
    held_segments,
    list_segments,
    remove_segments,
    segments_before,
)
from perfbisect.system.logs import excerpt

TOKEN_VARIABLE = "PERFBISECT_TOKEN"
"""Environment variable that marks every process of one owner."""

TICK_SS = os.sysconf("SC_CLK_TCK")
_DEAD = frozenset("ZXx")
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of the kernel's ``include/linux/sched.h``, among the flags in ``/proc/PID/stat``."""

Identity = tuple[int, float]
"""Process id and start time, unique within this boot."""


@dataclass(frozen=True)
class Process:
    """A row of the process table. ``created``: seconds after boot, immune to changes of the clock."""

    pid: int
    created: float
    parent: int
    group: int
    session: int
    state: str
    name: str
    cpu_seconds: float
    waited_seconds: float = 0.0
    """CPU time of the children it has waited for."""
    of_kernel: bool = False
    """A thread of the kernel; before Linux 6.16 its environment reads as empty."""

    @property
    def living(self) -> bool:
        """False for zombies."""
        return self.state not in _DEAD

    @property
    def identity(self) -> Identity:
        return self.pid, self.created

    def __str__(self) -> str:
        return f"{excerpt(self.name)} (pid {self.pid})"


def process(pid: int) -> Process | None:
    """The row of a process id, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - as often as processes are
            stat = file.read(4096).decode("utf-8", "replace")
    except OSError:
        return None
    # A process chooses its own name, which may contain brackets and spaces: the last bracket ends it.
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return Process(
        pid=pid,
        # Ticks after boot: a process id that is used again has another start, whatever the clock says.
        created=int(fields[19]) / TICK_SS,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        state=fields[0],
        name=head.partition("(")[2],
        cpu_seconds=(int(fields[11]) + int(fields[12])) / TICK_SS,
        waited_seconds=(int(fields[13]) + int(fields[14])) / TICK_SS,
        of_kernel=bool(int(fields[6]) & _KERNEL_THREAD),
    )


def table() -> dict[int, Process]:
    """All visible processes."""
    pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    return {row.pid: row for row in map(process, pids) if row is not None}


def alive(pid: int, created: float) -> bool:
    """Whether this process lives: same id, same start time, no zombie."""
    row = process(pid)
    return row is not None and row.living and row.created == created


def tree(
    token: str, pid: int, created: float, *, own_shim: int = 0, known: Iterable[Identity] = ()
) -> tuple[Process, ...]:
    """All living processes of the owner that started as ``pid`` at ``created``, even after it died.

    A process belongs if it is a child of the owner's shim, is the owner, has the token (or
    ``token.anything``) in its environment or as its inherited mark, is in ``known``, or descends from or
    shares a session with a member. The shim is found by the token too, or is ``own_shim``. Its children say
    it all; the other signs are for a shim that was killed, and where a process may not be marked. Each but
    the mark can be lost: a daemon leaves its session, an orphan has no parent, a process title overwrites
    the environment (then the owner's session suffices). The caller and its ancestors never belong, nor do
    the shims, which end by themselves.
    """
    return _find(token, pid, created, own_shim=own_shim, known=known)[0]


_SHIM_LEAD_S = 120.0
"""A shim is older than its command, by far less than this."""


def _find(
    token: str, pid: int, created: float, *, own_shim: int = 0, known: Iterable[Identity] = ()
) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
    """Members and shims of an owner: see :func:`tree`."""
    rows = {row.pid: row for row in table().values() if row.living}
    # This process and those that started it are never members: they would be ended with the launch.
    ancestors = {1}
    ancestor = os.getpid()
    while ancestor in rows and ancestor not in ancestors:
        ancestors.add(ancestor)
        ancestor = rows[ancestor].parent
    # Session 0 is that of all processes whose session began outside this container, and of the kernel.
    foreign_sessions = {0, os.getsid(0), *(rows[found].session for found in ancestors if found in rows)}
    identities = {*known, (pid, created)}
    shims: set[int] = set()
    more: set[int] = set()
    candidates: list[Process] = []
    for row in rows.values():
        # The environment of each process is a read of its own: what is too old to belong is left out
        # before.
        if row.pid in ancestors or row.of_kernel or row.created < created - _SHIM_LEAD_S:
            continue
        entries = _environment(row.pid) if token else ()
        if _has_variable(entries, shim.MARK, token):
            shims.add(row.pid)
        if row.created >= created:
            candidates.append(row)
            # A process title is written over the beginning of the environment.
            is_titled = bool(entries) and not entries[0]
            if (
                row.identity in identities
                or _has_variable(entries, TOKEN_VARIABLE, token)
                or (token and shim.has_mark(row.pid, token))
                or (is_titled and 0 < pid == row.session)
            ):
                more.add(row.pid)
    # Between fork and exec a command still has the environment of its shim.
    shims -= {row.pid for row in candidates if row.parent in shims}
    candidates = [row for row in candidates if row.pid not in shims]
    more |= {row.pid for row in candidates if row.parent in shims or 0 < row.parent == own_shim}
    # Members bring further ones, by parent or session, until none is found: the table is in no order.
    members: set[int] = set()
    while more:
        members |= more
        # Sessions are inherited: a process in a member's session is a member.
        sessions = {rows[member].session for member in members} - foreign_sessions
        more = {row.pid for row in candidates if row.parent in members or row.session in sessions} - members
    return tuple(rows[member] for member in sorted(members)), tuple(rows[found] for found in sorted(shims))


def _environment(pid: int) -> Sequence[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        # Gone, or another user's.
        return ()


def _has_variable(entries: Sequence[bytes], variable: str, token: str) -> bool:
    """Whether a variable has the token or begins with it and a dot."""
    mark = f"{variable}={token}".encode()
    return bool(token) and any(entry == mark or entry.startswith(mark + b".") for entry in entries)


StopRequested = Callable[[], bool]
"""Polled while waiting: True stops promptly."""

TICK_S = 0.05
_CRASHES = frozenset(
    signal.Signals[f"SIG{name}"] for name in ("ILL", "TRAP", "ABRT", "BUS", "FPE", "SEGV", "SYS")
)
_KILL_TIMEOUT_S = 10.0
"""Time for the kernel to free large memory or a device after SIGKILL."""
_MONITOR_GRACE_S = 3.0
"""Time for what has no token to end after everything that has it; podman's monitor takes about 0.1 s."""
_ORPHAN_GRACE_S = 5.0
"""Time for children to end after their leader."""
_SHIM_START_S = 60.0
_SHIM_TIMEOUT_S = 10.0
"""Time for a shim to write what is in its pipe."""


def never() -> bool:
    """Never stop."""
    return False


@dataclass
class ProcessTree:
    """A process with all its descendants. ``created``: seconds after boot."""

    pid: int
    created: float
    token: str
    log: Path | None
    own_shim: int = 0
    _seen: set[Identity] = field(default_factory=set, repr=False, compare=False, kw_only=True)
    _before: frozenset[Segment] = field(default=frozenset(), repr=False, compare=False, kw_only=True)
    _segments: set[Segment] = field(default_factory=set, repr=False, compare=False, kw_only=True)

    def exited(self) -> int | None:
        """Exit code of the leader (negative: signal), None while it runs; 0 if unknown."""
        # This process is not the parent of the leader, which alone gets the exit code.
        return None if alive(self.pid, self.created) else 0

    def living(self) -> tuple[Process, ...]:
        """All living processes; one that was found once stays known."""
        return self._look()[0]

    def charged(self) -> tuple[Process, ...]:
        """``living`` with the shims: all whose work is ours."""
        members, shims = self._look()
        return (*members, *shims)

    def observe(self) -> tuple[Process, ...]:
        """``living``; also records their shared memory for ``stop``."""
        members = self.living()
        # A killed engine leaves its segments behind; only its living processes, which hold them open, show
        # whose they are.
        self._segments |= held_segments(member.pid for member in members) - self._before
        return members

    def has_token(self, row: Process) -> bool:
        """Whether a process has the owner's token in its environment."""
        return _has_variable(_environment(row.pid), TOKEN_VARIABLE, self.token)

    def await_shims(self) -> None:
        """Wait until the logs are written; a shim that does not end is killed."""
        deadline = time.monotonic() + _SHIM_TIMEOUT_S
        while (shims := self._look()[1]) and time.monotonic() < deadline + _KILL_TIMEOUT_S:
            if time.monotonic() > deadline:
                # A shim waits for its last child, so one that goes on after all members ended is stuck.
                for row in shims:
                    _signal(*row.identity, signal.SIGKILL)
            time.sleep(TICK_S / 10)

    def _look(self) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
        found = _find(self.token, self.pid, self.created, own_shim=self.own_shim, known=self._seen)
        self._seen.update(member.identity for member in found[0])
        return found


@dataclass
class OwnedProcess(ProcessTree):
    """A process that we started."""

    log: Path
    _popen: subprocess.Popen[bytes] = field(repr=False, compare=False, kw_only=True)
    _channel: shim.Channel = field(repr=False, compare=False, kw_only=True)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False, kw_only=True)
    _code: int | None = field(default=None, repr=False, compare=False, kw_only=True)
    _log_written: str = field(default="", repr=False, compare=False, kw_only=True)
    cpu_seconds: float = field(default=0.0, init=False, compare=False)
    """CPU time of the leader and the children that it waited for, once it has ended."""

    def exited(self) -> int | None:
        self._receive(0.0)
        return self._code

    def wait(self, timeout: float) -> int | None:
        """Wait for the leader's end; its exit code, None after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while self._code is None and (left := deadline - time.monotonic()) > 0:
            self._receive(left)
        return self.exited()

    def continue_log(self, log: Path) -> bool:
        """Write what is printed from now on to another log; False if that is impossible."""
        with self._lock:
            self._log_written = ""
            if self._code is None:
                self._channel.send(log=str(log))
        deadline = time.monotonic() + _SHIM_TIMEOUT_S
        while not self._log_written and self._code is None and time.monotonic() < deadline:
            self._receive(TICK_S)
        return self._log_written == str(log)

    def await_shims(self) -> None:
        super().await_shims()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(_SHIM_TIMEOUT_S)
        self._receive(0.0)
        with self._lock:
            self._channel.close()

    def _receive(self, timeout: float) -> None:
        """Take the shim's messages; waits for the first."""
        with self._lock:
            while self._code is None and self._channel.has_message(timeout):
                message = self._channel.receive()
                if message is None:
                    # The shim was killed; its command may live, and is ended with the rest.
                    self._code = self._popen.wait()
                elif "code" in message:
                    self._code, self.cpu_seconds = int(message["code"]), float(message["cpu"])
                else:
                    self._log_written = str(message.get("log", "nothing"))
                timeout = 0.0


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    token: str,
    cores: Sequence[int] = (),
    inherit: Sequence[int] = (),
) -> OwnedProcess:
    """Start a process in its own session, with output appended to ``log`` and no input.

    The log has no secrets of this process, of ``env`` or ``argv``, and a size limit; it is written until the
    last process has ended, also if this one is killed. ``env`` is the whole environment except the token.
    ``cores``: CPU affinity, empty for all. ``inherit``: descriptors that stay open.

    Raises:
        ServerError: the program is missing or not executable.
        MachineError: no process, memory, disk space or such core is available.
    """
    # Segments that are older than the process are the user's, even if it opens them.
    before = list_segments()
    popen: subprocess.Popen[bytes] | None = None
    try:
        # Not a pipe: the shim notices by the same descriptor when this process is killed.
        ours, theirs = socket.socketpair()
        channel = shim.Channel(ours)
        try:
            with theirs:
                popen = _start_shim(token, theirs.fileno(), inherit)
            channel.send(
                argv=list(argv),
                # Last: an engine's title overwrites the first.
                env={**env, TOKEN_VARIABLE: token},
                cwd=str(cwd),
                log=str(log),
                token=token,
                secrets=command_secrets(argv, env),
                cores=list(cores),
                inherit=list(inherit),
            )
            answer = channel.receive() if channel.has_message(_SHIM_START_S) else None
            number = int((answer or {"errno": errno.ECHILD}).get("errno", 0))
            if number:
                raise OSError(number, os.strerror(number))
            pid = int((answer or {})["pid"])
            # Even a dead leader stays in the process table until the shim is told to go on.
            row = process(pid)
            channel.send()
        except BaseException:
            # Ctrl-C after the fork: only the token finds the process.
            # A shim whose peer is gone starts nothing, or ends what it started.
            channel.close()
            while popen is not None and popen.poll() is None:
                stop_leftovers(token, 0, 0.0, grace=0.0)
                time.sleep(TICK_S / 10)
            raise
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        raise ServerError(f"cannot start {argv[0]} in {cwd}: {error.strerror or error}", where=log) from error
    except OSError as error:
        raise MachineError(f"cannot start {argv[0]}: {error.strerror or error}", where=log) from error
    created = row.created if row else 0.0
    return OwnedProcess(pid, created, token, log, popen.pid, _popen=popen, _channel=channel, _before=before)


def _start_shim(token: str, channel: int, inherit: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start the shim in a session of its own; it holds no folder and has none of our variables."""
    # The interpreter of the shim may need its shared libraries from there.
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return subprocess.Popen(
        # Without site-packages it starts in a tenth of the time; it runs once for each command.
        [sys.executable, "-I", "-S", shim.__file__],
        env={**libraries, shim.MARK: token},
        cwd="/",
        stdin=channel,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=tuple(inherit),
    )


def signal_code(number: int) -> FaultCode:
    """Fault code of a process that a foreign signal ended: a crash or a kill."""
    return "crashed" if number in _CRASHES else "killed"


def stop(owned: ProcessTree, grace: float = 15.0) -> tuple[str, ...]:
    """End the whole tree: SIGTERM to the leader, ``grace`` seconds, then SIGKILL; returns removed segments.

    A second Ctrl-C ends the grace period and is raised again afterwards.

    Raises:
        ServerError: a process survived.
    """
    owned.observe()
    try:
        _end(owned, grace)
    except (KeyboardInterrupt, Interrupted):
        # The user does not wait any longer, and nothing may survive: the kill comes at once.
        _end(owned, 0.0)
        raise
    finally:
        removed = remove_segments(owned._segments)
    return removed


def stop_leftovers(
    token: str, pid: int, created: float, *, own_shim: int = 0, grace: float = 15.0
) -> tuple[Process, ...]:
    """End the processes that a dead owner left and remove its temporary files; returns those that were alive.

    Raises:
        ServerError: a process survived.
    """
    left = ProcessTree(pid, created, token, None, own_shim)
    found = left.living()
    if found:
        left._before = segments_before(created or min(row.created for row in found))
        stop(left, grace)
    if is_token(token):
        # A client's own token has no folder.
        shutil.rmtree(scratch_folder(token), ignore_errors=True)
    return found


def may_have_token(pid: int, created: float, token: str) -> bool:
    """False for a living process that a file names, and whose environment shows that it has another owner."""
    row, entries = process(pid), _environment(pid)
    if row is None or not row.living or row.created != created:
        return True
    # A process title is written over the environment: without a variable in it nothing is proved.
    if any(b"=" in entry for entry in entries):
        return _has_variable(entries, TOKEN_VARIABLE, token)
    # A title leaves zeros; an empty environment is none of perfbisect's.
    return list(entries) != [b""]


def _end(owned: ProcessTree, grace: float) -> None:
    deadline = time.monotonic() + grace
    if grace > 0 and owned.exited() is None:
        # Only to the leader, which ends its workers in its own order.
        _signal(owned.pid, owned.created, signal.SIGTERM)
    orphaned = False
    while (living := owned.observe()) and time.monotonic() < deadline:
        if not orphaned and owned.exited() is not None:
            orphaned = True
            # A dead leader does not end its workers, and most of them wait for ever.
            deadline = min(deadline, time.monotonic() + _ORPHAN_GRACE_S)
            for member in living:
                _signal(*member.identity, signal.SIGTERM)
        time.sleep(TICK_S)
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    # A container's monitor has no token and removes the container once its processes have ended.
    spared_until = time.monotonic() + _MONITOR_GRACE_S if owned.token else 0.0
    # SIGKILL of vLLM's API server alone leaves engine core and workers alive, and /dev/shm/psm_* behind: so
    # each process is killed, and what they held is removed.
    while living := owned.observe():
        marked = [member for member in living if member.pid == owned.pid or owned.has_token(member)]
        if marked and owned.token:
            # Memory of the container may be freed slowly.
            spared_until = min(time.monotonic() + _MONITOR_GRACE_S, deadline - 1.0)
        for member in marked if time.monotonic() < spared_until else living:
            _signal(*member.identity, signal.SIGKILL)
        owned.exited()
        if time.monotonic() > deadline:
            names = ", ".join(map(str, living))
            raise ServerError(
                f"{counted(len(living), 'process')} survived SIGKILL by {_KILL_TIMEOUT_S:.0f} s: {names}",
                where=owned.log,
                next_step="end them manually; a process in state D waits for a device or file system",
            )
        time.sleep(TICK_S)
    # A leader counts as dead before its last thread ended; only then can it be reaped.
    while owned.exited() is None and time.monotonic() < deadline:
        time.sleep(TICK_S / 10)
    owned.await_shims()


def _signal(pid: int, created: float, number: signal.Signals) -> None:
    """Signal exactly this process: take the handle first, then check the identity."""
    with suppress(ProcessLookupError, PermissionError):
        try:
            # Between a look and a kill the id may go to another process; a handle stays that of the
            # process.
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        except (OSError, AttributeError):
            # A kernel without process handles.
            if alive(pid, created):
                os.kill(pid, number)
            return
        try:
            if alive(pid, created):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
