"""The nights of a nightly: ``STATE/nightly/NAME/NIGHT/`` with their journals, and who is at work in them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from perfbisect.errors import MachineError
from perfbisect.store.events import Event, stamp
from perfbisect.store.jobs import JOURNAL, Holder
from perfbisect.store.journal import read
from perfbisect.system.whole_file import write_whole

_DIGITS = 10


@dataclass(frozen=True)
class Night:
    """One night's folder."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    def of(self, commit: str) -> bool:
        """True if it measures that commit, as far as its name tells."""
        return self.id.endswith(f"-{commit[:_DIGITS]}")

    @property
    def document(self) -> Path:
        return self.path / "night.json"

    def events(self) -> tuple[Event, ...]:
        """What its journal says so far. :raises UsageError: it was changed, or is a later perfbisect's."""
        return read(self.journal).events if self.journal.exists() else ()


class Nights:
    """The nights of one nightly, by its name."""

    def __init__(self, state: Path, name: str) -> None:
        self.name = name
        self.folder = state / "nightly" / name

    def new(self, moment: datetime, commit: str) -> Night:
        """A folder for a night; its name sorts by ``moment`` and ends in the commit's beginning.

        :raises MachineError: the folder cannot be made.
        """
        while True:
            name = f"{moment.astimezone(timezone.utc):%Y%m%d-%H%M%S}-{commit[:_DIGITS]}"
            path = self.folder / name
            if not path.exists():
                break
            moment += timedelta(seconds=1)
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise MachineError(
                f"no folder for the night: {error}", where=path, next_step="choose another state folder"
            ) from error
        return Night(path)

    def all(self) -> tuple[Night, ...]:
        """Every night that began, oldest first."""
        return tuple(Night(path.parent) for path in sorted(self.folder.glob(f"*/{JOURNAL}")))

    @contextlib.contextmanager
    def held(self, now: datetime) -> Iterator[None]:
        """This process alone works on the nightly until the block ends; one that is killed lets go.

        :raises MachineError: another process does: it is said which, and since when.
        """
        record = self.folder / "holder.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / "lock")
            lock.acquire(timeout=0)
        except Timeout:
            raise MachineError(
                f"nightly {self.name} is at work already: {_holder(record)}",
                where=record,
                next_step="wait until it has ended; perfbisect status shows its jobs",
            ) from None
        except OSError as error:
            raise MachineError(f"nightly {self.name} cannot be locked: {error}", where=self.folder) from error
        try:
            _write(record, now)
            yield
        finally:
            record.unlink(missing_ok=True)
            lock.release()


def _write(record: Path, now: datetime) -> None:
    me = psutil.Process()
    write_whole(record, json.dumps({"pid": me.pid, "created": me.create_time(), "since": stamp(now)}))


def _holder(record: Path) -> str:
    """Who holds the lock, in words; a record that a killed process left is not believed."""
    try:
        told = json.loads(record.read_text(encoding="utf-8"))
        pid, created, since = int(told["pid"]), float(told["created"]), str(told["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return "by a process that did not write itself down"
    if not Holder(pid, created).alive:
        return "by a process that did not write itself down"
    return f"process {pid}, since {since[:19]}Z"
