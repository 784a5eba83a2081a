"""Reports as lines for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len

from perfbisect.common.text import line, lines
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
    Section,
    Table,
    parts_of,
)
from perfbisect.report.flames import flame_lines

_LONGEST = 1000
_LONGEST_COMMAND = 4000
_INDENT = "  "
_WORD = re.compile(r"\s*(?:P\(no change\)|\S)+")
_WHOLE = re.compile(
    r"\s*(?:serve|bench|next:|where:|log:|stop:|report:|folder:"
    r"|(?:(?:run|to [a-z ]+): )?(?:perfbisect|git))\s"
)
"""Commands and places: a terminal folds them so that they can be copied whole, we would break them."""
_FURTHER = 4


def report_lines(report: Report) -> list[str]:
    """The heading, the summary, and every section that is no detail."""
    out = [line(report.heading, _LONGEST), *block_lines(report.blocks)]
    for section in report.sections:
        if not section.detail:
            out += ["", *section_lines(section)]
    return out


def section_lines(section: Section) -> list[str]:
    """The heading, and the blocks under it."""
    return [section.title, *block_lines(section.blocks)]


def block_lines(blocks: Iterable[Block]) -> list[str]:
    """Blocks as indented lines; figures are left out."""
    return [text for block in blocks for text in _lines_of(block)]


def plain(text: Inline) -> str:
    """Text without its emphasis, harmless on a terminal."""
    return "".join(line(part.text, _LONGEST) for part in parts_of(text))


def _lines_of(block: Block) -> list[str]:
    if isinstance(block, Paragraph):
        return [_INDENT + plain(block.text)]
    if isinstance(block, Items):
        return [f"{_INDENT}- {plain(item)}" for item in block.items]
    if isinstance(block, Table):
        head = tuple(column.title for column in block.columns)
        rows = [head, *(tuple(plain(cell) for cell in row) for row in block.rows)]
        # In columns, not characters: East Asian characters take two.
        widths = [max(cell_len(row[index]) for row in rows) for index in range(len(head))]
        return [_INDENT + _row(row, widths, block) for row in rows]
    if isinstance(block, KeyValues):
        width = max((cell_len(label) for label, _ in block.rows), default=0)
        return [f"{_INDENT}{_padded(label, width)}  {plain(value)}".rstrip() for label, value in block.rows]
    if isinstance(block, Code):
        return [_INDENT + text for text in lines(block.text).split("\n")]
    if isinstance(block, Command):
        return [f"{_INDENT}{block.label}: {line(block.text, _LONGEST_COMMAND)}"]
    if isinstance(block, Figure):
        return []
    if isinstance(block, FlameGraph):
        return [_INDENT + line(text, _LONGEST) for text in flame_lines(block.root)]
    if isinstance(block, FileLines):
        title = f"{block.file.path} ({block.file.remarks})"
        return [_INDENT + line(text, _LONGEST) for text in (title, *diff_lines(block.file))]
    raise AssertionError(block)


def _row(cells: Sequence[str], widths: Sequence[int], table: Table) -> str:
    aligned = [
        _padded(cell, width, right=column.numeric)
        for cell, width, column in zip(cells, widths, table.columns, strict=True)
    ]
    return "  ".join(aligned).rstrip()


def _padded(text: str, width: int, *, right: bool = False) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def fitted(text: str, width: int) -> list[str]:
    """A line as lines of at most ``width`` columns, broken between words, the rest indented further.

    A word that is wider stays whole, as do commands and text of several lines.
    """
    if cell_len(text) <= width or "\n" in text or _WHOLE.match(text):
        return [text]
    indent = " " * min(len(text) - len(text.lstrip()) + _FURTHER, max(0, width // 2))
    out, row = [], ""
    for word in _WORD.findall(text):
        if row.strip() and cell_len(row + word) > width:
            out.append(row)
            row = indent + word.lstrip()
        else:
            row += word
    return [*out, row]
