"""``bisect`` as a kind of job."""

from __future__ import annotations

from typing import Final

from perfbisect.bisect.documents import ReportDocument
from perfbisect.bisect.job import amend, bisect
from perfbisect.bisect.other_metric import document_for_metric
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.report import build_report
from perfbisect.bisect.result import bisect_document
from perfbisect.common.quantities import percent
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION
from perfbisect.report.kind import Candidate, JobKind, JobStatus

_EXIT_CODES = {"found": EXIT_REGRESSION, "not reproduced": EXIT_OK}
_CANDIDATES = 5
_NAMED = 3
"""Changes of a verdict that are named in one line."""
_LEAST_PROBABILITY = 0.005
"""A change less likely than this is no candidate."""


def exit_code(document: ReportDocument) -> int:
    """3 a culprit is named, 0 not reproduced, 4 otherwise."""
    return _EXIT_CODES.get(document.outcome, EXIT_INCONCLUSIVE)


def _status(document: ReportDocument) -> JobStatus:
    return JobStatus(
        outcome=document.outcome,
        verdict=_verdict(document),
        cell=document.cell.name,
        metric=document.metric,
        launches=document.launches,
        minutes=document.minutes,
        next=document.next,
        candidates=_candidates(document),
    )


def _verdict(document: ReportDocument) -> str:
    """The culprits, and the effect of their step."""
    culprits = [position.changes[0] for position in document.culprits[:_NAMED]]
    names = [change.short for change in culprits]
    if len(culprits) == 1:
        names = [f"{culprits[0].short} {culprits[0].subject}"]
    more = len(document.culprits) - len(culprits)
    who = " or ".join([*names, *([f"{more} more"] if more else [])])
    step = document.confirmed or document.whole
    size = f"{document.metric.name} {percent(step.effect)}" if step else ""
    return ", ".join(part for part in (who, size) if part)


def _candidates(document: ReportDocument) -> tuple[Candidate, ...]:
    """The likeliest positions, likeliest first."""
    p = document.beliefs.by_position if document.beliefs else ()
    best = sorted(range(len(p)), key=lambda index: -p[index])[:_CANDIDATES]
    changes = {position.index: position.changes[0] for position in document.history}
    return tuple(
        Candidate(index, changes[index].short, changes[index].subject, p[index])
        for index in best
        if index in changes and p[index] >= _LEAST_PROBABILITY
    )


BISECT: Final = JobKind(
    plan=BisectPlan,
    run=bisect,
    document=bisect_document,
    exit_code=exit_code,
    status=_status,
    report=build_report,
    client_change=lambda plan: plan.positions[-1].change,
    workers=lambda plan: plan.workers,
    amend=amend,
    document_for_metric=document_for_metric,
)
