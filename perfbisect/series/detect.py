"""``track detect``: judges the series of a store and reports each change once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document, LongDocument
from perfbisect.series.alerts import Alert, AlertRecord, State, begun, match_alerts
from perfbisect.series.cause_text import alert_evidence, suppression_sentence
from perfbisect.series.detection.fdr import FDR, Coverage
from perfbisect.series.detection.joint import JointEvent
from perfbisect.series.detection.model import Shape
from perfbisect.series.finding_causes import SeriesIndex, infer_causes
from perfbisect.series.findings import (
    JudgedFamily,
    SeriesChange,
    Suppression,
    SuppressionReason,
    drop_duplicate_tails,
    select_alerts,
)
from perfbisect.series.points import MachineSeriesStart, machine_series, machine_series_starts
from perfbisect.series.selection import eras_of
from perfbisect.series.series import CellSeries, build_series, day_number, night_of, nightly
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.table import SuspectTable


class SuppressedChange(Document):
    """A change that is not reported: the ``kind`` of reason, and ``why`` as a sentence."""

    cell: str
    metric: str
    first: str
    shape: Shape
    effect: float
    interval: tuple[float, float]
    p: float
    kind: SuppressionReason
    why: str


class JointChange(Document):
    """A change between two nights for which no series is evidence enough by itself.

    ``servers`` support it, ``against`` contradict it; ``p``: bound on its probability without a change.
    """

    after: str
    by: str
    p: float
    series: tuple[str, ...]
    servers: tuple[str, ...]
    against: tuple[str, ...]


class DiscontinuityDocument(Document):
    """A night across which ``series`` many series are not compared."""

    night: str
    kind: str
    what: str
    series: int
    cells: tuple[str, ...]


class SeriesCoverage(Document):
    """A series, or a segment of one. ``smallest``: the step detected with a power of 0.8, a ratio;
    ``why``: the reason it was not judged."""

    series: str
    nights: int
    p: float | None = None
    smallest: float | None = None
    changes: int = 0
    why: str = ""


class FamilyCoverage(Document):
    """Series whose false discovery rate is controlled together; ``cut``: the largest significant p."""

    name: Literal["medians and single numbers", "means and percentiles"]
    judged: int
    alarmed: int
    cut: float


class CoverageDocument(Document):
    """Which series were judged, and why others were not."""

    families: tuple[FamilyCoverage, ...]
    series: tuple[SeriesCoverage, ...]
    not_judged: dict[str, int]
    builds_not_of_main: int


class VanishedAlert(Document):
    """A reported alert that is not found any more.

    ``seen``: when it was found last; ``new``: that was in the last run.
    """

    id: str
    cell: str
    metric: str
    state: State
    seen: str
    new: bool = False


class TrackDetectDocument(LongDocument):
    """JSON of ``track detect``: changes since the night ``since`` (empty: all) up to ``until``."""

    shown: ClassVar[Mapping[str, int]] = {"alerts": 12, "listed": 5, "vanished": 12, "discontinuities": 12}
    schema_: Literal["perfbisect.track-detect/2"] = Field(default="perfbisect.track-detect/2", alias="schema")
    fdr: float
    since: str
    until: str
    alerts: tuple[Alert, ...]
    listed: tuple[SuppressedChange, ...]
    joint_changes: tuple[JointChange, ...]
    discontinuities: tuple[DiscontinuityDocument, ...]
    vanished: tuple[VanishedAlert, ...]
    census: CoverageDocument

    def brief(self) -> TrackDetectDocument:
        """New alerts first, then open ones; no coverage of single series."""
        alerts = sorted(self.alerts, key=lambda alert: alert.first, reverse=True)
        alerts.sort(key=lambda alert: (not (alert.new or alert.is_news), alert.state != "open"))
        brief = self.model_copy(update={"alerts": tuple(alerts)})
        brief = LongDocument.brief(brief)
        if not self.census.series:
            return brief
        left = {**brief.left_out, "census.series": len(self.census.series)}
        census = self.census.model_copy(update={"series": ()})
        return brief.model_copy(update={"census": census, "left_out": left})


@dataclass(frozen=True)
class SeriesAnalysis:
    """What a store's series show. ``series``: every series, one value a night; ``families``: medians first;
    ``findings``: what each alert was made of, by its name; ``known``: the alerts that were reported before;
    ``away``: builds that are not of main and were left out."""

    series: tuple[CellSeries, ...]
    cells: SeriesIndex
    families: tuple[JudgedFamily, JudgedFamily]
    alerts: tuple[Alert, ...]
    findings: Mapping[str, SeriesChange]
    known: tuple[AlertRecord, ...]
    away: int

    @property
    def until(self) -> str:
        """The last night of all."""
        return night_of(max(item.nights[-1] for item in self.series))

    @property
    def begun(self) -> tuple[MachineSeriesStart, ...]:
        """Where another kind of machine began to measure a cell."""
        points = {id(point): point for item in self.series for point in item.points}
        return tuple(machine_series_starts(points.values()))

    def alerts_since(self, night: str) -> tuple[Alert, ...]:
        """The alerts that began on that night or later; all where it is empty."""
        first = day_number(night) if night else 0
        return tuple(alert for alert in self.alerts if self.findings[alert.id].first >= first)


def analyze_series(store: SeriesStore, table: SuspectTable, fdr: float = FDR) -> SeriesAnalysis:
    """Judges every series of a store; writes nothing.

    :raises UsageError: the store has no points, or the rate is none.
    """
    if not 0 < fdr < 1:
        raise UsageError(f"--fdr {fdr:g} is no share of false alarms: a number between 0 and 1")
    series, away = series_of_main(store)
    cells = SeriesIndex(series, table.traits_of)
    medians = select_alerts([item for item in series if item.part == "typical"], fdr)
    tails = drop_duplicate_tails(
        select_alerts([item for item in series if item.part != "typical"], fdr), medians
    )
    findings = (*medians.alerts, *tails.alerts)
    known = store.alerts.all()
    until = max(item.nights[-1] for item in series)
    alerts = match_alerts(
        findings, infer_causes(findings, cells), known, until=until, describe=alert_evidence
    )
    of = {alert.id: finding for alert, finding in zip(alerts, findings, strict=True)}
    ordered = sorted(alerts, key=lambda alert: (-of[alert.id].first, alert.cell, alert.metric))
    return SeriesAnalysis(series, cells, (medians, tails), tuple(ordered), of, known, away)


def series_of_main(store: SeriesStore) -> tuple[tuple[CellSeries, ...], int]:
    """Every series with one value a night, of builds that are not known to be of another branch; and how many
    builds are.

    :raises UsageError: the store has no points.
    """
    points = store.points()
    mine = [point for point in points if point.build.of_main is not False]
    if not mine:
        raise UsageError(
            "the store has no points of the main branch" if points else "the store has no points",
            next_step="perfbisect track ingest PATH",
        )
    away = {point.build.key for point in points if point.build.of_main is False}
    found: list[CellSeries] = []
    for name, own in machine_series(mine):
        found += map(nightly, build_series(own, eras_of, cell=name))
    return tuple(found), len(away)


def detect(
    store: SeriesStore, table: SuspectTable, *, now: str, since: str = "", fdr: float = FDR
) -> TrackDetectDocument:
    """Judges all nights, and writes down what is told: changes that began on the night ``since`` or later.

    ``now``: ISO 8601 in UTC. Raises what :func:`look` raises.
    """
    analysis = analyze_series(store, table, fdr)
    record_alerts(store, analysis, now, since)
    return detect_document(analysis, since=since, fdr=fdr)


def record_alerts(store: SeriesStore, analysis: SeriesAnalysis, now: str, since: str = "") -> None:
    """Writes down the alerts that began on the night ``since`` or later, as found at ``now``."""
    records = [
        AlertRecord(alert, begun(analysis.findings[alert.id]), now) for alert in analysis.alerts_since(since)
    ]
    with store.transaction():
        store.alerts.keep(records)


def detect_document(analysis: SeriesAnalysis, *, since: str, fdr: float) -> TrackDetectDocument:
    """The public JSON of a analysis: what began on the night ``since`` or later."""
    first = day_number(since) if since else 0
    medians, tails = analysis.families
    listed = [pair for family in analysis.families for pair in family.listed if pair[0].first >= first]
    return TrackDetectDocument(
        fdr=fdr,
        since=since,
        until=analysis.until,
        alerts=analysis.alerts_since(since),
        listed=tuple(_listed(finding, rejection) for finding, rejection in listed),
        joint_changes=tuple(_shared(event) for family in analysis.families for event in family.shared),
        discontinuities=tuple(
            sorted(
                (*_boundaries(analysis.series, first), *_machines(analysis, first)),
                key=lambda one: one.night,
            )
        ),
        vanished=_vanished(analysis),
        census=CoverageDocument(
            families=(
                _family("medians and single numbers", medians),
                _family("means and percentiles", tails),
            ),
            series=(*_rows(medians.census), *_rows(tails.census)),
            not_judged=dict(Counter(why for family in analysis.families for _, why in family.left)),
            builds_not_of_main=analysis.away,
        ),
    )


def _vanished(analysis: SeriesAnalysis) -> tuple[VanishedAlert, ...]:
    """What was reported and is not found any more; first what was found the last time."""
    found = {alert.id for alert in analysis.alerts}
    last = max((record.seen for record in analysis.known), default="")
    gone = [
        VanishedAlert(
            id=record.alert.id,
            cell=record.alert.cell,
            metric=record.alert.metric,
            state=record.alert.state,
            seen=record.seen,
            new=record.seen == last,
        )
        for record in analysis.known
        if record.alert.id not in found
    ]
    return tuple(sorted(gone, key=lambda one: (not one.new, one.id)))


def _listed(finding: SeriesChange, rejection: Suppression) -> SuppressedChange:
    return SuppressedChange(
        cell=finding.series.cell,
        metric=finding.series.metric,
        first=night_of(finding.first),
        shape=finding.found.shape,
        effect=finding.found.effect,
        interval=(finding.found.low, finding.found.high),
        p=finding.found.p,
        kind=rejection.kind,
        why=suppression_sentence(rejection),
    )


def _shared(event: JointEvent) -> JointChange:
    return JointChange(
        after=night_of(event.window[0]),
        by=night_of(event.window[1]),
        p=min(1.0, event.p),
        series=event.members,
        servers=event.votes,
        against=event.against,
    )


def _boundaries(series: Sequence[CellSeries], first: int) -> tuple[DiscontinuityDocument, ...]:
    found: dict[tuple[int, str, str], list[str]] = {}
    for item in series:
        for mark in item.boundaries:
            if item.nights[mark.index] >= first:
                found.setdefault((item.nights[mark.index], mark.kind, mark.what), []).append(item.cell)
    return tuple(
        DiscontinuityDocument(
            night=night_of(night), kind=kind, what=what, series=len(cells), cells=tuple(dict.fromkeys(cells))
        )
        for (night, kind, what), cells in sorted(found.items())
    )


def _machines(analysis: SeriesAnalysis, first: int) -> Iterator[DiscontinuityDocument]:
    """Nights from which on another kind of machine measures."""
    counts = Counter(item.cell for item in analysis.series)
    found: dict[tuple[str, str], list[str]] = {}
    for item in analysis.begun:
        if day_number(item.first.night) >= first:
            found.setdefault((item.first.night, item.what), []).append(item.name)
    for (night, what), names in found.items():
        count = sum(counts[name] for name in names)
        yield DiscontinuityDocument(night=night, kind="machine", what=what, series=count, cells=tuple(names))


def _family(name: str, family: JudgedFamily) -> FamilyCoverage:
    alarmed = len({f"{alert.series.cell} {alert.series.metric}" for alert in family.alerts})
    return FamilyCoverage.model_validate(
        {"name": name, "judged": len(family.census.judged), "alarmed": alarmed, "cut": family.census.cut}
    )


def _rows(census: Coverage) -> Iterator[SeriesCoverage]:
    for entry in census.judged:
        yield SeriesCoverage(
            series=entry.key, nights=entry.nights, p=entry.p, smallest=entry.smallest, changes=entry.breaks
        )
    for refusal in census.refused:
        yield SeriesCoverage(series=refusal.key, nights=refusal.nights, why=refusal.reason)
