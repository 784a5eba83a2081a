"""``track report``: which series are at another level on the last night, as the nightlies report it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from statistics import fmean, median, pstdev
from typing import ClassVar, Literal, get_args

from pydantic import Field

from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document, LongDocument
from perfbisect.model.commit_details import CauseWord
from perfbisect.model.metric import parse_metric
from perfbisect.series.alerts import NO_OUTCOMES, Alert, AlertStatus, MeasuredOutcome, beside_worse
from perfbisect.series.detect import (
    SeriesAnalysis,
    TrackDetectDocument,
    detect_document,
    detected_changes,
)
from perfbisect.series.detection.model import SeriesRefusal
from perfbisect.series.points import night_of
from perfbisect.stats.two_sample import Scale

ISSUE_SIZE = 0.10
"""Size from which on a change is an issue ..."""

ISSUE_DAYS = 3
"""... if it lasted for so many days: the nightlies' own rule."""

_LEVEL_NIGHTS = 7
_LATEST_NIGHTS = 3
_NOT_COMPARED = ("not measured since", "other requests since")
"""Statuses of an alert with which the last night tells nothing of it."""
_TYPES = {"typical": "median or total", "mean": "mean", "tail": "tail"}

RowStatus = Literal[
    "regressed",
    "known",
    "worse",
    "improved",
    "better",
    "few slower",
    "few faster",
    "redefined",
    "grouped",
]
"""What a row says of an alert, in the order in which rows are read; ``known``: a regression that is
acknowledged. ``worse``, ``better``: of unknown cause. ``few slower``: a mean or a percentile, not the median.
``redefined``: of the instrument or the workload. ``grouped``: chunks are grouped otherwise."""

_ORDER: tuple[RowStatus, ...] = get_args(RowStatus)


_BARS = "".join(chr(0x2581 + eighths) for eighths in range(8))
"""Block characters of Unicode, from one eighth of a line's height to all of it."""

_MOST = 32
"""Nights of a picture ..."""

_BEFORE = 12
"""... and those of them before the change, where there are more."""


class ReportRow(Document):
    """A row of the nightly report: an alert whose series is at another level than before.

    ``latest``: the median of the newest nights; ``baseline``: the level before the change; ``change``: as a
    share (of a share: the difference). ``days``: since it began. What is after a discontinuity does not
    count. ``issue``: it is one by the nightlies' own rule. ``now``: of the alert.
    ``beside_metric``: of an improvement, the largest regression of its event and cell, by ``beside_effect``.
    ``picture``: the nights around the change, a bar of a character each.
    """

    alert: str
    source: str
    model: str
    hardware: str
    type: str
    config: str
    test: str
    metric: str
    unit: str
    latest: float
    baseline: float
    change: float
    status: RowStatus
    issue: bool = False
    now: AlertStatus | Literal[""] = ""
    beside_metric: str = ""
    beside_effect: float = 0.0
    days: int
    cause: CauseWord
    picture: str = ""


class LevelRow(Document):
    """The last night of a series beside the seven days before it.

    ``mean``, ``deviation``: of those nights since the last discontinuity. ``change``: against the mean, as a
    share (of a share: the difference). None: there is no such night. ``alert``: of the row that it has.
    Without one: why it was ``not_judged``, or ``reported_by`` which median.
    """

    cell: str
    metric: str
    unit: str
    night: str
    value: float
    mean: float | None
    deviation: float | None
    change: float | None
    alert: str = ""
    not_judged: SeriesRefusal | None = None
    reported_by: str = ""


class TrackReportDocument(LongDocument):
    """JSON of ``track report``: series at another level, and the analysis behind them.

    ``engine``: its version, where the last night reports it. ``quiet``: judged series without an alert.
    ``levels``: all series of the metrics that were asked for.
    """

    shown: ClassVar[Mapping[str, int]] = {"rows": 12}
    schema_: Literal["perfbisect.track-report/7"] = Field(default="perfbisect.track-report/7", alias="schema")
    night: str
    build: str
    commit: str
    engine: str = ""
    rows: tuple[ReportRow, ...]
    quiet: int
    levels: tuple[LevelRow, ...] = ()
    detect: TrackDetectDocument

    def brief(self) -> TrackReportDocument:
        """The first rows, and all events; no single alert, which ``track detect`` has."""
        detect, alerts = self.detect.brief(), len(self.detect.alerts)
        left = {**detect.left_out, "alerts": alerts} if alerts else detect.left_out
        detect = detect.model_copy(update={"alerts": (), "left_out": left})
        return LongDocument.brief(self.model_copy(update={"detect": detect}))


