"""``perfbisect track report``: the nightly report, in the table in which the nightlies are reported."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from perfbisect.core.alert import Alert
from perfbisect.core.reported_series import CellSeries, day_number
from perfbisect.jobs.track_detect import Seen, detect_document
from perfbisect.render.detect_documents import ReportRowDocument, TrackReportDocument
from perfbisect.store.series import SeriesStore

BAR = 0.10
"""Size from which on a change is an issue ..."""

DAYS = 3
"""... if it lasted for so many days: the nightlies' own rule."""

_LEVEL = 7
_LATEST = 3


def report(store: SeriesStore, seen: Seen, *, fdr: float) -> TrackReportDocument:
    """The nightly report of the last night: what is slow or fast now and was not before. Writes nothing."""
    newest = max(
        (point for one in seen.series for point in one.points), key=lambda point: (point.began, point.raw)
    )
    rows = tuple(row for alert in seen.alerts for row in _row(alert, seen))
    alarmed = {(alert.finding.series.cell, alert.finding.series.metric) for alert in seen.alerts}
    judged = sum(len(family.census.judged) for family in seen.families)
    return TrackReportDocument(
        night=seen.until,
        build=newest.build.name,
        commit=newest.build.commit,
        rows=tuple(sorted(rows, key=lambda row: (row.status, -abs(row.change), row.alert))),
        quiet=max(0, judged - len(alarmed)),
        detect=detect_document(seen, store, since="", fdr=fdr),
    )


def _row(alert: Alert, seen: Seen) -> Iterator[ReportRowDocument]:
    """A row for a change that is still there; nothing for one that is over, closed, or a transient."""
    finding, series = alert.finding, alert.finding.series
    lasting = finding.found.shape != "transient" or finding.until is None
    if alert.state == "closed" or alert.recovered or not lasting:
        return
    load = series.points[-1].workload
    latest = median(series.values[-_LATEST:][-len(finding.after) :])
    baseline = median([series.values[i] for i in finding.before[-_LEVEL:]])
    days = day_number(seen.until) - finding.first + 1
    change = latest - baseline if series.row.absolute else latest / baseline - 1
    yield ReportRowDocument(
        alert=alert.id,
        source=series.points[-1].build.pipeline,
        model=load.model,
        hardware=str(series.points[-1].covariates.get("hardware") or ""),
        type=_type(series),
        config=series.cell.rpartition("@")[2],
        test=load.test,
        metric=series.metric,
        unit=series.row.unit,
        latest=latest,
        baseline=baseline,
        change=change,
        status=_status(alert, change, days),
        days=days,
        cause=alert.cause.word,
    )


def _type(series: CellSeries) -> str:
    return {"typical": "median or total", "mean": "mean", "tail": "tail"}[series.part]


def _status(alert: Alert, change: float, days: int) -> str:
    worse = alert.finding.shift > 0
    if alert.cause.word in ("instrument", "workload", "night"):
        return f"{alert.cause.word} changed" if alert.cause.word != "night" else "a bad night"
    if not worse:
        return "improved"
    if alert.state == "acknowledged":
        return "known"
    return "regressed: an issue" if abs(change) > BAR and days >= DAYS else "regressed"
