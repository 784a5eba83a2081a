"""A night for a person: what was measured, what changed, which commit it is, and what comes next."""

from __future__ import annotations

from collections.abc import Iterator

from perfbisect.core.night_values import NightCell
from perfbisect.render.nightly_documents import (
    NightAlertDocument,
    NightBisectionDocument,
    NightlyDocument,
)
from perfbisect.render.numbers import minutes, percent, probability, with_unit
from perfbisect.render.safe import line
from perfbisect.render.track_lines import columns


def nightly_lines(document: NightlyDocument) -> Iterator[str]:
    """A night as it ended, or with ``--dry-run`` as it would be."""
    yield from _head(document)
    yield from columns([_cell(one) for one in _ordered(document)])
    for note in document.told:
        yield f"note: {line(note, 400)}"
    if document.dry_run:
        yield "Nothing was started."
    else:
        yield from _found(document)
    if document.next:
        yield f"next: {line(document.next, 400)}"


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


def _cell(cell: NightCell) -> list[str]:
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
