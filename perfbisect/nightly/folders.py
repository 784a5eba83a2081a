"""The nights of a nightly: ``STATE/nightly/NAME/NIGHT/`` with their journals, and who is at work in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from perfbisect.errors import MachineError
from perfbisect.jobs.folders import JOURNAL, JournalFolder, make_folder
from perfbisect.jobs.journal import stamp
from perfbisect.jobs.lock import Holder, held, record

_DIGITS = 10


@dataclass(frozen=True)
class NightFolder(JournalFolder):
    """One night's folder."""

    def of(self, commit: str) -> bool:
        """True if it measures that commit, as far as its name tells."""
        return self.id.endswith(f"-{commit[:_DIGITS]}")

    @property
    def document(self) -> Path:
        return self.path / "night.json"


class Nights:
    """The nights of one nightly, by its name."""

    def __init__(self, state: Path, name: str) -> None:
        self.name = name
        self.folder = state / "nightly" / name

    def new(self, moment: datetime, commit: str) -> NightFolder:
        """A folder for a night; its name sorts by ``moment`` and ends in the commit's beginning.

        :raises MachineError: the folder cannot be made.
        """
        return NightFolder(make_folder(self.folder, moment, commit[:_DIGITS], "the night"))

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
