"""What is known of why one side is slower: ``perfbisect explain``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfbisect.bisect.documents import ReportDocument
from perfbisect.compare.documents import CompareDocument
from perfbisect.jobs.documents import (
    CellDocument,
    ChangeDocument,
    Document,
    MetricDocument,
)
from perfbisect.report.phases import PhasesDocument, phase_sentences

_ENDS = "No culprit is named: these are the two ends of the range."
_NO_COUNTERS = (
    "No phases: the launches were recorded without counters, or the engine serves none that are known."
)
_OPEN = "The job has not ended: these are the launches so far."


class ExplainDocument(Document):
    """Why B differs from A: of a bisection parent and culprit, of a comparison its sides.

    ``effect``: B / A - 1 of ``metric`` (of shares B - A) with its interval; None before one is known.
    """

    schema_: Literal["perfbisect.explain/1"] = Field(default="perfbisect.explain/1", alias="schema")
    job: str
    verb: Literal["bisect", "compare"]
    verdict: str
    cell: CellDocument
    metric: MetricDocument
    a: ChangeDocument
    b: ChangeDocument
    a_name: str
    b_name: str
    effect: float | None
    low: float | None
    high: float | None
    summary: tuple[str, ...]
    notes: tuple[str, ...]
    """What the explanation lacks, and why."""
    phases: PhasesDocument | None
    log_differences: tuple[tuple[str, str, str], ...]
    """What the engines' logs say differently: fact, A, B."""
    folder: str
    next: str


def explain_bisection(document: ReportDocument) -> ExplainDocument:
    """Culprit against parent, or bad against good where no culprit is named."""
    found = document.outcome == "found"
    effect = document.confirmed or document.whole
    left, right = (effect.left, effect.right) if effect else (document.good, document.bad)
    notes = [] if found else [_OPEN if document.outcome == "unfinished" else "", _ENDS]
    return ExplainDocument(
        job=document.job,
        verb="bisect",
        verdict=document.outcome,
        cell=document.cell,
        metric=document.metric,
        a=left,
        b=right,
        a_name="parent" if found else "good",
        b_name="culprit" if found else "bad",
        effect=effect.effect if effect else None,
        low=effect.low if effect else None,
        high=effect.high if effect else None,
        summary=_sentences(document.phases),
        notes=(*filter(None, notes), *_missing(document.phases)),
        phases=document.phases,
        log_differences=document.log_differences,
        folder=document.folder,
        next=_next_command(document.job, differs=found),
    )


def explain_comparison(document: CompareDocument) -> ExplainDocument:
    """B against A."""
    return ExplainDocument(
        job=document.job,
        verb="compare",
        verdict=document.verdict,
        cell=document.cell,
        metric=document.metric,
        a=document.a.change,
        b=document.b.change,
        a_name=document.a.name,
        b_name=document.b.name,
        effect=document.effect,
        low=document.low,
        high=document.high,
        summary=_sentences(document.phases),
        notes=(*(() if document.finished else (_OPEN,)), *_missing(document.phases)),
        phases=document.phases,
        log_differences=document.log_differences,
        folder=document.folder,
        next=_next_command(document.job, differs=document.verdict in ("regression", "improvement")),
    )


def _next_command(job: str, *, differs: bool) -> str:
    """The price of a profile where the sides differ; otherwise the report."""
    return f"perfbisect explain {job} --profile --dry-run" if differs else f"perfbisect report {job}"


def _sentences(phases: PhasesDocument | None) -> tuple[str, ...]:
    return phase_sentences(phases) if phases else ()


def _missing(phases: PhasesDocument | None) -> tuple[str, ...]:
    return () if phases else (_NO_COUNTERS,)
