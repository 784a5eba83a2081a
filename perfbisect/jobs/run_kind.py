"""``run`` as a kind of job."""

from __future__ import annotations

from typing import Final

from perfbisect.errors import EXIT_OK
from perfbisect.jobs.kind import JobKind, JobStatus
from perfbisect.jobs.run import run, run_document
from perfbisect.jobs.run_plan import RunPlan
from perfbisect.render.console import run_lines
from perfbisect.render.documents import RunDocument
from perfbisect.render.numbers import with_unit
from perfbisect.render.run_markdown import run_markdown


def _status(document: RunDocument) -> JobStatus:
    headline = document.headline
    values = [metric for metric in document.metrics if metric.display == headline.display]
    return JobStatus(
        outcome="measured" if document.finished else "unfinished",
        verdict=f"{headline.name} {with_unit(values[0].median, values[0].unit)}" if values else "",
        cell=document.cell.name,
        metric=headline,
        launches=document.launches,
        minutes=document.minutes,
    )


RUN: Final = JobKind(
    plan=RunPlan,
    run=run,
    document=run_document,
    exit_code=lambda _: EXIT_OK,
    status=_status,
    lines=run_lines,
    markdown=run_markdown,
    client_change=lambda plan: plan.change,
)
