"""What a night says, in a few words: for a title, a message, the first line of a summary."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfbisect.common.numbers import minutes, percent, probability, with_unit
from perfbisect.common.text import code, line
from perfbisect.nightly.documents import NightAlertDocument, NightBisectionDocument, NightlyDocument
from perfbisect.nightly.model import AlertChange, NightCell
from perfbisect.report.markdown import text_markdown
from perfbisect.report.markdown_text import prose, table
from perfbisect.series.nightly_report import RULE, issue_table
from perfbisect.series.report import size_text


def nightly_lines(document: NightlyDocument) -> Iterator[str]:
    """A night as it ended, or with ``--dry-run`` as it would be."""
    yield from _head(document)
    yield from columns([_nightly_lines_cell(one) for one in _ordered(document)])
    for note in document.told:
        yield f"note: {line(note, 400)}"
    if document.dry_run:
        yield "Nothing was started."
    else:
        yield from _found(document)
    if document.next:
        yield f"next: {line(document.next, 400)}"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    shown = [[line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]


def _head(document: NightlyDocument) -> Iterator[str]:
    commit = document.commit
    what = "would measure" if document.dry_run else "measured"
    took = minutes(document.minutes)
    yield f"{document.name} {what} {commit.short} of {line(document.branch)}: {line(commit.subject, 80)}"
    yield (
        f"  {'about ' if document.dry_run else ''}{took} of {minutes(document.budget_minutes)}, "
        f"order drawn by seed {document.seed}"
        + (f", {line(document.hardware, 80)}" if document.hardware else "")
        + (f", engine {line(document.engine_version)}" if document.engine_version else "")
    )


def _ordered(document: NightlyDocument) -> list[NightCell]:
    """In the order of the first launches; those that have none behind."""
    places = {name: i for i, name in enumerate(document.order)}
    return sorted(document.cells, key=lambda one: (places.get(one.name, len(places)), one.name))


def _nightly_lines_cell(cell: NightCell) -> list[str]:
    if cell.state == "planned":
        foreseen = f"{cell.wanted} launches, about {minutes(cell.expected)} ({line(cell.foreseen)})"
        return ["", cell.name, cell.state, foreseen]
    if cell.state == "measured":
        value = f"{cell.metric} {with_unit(cell.value, cell.unit)}"
        told = f"{cell.launches} launches, {minutes(cell.minutes)}"
        return ["", cell.name, cell.state, "; ".join(filter(None, (value, told, line(cell.reason, 200))))]
    return ["", cell.name, cell.state, line(cell.reason, 200)]


def _found(document: NightlyDocument) -> Iterator[str]:
    for alert in document.alerts:
        if alert.change != "updated":
            yield f"  {_alert(alert)}"
    still = sum(alert.change == "updated" for alert in document.alerts)
    if still:
        yield f"  {still} alerts of earlier nights are still there"
    if not document.alerts:
        yield "  no alerts"
    for one in document.bisections:
        yield from _bisection(one)
    for step in document.steps:
        if step.state == "failed":
            where = f" ({line(step.where)})" if step.where else ""
            yield f"  {step.name} failed: {line(step.told, 300)}{where}"
    for kind, path in document.files.items():
        yield f"  {kind}: {path}"


def _alert(alert: NightAlertDocument) -> str:
    listed = "" if alert.counts else ", no finding by the rules"
    state = alert.change if alert.change != "closed" else f"closed, {line(alert.why, 100)}"
    return (
        f"{alert.id} {state}: {line(alert.cell)} {alert.metric} {percent(alert.effect)} since "
        f"{alert.first[:10]}, {alert.shape}, {alert.cause}{listed}"
    )


def _bisection(one: NightBisectionDocument) -> Iterator[str]:
    if one.culprit is None:
        yield f"  {one.event}: {one.state}: {line(one.why, 200)}"
        return
    sure = probability(one.probability)
    yield f"  {one.event}: {one.culprit.short} {line(one.culprit.subject, 80)} ({sure}; {line(one.why, 100)})"


NOTHING = "nothing new"
UNJUDGED = "nothing judged yet"
"""Of a night of which no cell has nights enough: it is no word of being well."""

_CHANGES: tuple[AlertChange, ...] = ("opened", "reopened", "closed", "updated")


def summary(document: NightlyDocument) -> str:
    """A few words: the findings first, then what failed, else that there is nothing, or nothing judged."""
    measured = [cell for cell in document.cells if cell.state == "measured"]
    blind = measured and all(cell.too_few_nights is not None for cell in measured)
    return ", ".join(_news(document)) or (UNJUDGED if blind else NOTHING)


def _news(document: NightlyDocument) -> list[str]:
    opened = [one for one in document.alerts if one.counts and one.change in ("opened", "reopened")]
    worse = len({alert.event for alert in opened if alert.worse})
    better = len({alert.event for alert in opened if not alert.worse})
    over = len({alert.event for alert in document.alerts if alert.change == "closed" and alert.worse})
    named = len([one for one in document.bisections if one.culprit is not None])
    failed = sum(cell.state == "failed" for cell in document.cells)
    broken = [step.name for step in document.steps if step.state == "failed"]
    parts = [
        _count(worse, "regression") if worse else "",
        _count(better, "improvement") if better else "",
        f"{_count(named, 'commit')} named" if named else "",
        f"{_count(over, 'regression')} over" if over else "",
        f"{_count(failed, 'cell')} failed" if failed else "",
        f"{' and '.join(broken)} failed" if broken else "",
    ]
    return [part for part in parts if part]


def headline(document: NightlyDocument) -> str:
    """The few words, with what earlier nights told and is still there."""
    still = {alert.event for alert in document.alerts if alert.change == "updated" and alert.counts}
    more = f"{_count(len(still), 'finding')} of earlier nights still there" if still else ""
    return "; ".join(filter(None, (summary(document), more)))


@dataclass(frozen=True)
class NightEvent:
    """What a night did to an event: its alerts, the one that stands for it first."""

    alerts: tuple[NightAlertDocument, ...]

    @property
    def first(self) -> NightAlertDocument:
        return self.alerts[0]

    @property
    def others(self) -> str:
        """How many more there are, in words; empty where this is the only one."""
        cells = len({alert.cell for alert in self.alerts})
        more = _count(len(self.alerts) - 1, "more series") if len(self.alerts) > 1 else ""
        return f"{more}, {cells} cells in all" if more and cells > 1 else more


def events(document: NightlyDocument) -> list[NightEvent]:
    """What the night did to each event: what is new first, findings before others, the largest first."""
    found: dict[tuple[str, str], list[NightAlertDocument]] = {}
    for alert in document.alerts:
        found.setdefault((alert.event, alert.change), []).append(alert)
    told = [NightEvent(tuple(sorted(alerts, key=_weight))) for alerts in found.values()]
    return sorted(told, key=lambda one: (_CHANGES.index(one.first.change), _weight(one.first)))


def alert_words(event: NightEvent) -> str:
    """An event in one line of Markdown."""
    alert = event.first
    how = "worse" if alert.worse else "better"
    state = "still there" if alert.change == "updated" else alert.change
    by_rule = alert.change in ("opened", "reopened") and not alert.counts
    marks = [
        f"since {alert.first[:10]}", f"{alert.cause}, {alert.shape}", event.others,
        "recovered" if alert.recovered else "", "no finding by the rules" if by_rule else "",
    ]  # fmt: skip
    return (
        f"{state}: {size_text(alert.effect)} of {code(alert.metric)} in {code(alert.cell)}, {how}; "
        f"{'; '.join(filter(None, marks))} ({code(alert.event)})"
    )


def search_words(one: NightBisectionDocument) -> str:
    """What came of an event's search in one line."""
    if one.culprit is None:
        return f"{one.event}: {one.state}: {one.why}"
    subject = f" {one.culprit.subject}" if one.culprit.subject else ""
    return (
        f"{one.event}: {one.culprit.short}{subject} (probability {probability(one.probability)}; {one.why})"
    )


