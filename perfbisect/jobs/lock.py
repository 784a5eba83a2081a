"""Exclusive work on a folder: a lock file and a record of the process that holds it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from perfbisect.errors import MachineError
from perfbisect.system.files import write_atomic

_SAME_MOMENT = 0.5
"""Tolerance in seconds between two readings of a process's start time."""

_LOCAL = "--state with a folder on a local disk"


@dataclass(frozen=True)
class LockHolder:
    """The process that holds a folder, the ``job`` it works on, and ``since`` when."""

    pid: int
    created: float
    job: str = ""
    since: str = ""

    @property
    def alive(self) -> bool:
        """True if the process itself is running, not a zombie or another process with its pid."""
        try:
            process = psutil.Process(self.pid)
            ended = process.status() == psutil.STATUS_ZOMBIE
            return not ended and abs(process.create_time() - self.created) < _SAME_MOMENT
        except psutil.Error:
            return False


Taken = Callable[[LockHolder | None], MachineError]
"""Makes the error for a folder that is held; None: by a process without a record."""


def record(folder: Path) -> Path:
    """Path of the holder's record."""
    return folder / "holder.json"


def holder(folder: Path) -> LockHolder | None:
    """The running process that holds a folder; stale records are ignored."""
    try:
        data = json.loads(record(folder).read_text(encoding="utf-8"))
        found = LockHolder(
            int(data["pid"]), float(data["created"]), str(data.get("job", "")), str(data.get("since", ""))
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.alive else None


@contextmanager
def hold_folder(folder: Path, what: str, taken: Taken, *, job: str = "", since: str = "") -> Iterator[None]:
    """Hold a folder exclusively; the lock is released when the process dies.

    Raises:
        MachineError: the error of ``taken``, or the folder cannot be locked.
    """
    lock = FileLock(folder / "lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise taken(holder(folder)) from None
    except OSError as error:
        raise MachineError(f"{what} cannot be locked: {error}", where=folder, next_step=_LOCAL) from error
    try:
        me = psutil.Process()
        data = {"pid": me.pid, "created": me.create_time(), "job": job, "since": since}
        write_atomic(record(folder), json.dumps(data), what=f"the holder of {what}", next_step=_LOCAL)
        yield
    finally:
        record(folder).unlink(missing_ok=True)
        lock.release()
