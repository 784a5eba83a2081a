"""``compare`` as a kind of job: a comparison, a claim, or a check against a revision."""

from __future__ import annotations

from typing import Final

from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION
from perfbisect.jobs import check_kind
from perfbisect.jobs.compare import compare
from perfbisect.jobs.compare_plan import ComparePlan
from perfbisect.jobs.compare_report import compare_document
from perfbisect.jobs.kind import JobKind, JobStatus
from perfbisect.render.check_lines import checked_markdown, checked_of
from perfbisect.render.compare_documents import CompareDocument
from perfbisect.render.compare_lines import compare_lines
from perfbisect.render.compare_report import compare_markdown
from perfbisect.render.numbers import percent

_EXIT_CODES = {
    "regression": EXIT_REGRESSION,
    "refuted": EXIT_REGRESSION,
    "inconclusive": EXIT_INCONCLUSIVE,
}


def exit_code(document: CompareDocument) -> int:
    """3 regression, refuted or failed; 4 inconclusive; 0 otherwise."""
    if document.limit is not None:
        return check_kind.exit_code(checked_of(document))
    return _EXIT_CODES.get(document.claim or document.word, EXIT_OK)


def _markdown(document: CompareDocument) -> str:
    if document.limit is not None:
        return checked_markdown(checked_of(document))
    return compare_markdown(document)


def _status(document: CompareDocument) -> JobStatus:
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
    exit_code=exit_code,
    status=_status,
    lines=compare_lines,
    markdown=_markdown,
    client_change=lambda plan: plan.b.change,
)
