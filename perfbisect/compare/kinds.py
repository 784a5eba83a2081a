"""``compare`` as a kind of job: a comparison, a claim, or a check against a revision."""

from __future__ import annotations

from typing import Final

from perfbisect.common.numbers import percent, with_unit
from perfbisect.compare.check import check
from perfbisect.compare.check_documents import CheckedDocument
from perfbisect.compare.check_plan import CheckPlan
from perfbisect.compare.check_render import checked_lines, checked_markdown, checked_of
from perfbisect.compare.check_report import check_document
from perfbisect.compare.documents import CompareDocument
from perfbisect.compare.job import compare
from perfbisect.compare.plan import ComparePlan
from perfbisect.compare.render import compare_lines, compare_markdown
from perfbisect.compare.report import compare_document
from perfbisect.compare.run import RunPlan, run, run_document
from perfbisect.compare.run_report import run_markdown
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION
from perfbisect.jobs.documents import RunDocument
from perfbisect.jobs.kind import JobKind, JobStatus
from perfbisect.report.console import run_lines


def _run_kind_status(document: RunDocument) -> JobStatus:
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
    status=_run_kind_status,
    lines=run_lines,
    markdown=run_markdown,
    client_change=lambda plan: plan.change,
)

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

_COMPARE_KIND_EXIT_CODES = {
    "regression": EXIT_REGRESSION,
    "refuted": EXIT_REGRESSION,
    "inconclusive": EXIT_INCONCLUSIVE,
}


def compare_kind_exit_code(document: CompareDocument) -> int:
    """3 regression, refuted or failed; 4 inconclusive; 0 otherwise."""
    if document.limit is not None:
        return exit_code(checked_of(document))
    return _COMPARE_KIND_EXIT_CODES.get(document.claim or document.word, EXIT_OK)


def _markdown(document: CompareDocument) -> str:
    if document.limit is not None:
        return checked_markdown(checked_of(document))
    return compare_markdown(document)


def _compare_kind_status(document: CompareDocument) -> JobStatus:
    size = "" if document.effect is None else f"{document.metric.name} {percent(document.effect)}"
    return JobStatus(
        outcome=_outcome(document) if document.finished else "unfinished",
        verdict=size if document.word == document.headline else f"by a guard, {size}",
        cell=document.cell.name,
        metric=document.metric,
        launches=document.launches,
        minutes=document.minutes,
        next=document.next,
    )


def _outcome(document: CompareDocument) -> str:
    """The verdict on the claim or the limit of a comparison; its own without any."""
    if document.claim is None:
        return document.word
    return document.claim if document.limit is None else checked_of(document).word


COMPARE: Final = JobKind(
    plan=ComparePlan,
    run=compare,
    document=compare_document,
    exit_code=compare_kind_exit_code,
    status=_compare_kind_status,
    lines=compare_lines,
    markdown=_markdown,
    client_change=lambda plan: plan.b.change,
)
