"""Parts of a report in Markdown. Everything that others wrote stands in code spans."""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfbisect.common.numbers import minutes, number, with_unit
from perfbisect.common.text import block, code, line
from perfbisect.jobs.documents import ChangeDocument, CommandsDocument, LaunchDocument
from perfbisect.report.rows import version_rows


def cell_table(rows: Iterable[tuple[str, str]]) -> str:
    """What was measured, as the block that was shown before."""
    return "## What was measured\n\n" + table(("", ""), ((label, code(value)) for label, value in rows))


def launch_table(launches: Iterable[LaunchDocument], unit: str) -> str:
    """Every launch with its runs, and its slot where there are several; empty where there is no launch."""
    shown = list(launches)
    if not shown:
        return ""
    slots = len({x.slot for x in shown}) > 1
    rows = [
        (
            str(x.number),
            code(x.change.short),
            x.purpose,
            *((code(x.slot),) if slots else ()),
            with_unit(x.value, unit) if x.value is not None else x.outcome,
            " ".join(number(v) for v in x.values) or code(x.reason or "-"),
            minutes(x.minutes),
            x.started_at[:19],
        )
        for x in shown
    ]
    head = ("#", "change", "for", *(("slot",) if slots else ()), "value", "runs", "took", "began (UTC)")
    return "## Every launch\n\n" + table(head, rows)


def folded(rows: list[str]) -> list[str]:
    """Rows of a list, folded away where they are many."""
    if len(rows) <= 12:
        return rows
    return [f"<details><summary>{len(rows)} changes</summary>", "", *rows, "", "</details>"]


def minutes_table(phases: dict[str, float], total: float, lost: float, saved: float = 0.0) -> str:
    """Where the minutes went."""
    rows = [(phase, minutes(spent)) for phase, spent in phases.items()]
    rows += [("lost to failures that are no evidence", minutes(lost))] if lost else []
    rows.append(("all", minutes(total)))
    rows += [("saved, since work overlapped", minutes(saved))] if saved else []
    return "## Where the minutes went\n\n" + table(("phase", "time"), rows)


def reproduce(commands: CommandsDocument) -> str:
    """The commands of one attempt."""
    text = f"# serve {commands.change}\n{commands.serve}\n# bench\n{commands.bench}"
    if commands.perfbisect:
        text += f"\n# or all of it\n{commands.perfbisect}"
    return f"## Reproduce with\n\n{block(text, 'sh')}\n\n{prose(commands.note)}."


def version_table(versions: dict[str, object]) -> str:
    """What it was measured with."""
    rows = ((line(name), code(value)) for name, value in version_rows(versions))
    return "## Versions\n\n" + table(("", ""), rows)


def change(change: ChangeDocument) -> str:
    """A change with its subject."""
    return f"{code(change.short)} {code(change.subject)}" if change.subject else code(change.short)


def prose(text: str) -> str:
    """A sentence of ours with names of others in it: nothing in it acts as markup, and it can be read as it
    is.

    What GitHub makes a link or a mention of (``@name``, ``#123``, an address) or a formula (``$``) stands in
    a code span: it does so after Markdown, so that neither a backslash nor an entity keeps it from it
    (github/markup#1168, github/cmark-gfm#181).
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
