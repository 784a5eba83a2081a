"""What a night says, in a few words: for a title, a message, the first line of a summary."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from perfbisect.core.night_values import AlertChange
from perfbisect.render.detect_lines import size_words
from perfbisect.render.nightly_documents import (
    NightAlertDocument,
    NightBisectionDocument,
    NightlyDocument,
)
from perfbisect.render.numbers import probability
from perfbisect.render.safe import code

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
        f"{state}: {size_words(alert.effect)} of {code(alert.metric)} in {code(alert.cell)}, {how}; "
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