def build_nightly_report(
    analysis: SeriesAnalysis,
    *,
    fdr: float,
    metrics: Sequence[str] = (),
    measured: Mapping[str, MeasuredOutcome] = NO_OUTCOMES,
) -> TrackReportDocument:
    """The nightly report of the last night: what is slow or fast now and was not before. Writes nothing.

    ``measured``: by alert, what a bisection says of it.

    :raises UsageError: no series of one of the ``metrics``.
    """
    newest = max(
        (point for series in analysis.series for point in series.points),
        key=lambda point: (point.began, point.raw),
    )
    with_alert = {(alert.cell, alert.metric) for alert in analysis.alerts}
    judged = sum(family.coverage.judged for family in analysis.families)
    ranked = []
    for alert in analysis.alerts:
        is_over = alert.recovered or analysis.findings[alert.id].is_over
        # A change with the cause "night" ends with that night and is not a level of the series.
        if alert.state != "closed" and alert.cause != "night" and not is_over:
            row = _row(alert, analysis)
            size = abs(Scale.of(alert.ref.metric).difference(row.change))
            ranked.append(((_ORDER.index(row.status), alert.now != "still there", -size, alert.id), row))
    rows = tuple(row for _, row in sorted(ranked, key=itemgetter(0)))
    return TrackReportDocument(
        night=analysis.until,
        build=newest.build.name,
        commit=newest.build.commit,
        engine=str(newest.covariates.get("engine") or ""),
        rows=rows,
        quiet=max(0, judged - len(with_alert)),
        levels=tuple(_level_rows(analysis, rows, metrics)),
        detect=detect_document(detected_changes(analysis), analysis.known, fdr=fdr, measured=measured),
    )


def _row(alert: Alert, analysis: SeriesAnalysis) -> ReportRow:
    finding, status = analysis.findings[alert.id], _row_status(alert)
    series, own = finding.series, finding.segment
    last = series.points[own][-1]
    # Three nights would include the level before a change of one or two nights.
    nights = _LATEST_NIGHTS if len(finding.after) >= _LATEST_NIGHTS else 1
    latest = median(series.values[own][-nights:])
    baseline = median([series.values[i] for i in finding.before[-_LEVEL_NIGHTS:]])
    change = series.change(baseline, latest)
    days = series.nights[own][-1] - finding.first + 1
    # The nightlies' own rule, so that the table can be pasted into their issues.
    is_issue = status == "regressed" and abs(change) > ISSUE_SIZE and days >= ISSUE_DAYS
    worse = beside_worse(alert, analysis.alerts)
    return ReportRow(
        alert=alert.id,
        source=last.build.pipeline,
        model=last.workload.model,
        hardware=last.hardware,
        type=_TYPES[series.part],
        config=series.cell.partition("/")[2] or series.cell.partition("@")[2],
        test=last.workload.test,
        metric=series.metric,
        unit=series.row.unit,
        latest=latest,
        baseline=baseline,
        change=change,
        status=status,
        issue=is_issue and alert.now not in _NOT_COMPARED,
        now=alert.now,
        beside_metric=worse.metric if worse else "",
        beside_effect=worse.effect if worse else 0.0,
        days=days,
        cause=alert.cause,
        picture=sparkline(series.values[own], finding.point.index - own.start),
    )


def sparkline(values: Sequence[float], change: int) -> str:
    """The nights from some before a change on, as bars of a character each.

    The lowest bar is the smallest of them, the highest the largest; equal values are in the middle.
    """
    shown = values[max(0, min(change - _BEFORE, len(values) - _MOST)) :][:_MOST]
    low, high, top = min(shown), max(shown), len(_BARS) - 1
    return "".join(_BARS[round((x - low) / (high - low) * top) if high > low else top // 2] for x in shown)


def _row_status(alert: Alert) -> RowStatus:
    worse, cause = alert.worse, alert.cause
    if cause in ("instrument", "workload"):
        return "redefined"
    if alert.grouping:
        return "grouped"
    if alert.part != "typical":
        return "few slower" if worse else "few faster"
    if worse and alert.state == "acknowledged":
        return "known"
    if cause == "unknown":
        return "worse" if worse else "better"
    return "regressed" if worse else "improved"


def _level_rows(
    analysis: SeriesAnalysis, rows: Sequence[ReportRow], metrics: Sequence[str]
) -> Iterator[LevelRow]:
    alerts = {alert.id: alert for alert in analysis.alerts}
    moved = {(alerts[row.alert].cell, row.metric): row for row in rows}
    refused = {e.series: e.why for family in analysis.families for e in family.coverage.series if e.why}
    beside = {
        change.series.key: change.duplicate_of
        for family in analysis.families
        for change in family.suppressed
        if change.duplicate_of and not change.is_over
    }
    for metric in dict.fromkeys(str(parse_metric(metric)) for metric in metrics):
        found = sorted((s for s in analysis.series if s.metric == metric), key=lambda s: s.cell)
        if not found:
            raise UsageError(f"no series of {metric}", next_step="perfbisect track show lists the metrics")
        for series in found:
            row, value, last = moved.get(series.key), series.values[-1], series.nights[-1]
            # A mean across a discontinuity is one of two series.
            since = max((mark.index for mark in series.boundaries), default=0)
            nights = zip(series.nights[since:-1], series.values[since:-1], strict=True)
            before = [value for night, value in nights if night >= last - _LEVEL_NIGHTS]
            mean = fmean(before) if before else None
            yield LevelRow(
                cell=series.cell,
                metric=metric,
                unit=series.row.unit,
                night=night_of(last),
                value=value,
                mean=mean,
                deviation=pstdev(before) if before else None,
                change=None if mean is None else series.change(mean, value),
                alert=row.alert if row else "",
                not_judged=refused.get(f"{series.cell} {metric}"),
                reported_by=beside.get(series.key, ""),
            )
