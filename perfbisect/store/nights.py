"""The nights of a nightly: ``STATE/nightly/NAME/NIGHT/`` with their journals, and who is at work in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from perfbisect.errors import MachineError
from perfbisect.store.events import Event, stamp
from perfbisect.store.holding import Holder, held, record
from perfbisect.store.jobs import JOURNAL
from perfbisect.store.journal import read

_DIGITS = 10


@dataclass(frozen=True)
class NightFolder:
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

    def new(self, moment: datetime, commit: str) -> NightFolder:
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
        return NightFolder(path)

    def all(self) -> tuple[NightFolder, ...]:
        """Every night that began, oldest first."""
        return tuple(NightFolder(path.parent) for path in sorted(self.folder.glob(f"*/{JOURNAL}")))

    @contextlib.contextmanager
    def held(self, now: datetime) -> Iterator[None]:
        """This process alone works on the nightly until the block ends; one that is killed lets go.

        :raises MachineError: another process does: it is said which, and since when.
        """
        what = f"nightly {self.name}"

        def taken(holder: Holder | None) -> MachineError:
            by = "by a process that did not write itself down"
            if holder is not None:
                by = f"process {holder.pid}, since {holder.since[:19]}Z"
            return MachineError(
                f"{what} is at work already: {by}",
                where=record(self.folder),
                next_step="wait until it has ended; perfbisect status shows its jobs",
            )

        with held(self.folder, what, taken, since=stamp(now)):
            yield
