"""``track report``: which series are at another level on the last night, as the nightlies report it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median, pstdev
from typing import ClassVar, Literal

from pydantic import Field

from perfbisect.common.quantities import number
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document, LongDocument
from perfbisect.model.commit_details import CauseWord
from perfbisect.model.metric import parse_metric
from perfbisect.report.document import (
    Block,
    Command,
    Inline,
    Items,
    Paragraph,
    Report,
    Section,
    Table,
    Verdict,
    code,
    make_table,
)
from perfbisect.series.alerts import Alert, beside_worse, group_by_event, leading_alert
from perfbisect.series.detect import (
    SeriesAnalysis,
    TrackDetectDocument,
    change_text,
    coverage_lines,
    detect_document,
    size_text,
    summarize_event,
)
from perfbisect.series.nights import night_of
from perfbisect.series.outcomes import NO_OUTCOMES, MeasuredOutcome, outcome_text
from perfbisect.series.series import CellSeries

ISSUE_SIZE = 0.10
"""Size from which on a change is an issue ..."""

ISSUE_DAYS = 3
"""... if it lasted for so many days: the nightlies' own rule."""

_LEVEL_NIGHTS = 7
_LATEST_NIGHTS = 3
_TYPES = {"typical": "median or total", "mean": "mean", "tail": "tail"}

RULE = (
    "An issue is what the product made worse, by more than 10 % for at least three days; what has no known "
    "cause is none. The baseline is the level before the change, not a file's."
)

_STATUSES = {
    "regressed": "regressed{issue}{since}",
    "known": "known",
    "worse": "worse{beside}, cause unknown{since}",
    "improved": "improved{beside}{since}",
    "better": "better{beside}, cause unknown{since}",
    "few slower": "a few requests slower",
    "few faster": "a few requests faster",
    "redefined": "{cause} changed",
    "grouped": "chunks grouped otherwise{beside}{since}",
}
"""What a row says of each kind of alert, in the order in which rows are read."""


class ReportRow(Document):
    """A row of the nightly report: an alert whose series is at another level than before.

    ``latest``: the median of the newest nights; ``baseline``: the level before the change. ``days``: nights
    since it began.
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
    status: str
    days: int
    cause: CauseWord


class LevelRow(Document):
    """The last night of a series beside the seven days before it.

    ``mean``, ``deviation``: of those nights since the last discontinuity. ``change``: against the mean, as a
    share (of a share: the difference). None: there is no such night. ``alert``: the one behind ``verdict``.
    """

    cell: str
    metric: str
    unit: str
    night: str
    value: float
    mean: float | None
    deviation: float | None
    change: float | None
    verdict: str
    alert: str = ""


class TrackReportDocument(LongDocument):
    """JSON of ``track report``: series at another level, and the analysis behind them.

    ``engine``: its version, where the last night reports it. ``quiet``: judged series without an alert.
    ``levels``: all series of the metrics that were asked for.
    """

    shown: ClassVar[Mapping[str, int]] = {"rows": 12}
    schema_: Literal["perfbisect.track-report/4"] = Field(default="perfbisect.track-report/4", alias="schema")
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
    rows = tuple(row for *_, row in sorted(_ranked_rows(analysis), key=lambda ranked: ranked[:4]))
    return TrackReportDocument(
        night=analysis.until,
        build=newest.build.name,
        commit=newest.build.commit,
        engine=str(newest.covariates.get("engine") or ""),
        rows=rows,
        quiet=max(0, judged - len(with_alert)),
        levels=tuple(_level_rows(analysis, rows, metrics)),
        detect=detect_document(analysis, fdr=fdr, measured=measured),
    )


def _ranked_rows(analysis: SeriesAnalysis) -> Iterator[tuple[int, bool, float, str, ReportRow]]:
    """The rows of changes that are still there, not closed and no bad night's, with what sorts them."""
    for alert in analysis.alerts:
        is_over = alert.recovered or analysis.findings[alert.id].is_over
        if alert.state != "closed" and alert.cause != "night" and not is_over:
            kind = _kind(alert)
            row = _row(alert, kind, analysis)
            size, is_there = abs(math.log(row.latest / row.baseline)), alert.now == "still there"
            yield list(_STATUSES).index(kind), not is_there, -size, alert.id, row


