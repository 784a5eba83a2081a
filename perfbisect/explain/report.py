"""The document and the report of ``perfbisect explain``: what is known of why one side is slower."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from perfbisect.bisect.result import BisectResult
from perfbisect.experiments.compare import CompareResult
from perfbisect.jobs.documents import CellDocument, ConclusionDocument, MetricDocument, NotedDocument
from perfbisect.model.change import Change
from perfbisect.report.document import (
    Report,
)
from perfbisect.report.phases import PhasesDocument, phase_blocks, phase_sentences
from perfbisect.report.template import render_report, render_sentences


class ExplainDocument(ConclusionDocument, NotedDocument):
    """Why B differs from A: of a bisection parent and culprit, of a comparison its sides.

    ``effect``: B / A - 1 of ``metric`` (of shares B - A) with its interval; None before one is known.
    ``notes``: what the explanation lacks, and why.
    """

    schema_: Literal["perfbisect.explain/2"] = Field(default="perfbisect.explain/2", alias="schema")
    verb: Literal["bisect", "compare"]
    verdict: str
    cell: CellDocument
    metric: MetricDocument
    a: Change
    b: Change
    a_name: str
    b_name: str
    effect: float | None
    low: float | None
    high: float | None
    phases: PhasesDocument | None
    log_differences: tuple[tuple[str, str, str], ...]
    """What the engines' logs say differently: fact, A, B."""
    folder: str

    def report(self) -> Report:
        """The sides, what differs in a sentence, then a section for each way of looking at it."""
        phases = phase_blocks(self.phases) if self.phases else None
        return render_report("explain/templates/explain.md.jinja", {"r": self}, {"phases": phases})


def explain_bisection(document: BisectResult) -> ExplainDocument:
    """Culprit against parent, or bad against good where no culprit is named."""
    found = document.outcome == "found"
    effect = document.confirmed or document.whole
    left, right = document.good, document.bad
    if effect is not None:
        left, right = document.change(effect.parent), document.change(effect.culprit)
    return _explain(
        document,
        is_unfinished=document.outcome == "unfinished" and not document.confirmed,
        is_of_ends=not document.confirmed,
        differs=found,
        verb="bisect",
        verdict=document.outcome,
        a=left,
        b=right,
        a_name="parent" if document.confirmed else "good",
        b_name="culprit" if found else "suspect" if document.confirmed else "bad",
        effect=effect.effect if effect else None,
        low=effect.low if effect else None,
        high=effect.high if effect else None,
    )


def explain_comparison(result: CompareResult) -> ExplainDocument:
    """B against A."""
    return _explain(
        result,
        is_unfinished=not result.finished,
        differs=result.verdict in ("regression", "improvement"),
        verb="compare",
        verdict=result.verdict,
        a=result.a.change,
        b=result.b.change,
        a_name=result.a.name,
        b_name=result.b.name,
        effect=result.headline.effect,
        low=result.headline.low,
        high=result.headline.high,
    )


def _explain(
    document: BisectResult | CompareResult,
    *,
    is_unfinished: bool,
    is_of_ends: bool = False,
    differs: bool,
    **sides: Any,
) -> ExplainDocument:
    """The next command is the price of a profile where the sides differ, otherwise the report."""
    job, phases = document.job, document.phases
    lacks = {"is_unfinished": is_unfinished, "is_of_ends": is_of_ends, "has_phases": phases is not None}
    return ExplainDocument(
        job=job,
        cell=document.cell,
        metric=document.metric,
        summary=phase_sentences(phases) if phases else (),
        notes=render_sentences("explain/templates/explain.notes.jinja", lacks),
        phases=phases,
        log_differences=document.log_differences,
        folder=document.folder,
        next=f"perfbisect explain {job} --profile --dry-run" if differs else f"perfbisect report {job}",
        **sides,
    )
