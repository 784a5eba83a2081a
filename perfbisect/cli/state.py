"""What a job's folder tells: for ``status`` and ``report``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Final, Literal

from perfbisect.cli import finish
from perfbisect.cli.job_documents import (
    EndedLaunchDocument,
    ExpectedEventDocument,
    JobLineDocument,
    LeadingDocument,
    RunningLaunchDocument,
    StatusDocument,
)
from perfbisect.core.metric import parse_metric
from perfbisect.errors import PerfbisectError
from perfbisect.jobs.again import with_metric
from perfbisect.jobs.check_report import check_document
from perfbisect.jobs.compare_report import compare_document
from perfbisect.jobs.plan import BisectPlan, CheckPlan, ComparePlan, plan_of
from perfbisect.jobs.report import report
from perfbisect.jobs.run import run_document
from perfbisect.render.check_documents import CheckedDocument
from perfbisect.render.check_lines import checked_of
from perfbisect.render.compare_documents import CompareDocument
from perfbisect.render.console import error_lines
from perfbisect.render.documents import (
    ErrorDocument,
    LaunchDocument,
    MetricDocument,
    ReportDocument,
    RunDocument,
)
from perfbisect.render.numbers import minutes, percent, probability, with_unit
from perfbisect.render.safe import line
from perfbisect.store.ending import Ending, read_ending
from perfbisect.store.jobs import Job, finished
from perfbisect.store.journal import read

_NEWEST: Final = 8
"""Launches that are told."""
_LEADING: Final = 5
_NAMED: Final = 3
"""Changes of a verdict that are named in one line."""
_TOLD: Final = 0.005
"""A change less likely than this does not lead."""

State = Literal["running", "unfinished", "finished"]
Verb = Literal["bisect", "run", "compare", "check"]


def document_of(job: Job, metric: str | None = None) -> finish.JobDocument:
    """The document of a job, whatever its verb; of a bisection also as if another metric had been asked for.

    :raises UsageError: its journal cannot be read, or has nothing of that metric.
    """
    events = read(job.journal).events
    if metric is not None:
        return with_metric(job, events, parse_metric(metric))
    plan = plan_of(events)
    if isinstance(plan, BisectPlan):
        return report(job, events)
    if isinstance(plan, ComparePlan):
        return compare_document(job, events)
    if isinstance(plan, CheckPlan):
        return check_document(job, events)
    return run_document(job, events)


def status_document(job: Job, now: datetime) -> StatusDocument:
    """How far a job is at a moment. :raises UsageError: its journal cannot be read."""
    holder = job.holder
    events = read(job.journal).events
    document, ending = document_of(job), None if holder else read_ending(job.path)
    state: State = "running" if holder else "finished" if finished(events) else "unfinished"
    verb, outcome, metric = _state_of(document)
    code = ending.exit_code if ending else finish.exit_code(document) if state == "finished" else None
    whole = next((path for path in (job.result, job.document) if path.exists()), None)
    running = [launch for launch in document.launches if holder and launch.outcome == "running"]
    return StatusDocument(
        job=job.id,
        verb=verb,
        state=state,
        pid=holder.pid if holder else None,
        outcome=outcome,
        verdict=_verdict(document) if state == "finished" else "",
        exit_code=code,
        error=_error(ending),
        cell=document.cell.name,
        metric=metric.name,
        unit=metric.unit,
        began=events[0].time,
        now=now.isoformat(timespec="seconds"),
        minutes=document.minutes.total,
        budget=document.minutes.budget,
        launched=len(document.launches),
        last=_ended(document.launches)[-_NEWEST:],
        running=tuple(_running(job, launch) for launch in running),
        expected=_expected(document.launches, running) if holder else None,
        leading=_leading(document) if isinstance(document, ReportDocument) else (),
        folder=str(job.path),
        log=str(job.log) if job.log.exists() else None,
        report=str(job.report) if job.report.exists() else None,
        result=str(whole) if whole else None,
        next=_next(job, state, ending, document),
    )


def _state_of(document: finish.JobDocument) -> tuple[Verb, str, MetricDocument]:
    """The verb of a job, how it ended so far, and its metric."""
    if isinstance(document, ReportDocument):
        return "bisect", document.outcome, document.metric
    if isinstance(document, CompareDocument):
        return "compare", _settled(document) if document.finished else "unfinished", document.metric
    if isinstance(document, CheckedDocument):
        return "check", document.word if document.finished else "unfinished", document.metric
    return "run", "measured" if document.finished else "unfinished", document.headline


def _settled(document: CompareDocument) -> str:
    """What became of the claim or of the limit for which a comparison was made; its own word without any."""
    if document.claim is None:
        return document.word
    return document.claim if document.limit is None else checked_of(document).word


def _verdict(document: finish.JobDocument) -> str:
    """What the word of a verdict is of: who, and by how much."""
    if isinstance(document, RunDocument):
        own = [one for one in document.metrics if one.display == document.headline.display]
        return f"{document.headline.name} {with_unit(own[0].median, own[0].unit)}" if own else ""
    metric = document.metric.name
    if not isinstance(document, ReportDocument):
        guard = isinstance(document, CompareDocument) and document.word != document.headline
        size = "" if document.effect is None else f"{metric} {percent(document.effect)}"
        return f"by a guard, {size}" if guard else size
    shown = [one.changes[0] for one in document.culprits[:_NAMED]]
    who = [" ".join((shown[0].short, shown[0].subject))] if len(shown) == 1 else [x.short for x in shown]
    more = len(document.culprits) - len(shown)
    step = document.confirmed or document.whole
    told = " or ".join([*who, *([f"{more} more"] if more else [])])
    return ", ".join(part for part in (told, f"{metric} {percent(step.effect)}" if step else "") if part)


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


def _leading(document: ReportDocument) -> tuple[LeadingDocument, ...]:
    """The likeliest positions, likeliest first."""
    p = document.beliefs.by_position if document.beliefs else ()
    best = sorted(range(len(p)), key=lambda index: -p[index])[:_LEADING]
    changes = {position.index: position.changes[0] for position in document.history}
    return tuple(
        LeadingDocument(
            position=index,
            change=changes[index].short,
            subject=changes[index].subject,
            probability=p[index],
        )
        for index in best
        if index in changes and p[index] >= _TOLD
    )


def _next(job: Job, state: State, ending: Ending | None, document: finish.JobDocument) -> str:
    if state == "running":
        return f"perfbisect status {job.id} --wait"
    if state == "unfinished":
        return (ending.next_step if ending else None) or f"perfbisect resume {job.id}"
    told = "" if isinstance(document, RunDocument) else document.next
    return told or f"perfbisect report {job.id}"


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
