"""``perfbisect track detect``: what changed in the series of a store, told once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfbisect.errors import UsageError
from perfbisect.series.alerts import Alert, AlertRecord, alerts_of, begun
from perfbisect.series.cause_text import alert_evidence, rejection_sentence
from perfbisect.series.detection.fdr import FDR, Census
from perfbisect.series.detection.joint import Event
from perfbisect.series.documents import (
    CensusDocument,
    ElsewhereDocument,
    FamilyDocument,
    GoneDocument,
    ListedDocument,
    SeriesCensusDocument,
    TogetherDocument,
    TrackDetectDocument,
)
from perfbisect.series.finding_causes import Cells, causes_of
from perfbisect.series.findings import Family, Finding, Rejection, judge, without_told
from perfbisect.series.gather import by_lineage, eras_of
from perfbisect.series.points import Beginning, beginnings
from perfbisect.series.series import CellSeries, day_number, gather, night_of, nightly
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.table import Table


@dataclass(frozen=True)
class SeriesAnalysis:
    """What a store's series show. ``series``: every series, one value a night; ``families``: medians first;
    ``findings``: what each alert was made of, by its name; ``known``: the alerts that were reported before;
    ``away``: builds that are not of main and were left out."""

    series: tuple[CellSeries, ...]
    cells: Cells
    families: tuple[Family, Family]
    alerts: tuple[Alert, ...]
    findings: Mapping[str, Finding]
    known: tuple[AlertRecord, ...]
    away: int

    @property
    def until(self) -> str:
        """The last night of all."""
        return night_of(max(one.nights[-1] for one in self.series))

    @property
    def begun(self) -> tuple[Beginning, ...]:
        """Where another kind of machine began to measure a cell."""
        points = {id(point): point for one in self.series for point in one.points}
        return tuple(beginnings(points.values()))

    def alerts_since(self, night: str) -> tuple[Alert, ...]:
        """The alerts that began on that night or later; all where it is empty."""
        first = day_number(night) if night else 0
        return tuple(alert for alert in self.alerts if self.findings[alert.id].first >= first)


def look(store: SeriesStore, table: Table, fdr: float = FDR) -> SeriesAnalysis:
    """Judges every series of a store; writes nothing.

    :raises UsageError: the store has no points, or the rate is none.
    """
    if not 0 < fdr < 1:
        raise UsageError(f"--fdr {fdr:g} is no share of false alarms: a number between 0 and 1")
    series, away = series_of_main(store)
    cells = Cells(series, table.traits_of)
    medians = judge([one for one in series if one.part == "typical"], fdr)
    tails = without_told(judge([one for one in series if one.part != "typical"], fdr), medians)
    findings = (*medians.alerts, *tails.alerts)
    known = store.alerts.all()
    until = max(one.nights[-1] for one in series)
    alerts = alerts_of(findings, causes_of(findings, cells), known, until=until, describe=alert_evidence)
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
    for name, own in by_lineage(mine):
        found += map(nightly, gather(own, eras_of, cell=name))
    return tuple(found), len(away)


def detect(
    store: SeriesStore, table: Table, *, now: str, since: str = "", fdr: float = FDR
) -> TrackDetectDocument:
    """Judges all nights, and writes down what is told: changes that began on the night ``since`` or later.

    ``now``: ISO 8601 in UTC. Raises what :func:`look` raises.
    """
    analysis = look(store, table, fdr)
    remember(store, analysis, now, since)
    return detect_document(analysis, since=since, fdr=fdr)


def remember(store: SeriesStore, analysis: SeriesAnalysis, now: str, since: str = "") -> None:
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
        together=tuple(_shared(event) for family in analysis.families for event in family.shared),
        boundaries=tuple(
            sorted(
                (*_boundaries(analysis.series, first), *_machines(analysis, first)),
                key=lambda one: one.night,
            )
        ),
        gone=_gone(analysis),
        census=CensusDocument(
            families=(
                _family("medians and single numbers", medians),
                _family("means and percentiles", tails),
            ),
            series=(*_rows(medians.census), *_rows(tails.census)),
            not_judged=dict(Counter(why for family in analysis.families for _, why in family.left)),
            builds_not_of_main=analysis.away,
        ),
    )


def _gone(analysis: SeriesAnalysis) -> tuple[GoneDocument, ...]:
    """What was reported and is not found any more; first what was found the last time."""
    found = {alert.id for alert in analysis.alerts}
    last = max((record.seen for record in analysis.known), default="")
    gone = [
        GoneDocument(
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


def _listed(finding: Finding, rejection: Rejection) -> ListedDocument:
    return ListedDocument(
        cell=finding.series.cell,
        metric=finding.series.metric,
        first=night_of(finding.first),
        shape=finding.found.shape,
        effect=finding.found.effect,
        interval=(finding.found.low, finding.found.high),
        p=finding.found.p,
        kind=rejection.kind,
        why=rejection_sentence(rejection),
    )


def _shared(event: Event) -> TogetherDocument:
    return TogetherDocument(
        after=night_of(event.window[0]),
        by=night_of(event.window[1]),
        p=min(1.0, event.p),
        series=event.members,
        servers=event.votes,
        against=event.against,
    )


def _boundaries(series: Sequence[CellSeries], first: int) -> tuple[ElsewhereDocument, ...]:
    found: dict[tuple[int, str, str], list[str]] = {}
    for one in series:
        for mark in one.boundaries:
            if one.nights[mark.index] >= first:
                found.setdefault((one.nights[mark.index], mark.kind, mark.what), []).append(one.cell)
    return tuple(
        ElsewhereDocument(
            night=night_of(night), kind=kind, what=what, series=len(cells), cells=tuple(dict.fromkeys(cells))
        )
        for (night, kind, what), cells in sorted(found.items())
    )


def _machines(analysis: SeriesAnalysis, first: int) -> Iterator[ElsewhereDocument]:
    """Nights from which on another kind of machine measures."""
    counts = Counter(one.cell for one in analysis.series)
    found: dict[tuple[str, str], list[str]] = {}
    for one in analysis.begun:
        if day_number(one.first.night) >= first:
            found.setdefault((one.first.night, one.what), []).append(one.lineage)
    for (night, what), names in found.items():
        count = sum(counts[name] for name in names)
        yield ElsewhereDocument(night=night, kind="machine", what=what, series=count, cells=tuple(names))


def _family(name: str, family: Family) -> FamilyDocument:
    alarmed = len({f"{one.series.cell} {one.series.metric}" for one in family.alerts})
    return FamilyDocument.model_validate(
        {"name": name, "judged": len(family.census.judged), "alarmed": alarmed, "cut": family.census.cut}
    )


def _rows(census: Census) -> Iterator[SeriesCensusDocument]:
    for entry in census.judged:
        yield SeriesCensusDocument(
            series=entry.key, nights=entry.nights, p=entry.p, smallest=entry.smallest, changes=entry.breaks
        )
    for one in census.refused:
        yield SeriesCensusDocument(series=one.key, nights=one.nights, why=one.reason)
