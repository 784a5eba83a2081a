"""A site's content: cells with their series, alerts, suspects and bisections, collected from a state folder.

Times are UTC to the second, ``2026-04-12T19:01:15Z``. Effects are relative to the level before, or a
difference of shares where the metric is ``absolute``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from perfbisect.bisect.result import BisectResult
from perfbisect.changes.git import Repository
from perfbisect.commands.outcomes import CAUSED_BY_COMMITS, SiteBisection, bisections_of_alerts
from perfbisect.common.quantities import stamp
from perfbisect.errors import RevisionError
from perfbisect.jobs.documents import MetricDocument, metric_document
from perfbisect.model.metric import parse_metric
from perfbisect.report.template import render_sentences
from perfbisect.series.alerts import Alert, leading_alert
from perfbisect.series.detect import SeriesAnalysis, suppressed_change
from perfbisect.series.detection.fdr import SeriesCoverage
from perfbisect.series.detection.model import SeriesLevel, levels
from perfbisect.series.findings import JudgedFamily, SeriesChange
from perfbisect.series.points import Point, Workload
from perfbisect.series.report import count_refusals, sentences_of
from perfbisect.series.series import HEADLINES, CellSeries
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.job import (
    RankedAlert,
    SuspectsDocument,
    cell_of_ours,
    rank_alert,
    suspects_document,
)
from perfbisect.series.suspects.table import SuspectTable

TOP = 20
"""Suspects of an alert that are shown."""

_Key = tuple[str, str, int]

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class SitePoint:
    """A result in one build; ``of_main``: None if the branch of the build is not known."""

    build: str
    time: str
    commit: str = ""
    url: str = ""
    of_main: bool | None = None
    covariates: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class SiteMark:
    """Another change at point ``at``; ``cut``: nothing is compared across it, else a hint at a cause."""

    at: int
    what: str
    cut: bool = True


@dataclass(frozen=True)
class SmallChange:
    """A change that is not reported, at point ``at`` (index): too small or too uncertain."""

    at: int
    effect: float
    interval: tuple[float, float]
    why: str


@dataclass(frozen=True, kw_only=True)
class SeriesFindings:
    """What detection says of a series; indices count its points, those of a site the points of its cell.

    ``cuts``: first points of new levels; ``transients``: those of levels that do not last.
    """

    cuts: tuple[int, ...] = ()
    transients: tuple[int, ...] = ()
    small: tuple[SmallChange, ...] = ()
    judged: bool = True
    note: str = ""


_NOT_JUDGED = SeriesFindings(judged=False)


@dataclass(frozen=True, kw_only=True)
class SiteSeries(SeriesFindings):
    """A metric of a cell: a value or None for each point of it, and what was detected."""

    metric: MetricDocument
    values: tuple[float | None, ...]
    levels: tuple[SeriesLevel, ...] = ()
    discontinuities: tuple[SiteMark, ...] = ()

    @property
    def level(self) -> SeriesLevel | None:
        """The newest level; during a transient that before it."""
        lasting = (level for level in reversed(self.levels) if level.first not in self.transients)
        return next(lasting, None)


@dataclass(frozen=True, kw_only=True)
class SiteCell:
    """A cell on one kind of machine, which ``name`` contains if there are several; ``rows``: the workload.

    ``load``: ``c64``, ``r2.0``, or ``rinf`` where all requests are sent at once.
    """

    name: str
    family: str
    model: str
    load: str
    machine: str
    headline: str
    digest: str = ""
    rows: tuple[tuple[str, str], ...] = ()
    points: tuple[SitePoint, ...]
    series: tuple[SiteSeries, ...]


@dataclass(frozen=True, kw_only=True)
class Site:
    """``census``: how many series were judged, and how many not, by reason."""

    title: str
    made: str
    cells: tuple[SiteCell, ...]
    alerts: tuple[Alert, ...] = ()
    suspects: tuple[SuspectsDocument, ...] = ()
    bisections: tuple[SiteBisection, ...] = ()
    commit_url: str = ""
    census: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


def collect_site(
    store: SeriesStore,
    analysis: SeriesAnalysis,
    table: SuspectTable,
    *,
    title: str,
    made: str,
    repository: Repository | None = None,
    reports: Iterable[BisectResult] = (),
    commit_url: str = "",
) -> Site:
    """Collect the content of a site. ``repository``: without it there are no suspects.

    Suspects are those of the alert that represents an event; a bisection belongs to the alerts of an event
    whose change it searched.
    """
    rankings, failed = _rankings(store, analysis, repository, table)
    medians, tails = (family.coverage for family in analysis.families)
    refused = count_refusals((*medians.series, *tails.series)).most_common()
    reasons = sentences_of("refused", (why for why, _ in refused))
    census = render_sentences("dashboard/templates/census.jinja", {"refused": reasons})
    counts = (medians.judged, tails.judged, *(count for _, count in refused))
    builds = {point.build.key: point.build for item in analysis.series for point in item.points}
    lacks = {
        "has_repository": repository is not None,
        "unknown": sum(build.of_main is None for build in builds.values()),
        "builds": len(builds),
        "away": analysis.away,
        "aside": analysis.set_aside,
    }
    return Site(
        title=title,
        made=made,
        cells=tuple(_cells(analysis)),
        alerts=analysis.alerts,
        suspects=(
            *(
                suspects_document(ranked, top=TOP, repo="PATH", cell=cell_of_ours(ranked.finding))
                for ranked in rankings
            ),
            *failed,
        ),
        bisections=bisections_of_alerts(store, analysis, tuple(reports), repository),
        commit_url=commit_url,
        census=tuple(zip(census, counts, strict=True)),
        notes=render_sentences("dashboard/templates/notes.jinja", lacks),
    )


def collect_cell(series: Sequence[CellSeries], findings: Mapping[str, SeriesFindings]) -> SiteCell:
    """Collect one cell with all its series. ``findings``: by metric; others were not judged."""
    points = sorted({_key(point): point for item in series for point in item.points}.items())
    places = {key: place for place, (key, _) in enumerate(points)}
    last = points[-1][1]
    typical = {item.metric for item in series if item.part == "typical"}
    headline = next((name for name in HEADLINES if name in typical), series[0].metric)
    load = last.workload
    # Results name no model family: a backend of vLLM-Omni does, and only diffusion has metrics of latency.
    family = "diffusion" if any(item.metric.startswith("latency") for item in series) else "text"
    if load.backend.endswith(("-speech", "-omni")):
        family = "tts" if load.backend.endswith("-speech") else "omni"
    return SiteCell(
        name=series[0].cell,
        family=family,
        model=load.model,
        load=f"r{load.rate}" if load.concurrency is None else f"c{load.concurrency}",
        machine=next((point.hardware for _, point in reversed(points) if point.hardware), ""),
        headline=headline,
        digest=load.digest,
        rows=_rows(load),
        points=tuple(_point(point) for _, point in points),
        series=tuple(_series(item, places, findings.get(item.metric, _NOT_JUDGED)) for item in series),
    )


def _key(point: Point) -> _Key:
    # Results may begin in the same second: then their file and record tell them apart.
    return stamp(point.moment), point.raw, point.record


def _rows(workload: Workload) -> tuple[tuple[str, str], ...]:
    rate = "" if workload.rate == math.inf else f"{workload.rate} requests a second"
    rows = {
        "test": workload.test,
        "model": workload.model,
        "dataset": " ".join(filter(None, (workload.dataset, workload.lengths))),
        "prompts": str(workload.prompts or ""),
        "load": rate or (f"{workload.concurrency} at once" if workload.concurrency else ""),
        "backend": workload.backend,
        "answers": "text alone" if workload.only_text else "",
        "digest": workload.digest,
    }
    return tuple((label, text) for label, text in rows.items() if text)


def _point(point: Point) -> SitePoint:
    covariates: dict[str, Scalar] = {}
    for name, value in point.covariates.items():
        if isinstance(value, Mapping) or value is None:
            continue
        # JSON has no NaN and no infinity.
        is_lost = isinstance(value, float) and not math.isfinite(value)
        known = value if isinstance(value, str | int | float | bool) else str(value)
        covariates[name] = None if is_lost else known
    return SitePoint(
        build=point.build.name,
        time=stamp(point.moment),
        commit=point.build.commit,
        url=point.build.url,
        of_main=point.build.of_main,
        covariates=covariates,
    )


def _series(series: CellSeries, places: Mapping[_Key, int], findings: SeriesFindings) -> SiteSeries:
    at = [places[_key(point)] for point in series.points]
    values: list[float | None] = [None] * len(places)
    for place, value in zip(at, series.values, strict=True):
        values[place] = value
    cuts = {*findings.cuts, *(boundary.index for boundary in series.boundaries)}
    marks = [(boundary, True) for boundary in series.boundaries] + [(hint, False) for hint in series.hints]
    differences = sentences_of("differences", (mark.change for mark, _ in marks)) if marks else ()
    return SiteSeries(
        metric=metric_document(parse_metric(series.metric)),
        values=tuple(values),
        levels=tuple(
            replace(level, first=at[level.first], last=at[level.last])
            for level in levels(series.values, cuts)
        ),
        cuts=tuple(at[cut] for cut in sorted(cuts)),
        transients=tuple(at[first] for first in findings.transients),
        small=tuple(replace(change, at=at[change.at]) for change in findings.small),
        discontinuities=tuple(
            SiteMark(at[mark.index], difference, cut)
            for (mark, cut), difference in zip(marks, differences, strict=True)
        ),
        judged=findings.judged,
        note=findings.note,
    )


def _cells(analysis: SeriesAnalysis) -> Iterator[SiteCell]:
    changes = defaultdict[tuple[str, str], list[SeriesChange]](list)
    small = defaultdict[tuple[str, str], list[SmallChange]](list)
    for alert in analysis.alerts:
        changes[alert.cell, alert.metric].append(analysis.findings[alert.id])
    suppressed = [change for family in analysis.families for change in family.suppressed]
    sentences = sentences_of("suppressed", [suppressed_change(change) for change in suppressed])
    for change, why in zip(suppressed, sentences, strict=True):
        point = change.point
        one = SmallChange(point.index, point.effect, (point.low, point.high), why)
        small[change.series.key].append(one)
    notes = _notes(analysis.families)

    def findings(series: CellSeries) -> SeriesFindings:
        own = changes[series.key]
        cuts = {change.point.index for change in own} | {
            change.point.until
            for change in own
            if change.point.until is not None and change.point.until < len(change.series.values)
        }
        transients = tuple(change.point.index for change in own if change.point.shape == "transient")
        judged, note = notes.get(f"{series.cell} {series.metric}", (False, ""))
        return SeriesFindings(
            cuts=tuple(sorted(cuts)),
            transients=transients,
            small=tuple(small[series.key]),
            judged=judged,
            note=note,
        )

    for _, group in groupby(analysis.series, key=lambda series: series.cell):
        series = tuple(group)
        yield collect_cell(series, {item.metric: findings(item) for item in series})


def _notes(families: Sequence[JudgedFamily]) -> dict[str, tuple[bool, str]]:
    """By series: whether it was judged, and a note; of several stretches the last one's."""
    entries = [entry for family in families for entry in family.coverage.series]
    refused = list(dict.fromkeys(entry.why for entry in entries if entry.why))
    reasons = dict(zip(refused, sentences_of("refused", refused), strict=True))
    judged = [entry for entry in entries if entry.why is None and entry.smallest is not None]
    told = render_sentences("dashboard/templates/series_notes.jinja", {"judged": judged})
    # A stretch that was judged says more than one that was not, and the first refusal counts.
    return {
        **{_series_of(entry): (False, reasons[entry.why]) for entry in reversed(entries) if entry.why},
        **{_series_of(entry): (True, note) for entry, note in zip(judged, told, strict=True)},
    }


def _series_of(entry: SeriesCoverage) -> str:
    """The series that a stretch is of."""
    return entry.series.partition(" #")[0]


def _rankings(
    store: SeriesStore, analysis: SeriesAnalysis, repository: Repository | None, table: SuspectTable
) -> tuple[list[RankedAlert], list[SuspectsDocument]]:
    """One ranking an event, and documents with the reason for those that cannot be ranked."""
    rankings: list[RankedAlert] = []
    failed: list[SuspectsDocument] = []
    if repository is None:
        return rankings, failed
    by_event: dict[str, list[Alert]] = {}
    for alert in analysis.alerts:
        if alert.cause in CAUSED_BY_COMMITS:
            by_event.setdefault(alert.event, []).append(alert)
    # One ranking an event: each reads the history of the repository.
    for alert in map(leading_alert, by_event.values()):
        try:
            rankings.append(rank_alert(store, analysis, alert, repository, table))
        # An event of another branch or after the end of the clone must not cost the site.
        except RevisionError as error:
            failed.append(SuspectsDocument(alert=alert.id, problem=error.message))
    return rankings, failed
