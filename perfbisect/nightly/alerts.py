"""What a night reads out of the series: its points come in, changes are judged, alerts open and close."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

from perfbisect.jobs.folders import Job
from perfbisect.nightly.config import AlertRules
from perfbisect.nightly.model import NightAlert
from perfbisect.series.alerts import Alert
from perfbisect.series.detect import SeriesAnalysis, look, remember
from perfbisect.series.detection.model import FEWEST
from perfbisect.series.ingest import ingest
from perfbisect.series.series import night_of
from perfbisect.series.sources import Asked
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.table import Table

_OVER = "by rule: the series is back where it was"
_AGAIN = "by rule: the series is not where it was, after all"
_GONE = "by rule: it is not found any more in the nights up to"


def bring_in(store: SeriesStore, jobs: Iterable[Job]) -> str:
    """The launches of these jobs as points of the store; what came, in words.

    :raises LocatedError: a journal that was changed.
    :raises MachineError: the store.
    """
    paths = [str(job.path) for job in jobs if job.journal.exists()]
    done = ingest(store, paths, Asked(), source="journals") if paths else None
    if done is None:
        return "nothing was measured"
    lost = sum(done.rejected.values())
    return f"{done.points} points" + (f", {lost} launches without a measurement" if lost else "")


def judge(
    store: SeriesStore, table: Table, rules: AlertRules
) -> tuple[SeriesAnalysis, tuple[NightAlert, ...]]:
    """What the series show, and what the night does to their alerts; nothing is written.

    :raises UsageError: the store has no points.
    """
    seen = look(store, table, rules.fdr)
    by_rule = {record.alert.id for record in seen.known if record.by_rule}
    changed = [_change(alert, alert.id in by_rule, rules) for alert in seen.alerts_since(rules.since)]
    here = {alert.id for alert in seen.alerts}
    gone = [
        record.alert for record in seen.known if record.alert.state == "open" and record.alert.id not in here
    ]
    found = tuple(one for one in changed if one is not None)
    return seen, (*found, *(_gone(alert, seen.until) for alert in gone))


def machines(seen: SeriesAnalysis, cells: Container[str], since: str) -> Iterator[str]:
    """What a reader must know where cells are measured on another kind of machine for the first time, on the
    night ``since`` or later."""
    found: dict[tuple[str, str], int] = {}
    for one in seen.begun:
        if one.first.night >= since and one.first.cell in cells:
            key = (one.before.night, one.what)
            found[key] = found.get(key, 0) + 1
    for (night, what), count in found.items():
        who = "a cell begin" if count == 1 else f"{count} cells begin"
        yield (
            f"the machine is another one since {night}: {what}. The series of {who} anew: nothing is "
            "compared with the nights before"
        )


def unjudged(seen: SeriesAnalysis, cells: Container[str]) -> dict[str, int]:
    """Cells of which nothing can be told yet -> the nights that they have, on the machine of the last one."""
    latest: dict[str, int] = {}
    for one in seen.series:
        if one.cell in cells and night_of(one.nights[-1]) == seen.until:
            latest[one.cell] = max(latest.get(one.cell, 0), len(one.nights))
    return {cell: nights for cell, nights in sorted(latest.items()) if nights < FEWEST}


def write_down(
    store: SeriesStore, seen: SeriesAnalysis, alerts: Sequence[NightAlert], rules: AlertRules, now: str
) -> str:
    """Writes down what was judged; where, in words. Safe to do twice, also after people said something in
    between."""
    remember(store, seen, now, rules.since)
    known = {record.alert.id: record for record in store.alerts.all()}
    with store.transaction():
        for one in alerts:
            record = known.get(one.alert.id)
            if record is None:
                continue
            is_over = one.change == "closed" and record.alert.state == "open"
            is_back = one.change == "reopened" and record.alert.state == "closed" and record.by_rule
            if is_over or is_back:
                store.alerts.mark(one.alert.id, one.alert.state, one.alert.why, by_rule=True)
    return f"written down in {store.path.name}"


def _change(alert: Alert, by_rule: bool, rules: AlertRules) -> NightAlert | None:
    """What the night does to an alert; None for one that is settled and stays so. ``by_rule``: its state was
    set by a night before."""
    counts = _counts(alert, rules)
    if alert.new and not alert.recovered:
        return NightAlert(alert, "opened", counts)
    if alert.state == "closed" and by_rule and not alert.recovered:
        return NightAlert(replace(alert, state="open", why=_AGAIN), "reopened", counts)
    if alert.state == "closed":
        return None  # People's word, or over since an earlier night.
    if alert.recovered and alert.state == "open":
        return NightAlert(replace(alert, state="closed", why=_OVER), "closed", counts)
    return NightAlert(alert, "updated", counts)


def _counts(alert: Alert, rules: AlertRules) -> bool:
    """Whether an alert is a finding by the rules of the configuration."""
    return (
        alert.cause in rules.causes
        and abs(alert.effect) >= rules.least
        and (alert.worse or rules.improvements)
        and not alert.recovered
    )


def _gone(alert: Alert, until: str) -> NightAlert:
    """An open alert that the nights up to this one do not show any more."""
    return NightAlert(replace(alert, state="closed", why=f"{_GONE} {until}"), "closed", counts=False)
