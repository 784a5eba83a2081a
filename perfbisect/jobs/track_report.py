"""``perfbisect track report``: the nightly report, in the table in which the nightlies are reported."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from perfbisect.core.alert import Alert, beside_worse
from perfbisect.core.reported_series import CellSeries
from perfbisect.jobs.track_detect import Seen, detect_document
from perfbisect.render.detect_documents import ReportRowDocument, TrackReportDocument
from perfbisect.render.detect_lines import size_words
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
        engine=str(newest.covariates.get("engine") or ""),
        rows=tuple(sorted(rows, key=_order)),
        quiet=max(0, judged - len(alarmed)),
        detect=detect_document(seen, store, since="", fdr=fdr),
    )


def _row(alert: Alert, seen: Seen) -> Iterator[ReportRowDocument]:
    """A row for a change that is still there; nothing for one that is over, closed, or a bad night's."""
    finding, series = alert.finding, alert.finding.series
    lasting = finding.found.shape != "transient" or finding.until is None
    if alert.state == "closed" or alert.recovered or not lasting or alert.cause.word == "night":
        return
    load = series.points[-1].workload
    settled = len(finding.after) >= _LATEST
    latest = median(series.values[-_LATEST:]) if settled else series.values[-1]
    baseline = median([series.values[i] for i in finding.before[-_LEVEL:]])
    days = series.nights[-1] - finding.first + 1
    yield ReportRowDocument(
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
        status=_status(alert, latest / baseline - 1, days, _beside(alert, seen)),
        days=days,
        cause=alert.cause.word,
    )


def _type(series: CellSeries) -> str:
    return {"typical": "median or total", "mean": "mean", "tail": "tail"}[series.part]


def _beside(alert: Alert, seen: Seen) -> str:
    """Of what became better: the regression of the same cell and event that it is a side of, in words."""
    worse = beside_worse(alert, seen.alerts)
    if worse is None:
        return ""
    return f" beside a regression ({worse.finding.series.metric} {size_words(worse.finding.found.effect)})"


def _status(alert: Alert, change: float, days: int, beside: str) -> str:
    worse, cause = alert.finding.shift > 0, alert.cause.word
    if cause in ("instrument", "workload"):
        return f"{cause} changed"
    if alert.finding.series.part != "typical":
        return f"a few requests {'slower' if worse else 'faster'}"
    if worse and alert.state == "acknowledged":
        return "known"
    since = f", {alert.now}" if alert.now in ("not measured since", "other requests since") else ""
    if cause == "unknown":
        return f"{'worse' if worse else 'better'}{beside}, cause unknown{since}"
    if not worse:
        return f"improved{beside}{since}"
    return "regressed: an issue" if not since and abs(change) > BAR and days >= DAYS else f"regressed{since}"


_STATUS = ("regressed", "known", "worse", "improved", "better", "a few requests slower", "a few requests")
"""In which order rows are read, by how their status begins; the others come last."""


def _order(row: ReportRowDocument) -> tuple[int, float, str]:
    place = next((i for i, word in enumerate(_STATUS) if row.status.startswith(word)), len(_STATUS))
    return place, -abs(math.log(row.latest / row.baseline)), row.alert
