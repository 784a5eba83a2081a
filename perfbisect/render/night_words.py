"""What a night says, in a few words: for a title, a message, the first line of a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from perfbisect.render.detect_lines import size_words
from perfbisect.render.nightly_documents import NightAlertDocument, NightBisectionDocument, NightlyDocument
from perfbisect.render.numbers import probability

NOTHING = "nothing new"


def summary(document: NightlyDocument) -> str:
    """A few words: the findings first, then what failed, else that there is nothing."""
    opened = [alert for alert in findings(document) if alert.change in ("opened", "reopened")]
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
    return ", ".join(filter(None, parts)) or NOTHING


def findings(document: NightlyDocument) -> list[NightAlertDocument]:
    """The alerts that are findings by the rules of the configuration: one for each event, as the night tells
    them."""
    found: dict[tuple[str, str], NightAlertDocument] = {}
    for alert in document.alerts:
        key = (alert.event, alert.change)
        if alert.counts and (key not in found or abs(alert.effect) > abs(found[key].effect)):
            found[key] = alert
    return list(found.values())


def alert_words(alert: NightAlertDocument) -> str:
    """An alert in one line."""
    how = "worse" if alert.worse else "better"
    recovered = ", recovered" if alert.recovered else ""
    return (
        f"{alert.change}: {size_words(alert.effect)} of {alert.metric} in {alert.cell}, {how}, since "
        f"{alert.first[:10]}: {alert.cause}, {alert.shape}{recovered} ({alert.id})"
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


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
