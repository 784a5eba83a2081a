"""Reports from templates: Markdown with values, read into the value that every rendering is made from.

========================  ==========================================================
``# title: [word](tone)`` title, verdict and its tone
``> **+4 %** meaning``    one of the few numbers that stand first
``## title``              a section
``### title``             a section of details, which a terminal leaves out
``*whole paragraph*``     an explanation in small print
an empty head             a table of two columns under it has labels and values
``{{ highlight }}``       in a row of a table: it stands out
a fence ``sh``            text to copy; ``sh next``: a command to run, with its label
``![caption](name)``      a figure, or other blocks, by name; nothing where there are none
``---``                   the footer follows
========================  ==========================================================

A printed value is text or an integer, and is never markup, whoever wrote it. ``~`` joins plain text only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, get_args
from urllib.parse import unquote

from perfbisect.common.quantities import (
    counted,
    minutes,
    number,
    percent,
    probability,
    spent_text,
    whole_percent,
    with_unit,
)
from perfbisect.report.diffs import DiffFileDocument
from perfbisect.report.document import (
    Block,
    Code,
    Column,
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
    Span,
    Table,
    Tone,
    Verdict,
    code,
    parts_of,
    strong,
)
from perfbisect.report.flames import FlameDocument
from perfbisect.report.plots import Plot
from perfbisect.report.sections import cell_rows

if TYPE_CHECKING:
    from jinja2 import Environment
    from markdown_it.tree import SyntaxTreeNode

_PACKAGE = Path(__file__).parent.parent
_HIGHLIGHT = "\ue002"
_VALUE = re.compile("\ue000([0-9a-f]*)\ue001")
"""A printed value in hexadecimal digits: one word, which no parser of Markdown reads into."""

_FILTERS: tuple[Callable[..., object], ...] = (
    whole_percent,
    cell_rows,
    counted,
    median,
    minutes,
    number,
    percent,
    probability,
    spent_text,
    with_unit,
)

Plotted = Plot | FlameDocument | DiffFileDocument | tuple[Block, ...] | None
"""A plot, a difference flame graph, a file of a diff, blocks that were made elsewhere."""


def render_report(
    template: str, values: Mapping[str, object], figures: Mapping[str, Plotted] | None = None
) -> Report:
    """The report of a template, which is named by its path from the package's root."""
    reader = _Reader(template, figures or {})
    reader.read(_markdown(template, values))
    return reader.report()


def render_sentences(template: str, values: Mapping[str, object]) -> tuple[str, ...]:
    """The paragraphs of a template that has nothing else, as plain text."""
    reader = _Reader(template, {})
    reader.read(_markdown(template, values))
    return tuple(_plain(block.text) for block in reader.summary if isinstance(block, Paragraph))


