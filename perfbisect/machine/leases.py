"""Host-wide leases of devices and cores, across users.

There is one ``flock`` file for each device and core, and one for the machine. A slot shares the machine's
lock; an attempt without pinned cores holds it exclusively. The kernel releases a lock when its process ends,
so files of dead processes do no harm, and lock files are never removed.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from perfbisect.errors import Interrupted, MachineError
from perfbisect.machine.slots import Slot
from perfbisect.system import logs
from perfbisect.system.processes import StopRequested, never

FOLDER_VARIABLE = "PERFBISECT_LOCKS"
_FOLDER = Path("/tmp/perfbisect-locks")
_MACHINE = "machine"
_TICK = 0.25
_LOOKS = 4
"""Tries before a lock counts as held: listing holders takes it for an instant."""
_SUFFIX = ".lock"


@dataclass(frozen=True)
class LeaseHolder:
    """The owner of a lease. :func:`lease` fills in ``since`` and ``pid``."""

    job: str = ""
    user: str = ""
    pid: int = 0
    since: str = ""
    slot: str = ""

    def __str__(self) -> str:
        job = f", job {self.job}" if self.job else ""
        since = f", since {self.since}" if self.since else ""
        return f"{self.user or 'somebody'} (pid {self.pid or '?'}{job}{since})"


@dataclass(frozen=True)
class Lease:
    """A lease that is held."""

    slots: tuple[Slot, ...]
    died: tuple[LeaseHolder, ...]
    """Earlier owners that died; their processes may still run."""
    _files: Mapping[Path, int] = field(repr=False)

    def check(self) -> None:
        """:raises MachineError: a lock file was removed or replaced, so others may use the devices."""
        for path, descriptor in self._files.items():
            if not _is(path, descriptor):
                raise MachineError(
                    f"the lease is lost: {path} was removed or replaced",
                    next_step="keep the lock files; discard what was measured since",
                    code="lease_lost",
                )


def lock_folder(shell: Mapping[str, str]) -> Path:
    """The folder of this host's locks, from ``PERFBISECT_LOCKS`` or one for all users.

    Containers on one host must mount it to share it.
    """
    return Path(shell[FOLDER_VARIABLE]) if shell.get(FOLDER_VARIABLE) else _FOLDER


@contextmanager
def lease(
    *slots: Slot,
    folder: Path,
    holder: LeaseHolder,
    wait: float = 0.0,
    told: Callable[[str], None] = lambda _: None,
    asked: StopRequested = never,
) -> Iterator[Lease]:
    """Lease all of these slots, or none, until the block ends.

    ``wait``: seconds to wait for other owners; ``told`` is called with their names.

    :raises MachineError: a slot is still leased after ``wait`` seconds, or the folder is unusable.
    :raises Interrupted: ``asked`` returned true while waiting.
    """
    deadline = time.monotonic() + wait
    _make(folder)
    names = _names(slots)
    said = ""
    with ExitStack() as held:
        while (taken := _take(folder, names)) is None:
            busy = _busy(folder, names)
            if busy and busy != said:
                said = busy
                told(f"waits: {busy}")
            if asked():
                raise Interrupted(f"stopped while it waited: {busy}")
            if time.monotonic() >= deadline:
                raise MachineError(
                    f"leased to somebody else: {busy or 'a slot, a moment ago'} (waited {wait:.0f} s)",
                    where=folder,
                    next_step="wait for it, stop it, or ask for fewer workers or other devices",
                    code="lease_lost",
                )
            time.sleep(min(_TICK, max(0.0, deadline - time.monotonic())))
        died: dict[LeaseHolder, None] = {}
        for path, descriptor in taken.items():
            held.callback(_release, descriptor)
            if left := _read(descriptor):
                died[left] = None
            if names[path.name]:
                _write(descriptor, holder, slots)
        yield Lease(slots, tuple(died), taken)


LockKind = Literal["machine", "device", "core"]


@dataclass(frozen=True)
class HeldLock:
    """A lock that is held. ``name``: UUID of a device, or number of a core."""

    kind: LockKind
    name: str
    holder: LeaseHolder


def holders(folder: Path) -> tuple[HeldLock, ...]:
    """The locks that are held on this host, with their owners."""
    try:
        paths = sorted(folder.glob(f"*{_SUFFIX}"))
    except OSError:
        return ()
    found = []
    for path in paths:
        held = _look(path)
        if held is not None:
            found.append(HeldLock(*_lock_of(path.name), held))
    return tuple(found)


def leased_devices(folder: Path) -> frozenset[str]:
    """UUIDs of the leased devices, for ``avoid`` of ``plan_slots``."""
    names = (held.name for held in holders(folder) if held.kind == "device")
    return frozenset(name for name in names if name.startswith(("GPU-", "MIG-")))


def _names(slots: Iterable[Slot]) -> dict[str, bool]:
    """Lock files in the order of locking -> True if exclusive."""
    alone = False
    names: set[str] = set()
    for slot in slots:
        alone = alone or not slot.cores
        names.update(f"device-{uuid.replace('/', '_')}{_SUFFIX}" for uuid in slot.devices)
        names.update(f"core-{core}{_SUFFIX}" for core in slot.cores)
    return {_MACHINE + _SUFFIX: alone, **dict.fromkeys(sorted(names), True)}


def _lock_of(file: str) -> tuple[LockKind, str]:
    """Kind and name of a lock file, the inverse of :func:`_names`."""
    kind, _, name = file.removesuffix(_SUFFIX).partition("-")
    if kind == "device":
        return "device", name
    return ("core", name) if kind == "core" else ("machine", "")


def _make(folder: Path) -> None:
    """Make the folder with the sticky bit, writable for all users."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # another user made it, and did this
            if folder.stat().st_mode & 0o1777 != 0o1777:
                folder.chmod(0o1777)
    except OSError as error:
        raise MachineError(
            f"no folder for the locks of this host: {folder}: {error.strerror or error}",
            next_step=f"set {FOLDER_VARIABLE} to a folder that all users of this host can write",
        ) from error


