"""Adds a night's launches to the series and moves alerts by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from perfbisect.commands.outcomes import measured_outcomes
from perfbisect.jobs.folders import Job
from perfbisect.nightly.config import AlertRules
from perfbisect.nightly.journal import reason_text
from perfbisect.nightly.model import NightFindings
from perfbisect.report.template import render_sentences
from perfbisect.series.alerts import Alert
from perfbisect.series.detect import SeriesAnalysis, analyze_series
from perfbisect.series.detection.model import FEWEST
from perfbisect.series.nightly_report import build_nightly_report
from perfbisect.series.points import night_of
from perfbisect.series.report import sentences_of
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.table import SuspectTable


def judge_series(
    store: SeriesStore,
    table: SuspectTable,
    rules: AlertRules,
    cells: Mapping[tuple[str, str], str] | None = None,
    since: str = "",
    jobs: Iterable[Job] = (),
) -> tuple[SeriesAnalysis, NightFindings]:
    """Analyse the series and decide what happens to their alerts; writes nothing.

    ``cells``: those of the night, which began on the day ``since``: cell and machine of a series -> its name
    in the night. ``jobs``: their bisections say which commit is behind an alert.
    """
    cells = cells or {}
    analysis = analyze_series(store, table, rules.fdr)
    begun = [
        start
        for start in analysis.machine_starts
        if start.first.night >= since and (start.first.cell, start.first.machine) in cells
    ]
    differences = sentences_of("differences", (start.change for start in begun))
    restarted = Counter(zip((start.before.night for start in begun), differences, strict=True))
    nights: dict[str, int] = {}
    for series in analysis.series:
        name = cells.get((series.points[-1].cell, series.points[-1].machine))
        if name is not None and night_of(series.nights[-1]) == analysis.until:
            nights[name] = max(nights.get(name, 0), len(series.nights))
    # Cells whose series are too short to judge, with their nights on the current machine.
    unjudged = {cell: count for cell, count in sorted(nights.items()) if count < FEWEST}
    notes = {"restarted": restarted, "unjudged": unjudged, "fewest": FEWEST}
    outcomes = measured_outcomes(store, analysis, jobs, None)
    changed = (_change_alert(alert, rules) for alert in analysis.alerts_since(rules.since))
    # A change at the edge of significance may lose its alert when nights are added.
    current = {alert.id for alert in analysis.alerts}
    why = reason_text("by rule: vanished", until=analysis.until)
    vanished = (
        replace(alert, state="closed", why=why, change="closed")
        for alert in analysis.known
        if alert.state == "open" and not alert.is_of_person and alert.id not in current
    )
    return analysis, NightFindings(
        alerts=(
            *(replace(alert, measured=outcomes.get(alert.id)) for alert in changed if alert is not None),
            *vanished,
        ),
        rows=build_nightly_report(analysis, fdr=rules.fdr).rows,
        notes=render_sentences("nightly/templates/notes.jinja", notes),
        unjudged=unjudged,
    )


def store_alerts(
    store: SeriesStore, analysis: SeriesAnalysis, alerts: Sequence[Alert], rules: AlertRules, now: str
) -> str:
    """Write the alerts to the store; idempotent, and states set by people meanwhile are kept."""
    with store.transaction():
        store.memory.keep_judged()
        store.alerts.keep(replace(alert, seen=now) for alert in analysis.alerts_since(rules.since))
    stored = {alert.id: alert for alert in store.alerts.all()}
    with store.transaction():
        for alert in alerts:
            before = stored.get(alert.id)
            if before is None:
                continue
            closes = alert.change == "closed" and before.state == "open" and not before.is_of_person
            reopens = alert.change == "reopened" and before.state == "closed" and before.by_rule
            if closes or reopens:
                store.alerts.mark(alert.id, alert.state, alert.why, by_rule=True)
    return f"stored in {store.path.name}"


def _change_alert(alert: Alert, rules: AlertRules) -> Alert | None:
    """Decide the change of an alert; None if it stays closed."""
    is_large = alert.cause in rules.causes and abs(alert.effect) >= rules.smallest
    is_finding = is_large and (alert.worse or rules.improvements) and not alert.recovered
    alert = replace(alert, counts=is_finding)
    if alert.new and not alert.recovered:
        return replace(alert, change="opened")
    if alert.state == "closed" and alert.by_rule and not alert.recovered:
        return replace(alert, change="reopened", state="open", why=reason_text("by rule: relapse"))
    if alert.state == "closed":
        # Closed by people, or recovered on an earlier night.
        return None
    if alert.recovered and alert.state == "open" and not alert.is_of_person:
        return replace(alert, change="closed", state="closed", why=reason_text("by rule: back"))
    return replace(alert, change="updated")
