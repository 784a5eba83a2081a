"""Which living processes belong to what we started: by token, session, log and descent (Linux).

The process table is read here and not with psutil, which takes five times as long (it is read many times an
attempt, beside what is measured) and has no session and no start time in seconds after boot.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from perfbisect.errors import FaultCode, Interrupted, MachineError, ServerError
from perfbisect.system.logs import neutral

TOKEN_VARIABLE = "PERFBISECT_TOKEN"
"""The variable in the process environment that marks every process of one owner."""

_TICKS = os.sysconf("SC_CLK_TCK")
_DEAD = frozenset("ZXx")


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

    @property
    def living(self) -> bool:
        """False for what only waits to be reaped."""
        return self.state not in _DEAD

    @property
    def identity(self) -> tuple[int, float]:
        """What no other process of this boot shares: an id is used again, with its start time it is not."""
        return self.pid, self.created

    def __str__(self) -> str:
        return f"{neutral(self.name)} (pid {self.pid})"


def process(pid: int) -> Process | None:
    """The row of one process id; None if nobody has it."""
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
    )


def table() -> dict[int, Process]:
    """Every process that can be seen now."""
    pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    return {row.pid: row for row in map(process, pids) if row is not None}


def alive(pid: int, created: float) -> bool:
    """True if this very process lives: same id, same start time, not waiting to be reaped."""
    row = process(pid)
    return row is not None and row.living and row.created == created


def tree(
    token: str, pid: int, created: float, *, log: Path | None = None, known: Iterable[tuple[int, float]] = ()
) -> tuple[Process, ...]:
    """All living processes of the owner that started as ``pid`` at ``created``; also long after it died.

    A process belongs if it is the owner, carries the token (or ``token.anything``) in its environment, writes
    to ``log``, was seen before (``known``), or descends from or shares a session with one who belongs.
    Several signs, since each can be lost: a daemon leaves its session, an orphan has no parent, a title that
    a process sets overwrites its environment (then the owner's session is enough). Never the caller and its
    ancestors.
    """
    rows = {row.pid: row for row in table().values() if row.living}
    spared = _lineage(rows)
    here = process(os.getpid())
    foreign_sessions = {rows[p].session for p in spared if p in rows} | ({here.session} if here else set())
    sessions: set[int] = set()
    seen = {*known, (pid, created)}
    mark = f"{TOKEN_VARIABLE}={token}".encode() if token else b""
    inode = _inode(log)

    members: set[int] = set()
    candidates = [row for row in rows.values() if row.pid not in spared and row.created >= created]
    for row in candidates:
        if (
            row.identity in seen
            or _marked(row.pid, mark, blank=row.session == pid)
            or _writes(row.pid, inode)
        ):
            members.add(row.pid)
    while True:
        # A session is made by its first process and inherited from there: who shares one with ours is ours.
        sessions |= {rows[member].session for member in members} - foreign_sessions
        more = {
            row.pid
            for row in candidates
            if row.pid not in members and (row.parent in members or row.session in sessions)
        }
        if not more:
            return tuple(rows[member] for member in sorted(members))
        members |= more


def _lineage(rows: dict[int, Process]) -> set[int]:
    """This process and all its ancestors."""
    found, pid = {1}, os.getpid()
    while pid in rows and pid not in found:
        found.add(pid)
        pid = rows[pid].parent
    return found


def _marked(pid: int, mark: bytes, blank: bool) -> bool:
    """True if it carries the mark; where ``blank`` says so, an environment that was overwritten will do."""
    if not mark:
        return False
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return False
    if blank and not environment[0]:  # a title is written over the start
        return True
    return any(entry == mark or entry.startswith(mark + b".") for entry in environment)


def _inode(log: Path | None) -> tuple[int, int] | None:
    try:
        found = None if log is None else log.stat()
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def _writes(pid: int, inode: tuple[int, int] | None) -> bool:
    """True if standard output or error of the process is this file."""
    if inode is None:
        return False
    for descriptor in (1, 2):
        try:
            found = Path(f"/proc/{pid}/fd/{descriptor}").stat()
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == inode:
            return True
    return False


def opened(pid: int) -> Iterator[str]:
    """What the process has open: link texts of its descriptors (``socket:[123]``, paths)."""
    folder = f"/proc/{pid}/fd"
    try:
        links = os.listdir(folder)  # noqa: PTH208 - read for every process many times an attempt
    except OSError:
        return
    for link in links:
        try:
            yield os.readlink(f"{folder}/{link}")  # noqa: PTH115
        except OSError:
            continue


def mapped(pid: int) -> Iterator[str]:
    """Paths of the files that the process has mapped into its memory."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5].startswith("/"):
            yield parts[5]


FOLDER = Path("/dev/shm")

Segment = tuple[str, int]
"""Path and inode: a file of the same name that somebody makes later is another one."""


def listing(folder: Path = FOLDER) -> frozenset[Segment]:
    """The segments that are there now: they are nobody's that starts later."""
    found: set[Segment] = set()
    try:
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False):
                found.add((entry.path, entry.inode()))
    except OSError:
        pass
    return frozenset(found)