def _take(folder: Path, names: Mapping[str, bool]) -> dict[Path, int] | None:
    """Take all locks, or none and return None, so that waiting processes hold no locks."""
    taken: dict[Path, int] = {}
    try:
        for name, alone in names.items():
            path = folder / name
            descriptor = _lock(path, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            if descriptor is None:
                _close(taken)
                return None
            taken[path] = descriptor
    except BaseException:
        _close(taken)
        raise
    return taken


def _close(taken: Mapping[Path, int]) -> None:
    for descriptor in taken.values():
        os.close(descriptor)


def _lock(path: Path, kind: int) -> int | None:
    """A descriptor with the lock; None if another process has it."""
    for look in range(_LOOKS):
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            time.sleep(0.01 * look)
            continue
        except OSError as error:
            os.close(descriptor)
            raise MachineError(f"{path} cannot be locked: {error.strerror or error}") from error
        if _is(path, descriptor):
            return descriptor
        os.close(descriptor)  # somebody removed the file between our opening and locking it
    return None


def _open(path: Path) -> int:
    """Open a lock file, or make it.

    O_CREAT is tried last: in a sticky folder the kernel refuses it on another user's file
    (``fs.protected_regular``), even to root.

    :raises MachineError: it can be neither opened nor made.
    """
    error: OSError | None = None
    for look in range(_LOOKS):
        time.sleep(0.01 * look)  # whoever makes the folder opens it to others a moment later
        for flags in (os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL):
            try:
                descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except OSError as this:
                if error is None or not isinstance(this, (FileExistsError, FileNotFoundError)):
                    error = this
                continue
            if flags & os.O_CREAT:
                os.fchmod(descriptor, 0o666)
            return descriptor
    raise MachineError(
        f"the lock file {path} cannot be opened: {error.strerror if error else 'unknown'}",
        next_step=f"ask its owner, or set {FOLDER_VARIABLE} to a folder that all users can write",
    ) from error


def _is(path: Path, descriptor: int) -> bool:
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
    text = json.dumps({
        **asdict(holder),
        "user": holder.user or _user(),
        "pid": holder.pid or os.getpid(),
        "since": holder.since or datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "slot": holder.slot or ", ".join(slot.name for slot in slots),
    })  # fmt: skip
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without an entry, as in containers
        return str(os.getuid())


def _busy(folder: Path, names: Mapping[str, bool]) -> str:
    """The owners of conflicting locks; empty if there are none any more."""
    alone = names[_MACHINE + _SUFFIX]
    wanted = {_lock_of(name) for name in names}
    waits: dict[str, list[HeldLock]] = {}
    for held in holders(folder):
        if alone or (held.kind, held.name) in wanted:
            waits.setdefault(str(held.holder), []).append(held)
    return "; ".join(f"{who} has {describe_locks(locks)}" for who, locks in waits.items())


def describe_locks(locks: Sequence[HeldLock]) -> str:
    """Names of devices, number of cores."""
    if any(lock.kind == "machine" for lock in locks):
        return "the whole machine"
    devices = [lock.name for lock in locks if lock.kind == "device"]
    cores = sum(lock.kind == "core" for lock in locks)
    return ", ".join([*devices, *([f"{cores} of the cores"] if cores else [])])


def _look(path: Path) -> LeaseHolder | None:
    """The owner of an exclusive lock; None if it is free."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(descriptor) or LeaseHolder()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _read(descriptor: int) -> LeaseHolder | None:
    """The owner in a lock file, without control characters; None if there is none."""
    data: Any = None
    with suppress(OSError, ValueError):
        data = json.loads(os.pread(descriptor, 4096, 0))
    if not isinstance(data, dict):
        return None
    fields = {key: logs.neutral(str(data.get(key, "")), 80) for key in ("job", "user", "since", "slot")}
    pid = data.get("pid")
    return LeaseHolder(**fields, pid=pid if isinstance(pid, int) else 0)
