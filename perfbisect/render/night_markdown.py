"""A night as Markdown: for an issue, a comment on a pull request, the summary of a job.

Everything that others wrote is shown as text: no markup, link or mention in it acts.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfbisect.core.night_values import NightCell
from perfbisect.render.markdown import prose, table
from perfbisect.render.night_words import alert_words, events, facts, failures, headline, search_words
from perfbisect.render.nightly_documents import NightlyDocument
from perfbisect.render.nightly_report import RULE, house_table
from perfbisect.render.numbers import with_unit
from perfbisect.render.safe import code

LARGEST = 65_000
"""Characters of an issue or a comment: GitHub takes 65,536."""

_EVIDENCE = 3


def night_markdown(document: NightlyDocument) -> str:
    """The whole night, the findings first."""
    parts = [
        f"## Nightly {prose(document.name)} of {document.began[:10]}: {prose(headline(document))}",
        table(("", ""), ((name, code(value)) for name, value in facts(document))),
        "\n".join(f"- {prose(note)}" for note in document.told),
        _findings(document),
        _searches(document),
        "### At another level than before\n\n" + house_table(document.rows) if document.rows else "",
        RULE if document.rows else "",
        _cells(document),
        _failed(document),
        f"Next: {code(document.next)}" if document.next else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def cut(text: str, most: int, *, size: type[str] | type[bytes] = str) -> str:
    """A text of ``most`` characters (or bytes of UTF-8) at most: its last lines give way to a note.

    :raises ValueError: not even the note fits.
    """
    note = "\n\n(Cut here: the report of the night has all of it.)\n"

    def length(part: str) -> int:
        return len(part.encode("utf-8")) if size is bytes else len(part)

    if length(text) <= most:
        return text
    left = most - length(note)
    if left < 0:
        raise ValueError(f"not even a note fits into {most}")
    kept: list[str] = []
    for line in text.splitlines():
        left -= length(line) + 1
        if left < 0:
            break
        kept.append(line)
    return "\n".join(kept) + note


def _findings(document: NightlyDocument) -> str:
    lines = []
    for told in events(document):
        lines.append(f"- {alert_words(told)}")
        if told.first.change != "updated":
            lines += [f"  - {prose(words)}" for words in told.first.evidence[:_EVIDENCE]]
    return "### What changed\n\n" + "\n".join(lines) if lines else ""


def _searches(document: NightlyDocument) -> str:
    lines = []
    for one in document.bisections:
        lines.append(f"- {prose(search_words(one))}")
        lines += [f"  - {prose(words)}" for words in one.sentences[:_EVIDENCE]]
        if one.good and one.bad:
            ends = f"good {code(one.good[:12])}, bad {code(one.bad[:12])}, {one.commits} commits"
            lines.append(f"  - {ends}{f', job {code(one.job)}' if one.job else ''}")
    return "### Which commit\n\n" + "\n".join(lines) if lines else ""


def _cells(document: NightlyDocument) -> str:
    if not document.cells:
        return ""
    head = ("Cell", "State", "Metric", "Value", "Launches", "Minutes", "Why")
    rows = table(head, (tuple(_cell(cell)) for cell in document.cells))
    return f"<details><summary>{len(document.cells)} cells</summary>\n\n{rows}\n\n</details>"


def _cell(cell: NightCell) -> Iterator[str]:
    yield code(cell.name)
    yield cell.state
    yield cell.metric
    yield with_unit(cell.value, cell.unit) if cell.value is not None else ""
    yield f"{cell.launches} of {cell.wanted}"
    yield f"{cell.minutes:.1f}"
    yield code(cell.reason) if cell.reason else ""


def _failed(document: NightlyDocument) -> str:
    lines = [f"- {code(what)}: {code(reason)}" for what, reason in failures(document)]
    return "### What failed\n\n" + "\n".join(lines) if lines else ""
