"""A report as a value: one description, rendered for terminal, Markdown and HTML.

A domain's report module turns its result into a :class:`Report`; nothing reads a decision out of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfbisect.report.diffs import DiffFileDocument
from perfbisect.report.flames import FlameDocument
from perfbisect.report.plots import Plot

Tone = Literal["good", "bad", "open", "neutral"]
"""The colour of a verdict: nothing to do, act, undecided, or no verdict at all."""


@dataclass(frozen=True)
class Span:
    """Text with an emphasis. ``code``: text of others or to be typed, shown verbatim."""

    text: str
    style: Literal["plain", "code", "strong"] = "plain"


Inline = str | Span | tuple[str | Span, ...]
"""Text of a line or a table cell; a plain string is our own prose."""


@dataclass(frozen=True)
class Paragraph:
    """One paragraph. ``quiet``: an explanation that HTML and Markdown show in small print."""

    text: Inline
    quiet: bool = False


@dataclass(frozen=True)
class Items:
    """A bulleted list, folded away where it is long."""

    items: tuple[Inline, ...]


@dataclass(frozen=True)
class Column:
    """A column of a table; numbers are aligned right."""

    title: str
    numeric: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under columns. ``highlighted``: indices of rows that stand out."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Inline, ...], ...]
    highlighted: frozenset[int] = frozenset()


@dataclass(frozen=True)
class KeyValues:
    """Labels with their values."""

    rows: tuple[tuple[str, Inline], ...]


@dataclass(frozen=True)
class Code:
    """Text that is shown as it is, such as a command line to copy."""

    text: str
    language: str = "sh"


@dataclass(frozen=True)
class Command:
    """A command that the reader may run next."""

    text: str
    label: str = "next"


@dataclass(frozen=True)
class Figure:
    """A plot for HTML; the other renderings leave it out."""

    name: str
    caption: str
    plot: Plot


@dataclass(frozen=True)
class FlameGraph:
    """A difference flame graph: drawn in HTML, its largest differences as indented lines elsewhere."""

    caption: str
    root: FlameDocument


@dataclass(frozen=True)
class FileLines:
    """The lines of a file of a diff, with a column for marks."""

    file: DiffFileDocument


Block = Paragraph | Items | Table | KeyValues | Code | Command | Figure | FlameGraph | FileLines


@dataclass(frozen=True)
class Section:
    """Blocks under a heading. ``detail``: left out on a terminal, which shows the result alone."""

    title: str
    blocks: tuple[Block, ...]
    detail: bool = False


@dataclass(frozen=True)
class Verdict:
    """The outcome in one or two words, and how it is to be taken."""

    text: str
    tone: Tone = "neutral"


@dataclass(frozen=True)
class Report:
    """What a job has to say.

    ``title``: what was done; ``highlights``: the few numbers that stand first, as (number, meaning);
    ``blocks``: the summary, in every rendering; ``sections``: the rest.
    """

    title: str
    verdict: Verdict
    blocks: tuple[Block, ...]
    sections: tuple[Section, ...] = ()
    highlights: tuple[tuple[str, str], ...] = ()
    footer: str = ""

    @property
    def heading(self) -> str:
        """The title and the verdict, the first line of a rendering."""
        return f"{self.title}: {self.verdict.text}"


def parts_of(text: Inline) -> tuple[Span, ...]:
    """The text as spans, whichever form it was given in."""
    items = text if isinstance(text, tuple) else (text,)
    return tuple(item if isinstance(item, Span) else Span(item) for item in items)


def code(text: str) -> Span:
    """Text of others, or to be typed."""
    return Span(text, "code")


def strong(text: str) -> Span:
    """Text that stands out."""
    return Span(text, "strong")
