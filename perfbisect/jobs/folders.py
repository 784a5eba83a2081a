"""Job folders: ``STATE/jobs/ID/`` with the journal, the attempts, the report; and who is at work in them."""

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
from perfbisect.jobs.journal import Event, read
from perfbisect.jobs.lock import Holder
from perfbisect.system.files import write_whole

FILE = "ended.json"


@dataclass(frozen=True)
class Ending:
    """An exit code; of an error what was told of it, else empty."""

    exit_code: int
    error: str = ""
    kind: str = ""
    where: str | None = None
    next_step: str | None = None


def write_ending(folder: Path, ending: Ending) -> None:
    """Into a job's folder. :raises MachineError: the disk."""
    write_whole(folder / FILE, json.dumps(asdict(ending)))


def read_ending(folder: Path) -> Ending | None:
    """None: somebody works on the job, or its process ended without a word (``kill -9``)."""
    try:
        ending = Ending(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return ending if isinstance(ending.exit_code, int) else None


def clear_ending(folder: Path) -> None:
    """Somebody works on the job again."""
    (folder / FILE).unlink(missing_ok=True)


JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class JournalFolder:
    """A folder with a journal, named by when it was made."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    def events(self) -> tuple[Event, ...]:
        """What its journal says so far. :raises UsageError: it was changed, or is a later perfbisect's."""
        return read(self.journal).events if self.journal.exists() else ()


def make_folder(parent: Path, moment: datetime, mark: str, what: str, inner: str = "") -> Path:
    """A new folder with ``inner``; its name sorts by ``moment``, a second later where that is taken, and ends
    in ``mark``.

    :raises MachineError: the folder of ``what`` cannot be made.
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
        """What the verb handed out, where that is more than this job's report."""
        return self.path / "result.json"

    @property
    def log(self) -> Path:
        """What a detached process wrote."""
        return self.path / "detached.log"

    @property
    def finished(self) -> bool:
        """True once the verdict is in the journal. :raises UsageError: no journal, or a broken one."""
        return finished(read(self.journal).events)

    def attempt(self, number: int) -> Path:
        """The folder of the attempt with this number."""
        return self.path / "attempts" / f"{number:03d}"

    @property
    def holder(self) -> Holder | None:
        """The living process that works on this job, if one does."""
        return lock.holder(self.path)

    @property
    def stop_asked(self) -> bool:
        return (self.path / "stop").exists()

    def ask_stop(self) -> Holder | None:
        """Asks the process that works on this job, and no other, to stop; the one that was asked, or None."""
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
        """This process alone works on the job until the block ends.

        :raises MachineError: another process does; it is named.
        """
        with lock.held(self.path, f"job {self.id}", self._taken, job=self.id):
            self.clear_stop()
            clear_ending(self.path)
            yield

    def _taken(self, holder: Holder | None) -> MachineError:
        by = f"process {holder.pid}, job {holder.job}" if holder else "another process"
        return MachineError(
            f"job {self.id} is in use by {by}",
            where=lock.record(self.path),
            next_step=f"wait for it, or: perfbisect stop {holder.job if holder else self.id}",
        )


def finished(events: Sequence[Event]) -> bool:
    """True if the last thing that was asked has its verdict: a larger budget asks once more."""
    last = {event.kind: event.seq for event in events if event.kind in ("plan", "verdict")}
    return last.get("verdict", -1) > last.get("plan", -1)


class Jobs:
    """The jobs of a state folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.folder = state / "jobs"

    def new(self, moment: datetime, mark: str) -> Job:
        """A folder for a new job; its id sorts by ``moment`` and ends in ``mark`` (a few random letters).

        :raises MachineError: the folder cannot be made.
        """
        return Job(make_folder(self.folder, moment, mark, "the job", inner="attempts"))

    def all(self) -> tuple[Job, ...]:
        """Every job, oldest first."""
        if not self.folder.is_dir():
            return ()
        return tuple(Job(path) for path in sorted(self.folder.iterdir()) if (path / JOURNAL).exists())

    def unfinished(self) -> tuple[Job, ...]:
        """Jobs without a verdict, oldest first; one whose journal cannot be read is unfinished too."""
        return tuple(job for job in self.all() if not _finished(job))

    def find(self, identity: str) -> Job:
        """The job of this id, or of the only id that begins so.

        :raises UsageError: none, or several.
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
        """The one unfinished job, for a verb without an id.

        :raises UsageError: none; or several, which are listed.
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
