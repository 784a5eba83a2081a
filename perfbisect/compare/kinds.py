"""``run``, ``check`` and ``compare`` as kinds of jobs."""

from __future__ import annotations

from typing import Final

from perfbisect.common.numbers import percent, with_unit
from perfbisect.compare.documents import CheckDocument, CompareDocument, RunDocument
from perfbisect.compare.job import check, compare
from perfbisect.compare.plan import CheckPlan, ComparePlan, RunPlan
from perfbisect.compare.report import ResultDocument, build_report, result_lines
from perfbisect.compare.results import check_document, check_of_comparison, compare_document
from perfbisect.compare.run import run, run_document
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION
from perfbisect.jobs.kind import JobKind, JobStatus
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown

_EXIT_CODES = {
    "regression": EXIT_REGRESSION,
    "refuted": EXIT_REGRESSION,
    "failed": EXIT_REGRESSION,
    "inconclusive": EXIT_INCONCLUSIVE,
}


def exit_code_of(verdict: str) -> int:
    """3 regression, refuted or failed; 4 inconclusive; 0 otherwise."""
    return _EXIT_CODES.get(verdict, EXIT_OK)


def exit_code(document: CheckDocument) -> int:
    """Of a check: 0 passed, 3 failed, 4 inconclusive."""
    return exit_code_of(document.verdict)


def comparison_exit_code(document: CompareDocument) -> int:
    """Of a comparison, a claim, or a check against a revision."""
    return exit_code_of(document.claim or document.verdict)


def _markdown(document: ResultDocument) -> str:
    return report_markdown(build_report(document))


def _page(document: ResultDocument) -> str:
    return report_html(build_report(document))


def _run_status(document: RunDocument) -> JobStatus:
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


def _check_status(document: CheckDocument) -> JobStatus:
    metric = document.metric
    launches = document.comparison.launches if document.comparison else document.launches
    return JobStatus(
        outcome=document.verdict if document.finished else "unfinished",
        verdict="" if document.effect is None else f"{metric.name} {percent(document.effect)}",
        cell=document.cell.name,
        metric=metric,
        launches=launches,
        minutes=document.minutes,
        next=document.next,
    )


def _compare_status(document: CompareDocument) -> JobStatus:
    outcome: str = document.claim or document.verdict
    if document.limit is not None:
        outcome = check_of_comparison(document).verdict
    size = "" if document.effect is None else f"{document.metric.name} {percent(document.effect)}"
    return JobStatus(
        outcome=outcome if document.finished else "unfinished",
        verdict=size if document.verdict == document.headline else f"by a guard, {size}",
        cell=document.cell.name,
        metric=document.metric,
        launches=document.launches,
        minutes=document.minutes,
        next=document.next,
    )


RUN: Final = JobKind(
    plan=RunPlan,
    run=run,
    document=run_document,
    exit_code=lambda _: EXIT_OK,
    status=_run_status,
    lines=result_lines,
    markdown=_markdown,
    page=_page,
    client_change=lambda plan: plan.change,
)

CHECK: Final = JobKind(
    plan=CheckPlan,
    run=check,
    document=check_document,
    exit_code=exit_code,
    status=_check_status,
    lines=result_lines,
    markdown=_markdown,
    page=_page,
    client_change=lambda plan: plan.change,
)

COMPARE: Final = JobKind(
    plan=ComparePlan,
    run=compare,
    document=compare_document,
    exit_code=comparison_exit_code,
    status=_compare_status,
    lines=result_lines,
    markdown=_markdown,
    page=_page,
    client_change=lambda plan: plan.b.change,
)
