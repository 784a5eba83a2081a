"""``perfbisect track report``: the nightly report, in the table in which the nightlies are reported."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Literal, get_args

from perfbisect.series.alerts import Alert, ReportRow, beside_worse
from perfbisect.series.detect import SeriesAnalysis, detect_document
from perfbisect.series.documents import TrackReportDocument
from perfbisect.series.render import size_words
from perfbisect.series.series import CellSeries

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
    rows = [ranked for alert in seen.alerts for ranked in _row(alert, seen)]
    alarmed = {(alert.cell, alert.metric) for alert in seen.alerts}
    judged = sum(len(family.census.judged) for family in seen.families)
    return TrackReportDocument(
        night=seen.until,
        build=newest.build.name,
        commit=newest.build.commit,
        engine=str(newest.covariates.get("engine") or ""),
        rows=tuple(ranked.row for ranked in sorted(rows, key=_order)),
        quiet=max(0, judged - len(alarmed)),
        detect=detect_document(seen, since="", fdr=fdr),
    )


@dataclass(frozen=True)
class _Ranked:
    """A row, and its place among those of other kinds."""

    rank: int
    row: ReportRow


def _row(alert: Alert, seen: SeriesAnalysis) -> Iterator[_Ranked]:
    """A row for a change that is still there; nothing for one that is over, closed, or a bad night's."""
    finding = seen.findings[alert.id]
    series = finding.series
    if alert.state == "closed" or alert.recovered or finding.is_over or alert.cause == "night":
        return
    load = series.points[-1].workload
    settled = len(finding.after) >= _LATEST
    latest = median(series.values[-_LATEST:]) if settled else series.values[-1]
    baseline = median([series.values[i] for i in finding.before[-_LEVEL:]])
    days = series.nights[-1] - finding.first + 1
    kind = _kind(alert)
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
        status=_status(kind, alert, latest / baseline - 1, days, _beside(alert, seen)),
        days=days,
        cause=alert.cause,
    )
    yield _Ranked(_KINDS.index(kind), row)


def _type(series: CellSeries) -> str:
    return {"typical": "median or total", "mean": "mean", "tail": "tail"}[series.part]


def _beside(alert: Alert, seen: SeriesAnalysis) -> str:
    """Of what became better: the regression of the same cell and event that it is a side of, in words."""
    worse = beside_worse(alert, seen.alerts)
    if worse is None:
        return ""
    return f" beside a regression ({worse.metric} {size_words(worse.effect)})"


_Kind = Literal["regressed", "known", "worse", "improved", "better", "few slower", "few faster", "redefined"]
"""What a row says, in the order in which rows are read."""

_KINDS: tuple[_Kind, ...] = get_args(_Kind)


def _kind(alert: Alert) -> _Kind:
    worse, cause = alert.worse, alert.cause
    if cause in ("instrument", "workload"):
        return "redefined"
    if alert.part != "typical":
        return "few slower" if worse else "few faster"
    if worse and alert.state == "acknowledged":
        return "known"
    if cause == "unknown":
        return "worse" if worse else "better"
    return "regressed" if worse else "improved"


def _status(kind: _Kind, alert: Alert, change: float, days: int, beside: str) -> str:
    since = f", {alert.now}" if alert.now in ("not measured since", "other requests since") else ""
    issue = not since and abs(change) > BAR and days >= DAYS
    sentences: dict[_Kind, str] = {
        "redefined": f"{alert.cause} changed",
        "few slower": "a few requests slower",
        "few faster": "a few requests faster",
        "known": "known",
        "worse": f"worse{beside}, cause unknown{since}",
        "better": f"better{beside}, cause unknown{since}",
        "improved": f"improved{beside}{since}",
        "regressed": "regressed: an issue" if issue else f"regressed{since}",
    }
    return sentences[kind]


def _order(ranked: _Ranked) -> tuple[int, float, str]:
    row = ranked.row
    return ranked.rank, -abs(math.log(row.latest / row.baseline)), row.alert
