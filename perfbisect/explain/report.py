"""The report of ``perfbisect explain``: one description for terminal, Markdown and HTML."""

from __future__ import annotations

from perfbisect.common.quantities import percent
from perfbisect.explain.documents import ExplainDocument
from perfbisect.report.document import (
    Block,
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
from perfbisect.report.phases import phases_section
from perfbisect.report.sections import cell_section, change_text


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
        blocks=(KeyValues(tuple(_sides(document))), *_summary(document), Command(document.next)),
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


def _summary(document: ExplainDocument) -> list[Block]:
    return [Paragraph(tuple(parts_of(text))) for text in (*document.summary, *document.notes)]


def _log_section(document: ExplainDocument) -> Section:
    rows = (tuple(map(code, row)) for row in document.log_differences)
    table = make_table(("", document.a_name, document.b_name), rows)
    return Section("What the engines' logs say differently", (table,) if table.rows else ())