def held(pids: Iterable[int], folder: Path = FOLDER) -> frozenset[Segment]:
    """The segments that these processes have open or mapped."""
    prefix = f"{folder}/"
    paths = {path for pid in pids for path in (*opened(pid), *mapped(pid)) if path.startswith(prefix)}
    found: set[Segment] = set()
    for path in paths:
        try:
            found.add((path, Path(path).stat(follow_symlinks=False).st_ino))
        except OSError:  # unlinked already: nothing to remove
            continue
    return frozenset(found)


def remove(segments: Iterable[Segment], folder: Path = FOLDER) -> tuple[str, ...]:
    """Remove what is still there and held by no living process. Returns the paths removed."""
    wanted = frozenset(segments) & listing(folder)
    if not wanted:
        return ()
    wanted -= held(table(), folder)
    removed: list[str] = []
    for path, inode in sorted(wanted):
        try:
            found = Path(path).stat(follow_symlinks=False)
            if found.st_ino == inode and found.st_uid == os.getuid():
                Path(path).unlink()
                removed.append(path)
        except OSError:
            continue
    return tuple(removed)


Asked = Callable[[], bool]
"""Told often while something is waited for: True asks for a prompt end."""

_TICK = 0.05
_CRASHES = frozenset(
    {
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGSEGV,
        signal.SIGSYS,
    }
)
_KILL_PATIENCE = 10.0
"""Seconds that the kernel may take to end a process after SIGKILL (freeing a large memory, a device)."""
_ORPHAN_GRACE = 5.0
"""Seconds that children may go on once their leader has ended."""


def never() -> bool:
    """Nobody asks for an end."""
    return False


@dataclass
class Owned:
    """A process that we started, and through it everything that it starts.

    ``created``: seconds after boot; ``token``: in the environment of all its processes; ``log``: its output.
    """

    pid: int
    created: float
    token: str
    log: Path
    popen: subprocess.Popen[bytes] = field(repr=False, compare=False)
    _before: frozenset[Segment] = field(default_factory=frozenset, repr=False, compare=False)
    _seen: set[tuple[int, float]] = field(default_factory=set, repr=False, compare=False)
    _segments: set[Segment] = field(default_factory=set, repr=False, compare=False)

    def exited(self) -> int | None:
        """Exit code of the leader (negative: the signal that ended it); None while it runs."""
        return self.popen.poll()

    def living(self) -> tuple[Process, ...]:
        """All its processes that live now; who was seen once is found again, whatever its marks become."""
        members = tree(self.token, self.pid, self.created, log=self.log, known=self._seen)
        self._seen.update(member.identity for member in members)
        return members

    def observe(self) -> tuple[Process, ...]:
        """``living``, and note which shared memory they hold, so that ``stop`` can remove what they leave."""
        members = self.living()
        self._segments |= held(member.pid for member in members) - self._before
        return members


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    token: str,
    cores: Sequence[int] = (),
    inherit: Sequence[int] = (),
) -> Owned:
    """Start a process in a session of its own, its output appended to ``log``, its input empty.

    ``env`` is the whole process environment but for the token. ``cores``: the only ones it and its children
    may run on; none: all of ours. ``inherit``: open descriptors that it keeps, under their numbers.

    :raises ServerError: there is no such program, or it cannot be executed.
    :raises MachineError: the machine has no process, memory, disk or such core left for it.
    """
    before = listing()
    try:
        with log.open("ab") as output, _pinned(cores):
            popen = subprocess.Popen(
                list(argv),
                env={
                    **env,
                    TOKEN_VARIABLE: token,
                },  # last: the title that an engine sets overwrites the first
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
    except BaseException:  # Ctrl-C after the fork: nobody knows the process yet, the token does
        stop_leftovers(token, 0, 0.0, grace=0.0)
        raise
    row = process(popen.pid)  # its entry stays until it is waited for, even if it ended already
    return Owned(popen.pid, row.created if row else 0.0, token, log, popen, before)


@contextmanager
def _pinned(cores: Sequence[int]) -> Iterator[None]:
    """What the calling thread starts meanwhile runs on these cores only; nothing runs between fork and exec.

    :raises OSError: the machine does not let us use any of them.
    """
    if not cores:
        yield
        return
    ours = os.sched_getaffinity(0)  # of this thread alone, on Linux
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)


def signal_code(number: int) -> FaultCode:
    """The code of a process that ended by a signal which was not ours: its own crash, or a kill."""
    return "crashed" if number in _CRASHES else "killed"


