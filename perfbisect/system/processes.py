"""Owned processes: start, find, stop; also shared memory and threads (Linux).

Reads ``/proc`` itself: psutil takes five times as long, beside what is measured, and has no session and no
start time in seconds after boot.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from perfbisect.common.checked import is_token
from perfbisect.errors import FaultCode, Interrupted, MachineError, ServerError
from perfbisect.system.files import scratch_folder
from perfbisect.system.logs import excerpt

TOKEN_VARIABLE = "PERFBISECT_TOKEN"
"""Environment variable that marks every process of one owner."""

_TICKS = os.sysconf("SC_CLK_TCK")
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
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return Process(
        pid=pid,
        created=int(fields[19]) / _TICKS,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        state=fields[0],
        name=head.partition("(")[2],
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        waited_seconds=(int(fields[13]) + int(fields[14])) / _TICKS,
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
    token: str, pid: int, created: float, *, log: Path | None = None, known: Iterable[Identity] = ()
) -> tuple[Process, ...]:
    """All living processes of the owner that started as ``pid`` at ``created``, even after it died.

    A process belongs if it is the owner, has the token (or ``token.anything``) in its environment, writes to
    ``log``, is in ``known``, or descends from or shares a session with a member. Each sign can be lost: a
    daemon leaves its session, an orphan has no parent, a process title overwrites the environment (then the
    owner's session suffices). The caller and its ancestors never belong.
    """
    rows = {row.pid: row for row in table().values() if row.living}
    ancestors = {1}
    ancestor = os.getpid()
    while ancestor in rows and ancestor not in ancestors:
        ancestors.add(ancestor)
        ancestor = rows[ancestor].parent
    # Session 0 is that of all processes whose session began outside this container, and of the kernel.
    foreign_sessions = {0, os.getsid(0), *(rows[found].session for found in ancestors if found in rows)}
    identities = {*known, (pid, created)}
    mark = f"{TOKEN_VARIABLE}={token}".encode() if token else b""
    log_file = _file_identity(log) if log else None
    candidates = [
        row
        for row in rows.values()
        if row.pid not in ancestors and not row.of_kernel and row.created >= created
    ]
    more = {
        row.pid
        for row in candidates
        if row.identity in identities
        or _has_mark(row.pid, mark, accepts_blank=0 < pid == row.session)
        or _writes_to(row.pid, log_file)
    }
    members: set[int] = set()
    while more:
        members |= more
        # Sessions are inherited: a process in a member's session is a member.
        sessions = {rows[member].session for member in members} - foreign_sessions
        more = {row.pid for row in candidates if row.parent in members or row.session in sessions} - members
    return tuple(rows[member] for member in sorted(members))


def _has_mark(pid: int, mark: bytes, accepts_blank: bool) -> bool:
    """Whether it has the mark; with ``accepts_blank``, an overwritten environment suffices."""
    if not mark:
        return False
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return False
    if accepts_blank and not environment[0]:  # a title is written over the start
        return True
    return any(entry == mark or entry.startswith(mark + b".") for entry in environment)


def _file_identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _writes_to(pid: int, file: tuple[int, int] | None) -> bool:
    """Whether the process writes standard output or error to this file."""
    return file is not None and any(_file_identity(Path(f"/proc/{pid}/fd/{fd}")) == file for fd in (1, 2))


def opened(pid: int) -> Iterator[str]:
    """Link texts of the process's descriptors (``socket:[123]``, paths)."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for link in os.listdir(folder):  # noqa: PTH208 - read for every process many times an attempt
            with suppress(OSError):
                yield os.readlink(f"{folder}/{link}")  # noqa: PTH115


def _mapped(pid: int) -> Iterator[str]:
    """Paths of the process's mapped files."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines():
            parts = line.split(maxsplit=5)
            if len(parts) == 6 and parts[5].startswith("/"):
                yield parts[5]


SHARED_MEMORY = Path("/dev/shm")

Segment = tuple[str, int]
"""Path and inode of shared memory; the inode tells a later file of the same name apart."""


def list_segments() -> frozenset[Segment]:
    with suppress(OSError):
        entries = [entry for entry in os.scandir(SHARED_MEMORY) if entry.is_file(follow_symlinks=False)]
        return frozenset((entry.path, entry.inode()) for entry in entries)
    return frozenset()


def _segments_before(created: float) -> frozenset[Segment]:
    """The shared memory that is older than a process: weights that a user keeps there, for example."""
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    older: set[Segment] = set()
    for path, inode in list_segments():
        with suppress(OSError):
            status = Path(path).stat(follow_symlinks=False)
            if min(status.st_mtime, status.st_ctime) < boot + created:
                older.add((path, inode))
    return frozenset(older)


def _held_segments(pids: Iterable[int]) -> frozenset[Segment]:
    """The segments that these processes opened or mapped."""
    prefix = f"{SHARED_MEMORY}/"
    paths = {path for pid in pids for path in (*opened(pid), *_mapped(pid)) if path.startswith(prefix)}
    found: set[Segment] = set()
    for path in paths:
        with suppress(OSError):  # unlinked already: nothing to remove
            found.add((path, Path(path).stat(follow_symlinks=False).st_ino))
    return frozenset(found)


def remove_segments(segments: Iterable[Segment]) -> tuple[str, ...]:
    """Remove segments that no living process holds; returns the removed paths."""
    wanted = frozenset(segments) & list_segments()
    if not wanted:
        return ()
    removed: list[str] = []
    for path, inode in sorted(wanted - _held_segments(table())):
        with suppress(OSError):
            found = Path(path).stat(follow_symlinks=False)
            if found.st_ino == inode and found.st_uid == os.getuid():
                Path(path).unlink()
                removed.append(path)
    return tuple(removed)


StopRequested = Callable[[], bool]
"""Polled while waiting: True stops promptly."""

_TICK = 0.05
_CRASHES = frozenset(
    signal.Signals[f"SIG{name}"] for name in ("ILL", "TRAP", "ABRT", "BUS", "FPE", "SEGV", "SYS")
)
_KILL_TIMEOUT_S = 10.0
"""Time for the kernel to free large memory or a device after SIGKILL."""
_ORPHAN_GRACE_S = 5.0
"""Time for children to end after their leader."""


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
    _seen: set[Identity] = field(default_factory=set, repr=False, compare=False, kw_only=True)
    _before: frozenset[Segment] = field(default=frozenset(), repr=False, compare=False, kw_only=True)
    _segments: set[Segment] = field(default_factory=set, repr=False, compare=False, kw_only=True)

    def exited(self) -> int | None:
        """Exit code of the leader (negative: signal), None while it runs; 0 if unknown."""
        return None if alive(self.pid, self.created) else 0

    def living(self) -> tuple[Process, ...]:
        """All living processes; one that was found once stays known."""
        members = tree(self.token, self.pid, self.created, log=self.log, known=self._seen)
        self._seen.update(member.identity for member in members)
        return members

    def observe(self) -> tuple[Process, ...]:
        """``living``; also records their shared memory for ``stop``."""
        members = self.living()
        self._segments |= _held_segments(member.pid for member in members) - self._before
        return members


@dataclass
class OwnedProcess(ProcessTree):
    """A process that we started."""

    log: Path
    popen: subprocess.Popen[bytes] = field(repr=False, compare=False)

    def exited(self) -> int | None:
        return self.popen.poll()


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

    ``env`` is the whole environment except the token. ``cores``: CPU affinity, empty for all.
    ``inherit``: descriptors that stay open.

    Raises:
        ServerError: the program is missing or not executable.
        MachineError: no process, memory, disk space or such core is available.
    """
    before = list_segments()
    try:
        with log.open("ab") as output, _pinned(cores):
            popen = subprocess.Popen(
                list(argv),
                env={**env, TOKEN_VARIABLE: token},  # last: an engine's title overwrites the first
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o022,
                pass_fds=tuple(inherit),
            )
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        raise ServerError(f"cannot start {argv[0]} in {cwd}: {error.strerror or error}", where=log) from error
    except OSError as error:
        raise MachineError(f"cannot start {argv[0]}: {error.strerror or error}", where=log) from error
    except BaseException:  # Ctrl-C after the fork: only the token finds the process
        stop_leftovers(token, 0, 0.0, grace=0.0)
        raise
    row = process(popen.pid)  # its entry stays until it is waited for, even if it ended already
    return OwnedProcess(popen.pid, row.created if row else 0.0, token, log, popen, _before=before)


@contextmanager
def _pinned(cores: Sequence[int]) -> Iterator[None]:
    """Pin what the calling thread starts to these cores. :raises OSError: none of them is allowed."""
    ours = os.sched_getaffinity(0)  # of this thread alone, on Linux
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        if cores:
            os.sched_setaffinity(0, ours)


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
        _end(owned, 0.0)
        raise
    finally:
        removed = remove_segments(owned._segments)
    return removed


def stop_leftovers(
    token: str, pid: int, created: float, *, log: Path | None = None, grace: float = 15.0
) -> tuple[Process, ...]:
    """End the processes that a dead owner left and remove its temporary files; returns those that were alive.

    A process whose environment names another token, or none, is not the owner: ``pid`` may come from a file.

    Raises:
        ServerError: a process survived.
    """
    if token and not _may_have_mark(pid, token):
        pid, created = 0, 0.0
    left = ProcessTree(pid, created, token, log)
    found = left.living()
    if found:
        left._before = _segments_before(created or min(row.created for row in found))
        stop(left, grace)
    if is_token(token):  # a client's own token has no folder
        shutil.rmtree(scratch_folder(token), ignore_errors=True)
    return found


def _may_have_mark(pid: int, token: str) -> bool:
    """Whether a process has the token, or an environment that is unreadable or overwritten by a title."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return True
    return b"=" not in environment or _has_mark(pid, f"{TOKEN_VARIABLE}={token}".encode(), False)


def _end(owned: ProcessTree, grace: float) -> None:
    deadline = time.monotonic() + grace
    if grace > 0 and owned.exited() is None:
        _signal(owned.pid, owned.created, signal.SIGTERM)
    orphaned = False
    while (living := owned.observe()) and time.monotonic() < deadline:
        if not orphaned and owned.exited() is not None:
            orphaned = True
            deadline = min(deadline, time.monotonic() + _ORPHAN_GRACE_S)
            for member in living:
                _signal(*member.identity, signal.SIGTERM)
        time.sleep(_TICK)
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while living := owned.observe():
        for member in living:
            _signal(*member.identity, signal.SIGKILL)
        owned.exited()
        if time.monotonic() > deadline:
            names = ", ".join(map(str, living))
            raise ServerError(
                f"{len(living)} process(es) survived SIGKILL by {_KILL_TIMEOUT_S:.0f} s: {names}",
                where=owned.log,
                next_step="end them manually; a process in state D waits for a device or file system",
            )
        time.sleep(_TICK)
    # A leader counts as dead before its last thread ended; only then can it be reaped.
    while owned.exited() is None and time.monotonic() < deadline:
        time.sleep(_TICK / 10)


def _signal(pid: int, created: float, number: signal.Signals) -> None:
    """Signal exactly this process: take the handle first, then check the identity."""
    with suppress(ProcessLookupError, PermissionError):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        except (OSError, AttributeError):  # a kernel without process handles
            if alive(pid, created):
                os.kill(pid, number)
            return
        try:
            if alive(pid, created):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def capture(
    argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a short command; its exit code is 124 if it takes too long, 127 if it cannot be started."""
    name = Path(argv[0]).name
    try:
        return subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL, env=env,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        problem = f"{name} did not answer within {timeout_s:.0f} s"
        return subprocess.CompletedProcess(argv, 124, "", problem)
    except OSError as error:
        problem = f"{name} cannot be started: {error.strerror or error}"
        return subprocess.CompletedProcess(argv, 127, "", problem)


@dataclass(frozen=True)
class ProcessResult:
    """Result of a bounded command; a negative code is a signal."""

    code: int
    seconds: float
    timed_out: bool
    cpu_seconds: float = 0.0
    """CPU time of the command and its reaped children."""


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    token: str,
    timeout: float,
    stop_requested: StopRequested = never,
    at_limit: Callable[[], None] | None = None,
    cores: Sequence[int] = (),
) -> ProcessResult:
    """Run a command for at most ``timeout`` seconds; none of its processes survive.

    ``at_limit`` is called at the timeout, before anything is ended.

    Raises:
        Interrupted: ``stop_requested`` returned True.
        ServerError: the command cannot be started or ended.
    """
    began, cpu = time.monotonic(), _children_cpu()
    owned = spawn(argv, env=env, cwd=cwd, log=log, token=token, cores=cores)
    try:
        code, timed_out = None, False
        while code is None and not timed_out:
            if stop_requested():
                raise Interrupted(f"stopped while {Path(argv[0]).name} ran", where=log)
            try:
                code = owned.popen.wait(_TICK)
            except subprocess.TimeoutExpired:
                timed_out = time.monotonic() - began > timeout
        if timed_out and at_limit is not None:
            at_limit()
        seconds = time.monotonic() - began
    finally:
        stop(owned, 0.0 if owned.exited() is not None else 2.0)
    code = owned.popen.wait() if code is None else code
    return ProcessResult(code, seconds, timed_out, _children_cpu() - cpu)


def run_script(
    script: str,
    *arguments: str,
    interpreter: Path,
    env: Mapping[str, str],
    log: Path,
    timeout: float,
    token: str = "",
    stop_requested: StopRequested = never,
) -> ProcessResult:
    """Run a Python program like :func:`run`, with a new ``log`` and in its folder."""
    log.unlink(missing_ok=True)
    return run(
        [str(interpreter), "-c", script, *arguments],
        env=env,
        cwd=log.parent,
        log=log,
        token=token or secrets.token_hex(16),
        timeout=timeout,
        stop_requested=stop_requested,
    )


def _children_cpu() -> float:
    times = os.times()
    return times.children_user + times.children_system


_THREAD_LOCK = threading.Lock()
"""Serialises thread starts and interrupts: CPython 3.10 to 3.13 gives a new thread its starter's identity
(``_PyThreadState_Prealloc``), so an interrupt sent in that moment would kill the new thread and leave the
starter waiting forever."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread from a thread that may be interrupted."""
    with _THREAD_LOCK:
        thread.start()


def interrupt_thread(thread: threading.Thread) -> None:
    """Raise ``KeyboardInterrupt`` in another living thread, after its current system call."""
    with _THREAD_LOCK:
        if thread.ident is not None and thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
            )
