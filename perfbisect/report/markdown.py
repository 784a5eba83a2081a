"""Reports in Markdown, to paste into an issue."""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfbisect.common.text import block as fenced
from perfbisect.common.text import code, line
from perfbisect.report.diffs import diff_lines
from perfbisect.report.document import (
    Block,
    Code,
    Command,
    Figure,
    FileLines,
    FlameGraph,
    Inline,
    Items,
    KeyValues,
    Paragraph,
    Report,
    Span,
    Table,
    parts_of,
)
from perfbisect.report.flames import flame_lines

_FOLDED = 12
"""Items beyond which a list is folded away."""


def report_markdown(report: Report) -> str:
    parts = [f"# {prose(report.heading)}", *_blocks(report.blocks)]
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
        rows = (tuple(text_markdown(cell) for cell in row) for row in block.rows)
        return table(head, rows) if block.rows else ""
    if isinstance(block, KeyValues):
        return table(("", ""), ((prose(label), text_markdown(value)) for label, value in block.rows))
    if isinstance(block, Code):
        return fenced(block.text, block.language)
    if isinstance(block, Command):
        return f"{prose(block.label).capitalize()}:\n\n{fenced(block.text, 'sh')}"
    if isinstance(block, Figure):
        return ""
    if isinstance(block, FlameGraph):
        return fenced("\n".join(flame_lines(block.root)), "text")
    if isinstance(block, FileLines):
        title = f"{code(block.file.path)} ({prose(block.file.remarks)})"
        text = "\n".join(diff_lines(block.file))
        return f"{title}\n\n{fenced(text, 'diff')}" if text else title
    raise AssertionError(block)


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


def prose(text: str) -> str:
    """A sentence in which nothing acts as markup.

    GitHub makes links, mentions and formulas after Markdown (``@name``, ``#123``, ``$``): those words stand
    in code spans, since no backslash or entity stops it (github/markup#1168, github/cmark-gfm#181).
    """
    shown = _WORD.sub(lambda word: _harmless(word[0]), line(text, 1000).strip())
    return _BLOCK.sub(lambda begin: f"{begin[1] or ''}\\", shown)


_WORD = re.compile(r"\S+")
_ACTS = re.compile(r"@|\$|#\d|\bGH-\d|://|\bwww\.", re.IGNORECASE)
"""In a word: GitHub would link, mention, or set a formula. An ``@`` amid a word mentions nobody, and makes a
mail address of ``random@r0.1``."""

_INSIDE = re.compile(r"(?P<before>[(\['\"]*)(?P<word>.*?)(?P<after>[)\]'\".,;:!?]*)")
_MARKUP = re.compile(r"[`*\[\]|~]|\\(?=[!-/:-@[-`{-~]|$)|(?<![^\W_])_+|_+(?![^\W_])")
"""What may act anywhere: of underscores only those that are not amid a word."""

_ENTITY = re.compile(r"&(?=#?\w+;)")
_BLOCK = re.compile(r"^(?:(\d{1,9})(?=[.)](?:\s|$))|(?=>|(?:#{1,6}|[-+])(?:\s|$)|-{2,}\s*$|=+\s*$))")
"""How a heading, a quotation, a list or a rule begins."""


def _harmless(word: str) -> str:
    if not _ACTS.search(word):
        return _escaped(word)
    found = _INSIDE.fullmatch(word)
    if found is None or not found["word"] or "`" in word:
        return code(word)
    return _escaped(found["before"]) + code(found["word"]) + _escaped(found["after"])


def _escaped(text: str) -> str:
    marked = _MARKUP.sub(lambda mark: "".join(f"\\{c}" for c in mark[0]), _ENTITY.sub("&amp;", text))
    return marked.replace("<", "&lt;")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table of Markdown."""
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*out, *("| " + " | ".join(row) + " |" for row in rows)])
