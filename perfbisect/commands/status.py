"""``perfbisect status`` and ``stop``: the state of jobs, read from their folders."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Final, Literal

from pydantic import AliasPath, Field

from perfbisect.commands.workspace import Workspace
from perfbisect.common.quantities import counted, minutes, probability, spent_text, with_unit
from perfbisect.common.text import line
from perfbisect.engine.experiment import Candidate
from perfbisect.errors import PerfbisectError
from perfbisect.jobs.documents import Document, ErrorDocument, JobDocument, JobFolderDocument
from perfbisect.jobs.events import PhaseStarted
from perfbisect.jobs.folders import ExitRecord, Job, Jobs, finished
from perfbisect.jobs.journal import read, replaying
from perfbisect.jobs.phases import FILE, read_phase
from perfbisect.jobs.plans import plan_data, require_plan, verb_of
from perfbisect.jobs.replay import Launch
from perfbisect.report.document import Block, Column, Command, KeyValues, Table
from perfbisect.report.terminal import block_lines

_SHOWN_LAUNCHES: Final = 8
_POLL_S = 0.5

_SHORT: Final = Field(validation_alias=AliasPath("change", "short"))
"""The change of a launch, where a document has its short name alone."""

State = Literal["running", "unfinished", "finished"]


class EndedLaunchDocument(Document):
    """A launch that has ended; ``reason``: why it has no ``value``."""

    number: int
    change: str = _SHORT
    purpose: str
    outcome: Literal["measured", "failed", "abandoned"]
    value: float | None
    minutes: float
    reason: str


class RunningLaunchDocument(Document):
    """A launch that is running; ``log``: the file that was written last.

    ``doing``: what it does since ``doing_since``; empty where it does not say.
    """

    number: int
    change: str = _SHORT
    subject: str = Field(validation_alias=AliasPath("change", "subject"))
    purpose: str
    why: str
    slot: str
    since: str = Field(validation_alias="started_at")
    doing: str = ""
    doing_since: str = ""
    log: str | None = None


class IdleSlotDocument(Document):
    """A slot that a job has used and that runs no launch now; ``since``: the end of its last one."""

    slot: str
    since: str


class ExpectedEventDocument(Document):
    """The next event; ``at``: its estimated time in ISO 8601, None if unknown."""

    event: str
    at: str | None


class JobLineDocument(Document):
    """A job in a list."""

    job: str
    state: Literal["running", "unfinished", "finished", "broken"]
    verb: str
    cell: str
    launches: int
    """How many there were."""
    outcome: str = ""
    """``unfinished``, or the verdict in a word."""
    verdict: str = ""
    """The outcome's subject, such as the culprit or the effect; empty before the end."""
    exit_code: int | None = None
    """Of the command, once its process has ended; None while it runs or after a kill."""
    problem: str = ""
    """Why a broken job cannot be read."""


class StatusDocument(JobFolderDocument, JobLineDocument):
    """A job's progress, its process, its candidates and the next step. Times are ISO 8601 in UTC.

    ``minutes`` were spent of ``budget`` (0: unlimited); ``lost`` of them by launches
    that are no evidence, such as discarded ones. ``last`` are the newest that ended.
    """

    schema_: Literal["perfbisect.status/3"] = Field(default="perfbisect.status/3", alias="schema")
    pid: int | None
    error: ErrorDocument | None
    """The error that ended the process."""
    metric: str
    unit: str
    began: str
    now: str
    minutes: float
    budget: float
    lost: float
    last: tuple[EndedLaunchDocument, ...]
    running: tuple[RunningLaunchDocument, ...]
    idle: tuple[IdleSlotDocument, ...]
    expected: ExpectedEventDocument | None
    leading: tuple[Candidate, ...]
    log: str | None
    """Output of a detached process."""
    report: str | None
    result: str | None
    """The command's final JSON document."""
    started_by: str = ""
    """The user, or ``mcp: CLIENT VERSION``; empty where the journal does not say."""


class JobsDocument(Document):
    """``perfbisect status`` if no job is unfinished."""

    schema_: Literal["perfbisect.jobs/1"] = Field(default="perfbisect.jobs/1", alias="schema")
    jobs: tuple[JobLineDocument, ...]


class StopDocument(JobDocument):
    """``perfbisect stop``. ``asked``: a process was asked to stop; ``ended``: no process works on the job."""

    schema_: Literal["perfbisect.stop/1"] = Field(default="perfbisect.stop/1", alias="schema")
    asked: bool
    pid: int | None
    ended: bool