def _markdown(template: str, values: Mapping[str, object]) -> str:
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    # Slow to import, and only a report needs it.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined
    from markupsafe import Markup

    def sealed(value: object) -> object:
        if hasattr(value, "__html__"):  # of a macro, whose values are sealed already
            return value
        text = str(value)
        if not isinstance(value, str | int | Undefined):
            raise TypeError(f"a template prints text and integers, not {value!r}")
        return Markup(f"\ue000{text.encode('utf-8', 'surrogatepass').hex()}\ue001")

    environment = Environment(
        loader=FileSystemLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=sealed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {made.__name__: made for made in _FILTERS}
    environment.globals["highlight"] = Markup(_HIGHLIGHT)
    return environment


@cache
def _parse() -> Callable[[str], SyntaxTreeNode]:
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    return lambda text: SyntaxTreeNode(parser.parse(text))


class _Reader:
    """Reads the nodes of a rendered template in their order."""

    def __init__(self, template: str, figures: Mapping[str, Plotted]) -> None:
        self._template, self._figures = template, figures
        self._title, self._verdict = "", Verdict("")
        self._highlights: list[tuple[str, str]] = []
        self._sections: list[tuple[str, bool, list[Block]]] = []
        self._footer: str | None = None
        self.summary: list[Block] = []

    def read(self, text: str) -> None:
        for node in _parse()(text).children:
            if node.type == "heading":
                self._read_heading(node)
            elif node.type == "hr":
                self._footer = ""
            elif node.type == "blockquote":
                for value, *meaning in map(_parts, node.children):
                    shown = _plain(_inline(value.children)), _plain(_inline(meaning)).strip()
                    self._highlights.append(shown)
            elif self._footer is not None:
                self._footer += _plain(_inline(_parts(node)))
            else:
                blocks = self._sections[-1][2] if self._sections else self.summary
                blocks += self._blocks(node)

    def report(self) -> Report:
        """What was read; a section without blocks is left out."""
        sections = (
            Section(title, tuple(blocks), detail) for title, detail, blocks in self._sections if blocks
        )
        return Report(
            self._title,
            self._verdict,
            tuple(self.summary),
            tuple(sections),
            tuple(self._highlights),
            self._footer or "",
        )

    def _read_heading(self, node: SyntaxTreeNode) -> None:
        parts = _parts(node)
        if node.tag != "h1":
            self._sections.append((_plain(_inline(parts)), node.tag == "h3", []))
            return
        *title, verdict = parts
        tone = _address(verdict, "href")
        if tone not in get_args(Tone):
            raise ValueError(f"{self._template}: {tone!r} is no tone of a verdict")
        self._title = _plain(_inline(title)).rstrip(": ")
        self._verdict = Verdict(_plain(_inline(verdict.children)), tone)  # type: ignore[arg-type]

    def _blocks(self, node: SyntaxTreeNode) -> Iterator[Block]:
        if node.type == "paragraph":
            parts = _parts(node)
            if len(parts) == 1 and parts[0].type == "image":
                name = _address(parts[0], "src")
                yield from self._figure(name, _plain(_inline(parts[0].children)))
            elif len(parts) == 1 and parts[0].type == "em":
                yield Paragraph(_inline(parts[0].children), quiet=True)
            else:
                yield Paragraph(_inline(parts))
        elif node.type == "bullet_list":
            yield Items(tuple(_inline(_parts(item.children[0])) for item in node.children))
        elif node.type == "table":
            yield _table(node)
        elif node.type == "fence":
            language, _, label = node.info.partition(" ")
            text = _text(node.content.removesuffix("\n"))
            yield Command(text, label) if label else Code(text, language)
        else:
            raise ValueError(f"{self._template}: a report has no {node.type}")

    def _figure(self, name: str, caption: str) -> tuple[Block, ...]:
        plotted = self._figures.get(name)
        if plotted is None or isinstance(plotted, tuple):
            return plotted or ()
        if isinstance(plotted, FlameDocument):
            return (FlameGraph(caption, plotted),)
        if isinstance(plotted, DiffFileDocument):
            return (FileLines(plotted),)
        return (Figure(name, caption, plotted),)


def _parts(node: SyntaxTreeNode) -> list[SyntaxTreeNode]:
    """The inline nodes of a paragraph, heading or cell."""
    return [
        part for part in node.children[0].children if part.type != "text" or part.content.strip(_HIGHLIGHT)
    ]


def _table(node: SyntaxTreeNode) -> Table | KeyValues:
    head, *bodies = node.children
    columns = tuple(
        Column(_plain(_cell(cell)), "right" in str(cell.attrs.get("style", "")))
        for cell in head.children[0].children
    )
    rows = [row.children for body in bodies for row in body.children]
    if not any(column.title for column in columns):
        return KeyValues(tuple((_plain(_cell(label)), _cell(value)) for label, value in rows))
    marked = (any(_HIGHLIGHT in cell.children[0].content for cell in row) for row in rows)
    return Table(
        columns,
        tuple(tuple(map(_cell, row)) for row in rows),
        frozenset(index for index, is_marked in enumerate(marked) if is_marked),
    )


def _cell(node: SyntaxTreeNode) -> Inline:
    return _inline(_parts(node))


def _inline(nodes: Sequence[SyntaxTreeNode]) -> Inline:
    """Text with its emphasis; spans of plain text that touch are one."""
    parts: list[str | Span] = []
    for node in nodes:
        if node.type == "strong":
            parts.append(strong(_plain(_inline(node.children))))
        elif node.type == "code_inline":
            parts.append(code(_text(node.content)))
        elif node.type not in ("text", "softbreak"):
            raise ValueError(f"text of a report has no {node.type}: {node.content or node.children!r}")
        else:
            text = " " if node.type == "softbreak" else _text(node.content)
            if parts and isinstance(parts[-1], str):
                text = f"{parts.pop()}{text}"
            parts.append(text)
    return parts[0] if len(parts) == 1 else tuple(parts) or ""


def _text(raw: str) -> str:
    """What a parser left of a template's own text, with the values that were printed in it."""
    return _VALUE.sub(
        lambda found: bytes.fromhex(found[1]).decode("utf-8", "surrogatepass"), raw.replace(_HIGHLIGHT, "")
    )


def _address(node: SyntaxTreeNode, name: str) -> str:
    return _text(unquote(str(node.attrs[name])))


def _plain(text: Inline) -> str:
    return "".join(part.text for part in parts_of(text))
