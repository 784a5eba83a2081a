"""What a job's folder tells: for ``status`` and ``report``."""

from __future__ import annotations

from typing import Literal

from perfbisect.cli.documents import JobLineDocument, StatusDocument
from perfbisect.core.metric import parse_metric
from perfbisect.errors import PerfbisectError
from perfbisect.jobs.again import with_metric
from perfbisect.jobs.compare_report import compare_document
from perfbisect.jobs.plan import BisectPlan, ComparePlan, plan_of
from perfbisect.jobs.report import report
from perfbisect.jobs.run import run_document
from perfbisect.render.compare_documents import CompareDocument
from perfbisect.render.console import status_line
from perfbisect.render.documents import ReportDocument, RunDocument
from perfbisect.render.numbers import minutes, probability
from perfbisect.store.jobs import Job, finished
from perfbisect.store.journal import read

State = Literal["running", "unfinished", "finished"]
Verb = Literal["bisect", "run", "compare"]


def document_of(job: Job, metric: str | None = None) -> ReportDocument | RunDocument | CompareDocument:
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
    return run_document(job, events)


def status_document(job: Job) -> StatusDocument:
    """How far a job is. :raises UsageError: its journal cannot be read."""
    document = document_of(job)
    holder = job.holder
    state: State = "running" if holder else "finished" if finished(read(job.journal).events) else "unfinished"
    verb, outcome, metric = _state_of(document)
    return StatusDocument(
        job=job.id,
        verb=verb,
        state=state,
        pid=holder.pid if holder else None,
        outcome=outcome,
        cell=document.cell.name,
        metric=metric,
        minutes=document.minutes.total,
        budget=document.minutes.budget,
        launches=document.launches,
        beliefs=document.beliefs if isinstance(document, ReportDocument) else None,
        folder=str(job.path),
    )


def _state_of(document: ReportDocument | RunDocument | CompareDocument) -> tuple[Verb, str, str]:
    """The verb of a job, how it ended so far, and its metric."""
    if isinstance(document, ReportDocument):
        return "bisect", document.outcome, document.metric.name
    if isinstance(document, CompareDocument):
        return "compare", document.word if document.finished else "unfinished", document.metric.name
    return "run", "measured" if document.finished else "unfinished", document.headline.name


def status_lines(document: StatusDocument) -> list[str]:
    """A status for a person."""
    by = f" by process {document.pid}" if document.pid else ""
    spent = minutes(document.minutes) + (f" of {minutes(document.budget)}" if document.budget else "")
    out = [
        f"{document.job}: {document.state}{by}, {document.outcome}",
        f"  {document.verb} of {document.cell}, {document.metric}: "
        f"{len(document.launches)} launches, {spent}",
    ]
    out += [status_line(launch, "") for launch in document.launches]
    if document.beliefs and document.state != "finished":
        held = probability(document.beliefs.leading_probability)
        places = ", ".join(map(str, document.beliefs.leading[:5]))
        out.append(f"  leading: position {places} with probability {held}")
    if document.state == "unfinished":
        out.append(f"  next: perfbisect resume {document.job}")
    return out


def job_line(job: Job) -> JobLineDocument:
    """A job in a list; one that cannot be read is told as broken."""
    try:
        document = status_document(job)
    except PerfbisectError:
        return JobLineDocument(job=job.id, state="broken", verb="", cell="", launches=0)
    return JobLineDocument(
        job=job.id,
        state=document.state,
        verb=document.verb,
        cell=document.cell,
        launches=len(document.launches),
    )
