"""Job folders: ``STATE/jobs/ID/`` with journal, attempts, report, lock and exit record."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ConfigDict, TypeAdapter, with_config

from perfbisect.common.checked import is_name
from perfbisect.common.text import hint
from perfbisect.errors import MachineError, UsageError
from perfbisect.jobs.journal import JournalEvent, read
from perfbisect.system.files import write_atomic
from perfbisect.system.held_files import opened
from perfbisect.system.processes import alive, process

JOURNAL = "journal.jsonl"
HOLDER = "holder.json"
_EXIT = "ended.json"

_LOCAL = "--state with a folder on a local disk"


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class ExitRecord:
    """How a job's process ended: its exit code and, after an error, the message.

    ``outcome``, ``verdict``: as in the job's status; a list of jobs does not judge their launches again.
    """

    exit_code: int
    error: str = ""
    kind: str = ""
    where: str | None = None
    next_step: str | None = None
    outcome: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class LockHolder:
    """The process that holds a folder, and since when. ``created``: seconds after boot."""

    pid: int
    created: float
    since: str = ""

    @property
    def alive(self) -> bool:
        """True if the process itself is running, not a zombie or another process with its pid."""
        return alive(self.pid, self.created)


_EXIT_RECORD = TypeAdapter(ExitRecord)
_HOLDER = TypeAdapter(LockHolder)


def read_holder(folder: Path) -> LockHolder | None:
    """The running process that holds a folder; stale records are ignored."""
    try:
        holder = _HOLDER.validate_json((folder / HOLDER).read_bytes())
    except (OSError, ValueError):
        return None
    return holder if holder.alive else None


@contextlib.contextmanager
def hold_folder(folder: Path, what: str, next_step: str, since: str = "") -> Iterator[None]:
    """Hold a folder exclusively; the lock is released when the process dies.

    Raises:
        MachineError: another process holds it, or the disk failed.
    """
    # The kernel drops it when the process dies, whatever killed it: no lock is ever stale.
    lock = FileLock(folder / "lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        owner, other = "another process", read_holder(folder)
        if other is not None:
            owner = f"process {other.pid}" + (f", since {other.since[:19]}Z" if other.since else "")
        raise MachineError(
            f"{what} is in use by {owner}", where=folder / HOLDER, next_step=next_step
        ) from None
    except OSError as error:
        raise MachineError(f"{what} cannot be locked: {error}", where=folder, next_step=_LOCAL) from error
    try:
        ours = process(os.getpid())
        assert ours is not None
        text = json.dumps(asdict(LockHolder(*ours.identity, since)))
        write_atomic(folder / HOLDER, text, what=f"the holder of {what}", next_step=_LOCAL)
        yield
    finally:
        (folder / HOLDER).unlink(missing_ok=True)
        lock.release()


def make_folder(parent: Path, moment: datetime, mark: str, what: str, inner: str = "") -> Path:
    """Create a folder named by time and ``mark``, with a subfolder ``inner``; a taken second is skipped."""
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

    def write_exit(self, record: ExitRecord) -> None:
        write_atomic(self.path / _EXIT, json.dumps(asdict(record)))

    def read_exit(self) -> ExitRecord | None:
        """The exit record; None while a process works on the job or after a kill."""
        try:
            return _EXIT_RECORD.validate_json((self.path / _EXIT).read_bytes())
        except (OSError, ValueError):
            return None

    @property
    def holder(self) -> LockHolder | None:
        """The process that works on this job."""
        return read_holder(self.path)

    @property
    def stop_requested(self) -> bool:
        return (self.path / "stop").exists()

    def request_stop(self) -> LockHolder | None:
        """Request a stop of the process that works on this job, and return it."""
        holder = self.holder
        if holder is None:
            return None
        # Before the signal: a process that ignores signals finds it at its next launch.
        (self.path / "stop").touch()
        # The record names it, the lock proves it: a process without it is another's.
        if str((self.path / "lock").resolve()) in opened(holder.pid):
            # It may end by itself between the look and the signal.
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder.pid, signal.SIGINT)
        return holder

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Work on the job exclusively; a stop request and an exit record of before are removed."""
        next_step = f"wait for it, or: perfbisect stop {self.id}"
        with hold_folder(self.path, f"job {self.id}", next_step):
            for name in ("stop", _EXIT):
                (self.path / name).unlink(missing_ok=True)
            yield


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
        """Create a job whose id sorts by ``moment`` and ends in ``mark``."""
        return Job(make_folder(self.folder, moment, mark, "the job", inner="attempts"))

    def all(self) -> tuple[Job, ...]:
        """All jobs, oldest first."""
        return tuple(Job(path.parent) for path in sorted(self.folder.glob(f"*/{JOURNAL}")))

    def unfinished(self) -> tuple[Job, ...]:
        """Jobs without a verdict or with an unreadable journal, oldest first."""
        jobs = []
        for job in self.all():
            with contextlib.suppress(UsageError, MachineError):
                if job.finished:
                    continue
            jobs.append(job)
        return tuple(jobs)

    def named(self, identity: str) -> Job:
        """The job of an id from a file; it may not exist. :raises UsageError: it is no name of a folder."""
        if not is_name(identity):
            raise UsageError(f"{identity!r} is no id of a job", where=self.folder)
        return Job(self.folder / identity)

    def find(self, identity: str) -> Job:
        """Find a job by its id or a unique prefix; UsageError if none or several match."""
        if is_name(identity) and (self.folder / identity / JOURNAL).exists():
            return Job(self.folder / identity)
        known = self.all()
        matching = [job for job in known if job.id.startswith(identity)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise UsageError(
                f"{identity!r} names several jobs: {_ids(matching)}",
                where=self.folder,
                next_step="more letters of the id",
            )
        raise UsageError(
            f"no job {identity!r}{hint(identity, [job.id for job in known])}; "
            + (f"there are: {_ids(known[-10:])}" if known else "there is none"),
            where=self.folder,
            next_step="perfbisect status",
        )

    def chosen(
        self, identity: str | None, verb: str, is_readable: Callable[[Job], bool] = lambda _: True
    ) -> Job:
        """The job that is named, or the only unfinished one; UsageError if there is none, or several.

        Unfinished jobs that this version cannot read count only where there is no other.
        """
        if identity:
            return self.find(identity)
        unfinished = self.unfinished()
        jobs = tuple(filter(is_readable, unfinished)) or unfinished
        if not jobs:
            raise UsageError("no unfinished job", where=self.folder, next_step="perfbisect status")
        if len(jobs) > 1:
            raise UsageError(
                f"several unfinished jobs: {_ids(jobs)}",
                where=self.folder,
                next_step=f"perfbisect {verb} {jobs[-1].id}",
            )
        return jobs[0]


def _ids(jobs: Sequence[Job]) -> str:
    return ", ".join(job.id for job in jobs)
