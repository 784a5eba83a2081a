"""``perfbisect track detect``: what changed in the series of a store, told once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from perfbisect.core.alert import Alert, Known, alerts_of
from perfbisect.core.finding import Family, Finding, Rejection, judge, without_told
from perfbisect.core.finding_cause import Cells, causes_of
from perfbisect.core.lineages import Beginning, beginnings
from perfbisect.core.reported_series import CellSeries, day_number, night_of, nightly
from perfbisect.core.series_joint import Event
from perfbisect.core.series_many import FDR, Census
from perfbisect.core.suspect_table import Table
from perfbisect.errors import UsageError
from perfbisect.jobs.track_series import by_lineage, gathered
from perfbisect.jobs.track_state import told as last_told
from perfbisect.render.cause_text import evidence_sentences, rejection_sentence
from perfbisect.render.detect_documents import (
    CensusDocument,
    DetectedDocument,
    ElsewhereDocument,
    FamilyDocument,
    GoneDocument,
    ListedDocument,
    SeriesCensusDocument,
    TogetherDocument,
    TrackDetectDocument,
)
from perfbisect.render.site_documents import PlaceDocument
from perfbisect.store.alerts import Told
from perfbisect.store.series import SeriesStore

SET = 0.95
"""Probability of the set of places of a change; its places share it equally."""


@dataclass(frozen=True)
class Seen:
    """All that was found. ``series``: every series, one value a night; ``families``: medians first."""

    series: tuple[CellSeries, ...]
    cells: Cells
    families: tuple[Family, Family]
    alerts: tuple[Alert, ...]
    away: int
    """Builds that are not of main and were left out."""

    @property
    def until(self) -> str:
        """The last night of all."""
        return night_of(max(one.nights[-1] for one in self.series))

    @property
    def begun(self) -> tuple[Beginning, ...]:
        """Where another kind of machine began to measure a cell."""
        points = {id(point): point for one in self.series for point in one.points}
        return tuple(beginnings(points.values()))

    def alert(self, name: str) -> Alert | None:
        """The alert of that name, None where it is not found any more."""
        return next((one for one in self.alerts if one.id == name), None)


def look(store: SeriesStore, table: Table, fdr: float = FDR) -> Seen:
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
    known = [
        Known(t.id, t.cell, t.metric, t.way, (t.begun_after, t.begun_by), t.state, t.why, t.by_rule)
        for t in store.alerts.all()
    ]
    until = max(one.nights[-1] for one in series)
    alerts = alerts_of(findings, causes_of(findings, cells), known, until=until)
    ordered = sorted(alerts, key=lambda one: (-one.finding.first, one.finding.series.key))
    return Seen(series, cells, (medians, tails), tuple(ordered), away)


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
        found += [nightly(one) for one in gathered(name, own)]
    return tuple(found), len(away)


def detect(
    store: SeriesStore, table: Table, *, now: str, since: str = "", fdr: float = FDR
) -> TrackDetectDocument:
    """Judges all nights, and writes down what is told: changes that began on the night ``since`` or later.

    ``now``: ISO 8601 in UTC. Raises what :func:`look` raises.
    """
    seen = look(store, table, fdr)
    document = detect_document(seen, store, since=since, fdr=fdr)
    remember(store, seen, document, now)
    return document


def remember(store: SeriesStore, seen: Seen, document: TrackDetectDocument, now: str) -> None:
    """Writes down what is told; of what was told before, its first telling and its state stay."""
    told = {one.id: one for one in document.alerts}
    rows = [
        Told(
            known.id, known.cell, known.metric, known.way, *known.begun, known.state, known.why,
            known.by_rule, now, now, told[known.id].text(),
        )
        for known in (one.known for one in seen.alerts)
        if known.id in told
    ]  # fmt: skip
    with store.transaction():
        store.alerts.keep(rows, now)


def detect_document(seen: Seen, store: SeriesStore, *, since: str, fdr: float) -> TrackDetectDocument:
    """What was found, as it is told."""
    first = day_number(since) if since else 0
    medians, tails = seen.families
    last = {one.id: last_told(one) for one in store.alerts.all()}
    listed = [pair for family in seen.families for pair in family.listed if pair[0].first >= first]
    return TrackDetectDocument(
        fdr=fdr,
        since=since,
        until=seen.until,
        alerts=tuple(
            _since(alert_document(one), last.get(one.id)) for one in seen.alerts if one.finding.first >= first
        ),
        listed=tuple(_listed(finding, rejection) for finding, rejection in listed),
        together=tuple(_shared(event) for family in seen.families for event in family.shared),
        boundaries=tuple(
            sorted((*_boundaries(seen.series, first), *_machines(seen, first)), key=lambda one: one.night)
        ),
        gone=_gone(store.alerts.all(), {one.id for one in seen.alerts}),
        census=CensusDocument(
            families=(
                _family("medians and single numbers", medians),
                _family("means and percentiles", tails),
            ),
            series=(*_rows(medians.census), *_rows(tails.census)),
            not_judged=dict(Counter(why for family in seen.families for _, why in family.left)),
            builds_not_of_main=seen.away,
        ),
    )


def alert_document(alert: Alert) -> DetectedDocument:
    """An alert as it is told."""
    finding, series = alert.finding, alert.finding.series
    around = (max(0, finding.places[0] - 1), *finding.places)
    return DetectedDocument(
        id=alert.id,
        cell=series.cell,
        metric=series.metric,
        first=series.points[finding.index].began,
        last=series.points[finding.after[0] if finding.found.shape == "drift" else finding.after[-1]].began,
        shape=finding.found.shape,
        cause=alert.cause.word,
        effect=finding.found.effect,
        interval=(finding.found.low, finding.found.high),
        places=tuple(
            PlaceDocument(
                build=series.points[i].build.name,
                time=series.points[i].began,
                p=SET / len(finding.places),
            )
            for i in finding.places
        ),
        builds=tuple(dict.fromkeys(series.points[i].build.name for i in around)),
        state=alert.state,
        evidence=(*evidence_sentences(alert.cause.evidence), *_how(finding)),
        event=alert.event,
        p=finding.found.p,
        recovered=alert.recovered,
        why=alert.why,
        new=alert.new,
        nights=len(finding.after),
        now=alert.now,
    )


def _since(now: DetectedDocument, before: DetectedDocument | None) -> DetectedDocument:
    """With what became of it since it was told last."""
    if before is None:
        return now
    was = before.cause if before.cause != now.cause else ""
    return now.model_copy(update={"was": was, "came_back": now.recovered and not before.recovered})


def _gone(told: Sequence[Told], found: Collection[str]) -> tuple[GoneDocument, ...]:
    """What was told and is not found any more; first what was found the last time."""
    last = max((one.seen for one in told), default="")
    gone = [
        GoneDocument(id=t.id, cell=t.cell, metric=t.metric, state=t.state, seen=t.seen, new=t.seen == last)
        for t in told
        if t.id not in found
    ]
    return tuple(sorted(gone, key=lambda one: (not one.new, one.id)))


_SHORT = 20
"""Nights below which a series is said to be short."""


def _how(finding: Finding) -> Iterator[str]:
    if finding.joined:
        yield (
            "doubtful by itself among so many series; told since other servers moved on that night: "
            f"{', '.join(finding.joined)}"
        )
    count = len(finding.series.values)
    if count < _SHORT:
        yield f"a short series: {count} nights"
    if finding.series.lacking:
        yield f"{finding.series.lacking} points of the cell do not report {finding.series.metric}"


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


def _machines(seen: Seen, first: int) -> Iterator[ElsewhereDocument]:
    """Nights from which on another kind of machine measures."""
    counts = Counter(one.cell for one in seen.series)
    found: dict[tuple[str, str], list[str]] = {}
    for one in seen.begun:
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
