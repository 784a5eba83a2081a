"""Job folders: ``STATE/jobs/ID/`` with journal, attempts, report, lock and exit record."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from perfbisect.common.suggest import hint
from perfbisect.errors import MachineError, UsageError
from perfbisect.jobs import lock
from perfbisect.jobs.journal import JournalEvent, read
from perfbisect.jobs.lock import LockHolder
from perfbisect.system.files import write_atomic

FILE = "ended.json"


@dataclass(frozen=True)
class ExitRecord:
    """How a job's process ended: its exit code and, after an error, the message."""

    exit_code: int
    error: str = ""
    kind: str = ""
    where: str | None = None
    next_step: str | None = None


def write_exit(folder: Path, ending: ExitRecord) -> None:
    """Write the exit record of a job; raises MachineError if the disk fails."""
    write_atomic(folder / FILE, json.dumps(asdict(ending)))


def read_exit(folder: Path) -> ExitRecord | None:
    """Read the exit record; None while a process works on the job or after a kill."""
    try:
        ending = ExitRecord(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return ending if isinstance(ending.exit_code, int) else None


def clear_exit(folder: Path) -> None:
    """Remove the exit record when work on the job begins."""
    (folder / FILE).unlink(missing_ok=True)


JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class JournalFolder:
    """A folder with a journal, named by its creation time."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    def events(self) -> tuple[JournalEvent, ...]:
        """Read the journal; raises UsageError if it is damaged or newer than this version."""
        return read(self.journal).events if self.journal.exists() else ()


def make_folder(parent: Path, moment: datetime, mark: str, what: str, inner: str = "") -> Path:
    """Create a folder named by time and ``mark``, with a subfolder ``inner``; a taken second is skipped.

    Raises:
        MachineError: the folder cannot be created.
    """
    while True:
        path = parent / f"{moment.astimezone(timezone.utc):%Y%m%d-%H%M%S}-{mark}"
        if not path.exists():
            break
        moment += timedelta(seconds=1)
    try:
        (path / inner).mkdir(parents=True)
    except OSError as error:
        raise MachineError(
            f"no folder for {what}: {error}", where=path, next_step="choose one with --state"
        ) from error
    return path


@dataclass(frozen=True)
class Job(JournalFolder):
    """One job's folder."""

    @property
    def report(self) -> Path:
        return self.path / "report.md"

    @property
    def page(self) -> Path:
        return self.path / "report.html"

    @property
    def document(self) -> Path:
        return self.path / "report.json"

    @property
    def result(self) -> Path:
        """The command's result, if it covers more than this job."""
        return self.path / "result.json"

    @property
    def log(self) -> Path:
        """Output of a detached process."""
        return self.path / "detached.log"

    @property
    def finished(self) -> bool:
        """True once the verdict is in the journal; raises UsageError without a readable journal."""
        return finished(read(self.journal).events)

    def attempt(self, number: int) -> Path:
        """Folder of an attempt."""
        return self.path / "attempts" / f"{number:03d}"

    @property
    def holder(self) -> LockHolder | None:
        """The process that works on this job."""
        return lock.holder(self.path)

    @property
    def stop_asked(self) -> bool:
        return (self.path / "stop").exists()

    def ask_stop(self) -> LockHolder | None:
        """Ask the process that works on this job to stop, and return it."""
        holder = self.holder
        if holder is None:
            return None
        (self.path / "stop").touch()
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGINT)
        return holder

    def clear_stop(self) -> None:
        (self.path / "stop").unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Work on the job exclusively.

        Raises:
            MachineError: another process works on it.
        """
        with lock.hold_folder(self.path, f"job {self.id}", self._taken, job=self.id):
            self.clear_stop()
            clear_exit(self.path)
            yield

    def _taken(self, holder: LockHolder | None) -> MachineError:
        by = f"process {holder.pid}, job {holder.job}" if holder else "another process"
        return MachineError(
            f"job {self.id} is in use by {by}",
            where=lock.record(self.path),
            next_step=f"wait for it, or: perfbisect stop {holder.job if holder else self.id}",
        )


def finished(events: Sequence[JournalEvent]) -> bool:
    """True if the newest plan has a verdict; resuming with a larger budget writes another plan."""
    last = {event.kind: event.seq for event in events if event.kind in ("plan", "verdict")}
    return last.get("verdict", -1) > last.get("plan", -1)


class Jobs:
    """The jobs of a state folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.folder = state / "jobs"

    def new(self, moment: datetime, mark: str) -> Job:
        """Create a job whose id sorts by ``moment`` and ends in ``mark``.

        Raises:
            MachineError: the folder cannot be created.
        """
        return Job(make_folder(self.folder, moment, mark, "the job", inner="attempts"))

    def all(self) -> tuple[Job, ...]:
        """All jobs, oldest first."""
        if not self.folder.is_dir():
            return ()
        return tuple(Job(path) for path in sorted(self.folder.iterdir()) if (path / JOURNAL).exists())

    def unfinished(self) -> tuple[Job, ...]:
        """Jobs without a verdict or with an unreadable journal, oldest first."""
        return tuple(job for job in self.all() if not _finished(job))

    def find(self, identity: str) -> Job:
        """Find a job by its id or a unique prefix.

        Raises:
            UsageError: no job or several jobs match.
        """
        if (self.folder / identity / JOURNAL).exists():
            return Job(self.folder / identity)
        near = [job for job in self.all() if job.id.startswith(identity)]
        if len(near) == 1:
            return near[0]
        if near:
            raise UsageError(
                f"{identity!r} names several jobs: {_ids(near)}",
                where=self.folder,
                next_step="more letters of the id",
            )
        known = self.all()
        raise UsageError(
            f"no job {identity!r}{hint(identity, [job.id for job in known])}; "
            + (f"there are: {_ids(known[-10:])}" if known else "there is none"),
            where=self.folder,
            next_step="perfbisect status",
        )

    def the_unfinished(self, verb: str) -> Job:
        """The only unfinished job, for a command without an id.

        Raises:
            UsageError: there is none, or several.
        """
        jobs = self.unfinished()
        if not jobs:
            raise UsageError("no unfinished job", where=self.folder, next_step="perfbisect status")
        if len(jobs) > 1:
            raise UsageError(
                f"several unfinished jobs: {_ids(jobs)}",
                where=self.folder,
                next_step=f"perfbisect {verb} {jobs[-1].id}",
            )
        return jobs[0]


def _finished(job: Job) -> bool:
    try:
        return job.finished
    except (UsageError, MachineError):
        return False


def _ids(jobs: tuple[Job, ...] | list[Job]) -> str:
    return ", ".join(job.id for job in jobs)
