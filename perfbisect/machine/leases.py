"""Host-wide leases of devices and cores, across users.

There is one ``flock`` file for each device and core, and one for the machine. A slot shares the machine's
lock; an attempt without pinned cores holds it exclusively. The kernel releases a lock when its process ends,
so files of dead processes do no harm, and lock files are never removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from perfbisect.common.json_text import WRONG_SHAPE
from perfbisect.errors import Interrupted, MachineError
from perfbisect.machine.slots import Slot
from perfbisect.system import logs
from perfbisect.system.environ import user_name
from perfbisect.system.processes import StopRequested, never

FOLDER_VARIABLE = "PERFBISECT_LOCKS"
_FOLDER = Path("/tmp/perfbisect-locks")
_MACHINE = "machine"
_SUFFIX = ".lock"
_TICK_S = 0.25
_ADVICE = f"set {FOLDER_VARIABLE} to a folder that all users of this host can write"
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Every user can put a link or a pipe in the place of a lock file: neither is followed or waited for."""
_TRIES = 4
"""Before a lock counts as held: listing holders takes it for an instant."""


@dataclass(frozen=True)
class LeaseHolder:
    """The owner of a lease. :func:`lease` fills in user, ``pid``, ``since`` and slot."""

    job: str = ""
    user: str = ""
    pid: int = 0
    since: str = ""
    slot: str = ""

    def __str__(self) -> str:
        job = f", job {self.job}" if self.job else ""
        since = f", since {self.since}" if self.since else ""
        return f"{self.user or 'unknown user'} (pid {self.pid or '?'}{job}{since})"


@dataclass(frozen=True)
class Lease:
    """A lease that is held."""

    slots: tuple[Slot, ...]
    died: tuple[LeaseHolder, ...]
    """Earlier owners that died; their processes may still run."""
    _files: Mapping[Path, int] = field(repr=False)

    def check(self) -> None:
        """Raise MachineError if a lock file was removed or replaced, so that others may use the devices."""
        for path, descriptor in self._files.items():
            if not _is_same_file(path, descriptor):
                raise MachineError(
                    f"the lease is lost: {path} was removed or replaced",
                    next_step="keep the lock files; discard what was measured since",
                    code="lease_lost",
                )


def lock_folder(shell: Mapping[str, str]) -> Path:
    """The folder of this host's locks, from ``PERFBISECT_LOCKS`` or one for all users.

    Containers on one host must mount it to share it.
    """
    return Path(shell.get(FOLDER_VARIABLE) or _FOLDER)


@contextmanager
def lease(
    *slots: Slot,
    folder: Path,
    holder: LeaseHolder,
    wait: float = 0.0,
    on_wait: Callable[[str], None] = lambda _: None,
    stop_requested: StopRequested = never,
) -> Iterator[Lease]:
    """Lease all of these slots, or none, until the block ends.

    ``wait``: seconds to wait for other owners; ``on_wait`` is called with their names.

    Raises:
        MachineError: a slot is still leased after ``wait`` seconds, or the folder is unusable.
        Interrupted: ``stop_requested`` returned true while waiting.
    """
    deadline = time.monotonic() + wait
    _make_folder(folder)
    # Without pinned cores the scheduler may use all: nobody else may measure meanwhile.
    exclusive = any(not slot.cores for slot in slots)
    devices = {f"device-{uuid.replace('/', '_')}{_SUFFIX}" for slot in slots for uuid in slot.devices}
    cores = {f"core-{core}{_SUFFIX}" for slot in slots for core in slot.cores}
    # All processes lock in one order and keep no lock while they wait: there is no deadlock.
    names = {_MACHINE + _SUFFIX: exclusive, **dict.fromkeys(sorted(devices | cores), True)}
    wanted = {_parse_name(name) for name in names}
    reported = ""
    with ExitStack() as held:
        # Polled, not blocked in flock: a wait can be stopped, and says who has the lock.
        while (taken := _take(folder, names)) is None:
            # Empty if the locks were released meanwhile.
            held_by = [held for held in holders(folder) if exclusive or (held.kind, held.name) in wanted]
            busy = describe_holders(held_by)
            if busy and busy != reported:
                reported = busy
                on_wait(f"waits: {busy}")
            if stop_requested():
                raise Interrupted(f"stopped while it waited: {busy}")
            if time.monotonic() >= deadline:
                raise MachineError(
                    f"the slot is leased: {busy or 'by a process that just released it'} "
                    f"(waited {wait:.0f} s)",
                    where=folder,
                    next_step="wait for it, stop it, or ask for fewer workers or other devices",
                    code="lease_lost",
                )
            time.sleep(min(_TICK_S, max(0.0, deadline - time.monotonic())))
        died: dict[LeaseHolder, None] = {}
        for path, descriptor in taken.items():
            held.callback(_release, descriptor)
            # A holder that ended well emptied its file: what is left in it names one that was killed.
            if left := _read(descriptor):
                died[left] = None
            if names[path.name]:
                _write(descriptor, holder, slots)
        yield Lease(slots, tuple(died), taken)


