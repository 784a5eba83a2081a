"""What a job's folder tells: for ``status`` and ``report``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Final, Literal

from perfbisect.commands.documents import (
    EndedLaunchDocument,
    ExpectedEventDocument,
    JobLineDocument,
    LeadingDocument,
    RunningLaunchDocument,
    StatusDocument,
)
from perfbisect.commands.kinds import kind_of
from perfbisect.common.numbers import minutes, probability, with_unit
from perfbisect.common.text import line
from perfbisect.errors import PerfbisectError
from perfbisect.jobs.documents import ErrorDocument, LaunchDocument
from perfbisect.jobs.folders import Ending, Job, finished, read_ending
from perfbisect.jobs.journal import read
from perfbisect.report.console import error_lines

_NEWEST: Final = 8
"""Launches that are told."""

State = Literal["running", "unfinished", "finished"]


def status_document(job: Job, now: datetime) -> StatusDocument:
    """How far a job is at a moment. :raises UsageError: its journal cannot be read."""
    holder = job.holder
    events = read(job.journal).events
    kind = kind_of(events)
    document, ending = kind.document(job, events), None if holder else read_ending(job.path)
    status = kind.status(document)
    launches, metric = status.launches, status.metric
    state: State = "running" if holder else "finished" if finished(events) else "unfinished"
    code = ending.exit_code if ending else kind.exit_code(document) if state == "finished" else None
    whole = next((path for path in (job.result, job.document) if path.exists()), None)
    running = [launch for launch in launches if holder and launch.outcome == "running"]
    return StatusDocument(
        job=job.id,
        verb=kind.verb,
        state=state,
        pid=holder.pid if holder else None,
        outcome=status.outcome,
        verdict=status.verdict if state == "finished" else "",
        exit_code=code,
        error=_error(ending),
        cell=status.cell,
        metric=metric.name,
        unit=metric.unit,
        began=events[0].time,
        now=now.isoformat(timespec="seconds"),
        minutes=status.minutes.total,
        budget=status.minutes.budget,
        launched=len(launches),
        last=_ended(launches)[-_NEWEST:],
        running=tuple(_running(job, launch) for launch in running),
        expected=_expected(launches, running) if holder else None,
        leading=tuple(
            LeadingDocument(
                position=candidate.position,
                change=candidate.change,
                subject=candidate.subject,
                probability=candidate.probability,
            )
            for candidate in status.candidates
        ),
        folder=str(job.path),
        log=str(job.log) if job.log.exists() else None,
        report=str(job.report) if job.report.exists() else None,
        result=str(whole) if whole else None,
        next=_next(job, state, ending, status.next),
    )


def _error(ending: Ending | None) -> ErrorDocument | None:
    if ending is None or not ending.error:
        return None
    return ErrorDocument(
        error=ending.error,
        kind=ending.kind,
        exit_code=ending.exit_code,
        where=ending.where,
        next=ending.next_step,
    )


def _ended(launches: Sequence[LaunchDocument]) -> tuple[EndedLaunchDocument, ...]:
    return tuple(
        EndedLaunchDocument(
            number=launch.number,
            change=launch.change.short,
            purpose=launch.purpose,
            outcome=launch.outcome,
            value=launch.value,
            minutes=launch.minutes,
            reason=launch.reason,
        )
        for launch in launches
        if launch.outcome != "running"
    )


def _running(job: Job, launch: LaunchDocument) -> RunningLaunchDocument:
    logs = [(path.stat().st_mtime, str(path)) for path in (job.path / launch.folder).glob("*.log")]
    return RunningLaunchDocument(
        number=launch.number,
        change=launch.change.short,
        subject=launch.change.subject,
        purpose=launch.purpose,
        why=launch.why,
        slot=launch.slot,
        since=launch.started_at,
        log=max(logs)[1] if logs else None,
    )


def _expected(launches: Sequence[LaunchDocument], running: Sequence[LaunchDocument]) -> ExpectedEventDocument:
    """The end of the launch that began first, as long after that as the newest launches took."""
    if not running:
        return ExpectedEventDocument(event="the next launch begins, or the job ends", at=None)
    first = min(running, key=lambda launch: launch.started_at)
    took = [launch.minutes for launch in launches if launch.outcome == "measured"][-_NEWEST:]
    end = datetime.fromisoformat(first.started_at) + timedelta(minutes=median(took)) if took else None
    return ExpectedEventDocument(
        event=f"launch {first.number} ends", at=end.isoformat(timespec="seconds") if end else None
    )


def _next(job: Job, state: State, ending: Ending | None, after: str) -> str:
    if state == "running":
        return f"perfbisect status {job.id} --wait"
    if state == "unfinished":
        return (ending.next_step if ending else None) or f"perfbisect resume {job.id}"
    return after or f"perfbisect report {job.id}"


def status_lines(document: StatusDocument) -> list[str]:
    """A status for a person."""
    by = f" by process {document.pid}" if document.pid else ""
    spent = minutes(document.minutes) + (f" of {minutes(document.budget)}" if document.budget else "")
    out = [
        f"{document.job}: {document.state}{by}, {document.outcome}"
        + (f": {line(document.verdict)}" if document.verdict else ""),
        f"  {document.verb} of {document.cell}, {document.metric}: {document.launched} launches, {spent}",
    ]
    if document.launched > len(document.last) + len(document.running):
        out.append(f"  ... {document.launched - len(document.last) - len(document.running)} before these")
    for ended in document.last:
        told = with_unit(ended.value, document.unit)
        if ended.value is None:
            told = f"{ended.outcome} after {minutes(ended.minutes)}: {line(ended.reason)}"
        out.append(f"  #{ended.number} {ended.change} {ended.purpose:<7} {told}")
    for now in document.running:
        out.append(f"  #{now.number} {now.change} {now.purpose:<7} under way since {now.since}")
        out += [f"     log: {now.log}"] if now.log else []
    if document.expected and document.expected.at:
        out.append(f"  expected: {document.expected.event} at {document.expected.at}")
    if document.leading and document.state != "finished":
        out.append(
            "  leading: "
            + ", ".join(f"{one.change} {probability(one.probability)}" for one in document.leading)
        )
    if document.error and document.state != "finished":
        out += [f"  {text}" for text in error_lines(document.error.error, document.error.where, None)]
    out += [f"  log:  {document.log}"] if document.log else []
    return [*out, f"  next: {line(document.next, 1000)}"]


def job_line(job: Job, now: datetime) -> JobLineDocument:
    """A job in a list; one that cannot be read is told as broken."""
    try:
        document = status_document(job, now)
    except PerfbisectError:
        return JobLineDocument(job=job.id, state="broken", verb="", cell="", launches=0)
    return JobLineDocument(
        job=job.id,
        state=document.state,
        verb=document.verb,
        cell=document.cell,
        launches=document.launched,
        outcome=document.outcome,
        verdict=document.verdict,
        exit_code=document.exit_code,
    )


def listed_line(listed: JobLineDocument) -> str:
    """A job of a list for a person; one that is finished with how it ended."""
    told = f"{listed.job}  {listed.state:<10} {listed.verb:<7} {listed.cell}  {listed.launches} launches"
    if listed.state != "finished":
        return told
    return f"{told}  {listed.outcome}" + (f": {line(listed.verdict)}" if listed.verdict else "")
