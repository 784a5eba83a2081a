"""The report of a comparison in Markdown, to paste into an issue."""

from __future__ import annotations

from perfbisect.render.compare_documents import ComparedDocument, CompareDocument, SideDocument
from perfbisect.render.markdown import (
    cell_table,
    change,
    launch_table,
    minutes_table,
    prose,
    reproduce,
    table,
    version_table,
)
from perfbisect.render.numbers import percent, with_unit
from perfbisect.render.safe import code


def compare_markdown(document: CompareDocument) -> str:
    """The report of a comparison."""
    return f"# perfbisect {_title(document)}\n\n{compare_body(document)}"


def compare_body(document: CompareDocument) -> str:
    """The report of a comparison without its title."""
    parts = [
        "\n".join(f"{prose(text)}  " for text in document.sentences),
        f"A: {_side(document.a)}  \nB: {_side(document.b)}",
        _metrics(document.metrics),
        cell_table(document.cell.rows),
        launch_table(document.launches, document.metric.unit),
        minutes_table(document.minutes.by_phase, document.minutes.total, document.minutes.lost),
        *(reproduce(commands) for commands in document.reproduce),
        version_table(document.versions),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(document: CompareDocument) -> str:
    guard = "" if document.word == document.headline else ", by a guard"
    if document.claim is None or document.limit is not None:
        return f"compare: {document.word}{guard}"
    settled = {"holds": "the claim holds", "refuted": f"the claim is refuted{guard}"}
    return f"verify: {settled.get(document.claim, 'whether the claim holds is not told yet')}"


def _side(side: SideDocument) -> str:
    variant = f" served as {code(side.variant)}" if side.variant else ""
    return f"{change(side.change)}{variant} ({code(side.typed)})"


def _metrics(metrics: tuple[ComparedDocument, ...]) -> str:
    rows = (
        (
            f"**{code(row.name)}**" if row.headline else code(row.name),
            "judged" if row.headline else "guard" if row.guard else "",
            with_unit(row.left, row.unit),
            with_unit(row.right, row.unit),
            percent(row.effect),
            f"{percent(row.low)} to {percent(row.high)}",
            row.word + (f" ({row.note})" if row.note else ""),
        )
        for row in metrics
    )
    head = ("metric", "", "A", "B", "B against A", "95 % interval", "")
    note = "Metrics that are neither judged nor guards are read beside the others and are no verdicts."
    return "## Every metric\n\n" + table(head, rows) + f"\n\n{note}"