class SharedLease:
    """A lease that threads of one process hold together: from the first that takes it to the last."""

    def __init__(self, take: Callable[[], AbstractContextManager[object]]) -> None:
        self._take, self._held, self._count, self._lock = take, ExitStack(), 0, Lock()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold it until the block ends; raises what taking it raises."""
        with self._lock:
            if not self._count:
                self._held.enter_context(self._take())
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if not self._count:
                    self._held.close()


@dataclass(frozen=True)
class HeldLock:
    """A lock that is held. ``name``: UUID of a device, or number of a core."""

    kind: Literal["machine", "device", "core"]
    name: str
    holder: LeaseHolder


def holders(folder: Path) -> tuple[HeldLock, ...]:
    """The locks that are held on this host, with their owners."""
    held = []
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            descriptor = os.open(path, os.O_RDONLY | _SAFE)
        except OSError:
            continue
        try:
            # A shared lock, released at once: a look must not make another process wait.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            held.append(HeldLock(*_parse_name(path.name), _read(descriptor) or LeaseHolder()))
        except OSError:
            pass
        finally:
            os.close(descriptor)
    return tuple(held)


def describe_holders(locks: Iterable[HeldLock]) -> str:
    """Each owner with its devices and the number of its cores."""
    by_owner: dict[str, list[HeldLock]] = {}
    for lock in locks:
        by_owner.setdefault(str(lock.holder), []).append(lock)
    return "; ".join(f"{owner} has {_describe(held)}" for owner, held in by_owner.items())


def _describe(locks: Sequence[HeldLock]) -> str:
    if any(lock.kind == "machine" for lock in locks):
        return "the whole machine"
    devices = [lock.name for lock in locks if lock.kind == "device"]
    cores = sum(lock.kind == "core" for lock in locks)
    return ", ".join([*devices, *([f"{cores} of the cores"] if cores else [])])


def _parse_name(file: str) -> tuple[Literal["machine", "device", "core"], str]:
    """Kind and name of a lock file: ``device-UUID.lock``, ``core-3.lock`` or ``machine.lock``."""
    kind, _, name = file.removesuffix(_SUFFIX).partition("-")
    if kind == "device":
        return "device", name
    return ("core", name) if kind == "core" else ("machine", "")


def _make_folder(folder: Path) -> None:
    """Make the folder with the sticky bit, writable for all users; one that exists stays as it is.

    It stands where every user can write: a link in its place is not followed, and its mode is set before it
    has its name.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.is_symlink() and not folder.is_dir():
            # Made under another name: with its own, it would be closed to other users for a moment.
            made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            try:
                made.chmod(0o1777)
                made.rename(folder)
            except OSError:
                made.rmdir()
                # Another process may have made it at the same time.
                if not folder.exists():
                    raise
        status = folder.stat(follow_symlinks=False)
    except OSError as error:
        raise MachineError(
            f"no folder for the locks of this host: {folder}: {error.strerror or error}", next_step=_ADVICE
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        raise MachineError(
            f"{folder} is no folder, or a link to one: locks are not kept there", next_step=_ADVICE
        )
    trusted = {0, os.getuid()}
    # The owner of a folder may always remove what is in it; the sticky bit holds for all others.
    if status.st_uid not in trusted and not status.st_mode & stat.S_ISVTX:
        raise MachineError(
            f"the folder of locks {folder} belongs to another user and has no sticky bit: its locks can be "
            "removed by others",
            next_step=_ADVICE,
        )


def _take(folder: Path, names: Mapping[str, bool]) -> dict[Path, int] | None:
    """Take all locks, or none and return None, so that waiting processes hold no locks."""
    taken: dict[Path, int] = {}
    with ExitStack() as undo:
        for name, exclusive in names.items():
            path = folder / name
            descriptor = _lock(path, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            if descriptor is None:
                return None
            undo.callback(os.close, descriptor)
            taken[path] = descriptor
        undo.pop_all()
    return taken


def _lock(path: Path, kind: int) -> int | None:
    """A descriptor with the lock; None if another process has it."""
    for attempt in range(_TRIES):
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            time.sleep(0.01 * attempt)
            continue
        except OSError as error:
            os.close(descriptor)
            raise MachineError(f"{path} cannot be locked: {error.strerror or error}") from error
        # flock holds the file, not its name: a lock on a removed file excludes nobody.
        if _is_same_file(path, descriptor):
            return descriptor
        # The file was removed between our opening and locking it.
        os.close(descriptor)
    return None


def _open(path: Path) -> int:
    """Open a lock file, or make it.

    O_CREAT is tried last: in a sticky folder the kernel refuses it on another user's file
    (``fs.protected_regular``), even to root.
    """
    error: OSError | None = None
    for attempt in range(_TRIES):
        # Another process may be making the file, which it opens to other users a moment later.
        time.sleep(0.01 * attempt)
        for flags in (os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL):
            try:
                descriptor = os.open(path, flags | _SAFE, 0o666)
            except OSError as raised:
                if error is None or not isinstance(raised, (FileExistsError, FileNotFoundError)):
                    error = raised
                continue
            if flags & os.O_CREAT:
                # The umask took these bits away, and other users must open it.
                os.fchmod(descriptor, 0o666)
            status = os.fstat(descriptor)
            # Through a hard link the owner would be written into another file of this user.
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                os.close(descriptor)
                raise MachineError(
                    f"{path} is no file of its own: it is not used as a lock", next_step=_ADVICE
                )
            return descriptor
    raise MachineError(
        f"the lock file {path} cannot be opened: {error.strerror if error else 'unknown'}",
        next_step=f"ask its owner, or set {FOLDER_VARIABLE} to a folder that all users can write",
    ) from error


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(descriptor))
    except OSError:
        return False


def _release(descriptor: int) -> None:
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def _write(descriptor: int, holder: LeaseHolder, slots: tuple[Slot, ...]) -> None:
    """Write the owner; a read-only lock file has none."""
    owner = replace(
        holder,
        user=holder.user or user_name(),
        pid=os.getpid(),
        since=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        slot=", ".join(slot.name for slot in slots),
    )
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(owner)).encode(), 0)


def _read(descriptor: int) -> LeaseHolder | None:
    """The owner in a lock file, without control characters; None if there is none."""
    data: Any = None
    with suppress(OSError, *WRONG_SHAPE):
        # Any user may write there: little is read, and control characters are left out.
        data = json.loads(os.pread(descriptor, 4096, 0))
    if not isinstance(data, dict):
        return None
    fields = {key: logs.excerpt(str(data.get(key, "")), 80) for key in ("job", "user", "since", "slot")}
    pid = data.get("pid")
    return LeaseHolder(**fields, pid=pid if isinstance(pid, int) else 0)