def _row(alert: Alert, kind: str, analysis: SeriesAnalysis) -> ReportRow:
    finding = analysis.findings[alert.id]
    series = finding.series
    last = series.points[-1]
    nights = _LATEST_NIGHTS if len(finding.after) >= _LATEST_NIGHTS else 1
    latest = median(series.values[-nights:])
    baseline = median([series.values[i] for i in finding.before[-_LEVEL_NIGHTS:]])
    change = latest / baseline - 1
    days = series.nights[-1] - finding.first + 1
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
        status=_status(kind, alert, abs(change) > ISSUE_SIZE and days >= ISSUE_DAYS, analysis),
        days=days,
        cause=alert.cause,
    )


def _kind(alert: Alert) -> str:
    """A key of :data:`_STATUSES`."""
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


def _status(kind: str, alert: Alert, is_large: bool, analysis: SeriesAnalysis) -> str:
    since = f", {alert.now}" if alert.now in ("not measured since", "other requests since") else ""
    worse = beside_worse(alert, analysis.alerts)
    beside = f" beside a regression ({worse.metric} {size_text(worse.effect)})" if worse else ""
    issue = ": an issue" if is_large and not since else ""
    return _STATUSES[kind].format(issue=issue, since=since, beside=beside, cause=alert.cause)


def _level_rows(
    analysis: SeriesAnalysis, rows: Sequence[ReportRow], metrics: Sequence[str]
) -> Iterator[LevelRow]:
    alerts = {alert.id: alert for alert in analysis.alerts}
    moved = {(alerts[row.alert].cell, row.metric): row for row in rows}
    refused = {name: why for family in analysis.families for name, why in family.not_judged.items()}
    for family in analysis.families:
        refused |= {entry.series: entry.why for entry in family.coverage.series if entry.why}
    beside = {
        change.series.key: f"reported by {change.duplicate_of}"
        for family in analysis.families
        for change in family.suppressed
        if change.duplicate_of and not change.is_over
    }
    for metric in dict.fromkeys(str(parse_metric(metric)) for metric in metrics):
        found = sorted((s for s in analysis.series if s.metric == metric), key=lambda s: s.cell)
        if not found:
            raise UsageError(f"no series of {metric}", next_step="perfbisect track show lists the metrics")
        for series in found:
            why = refused.get(f"{series.cell} {metric}")
            quiet = f"not judged: {why}" if why else beside.get(series.key, "no change")
            yield _level_row(series, moved.get(series.key), quiet, analysis.until)


def _level_row(series: CellSeries, moved: ReportRow | None, quiet: str, until: str) -> LevelRow:
    """``quiet``: the verdict on a series without an alert."""
    last, value = series.nights[-1], series.values[-1]
    since = max((mark.index for mark in series.boundaries), default=0)
    nights = zip(series.nights[since:-1], series.values[since:-1], strict=True)
    before = [value for night, value in nights if night >= last - _LEVEL_NIGHTS]
    mean = fmean(before) if before else None
    change = series.change(mean, value) if mean else None
    verdict = moved.status if moved else quiet
    if night_of(last) != until:
        verdict += f"; not measured since {night_of(last)}"
    return LevelRow(
        cell=series.cell,
        metric=series.metric,
        unit=series.row.unit,
        night=night_of(last),
        value=value,
        mean=mean,
        deviation=pstdev(before) if before else None,
        change=change,
        verdict=verdict,
        alert=moved.alert if moved else "",
    )