def counts(document: NightlyDocument) -> str:
    """The cells by what became of them."""
    found = Counter(cell.state for cell in document.cells)
    return ", ".join(f"{count} {state}" for state, count in found.items()) or "no cells"


def failures(document: NightlyDocument) -> Iterator[tuple[str, str]]:
    """The cells and the steps that failed, with why."""
    yield from ((cell.name, cell.reason) for cell in document.cells if cell.state == "failed")
    yield from ((step.name, step.told) for step in document.steps if step.state == "failed")


def facts(document: NightlyDocument) -> Iterator[tuple[str, str]]:
    """What was measured on what: names and values; what is not known is left out."""
    commit = document.commit
    told = {
        "commit": f"{commit.short} {commit.subject}".strip(),
        "branch": document.branch,
        "engine": document.engine_version,
        "hardware": document.hardware,
        "cells": counts(document),
        "minutes": f"{document.minutes:.0f} of {document.budget_minutes:.0f}",
        "began": document.began[:19],
    }
    for name, value in told.items():
        if value:
            yield name, value


def _weight(alert: NightAlertDocument) -> tuple[bool, bool, float, str]:
    return not alert.counts, not alert.worse, -abs(math.log1p(max(alert.effect, -0.999999))), alert.id


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 or what.endswith('s') else 's'}"


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
        "### At another level than before\n\n" + _issues(document) if document.rows else "",
        RULE if document.rows else "",
        _cells(document),
        _failed(document),
        f"Next: {code(document.next)}" if document.next else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _issues(document: NightlyDocument) -> str:
    issues = issue_table(document.rows)
    head = tuple(column.title for column in issues.columns)
    return table(head, (tuple(text_markdown(cell) for cell in row) for row in issues.rows))


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
    for row in text.splitlines():
        left -= length(row) + 1
        if left < 0:
            break
        kept.append(row)
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
