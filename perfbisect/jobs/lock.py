"""Folders in which one process is at work at a time, and who that is: a lock, and the record beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from perfbisect.errors import MachineError
from perfbisect.system.files import write_whole

_SAME_MOMENT = 0.5
"""Seconds by which two readings of one process's start time may differ."""

_LOCAL = "--state with a folder on a local disk"


@dataclass(frozen=True)
class Holder:
    """The process that works in a folder, as it wrote itself down: on which ``job``, ``since`` when."""

    pid: int
    created: float
    job: str = ""
    since: str = ""

    @property
    def alive(self) -> bool:
        """True if this very process lives: the pid may be somebody else's by now, or wait to be reaped."""
        try:
            process = psutil.Process(self.pid)
            ended = process.status() == psutil.STATUS_ZOMBIE
            return not ended and abs(process.create_time() - self.created) < _SAME_MOMENT
        except psutil.Error:
            return False


Taken = Callable[[Holder | None], MachineError]
"""What is told where another process holds a folder; None: one that did not write itself down."""


def record(folder: Path) -> Path:
    """The file in which a holder writes itself down."""
    return folder / "holder.json"


def holder(folder: Path) -> Holder | None:
    """The living process that holds a folder, if one does; what a killed one left is not believed."""
    try:
        told = json.loads(record(folder).read_text(encoding="utf-8"))
        found = Holder(
            int(told["pid"]), float(told["created"]), str(told.get("job", "")), str(told.get("since", ""))
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.alive else None


@contextmanager
def held(folder: Path, what: str, taken: Taken, *, job: str = "", since: str = "") -> Iterator[None]:
    """This process alone holds the folder until the block ends; one that is killed lets go.

    :raises MachineError: as ``taken`` tells it, or ``what`` cannot be locked.
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
        told = {"pid": me.pid, "created": me.create_time(), "job": job, "since": since}
        write_whole(record(folder), json.dumps(told), what=f"the holder of {what}", next_step=_LOCAL)
        yield
    finally:
        record(folder).unlink(missing_ok=True)
        lock.release()