def wait_until_released(job: Job, timeout_min: float | None) -> bool:
    """Wait until no process works on a job; return False on timeout."""
    deadline = time.monotonic() + (math.inf if timeout_min is None else 60 * timeout_min)
    while job.holder is not None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def stop_job(
    workspace: Workspace, job: Job, *, wait: bool, timeout_min: float | None
) -> tuple[StopDocument, list[str]]:
    """Ask the process that works on a job to stop; without one, end what runs for it on a fleet."""
    holder = job.request_stop()
    events, left = () if holder else job.events(), 0
    if any(event.kind == "plan" for event in events):
        from perfbisect.commands.experiments import experiment_of
        from perfbisect.commands.session import end_on_fleet
        from perfbisect.jobs.replay import launches

        plan = require_plan(job, events, experiment_of(events).plan)
        left = end_on_fleet(workspace, plan, [launch for launch in launches(events) if launch.is_unresolved])
    ended = wait_until_released(job, timeout_min) if wait else job.holder is None
    after = "report" if job.finished else "resume"
    document = StopDocument(
        job=job.id,
        asked=holder is not None,
        pid=holder.pid if holder else None,
        ended=ended,
        next=f"perfbisect {after} {job.id}" if ended else f"perfbisect status {job.id} --wait",
    )
    outcome = "no process works on it"
    if left:
        outcome += f"; {counted(left, 'launch')} ended on other machines"
    if holder:
        outcome = f"process {holder.pid} {'has stopped' if ended else 'was asked to stop'}"
    return document, [f"job {job.id}: {outcome}", *block_lines([Command(document.next)])]


def status_document(job: Job, now: datetime) -> StatusDocument:
    """Read a job's state.

    Raises:
        UsageError: the journal cannot be read.
    """
    from perfbisect.commands.experiments import (
        experiment_of,  # imports numpy, which stop and most lists do not need
    )

    holder = job.holder
    events = read(job.journal).events
    kind = experiment_of(events)
    # While a process works on the job the record on disk would be that of an earlier one.
    ending = None if holder else job.read_exit()
    with replaying(job.journal):
        measured = kind.result(job, events)
        status = kind.status(measured)
    launches, metric = measured.launches, measured.metric
    state: State = "running" if holder else "finished" if finished(events) else "unfinished"
    code = ending.exit_code if ending else status.exit_code if state == "finished" else None
    result = next((path for path in (job.result, job.document) if path.exists()), None)
    # Without a process, a launch that has no end was cut off and is not running.
    running = [launch for launch in launches if holder and launch.outcome == "running"]
    return StatusDocument(
        job=job.id,
        verb=verb_of(kind.plan),
        state=state,
        pid=holder.pid if holder else None,
        outcome=status.outcome,
        verdict=status.verdict if state == "finished" else "",
        exit_code=code,
        error=_error(ending),
        cell=measured.cell.name,
        metric=metric.name,
        unit=metric.unit,
        began=events[0].time,
        now=now.isoformat(timespec="seconds"),
        minutes=measured.minutes.total,
        budget=measured.minutes.budget,
        lost=measured.minutes.lost,
        launches=len(launches),
        last=tuple(
            EndedLaunchDocument.model_validate(launch, from_attributes=True)
            for launch in [launch for launch in launches if launch.outcome != "running"][-_SHOWN_LAUNCHES:]
        ),
        running=tuple(_running(job, launch) for launch in running),
        idle=idle_slots(launches) if holder else (),
        expected=_expected(launches, running) if holder else None,
        leading=status.candidates,
        folder=str(job.path),
        log=str(job.log) if job.log.exists() else None,
        report=str(job.report) if job.report.exists() else None,
        result=str(result) if result else None,
        started_by=require_plan(job, events, kind.plan).setting.request.started_by,
        next=_next(job, state, ending, status.next),
    )


def _error(ending: ExitRecord | None) -> ErrorDocument | None:
    if ending is None or not ending.error:
        return None
    return ErrorDocument(
        error=ending.error,
        kind=ending.kind,
        exit_code=ending.exit_code,
        where=ending.where,
        next=ending.next_step,
    )


def idle_slots(launches: Sequence[Launch]) -> tuple[IdleSlotDocument, ...]:
    """The slots without a running launch, in the order of their names."""
    newest = {launch.slot: launch for launch in launches if launch.slot}
    return tuple(
        IdleSlotDocument(slot=slot, since=_end(launch).isoformat(timespec="seconds"))
        for slot, launch in sorted(newest.items())
        if launch.outcome != "running"
    )


def _end(launch: Launch) -> datetime:
    return datetime.fromisoformat(launch.started_at) + timedelta(minutes=launch.minutes)


def _running(job: Job, launch: Launch) -> RunningLaunchDocument:
    from perfbisect.report.live import doing

    folder = job.path / launch.folder
    logs = [(path.stat().st_mtime, str(path)) for path in folder.glob("*.log")]
    seen: dict[str, str | None] = {"log": max(logs)[1] if logs else None}
    with contextlib.suppress(FileNotFoundError):  # it says nothing yet, or it has just ended
        record = read_phase((folder / FILE).read_bytes())
        now = doing(PhaseStarted(record.phase, record.detail)) if record else None
        seen |= {"doing": now[0], "doing_since": record.at} if now and record else {}
    return RunningLaunchDocument.model_validate(launch, from_attributes=True).model_copy(update=seen)


