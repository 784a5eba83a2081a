"""``track report``: which series are at another level on the last night, as the nightlies report it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, get_args

from pydantic import Field

from perfbisect.common.numbers import number
from perfbisect.jobs.documents import Document
from perfbisect.report.document import (
    Block,
    Column,
    Inline,
    Items,
    Paragraph,
    Report,
    Section,
    Table,
    Verdict,
    code,
)
from perfbisect.series.alerts import Alert, ReportRow, beside_worse, leading_alert
from perfbisect.series.detect import SeriesAnalysis, TrackDetectDocument, detect_document
from perfbisect.series.report import coverage_lines, group_by_event, size_text, summarize_event
from perfbisect.series.series import CellSeries

BAR = 0.10
"""Size from which on a change is an issue ..."""

DAYS = 3
"""... if it lasted for so many days: the nightlies' own rule."""

_LEVEL = 7
_LATEST = 3


class TrackReportDocument(Document):
    """JSON of ``track report``: series at another level, and the analysis behind them.

    ``engine``: its version, where the last night reports it. ``quiet``: judged series without an alert.
    """

    schema_: Literal["perfbisect.track-report/2"] = Field(default="perfbisect.track-report/2", alias="schema")
    night: str
    build: str
    commit: str
    engine: str = ""
    rows: tuple[ReportRow, ...]
    quiet: int
    detect: TrackDetectDocument

    def brief(self) -> TrackReportDocument:
        return self.model_copy(update={"detect": self.detect.brief()})


def build_nightly_report(seen: SeriesAnalysis, *, fdr: float) -> TrackReportDocument:
    """The nightly report of the last night: what is slow or fast now and was not before. Writes nothing."""
    newest = max(
        (point for item in seen.series for point in item.points), key=lambda point: (point.began, point.raw)
    )
    rows = [ranked for alert in seen.alerts for ranked in _row(alert, seen)]
    alarmed = {(alert.cell, alert.metric) for alert in seen.alerts}
    judged = sum(family.coverage.judged for family in seen.families)
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
    return f" beside a regression ({worse.metric} {size_text(worse.effect)})"


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


COLUMNS = (
    *("Source", "Model", "Hardware", "Type", "Config", "Test", "Metric", "latest", "baseline", "vs baseline"),
    *("Status", "Days failing", "Alert"),
)
"""Columns of the nightlies' own reports, and the alert of a row."""

RULE = (
    "An issue is what the product made worse, by more than 10 % for at least three days; what has no known "
    "cause is none. The baseline is the level before the change, not a file's."
)


def issue_table(rows: Sequence[ReportRow]) -> Table:
    """The table in which the nightlies are reported."""
    cells = (
        (
            *(row.source, row.model, row.hardware, row.type, row.config, row.test, row.metric),
            *(f"{number(row.latest)} {row.unit}", f"{number(row.baseline)} {row.unit}"),
            *(size_text(row.change), row.status, str(row.days), row.alert),
        )
        for row in rows
    )
    return Table(tuple(map(Column, COLUMNS)), tuple(tuple(map(code, texts)) for texts in cells))


def nightly_report(document: TrackReportDocument) -> Report:
    """Report of ``track report``; events whose alerts are all closed are left out."""
    groups = group_by_event(document.detect.alerts)
    reported = [(event, of) for event, of in groups if any(alert.state != "closed" for alert in of)]
    blocks: list[Block] = [Paragraph(_build_text(document))]
    if document.rows:
        blocks += [issue_table(document.rows), Paragraph(RULE, quiet=True)]
    coverage = coverage_lines(document.detect)
    if len(groups) > len(reported):
        coverage = [f"Closed events: {len(groups) - len(reported)}.", *coverage]
    sections = [
        Section(f"{summarize_event(event, of)} ({event})", (Items(leading_alert(of, event).evidence),))
        for event, of in reported
    ]
    count = len(document.rows)
    return Report(
        title=f"Nightly of {document.night}",
        verdict=Verdict(f"{count} series at another level", "bad" if count else "good"),
        blocks=tuple(blocks),
        sections=(*sections, Section("Coverage", (Items(tuple(coverage)),))),
    )


def _build_text(document: TrackReportDocument) -> Inline:
    commit = (", commit ", code(document.commit[:12])) if document.commit else (", its commit is not known",)
    engine = (", engine ", code(document.engine)) if document.engine else ()
    return ("Build ", code(document.build), *commit, *engine, f"; {document.quiet} series show nothing.")
