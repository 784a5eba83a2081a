"""The document and the report of ``perfbisect explain``: what is known of why one side is slower."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from perfbisect.bisect.result import BisectResult
from perfbisect.common.quantities import percent
from perfbisect.experiments.compare import CompareResult
from perfbisect.jobs.documents import CellDocument, ChangeDocument, Document, MetricDocument
from perfbisect.report.document import (
    Command,
    Inline,
    KeyValues,
    Paragraph,
    Report,
    Section,
    Verdict,
    code,
    make_table,
    parts_of,
)
from perfbisect.report.phases import PhasesDocument, phase_sentences, phases_section
from perfbisect.report.sections import cell_section, change_text

_ENDS = "No culprit is named: these are the two ends of the range."
_NO_COUNTERS = (
    "No phases: the launches were recorded without counters, or the engine serves none that are known."
)
_OPEN = "The job has not ended: these are the launches so far."


class ExplainDocument(Document):
    """Why B differs from A: of a bisection parent and culprit, of a comparison its sides.

    ``effect``: B / A - 1 of ``metric`` (of shares B - A) with its interval; None before one is known.
    """

    schema_: Literal["perfbisect.explain/2"] = Field(default="perfbisect.explain/2", alias="schema")
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


def explain_bisection(document: BisectResult) -> ExplainDocument:
    """Culprit against parent, or bad against good where no culprit is named."""
    found = document.outcome == "found"
    effect = document.confirmed or document.whole
    left, right = document.good, document.bad
    if effect is not None:
        left, right = document.change(effect.parent), document.change(effect.culprit)
    is_open = document.outcome == "unfinished"
    return _explain(
        document,
        () if document.confirmed else (_OPEN, _ENDS) if is_open else (_ENDS,),
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
        () if result.finished else (_OPEN,),
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
    document: BisectResult | CompareResult, notes: tuple[str, ...], *, differs: bool, **sides: Any
) -> ExplainDocument:
    """The next command is the price of a profile where the sides differ, otherwise the report."""
    job, phases = document.job, document.phases
    return ExplainDocument(
        job=job,
        cell=document.cell,
        metric=document.metric,
        summary=phase_sentences(phases) if phases else (),
        notes=notes if phases else (*notes, _NO_COUNTERS),
        phases=phases,
        log_differences=document.log_differences,
        folder=document.folder,
        next=f"perfbisect explain {job} --profile --dry-run" if differs else f"perfbisect report {job}",
        **sides,
    )


def explain_report(document: ExplainDocument) -> Report:
    """The sides, what differs in a sentence, then a section for each way of looking at it."""
    sections = (
        phases_section(document.phases, detail=False),
        _log_section(document),
        cell_section(document.cell, document.notes),
    )
    return Report(
        title=f"Why {document.b_name} differs from {document.a_name} on {document.cell.name}",
        verdict=Verdict(document.verdict),
        blocks=(
            KeyValues(tuple(_sides(document))),
            *(Paragraph(parts_of(text)) for text in (*document.summary, *document.notes)),
            Command(document.next),
        ),
        sections=tuple(section for section in sections if section.blocks),
        footer=f"Job {document.job}. This page loads nothing from the network.",
    )


def _sides(document: ExplainDocument) -> list[tuple[str, Inline]]:
    rows: list[tuple[str, Inline]] = [
        (document.a_name, change_text(document.a)),
        (document.b_name, change_text(document.b)),
    ]
    if document.effect is not None and document.low is not None and document.high is not None:
        interval = f"{percent(document.low)} to {percent(document.high)}"
        rows.append((document.metric.name, f"{percent(document.effect)} ({interval})"))
    return rows


def _log_section(document: ExplainDocument) -> Section:
    rows = (tuple(map(code, row)) for row in document.log_differences)
    table = make_table(("", document.a_name, document.b_name), rows)
    return Section("What the engines' logs say differently", (table,) if table.rows else ())
