"""What a night reads out of the series: its points come in, changes are judged, alerts open and close."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from perfbisect.config.nightly import AlertRules
from perfbisect.core.alert import Alert, way
from perfbisect.core.reported_series import night_of
from perfbisect.core.series import FEWEST
from perfbisect.core.suspect_table import Table
from perfbisect.jobs.track_detect import Seen, alert_document, detect_document, look, remember
from perfbisect.jobs.track_ingest import ingest
from perfbisect.jobs.track_state import told
from perfbisect.render.detect_documents import DetectedDocument
from perfbisect.render.nightly_documents import AlertChange, NightAlertDocument
from perfbisect.sources import Asked
from perfbisect.store.alerts import Told
from perfbisect.store.jobs import Job
from perfbisect.store.series import SeriesStore

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


def judge(store: SeriesStore, table: Table, rules: AlertRules) -> tuple[Seen, tuple[NightAlertDocument, ...]]:
    """What the series show, and what the night does to their alerts; nothing is written.

    :raises UsageError: the store has no points.
    """
    seen = look(store, table, rules.fdr)
    shown = {one.id for one in detect_document(seen, store, since=rules.since, fdr=rules.fdr).alerts}
    found = [_change(one, rules) for one in seen.alerts if one.id in shown]
    here = {one.id for one in seen.alerts}
    gone = [one for one in store.alerts.all() if one.state == "open" and one.id not in here]
    return seen, (*(one for one in found if one is not None), *(_gone(one, seen.until) for one in gone))


def machines(seen: Seen, cells: Container[str], since: str) -> Iterator[str]:
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


def unjudged(seen: Seen, cells: Container[str]) -> dict[str, int]:
    """Cells of which nothing can be told yet -> the nights that they have, on the machine of the last one."""
    latest: dict[str, int] = {}
    for one in seen.series:
        if one.cell in cells and night_of(one.nights[-1]) == seen.until:
            latest[one.cell] = max(latest.get(one.cell, 0), len(one.nights))
    return {cell: nights for cell, nights in sorted(latest.items()) if nights < FEWEST}


def young(nights: Mapping[str, int]) -> Iterator[str]:
    """What a reader must know of cells with too few nights (of :func:`unjudged`)."""
    if not nights:
        return
    had = sorted(set(nights.values()))
    have = f"{had[0]}" if len(had) == 1 else f"{had[0]} to {had[-1]}"
    who = next(iter(nights)) if len(nights) == 1 else f"{len(nights)} cells"
    yield (
        f"not judged yet: {who}, with {have} of the {FEWEST} nights before which no change can be told; "
        "several runs of one day are one night"
    )


def write_down(
    store: SeriesStore, seen: Seen, alerts: Sequence[NightAlertDocument], rules: AlertRules, now: str
) -> str:
    """Writes down what was judged; where, in words. Safe to do twice, also after people said something in
    between."""
    remember(store, seen, detect_document(seen, store, since=rules.since, fdr=rules.fdr), now)
    states = {one.id: one for one in store.alerts.all()}
    with store.transaction():
        for one in alerts:
            known = states.get(one.id)
            if known is None:
                continue
            if one.change == "closed" and known.state == "open":
                store.alerts.mark(one.id, "closed", one.why, by_rule=True)
            elif one.change == "reopened" and known.state == "closed" and known.by_rule:
                store.alerts.mark(one.id, "open", one.why, by_rule=True)
    return f"written down in {store.path.name}"


def _change(alert: Alert, rules: AlertRules) -> NightAlertDocument | None:
    """What the night does to an alert; None for one that is settled and stays so."""
    by_rule = alert.state == "closed" and alert.by_rule
    if alert.new and not alert.recovered:
        return _told(alert, rules, "opened")
    if by_rule and not alert.recovered:
        return _told(alert, rules, "reopened", state="open", why=_AGAIN)
    if alert.state == "closed":
        return None  # People's word, or over since an earlier night.
    if alert.recovered and alert.state == "open":
        return _told(alert, rules, "closed", state="closed", why=_OVER)
    return _told(alert, rules, "updated")


def _gone(known: Told, until: str) -> NightAlertDocument:
    """An open alert that the nights up to this one do not show any more."""
    return _document(
        told(known), "closed", worse=known.way > 0, counts=False, state="closed", why=f"{_GONE} {until}"
    )


def _told(alert: Alert, rules: AlertRules, change: AlertChange, **other: Any) -> NightAlertDocument:
    document, worse = alert_document(alert), way(alert.finding) > 0
    counts = (
        alert.cause.word in rules.causes
        and abs(document.effect) >= rules.least
        and (worse or rules.improvements)
        and not alert.recovered
    )
    return _document(document, change, worse=worse, counts=counts, **other)


def _document(found: DetectedDocument, change: AlertChange, **other: Any) -> NightAlertDocument:
    """An alert as ``track detect`` tells it, and what the night does to it."""
    names = set(NightAlertDocument.model_fields) & set(DetectedDocument.model_fields)
    return NightAlertDocument.model_validate(
        {**{name: getattr(found, name) for name in names}, "change": change, **other}
    )
