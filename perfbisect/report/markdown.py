"""Reports in Markdown, to paste into an issue."""

from __future__ import annotations

from collections.abc import Iterable

from perfbisect.common.text import block as fenced
from perfbisect.common.text import code
from perfbisect.report.document import (
    Block,
    Code,
    Command,
    Figure,
    Inline,
    Items,
    KeyValues,
    Paragraph,
    Report,
    Span,
    Table,
    parts_of,
)
from perfbisect.report.markdown_text import prose, table

_FOLDED = 12
"""Items beyond which a list is folded away."""


def report_markdown(report: Report) -> str:
    """The whole report."""
    parts = [f"# {prose(report.title)}: {prose(report.verdict.text)}", *_blocks(report.blocks)]
    for section in report.sections:
        shown = _blocks(section.blocks)
        if shown:
            parts += [f"## {prose(section.title)}", *shown]
    return "\n\n".join(parts) + "\n"


def text_markdown(text: Inline) -> str:
    """Text with its emphasis; text of others acts neither as markup nor as a mention."""
    return "".join(_span(part) for part in parts_of(text))


def _blocks(blocks: Iterable[Block]) -> list[str]:
    shown = [_block(block) for block in blocks]
    return [text for text in shown if text]


def _block(block: Block) -> str:
    if isinstance(block, Paragraph):
        return text_markdown(block.text)
    if isinstance(block, Items):
        items = [f"- {text_markdown(item)}" for item in block.items]
        if len(items) > _FOLDED:
            items = [f"<details><summary>{len(items)} items</summary>", "", *items, "", "</details>"]
        return "\n".join(items)
    if isinstance(block, Table):
        head = tuple(column.title for column in block.columns)
        return table(head, (tuple(_cell(cell) for cell in row) for row in block.rows)) if block.rows else ""
    if isinstance(block, KeyValues):
        return table(("", ""), ((prose(label), _cell(value)) for label, value in block.rows))
    if isinstance(block, Code):
        return fenced(block.text, block.language)
    if isinstance(block, Command):
        return f"{prose(block.label).capitalize()}:\n\n{fenced(block.text, 'sh')}"
    if isinstance(block, Figure):
        return ""
    raise AssertionError(block)


def _cell(text: Inline) -> str:
    # Every span has escaped its bars already.
    return text_markdown(text) if text else ""


def _span(part: Span) -> str:
    if not part.text:
        return ""
    if part.style == "code":
        return code(part.text)
    if part.style == "strong":
        return f"**{prose(part.text)}**"
    lead = " " if part.text.startswith(" ") else ""
    trail = " " if part.text.endswith(" ") and part.text.strip() else ""
    return lead + prose(part.text) + trail