def issue_table(rows: Sequence[ReportRow]) -> Table:
    """The columns of the nightlies' own reports, and the alert of a row; names are shown as code."""
    titles = (
        *("Source", "Model", "Hardware", "Type", "Config", "Test", "Metric", "latest", "baseline"),
        *("vs baseline", "Status", "Days failing", "Alert"),
    )
    cells = (
        (
            *(code(row.source), code(row.model), code(row.hardware), row.type),
            *(code(row.config), code(row.test), code(row.metric)),
            *(f"{number(row.latest)} {row.unit}", f"{number(row.baseline)} {row.unit}"),
            *(size_text(row.change), row.status, str(row.days), code(row.alert)),
        )
        for row in rows
    )
    return make_table(titles, cells)


def _level_sections(levels: Sequence[LevelRow]) -> Iterator[Section]:
    """A table of all cells for each metric."""
    titles = ("cell", "last*", "7-night mean*", "sd*", "change*", "verdict")
    for metric in dict.fromkeys(level.metric for level in levels):
        own = [level for level in levels if level.metric == metric]
        rows = (
            (
                *(code(level.cell), number(level.value), number(level.mean), number(level.deviation, 2)),
                change_text(metric, level.change),
                (level.verdict, f" ({level.alert})" * bool(level.alert)),
            )
            for level in own
        )
        better = parse_metric(metric).metric.direction
        yield Section(f"{metric} in {own[0].unit}, {better} is better", (make_table(titles, rows),))


def nightly_report(document: TrackReportDocument) -> Report:
    """Report of ``track report``; events whose alerts are all closed are left out."""
    groups = group_by_event(document.detect.alerts)
    reported = [alerts for alerts in groups if any(alert.state != "closed" for alert in alerts)]
    blocks: list[Block] = [Paragraph(_build_text(document))]
    due = [alerts for alerts in reported if any(alert.needs_action for alert in alerts)]
    if due:
        blocks.append(Items(tuple(map(_due_text, due))))
    if document.rows:
        blocks += [issue_table(document.rows), Paragraph(RULE, quiet=True)]
    coverage = coverage_lines(document.detect)
    if len(groups) > len(reported):
        coverage = [f"Closed events: {len(groups) - len(reported)}.", *coverage]
    sections = [
        Section(f"{summarize_event(alerts)} ({alerts[0].event})", tuple(_event_blocks(alerts)))
        for alerts in reported
    ]
    following = document.detect.next
    if due and (outcome := _outcome(due[0])):
        following = outcome.report
    count = len(document.rows)
    return Report(
        title=f"Nightly of {document.night}",
        verdict=Verdict(
            f"{count} series at another level; to act on today: {len(due)}", "bad" if count else "good"
        ),
        blocks=tuple(blocks),
        sections=(
            *_level_sections(document.levels),
            *sections,
            Section("Coverage", (Items(tuple(coverage)),)),
            *((Section("Next", (Command(following),)),) if following else ()),
        ),
    )


def _outcome(alerts: Sequence[Alert]) -> MeasuredOutcome | None:
    """What a bisection says of the event of these alerts."""
    return next((alert.measured for alert in alerts if alert.measured), None)


def _due_text(alerts: Sequence[Alert]) -> Inline:
    text = f"to act on: {summarize_event(alerts)} ({alerts[0].event})"
    outcome = _outcome(alerts)
    return (f"{text}: ", *outcome_text(outcome)) if outcome else text


def _event_blocks(alerts: Sequence[Alert]) -> Iterator[Block]:
    if (outcome := _outcome(alerts)) is not None:
        yield Paragraph(outcome_text(outcome))
    yield Items(leading_alert(alerts).evidence)


def _build_text(document: TrackReportDocument) -> Inline:
    commit = (", commit ", code(document.commit[:12])) if document.commit else (", its commit is not known",)
    engine = (", engine ", code(document.engine)) if document.engine else ()
    return ("Build ", code(document.build), *commit, *engine, f"; {document.quiet} series show nothing.")
