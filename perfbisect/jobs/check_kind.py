"""``check`` against a level as a kind of job."""

from __future__ import annotations

from typing import Final

from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION
from perfbisect.jobs.check import check
from perfbisect.jobs.check_plan import CheckPlan
from perfbisect.jobs.check_report import check_document
from perfbisect.jobs.kind import JobKind, JobStatus
from perfbisect.render.check_documents import CheckedDocument
from perfbisect.render.check_lines import checked_lines, checked_markdown
from perfbisect.render.numbers import percent

_EXIT_CODES = {"passed": EXIT_OK, "failed": EXIT_REGRESSION}


def exit_code(document: CheckedDocument) -> int:
    """0 passed, 3 failed, 4 inconclusive."""
    return _EXIT_CODES.get(document.word, EXIT_INCONCLUSIVE)


def _status(document: CheckedDocument) -> JobStatus:
    metric = document.metric
    return JobStatus(
        outcome=document.word if document.finished else "unfinished",
        verdict="" if document.effect is None else f"{metric.name} {percent(document.effect)}",
        cell=document.cell.name,
        metric=metric,
        launches=document.launches,
        minutes=document.minutes,
        next=document.next,
    )


CHECK: Final = JobKind(
    plan=CheckPlan,
    run=check,
    document=check_document,
    exit_code=exit_code,
    status=_status,
    lines=checked_lines,
    markdown=checked_markdown,
    client_change=lambda plan: plan.change,
)
