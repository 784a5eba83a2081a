"""``perfbisect track report``: the nightly report, in the table in which the nightlies are reported."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from perfbisect.core.alert import Alert, ReportRow, beside_worse
from perfbisect.core.reported_series import CellSeries
from perfbisect.jobs.track_detect import SeriesAnalysis, detect_document
from perfbisect.render.detect_documents import TrackReportDocument
from perfbisect.render.detect_lines import size_words

BAR = 0.10
"""Size from which on a change is an issue ..."""

DAYS = 3
"""... if it lasted for so many days: the nightlies' own rule."""

_LEVEL = 7
_LATEST = 3


def report(seen: SeriesAnalysis, *, fdr: float) -> TrackReportDocument:
    """The nightly report of the last night: what is slow or fast now and was not before. Writes nothing."""
    newest = max(
        (point for one in seen.series for point in one.points), key=lambda point: (point.began, point.raw)
    )
    ranked = [pair for alert in seen.alerts for pair in _row(alert, seen)]
    alarmed = {(alert.cell, alert.metric) for alert in seen.alerts}
    judged = sum(len(family.census.judged) for family in seen.families)
    return TrackReportDocument(
        night=seen.until,
        build=newest.build.name,
        commit=newest.build.commit,
        engine=str(newest.covariates.get("engine") or ""),
        rows=tuple(row for _, row in sorted(ranked, key=_order)),
        quiet=max(0, judged - len(alarmed)),
        detect=detect_document(seen, since="", fdr=fdr),
    )


def _row(alert: Alert, seen: SeriesAnalysis) -> Iterator[tuple[int, ReportRow]]:
    """The rank and the row of a change that is still there; none of one that is over, closed or a night's."""
    finding = seen.findings[alert.id]
    series = finding.series
    if alert.state == "closed" or alert.recovered or finding.is_over or alert.cause == "night":
        return
    load = series.points[-1].workload
    settled = len(finding.after) >= _LATEST
    latest = median(series.values[-_LATEST:]) if settled else series.values[-1]
    baseline = median([series.values[i] for i in finding.before[-_LEVEL:]])
    days = series.nights[-1] - finding.first + 1
    rank, status = _status(alert, latest / baseline - 1, days, _beside(alert, seen))
    row = ReportRow(
        alert=alert.id,
        source=series.points[-1].build.pipeline,
        model=load.model,
        hardware=str(series.points[-1].covariates.get("hardware") or ""),
        type=_type(series),
        config=series.cell.partition("/")[2] or series.cell.partition("@")[2],
        test=load.test,
        metric=series.metric,
        unit=series.row.unit,
        latest=latest,
        baseline=baseline,
        change=latest / baseline - 1,
        status=status,
        days=days,
        cause=alert.cause,
    )
    yield rank, row


def _type(series: CellSeries) -> str:
    return {"typical": "median or total", "mean": "mean", "tail": "tail"}[series.part]


def _beside(alert: Alert, seen: SeriesAnalysis) -> str:
    """Of what became better: the regression of the same cell and event that it is a side of, in words."""
    worse = beside_worse(alert, seen.alerts)
    if worse is None:
        return ""
    return f" beside a regression ({worse.metric} {size_words(worse.effect)})"


def _status(alert: Alert, change: float, days: int, beside: str) -> tuple[int, str]:
    """The rank of a row, the most urgent 0, and its status in words."""
    worse, cause = alert.worse, alert.cause
    if cause in ("instrument", "workload"):
        return 7, f"{cause} changed"
    if alert.part != "typical":
        return (5, "a few requests slower") if worse else (6, "a few requests faster")
    if worse and alert.state == "acknowledged":
        return 1, "known"
    since = f", {alert.now}" if alert.now in ("not measured since", "other requests since") else ""
    if cause == "unknown":
        return 2 if worse else 4, f"{'worse' if worse else 'better'}{beside}, cause unknown{since}"
    if not worse:
        return 3, f"improved{beside}{since}"
    is_issue = not since and abs(change) > BAR and days >= DAYS
    return 0, "regressed: an issue" if is_issue else f"regressed{since}"


def _order(ranked: tuple[int, ReportRow]) -> tuple[int, float, str]:
    rank, row = ranked
    return rank, -abs(math.log(row.latest / row.baseline)), row.alert