def _expected(launches: Sequence[Launch], running: Sequence[Launch]) -> ExpectedEventDocument:
    """Estimate the end of the oldest running launch from the median of the newest."""
    if not running:
        return ExpectedEventDocument(event="the next launch begins, or the job ends", at=None)
    first = min(running, key=lambda launch: launch.started_at)
    took = [launch.minutes for launch in launches if launch.outcome == "measured"][-_SHOWN_LAUNCHES:]
    end = datetime.fromisoformat(first.started_at) + timedelta(minutes=median(took)) if took else None
    return ExpectedEventDocument(
        event=f"launch {first.number} ends", at=end.isoformat(timespec="seconds") if end else None
    )


def _next(job: Job, state: State, ending: ExitRecord | None, after: str) -> str:
    if state == "running":
        return f"perfbisect status {job.id} --wait"
    if state == "unfinished":
        return (ending.next_step if ending else None) or f"perfbisect resume {job.id}"
    return after or f"perfbisect report {job.id}"


def status_lines(document: StatusDocument) -> list[str]:
    """Format a status for the terminal."""
    process = f" by process {document.pid}" if document.pid else ""
    verdict = f": {line(document.verdict)}" if document.verdict else ""
    spent = spent_text(document.minutes, document.budget, document.lost)
    facts = [
        ("command", f"{document.verb} of {document.cell}, {document.metric}"),
        ("launches", f"{document.launches} in {spent}"),
    ]
    facts += [("started by", line(document.started_by))] if document.started_by else []
    if document.expected and document.expected.at:
        facts.append(("expected", f"{document.expected.event} at {document.expected.at}"))
    if document.state != "finished":
        leading = ", ".join(f"{item.change} {probability(item.probability)}" for item in document.leading)
        facts += [("leading", leading)] if leading else []
        facts += [("error", document.error.error)] if document.error else []
        facts += [("where", document.error.where)] if document.error and document.error.where else []
    facts += [("log", document.log)] if document.log else []
    facts += [(f"log of #{launch.number}", launch.log) for launch in document.running if launch.log]
    blocks: list[Block] = [KeyValues(tuple(facts))]
    if document.last or document.running:
        blocks.append(_launch_table(document))
    blocks.append(Command(document.next))
    title = f"{document.job}: {document.state}{process}, {document.outcome}{verdict}"
    return [title, *block_lines(blocks)]


def _launch_table(document: StatusDocument) -> Table:
    rows = []
    for ended in document.last:
        result = with_unit(ended.value, document.unit)
        if ended.value is None:
            result = f"{ended.outcome} after {minutes(ended.minutes)}: {line(ended.reason)}"
        rows.append((str(ended.number), ended.change, ended.purpose, result))
    for running in document.running:
        where = f" on {line(running.slot)}" if running.slot else ""
        now = f": {running.doing} since {running.doing_since}" if running.doing else ""
        since = f"running{where} since {running.since}{now}"
        rows.append((str(running.number), running.change, running.purpose, since))
    rows += [("", "", "", f"{line(idle.slot)} is idle since {idle.since}") for idle in document.idle]
    return Table(
        (Column("#", numeric=True), Column("change"), Column("purpose"), Column("result")), tuple(rows)
    )


def list_jobs(jobs: Jobs, now: Callable[[], datetime]) -> tuple[JobsDocument, list[str]]:
    """List all jobs with their outcomes; one that cannot be read is ``broken``."""
    found: list[JobLineDocument] = []
    for job in jobs.all():
        try:
            with replaying(job.journal):
                row = _recorded_line(job) or JobLineDocument.model_validate(
                    status_document(job, now()), from_attributes=True
                )
        except PerfbisectError as error:
            row = JobLineDocument(
                job=job.id, state="broken", verb="", cell="", launches=0, problem=error.message
            )
        found.append(row)
    document = JobsDocument(jobs=tuple(found))
    if not document.jobs:
        return document, [f"no jobs in {jobs.state}"]
    titles = ("job", "state", "command", "cell")
    columns = (*map(Column, titles), Column("launches", numeric=True), Column("outcome"))
    rows = tuple(
        (job.job, job.state, job.verb, job.cell, str(job.launches), _outcome(job)) for job in document.jobs
    )
    return document, block_lines([Table(columns, rows)])


def _outcome(job: JobLineDocument) -> str:
    if job.state != "finished":
        return line(job.problem)
    return job.outcome + (f": {line(job.verdict)}" if job.verdict else "")


def open_jobs(jobs: Jobs) -> tuple[Job, ...]:
    """The unfinished jobs that this version can read, oldest first."""
    unfinished = jobs.unfinished()
    if not unfinished:
        return ()
    from perfbisect.commands.experiments import is_readable

    return tuple(filter(is_readable, unfinished))


def _recorded_line(job: Job) -> JobLineDocument | None:
    """The line of a finished job from its journal and its exit record; None if that says no outcome.

    Judging the launches of a bisection again takes a hundred times as long.
    """
    ending = None if job.holder else job.read_exit()
    if ending is None or not ending.outcome:
        return None
    events = read(job.journal).events
    if not finished(events):
        return None
    plan = plan_data(events)
    return JobLineDocument(
        job=job.id,
        state="finished",
        verb=plan["verb"],
        cell=plan["cell"]["name"],
        launches=sum(event.kind == "started" for event in events),
        outcome=ending.outcome,
        verdict=ending.verdict,
        exit_code=ending.exit_code,
    )