def stop(owned: Owned, grace: float = 15.0) -> tuple[str, ...]:
    """End the whole tree: TERM to the leader, ``grace`` seconds, then KILL. Returns shared memory removed.

    A second Ctrl-C during it shortens the grace to nothing and is raised again after everything has ended.

    :raises ServerError: a process lives on.
    """
    owned.observe()
    try:
        _end(owned, owned.observe, grace)
    except (KeyboardInterrupt, Interrupted):
        _end(owned, owned.living, 0.0)
        raise
    finally:
        removed = remove(owned._segments)
    return removed


def stop_leftovers(
    token: str, pid: int, created: float, *, log: Path | None = None, grace: float = 15.0
) -> tuple[Process, ...]:
    """End what an owner that died itself has left, known by its journal only. Returns whom it found living.

    :raises ServerError: a process lives on.
    """
    seen: dict[tuple[int, float], Process] = {}
    segments: set[Segment] = set()
    before = listing()

    def observe() -> tuple[Process, ...]:
        members = tree(token, pid, created, log=log, known=seen)
        seen.update({member.identity: member for member in members})
        segments.update(before & held(member.pid for member in members))
        return members

    if observe():
        _end(_Identity(pid, created, log), observe, grace)
        remove(segments)
    return tuple(seen.values())


@dataclass
class _Identity:
    """A leader that is nobody's child of ours."""

    pid: int
    created: float
    log: Path | None

    def exited(self) -> int | None:
        return None if alive(self.pid, self.created) else 0


def _end(leader: Owned | _Identity, observe: Callable[[], Iterable[Process]], grace: float) -> None:
    deadline = time.monotonic() + grace
    if grace > 0 and leader.exited() is None:
        _signal(leader.pid, leader.created, signal.SIGTERM)
    orphaned = False
    while (living := tuple(observe())) and time.monotonic() < deadline:
        if not orphaned and leader.exited() is not None:
            orphaned = True
            deadline = min(deadline, time.monotonic() + _ORPHAN_GRACE)
            for member in living:
                _signal(*member.identity, signal.SIGTERM)
        time.sleep(_TICK)
    deadline = time.monotonic() + _KILL_PATIENCE
    while living := tuple(observe()):
        for member in living:
            _signal(*member.identity, signal.SIGKILL)
        leader.exited()
        if time.monotonic() > deadline:
            names = ", ".join(map(str, living))
            raise ServerError(
                f"{len(living)} process(es) live on {_KILL_PATIENCE:.0f} s after SIGKILL: {names}",
                where=leader.log,
                next_step="end them by hand; a process in state D waits for a device or file system",
            )
        time.sleep(_TICK)
    # A leader is shown as dead before the last of its threads has ended; only then can it be waited for.
    while leader.exited() is None and time.monotonic() < deadline:
        time.sleep(_TICK / 10)


def _signal(pid: int, created: float, number: signal.Signals) -> None:
    """Signal exactly this process: the handle is taken first, then the identity is looked at."""
    with suppress(ProcessLookupError, PermissionError):
        try:
            handle = os.pidfd_open(pid)
        except (OSError, AttributeError) as error:
            if isinstance(error, ProcessLookupError):
                return
            if alive(pid, created):  # a kernel without process handles
                os.kill(pid, number)
            return
        try:
            if alive(pid, created):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


@dataclass(frozen=True)
class Finished:
    """How a bounded command ended: its exit code (negative: a signal), or that it ran past its limit."""

    code: int
    seconds: float
    timed_out: bool
    cpu_seconds: float = 0.0
    """CPU time of the command and of the children it waited for."""


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    token: str,
    timeout: float,
    asked: Asked = never,
    at_limit: Callable[[], None] | None = None,
    cores: Sequence[int] = (),
) -> Finished:
    """Run a command to its end, at most ``timeout`` seconds; nothing of it lives afterwards, however it ends.

    ``at_limit`` is called when the limit has passed, before anything is ended.

    :raises Interrupted: ``asked`` said so.
    :raises ServerError: it cannot be started, or not be ended.
    """
    began = time.monotonic()
    cpu = _children_cpu()
    owned = spawn(argv, env=env, cwd=cwd, log=log, token=token, cores=cores)
    try:
        code, timed_out = None, False
        while code is None and not timed_out:
            if asked():
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
    return Finished(owned.popen.wait() if code is None else code, seconds, timed_out, _children_cpu() - cpu)


def _children_cpu() -> float:
    times = os.times()
    return times.children_user + times.children_system


_THREAD_LOCK = threading.Lock()
"""The interpreter's threads are one for the whole process, and so is this."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread from one that may be interrupted."""
    with _THREAD_LOCK:
        thread.start()


def interrupt_thread(thread: threading.Thread) -> None:
    """What Ctrl-C does in the main thread, in another: ``KeyboardInterrupt`` at the next instruction there.

    A system call that it waits in ends first. Nothing happens to a thread that has ended, or not begun.
    """
    with _THREAD_LOCK:
        if thread.ident is not None and thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
            )
