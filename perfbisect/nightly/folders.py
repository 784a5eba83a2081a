"""The folders ``STATE/nightly/NAME/NIGHT/`` with their journals, and the lock of a nightly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from perfbisect.errors import MachineError
from perfbisect.jobs.folders import JOURNAL, JournalFolder, LockHolder, hold_folder, holder_path, make_folder
from perfbisect.jobs.journal import stamp

_DIGITS = 10


@dataclass(frozen=True)
class NightFolder(JournalFolder):
    """One night's folder."""

    def measures(self, commit: str) -> bool:
        """Whether the folder's name contains the commit."""
        return self.id.endswith(f"-{commit[:_DIGITS]}")

    @property
    def document(self) -> Path:
        return self.path / "night.json"


class Nights:
    """The nights of one nightly."""

    def __init__(self, state: Path, name: str) -> None:
        self.name = name
        self.folder = state / "nightly" / name

    def new(self, moment: datetime, commit: str) -> NightFolder:
        """Create a folder whose name sorts by time and ends in the abbreviated commit.

        Raises:
            MachineError: it cannot be created.
        """
        return NightFolder(make_folder(self.folder, moment, commit[:_DIGITS], "the night"))

    def all(self) -> tuple[NightFolder, ...]:
        """The nights that began, oldest first."""
        return tuple(NightFolder(path.parent) for path in sorted(self.folder.glob(f"*/{JOURNAL}")))

    @contextlib.contextmanager
    def held(self, now: datetime) -> Iterator[None]:
        """Hold the lock of the nightly; a killed process releases it.

        Raises:
            MachineError: another process holds it; the message says which, and since when.
        """
        what = f"nightly {self.name}"

        def refuse(holder: LockHolder | None) -> MachineError:
            owner = "an unrecorded process"
            if holder is not None:
                owner = f"process {holder.pid}, since {holder.since[:19]}Z"
            return MachineError(
                f"{what} is already running: {owner}",
                where=holder_path(self.folder),
                next_step="wait until it has ended; perfbisect status shows its jobs",
            )

        with hold_folder(self.folder, what, refuse, since=stamp(now)):
            yield
