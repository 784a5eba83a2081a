"""The report of a night, and its lines for a chat."""

from __future__ import annotations

from collections import Counter

from perfbisect.common.quantities import counted
from perfbisect.nightly.model import Night, NightBisection, new_regressions
from perfbisect.report.document import Report, Tone
from perfbisect.report.template import render_report, render_sentences
from perfbisect.series.alerts import Alert, MeasuredOutcome, OutcomeCommit
from perfbisect.series.report import FUNCTIONS

# Slack interprets <!channel> in code, too.
_CHAT_SIGNS = str.maketrans({"`": "'", "<": "\u2039", ">": "\u203a"})
_CHANGE_ORDER = ("opened", "reopened", "closed", "updated")


def night_report(night: Night, *, paths: bool = False) -> Report:
    """Describe a night, findings first; of a dry run, its plan. ``paths``: list the local files."""
    states = Counter(cell.state for cell in night.cells)
    place = {name: index for index, name in enumerate(night.order)}
    tone: Tone = "open" if night.failed() or night.exit_code else "good"
    if night.dry_run:
        tone = "open" if night.failed() else "neutral"
    elif new_regressions(night.alerts):
        tone = "bad"
    events: dict[tuple[str, str], list[Alert]] = {}
    for alert in sorted(night.alerts, key=_rank):
        events.setdefault((alert.event, alert.change), []).append(alert)
    # Each event by its largest finding, new ones first.
    ordered = sorted(events.values(), key=lambda own: (_CHANGE_ORDER.index(own[0].change), _rank(own[0])))
    values = {
        "night": night,
        "tone": tone,
        "states": ", ".join(f"{count} {state}" for state, count in states.items()),
        "ordered": [(first, others) for first, *others in ordered],
        "cells": sorted(night.cells, key=lambda cell: (place.get(cell.name, len(place)), cell.name)),
        "on_fleet": any(cell.machine for cell in night.cells),
        "files": night.files if paths else {},
        "events": lambda alerts: len({alert.event for alert in alerts}),
        "counts_of": lambda count, noun, state: counted(count, noun) + state if count else "",
    }
    return render_report("nightly/templates/night.md.jinja", {**FUNCTIONS, **values})


def finding_texts(night: Night) -> tuple[str, ...]:
    """A line for each event that is new, whose commit was named or narrowed, or that is resolved."""
    named = {of.event: (of, outcome) for of in night.bisections if (outcome := _outcome(of)) is not None}
    events: dict[str, list[Alert]] = {}
    for alert in sorted(night.alerts, key=_rank):
        is_new, is_resolved = alert.is_opened and alert.counts, alert.change == "closed" and alert.worse
        if is_new or is_resolved or alert.event in named:
            events.setdefault(alert.event, []).append(alert)
    told = []
    for event, alerts in events.items():
        _, measured = named.pop(event, (None, None))
        told.append((alerts, measured or next((alert.measured for alert in alerts if alert.measured), None)))
    # As a code span of a chat, in which no mention, link or tag of a foreign text acts.
    chat_code = lambda text: f"`{text.translate(_CHAT_SIGNS)}`"  # noqa: E731
    pictures = {row.alert: row.picture for row in night.rows}
    values = {"told": told, "pictures": pictures, "searched": tuple(named.values()), "chat_code": chat_code}
    return render_sentences("nightly/templates/chat.md.jinja", {**FUNCTIONS, **values})


def _rank(alert: Alert) -> tuple[bool, bool, float, str]:
    return not alert.counts, not alert.worse, -alert.size, alert.id


def _outcome(bisection: NightBisection) -> MeasuredOutcome | None:
    """The commit that the night named, or those of which one made the step."""
    p, culprit = bisection.probability, bisection.culprit
    named = [(culprit, p)] if culprit else [
        (candidate.position.changes[0], candidate.probability) for candidate in bisection.candidates
    ]  # fmt: skip
    commits = tuple(OutcomeCommit.of(change, share) for change, share in named)
    return MeasuredOutcome(job=bisection.job, probability=p, commits=commits) if commits else None
