"""``track detect``, ``ack``, ``close`` and ``reopen``: the changes of a store's series and their states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from pydantic import Field

from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document, LongDocument
from perfbisect.series.alerts import Alert, AlertRecord, State, begun, match_alerts
from perfbisect.series.cause_text import suppression_sentence
from perfbisect.series.causes import SeriesIndex, infer_causes
from perfbisect.series.detection.fdr import FDR, SeriesCoverage
from perfbisect.series.detection.model import Shape
from perfbisect.series.findings import (
    JudgedFamily,
    SeriesChange,
    SuppressionReason,
    drop_duplicate_tails,
    select_alerts,
)
from perfbisect.series.series import (
    CellSeries,
    MachineSeriesStart,
    build_series,
    machine_series,
    machine_series_starts,
    night_of,
    nightly,
)
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.table import SuspectTable

FamilyName = Literal["medians and single numbers", "means and percentiles"]


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


class FamilyCoverage(Document):
    """Series whose false discovery rate is controlled together; ``cut``: the largest significant p."""

    name: FamilyName
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
        brief = LongDocument.brief(self.model_copy(update={"alerts": tuple(alerts)}))
        if not self.census.series:
            return brief
        left = {**brief.left_out, "census.series": len(self.census.series)}
        census = self.census.model_copy(update={"series": ()})
        return brief.model_copy(update={"census": census, "left_out": left})


@dataclass(frozen=True)
class SeriesAnalysis:
    """What a store's series show.

    ``series``: one value a night. ``families``: medians, then means and percentiles. ``findings``: the change
    of each alert by its name. ``known``: alerts reported before. ``away``: builds of other branches.
    """

    series: tuple[CellSeries, ...]
    index: SeriesIndex
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
    def machine_starts(self) -> tuple[MachineSeriesStart, ...]:
        """Where another kind of machine began to measure a cell."""
        points = {id(point): point for item in self.series for point in item.points}
        return tuple(machine_series_starts(points.values()))

    def alerts_since(self, night: str) -> tuple[Alert, ...]:
        """The alerts that began on that night or later; all where it is empty."""
        return tuple(a for a in self.alerts if night_of(self.findings[a.id].first) >= night)


def analyze_series(store: SeriesStore, table: SuspectTable, fdr: float = FDR) -> SeriesAnalysis:
    """Judges every series of a store; writes nothing.

    :raises UsageError: the store has no points, or the rate is none.
    """
    if not 0 < fdr < 1:
        raise UsageError(f"--fdr {fdr:g} is no share of false alarms: a number between 0 and 1")
    series, away = series_of_main(store)
    index = SeriesIndex(series, table.traits_of, table.features_of)
    medians = select_alerts([item for item in series if item.part == "typical"], fdr)
    tails = select_alerts([item for item in series if item.part != "typical"], fdr)
    tails = drop_duplicate_tails(tails, medians)
    changes = (*medians.alerts, *tails.alerts)
    known = store.alerts.all()
    until = max(item.nights[-1] for item in series)
    alerts = match_alerts(changes, infer_causes(changes, index), known, until=until)
    findings = {alert.id: change for alert, change in zip(alerts, changes, strict=True)}
    ordered = sorted(alerts, key=lambda alert: (-findings[alert.id].first, alert.cell, alert.metric))
    return SeriesAnalysis(series, index, (medians, tails), tuple(ordered), findings, known, away)


def series_of_main(store: SeriesStore) -> tuple[tuple[CellSeries, ...], int]:
    """Every series with one value a night, and how many builds of other branches are left out.

    :raises UsageError: the store has no points.
    """
    points = store.points()
    main = [point for point in points if point.build.of_main is not False]
    if not main:
        raise UsageError(
            "the store has no points of the main branch" if points else "the store has no points",
            next_step="perfbisect track ingest PATH",
        )
    away = {point.build.key for point in points if point.build.of_main is False}
    series = [nightly(item) for name, own in machine_series(main) for item in build_series(own, cell=name)]
    return tuple(series), len(away)


def detect(
    store: SeriesStore, table: SuspectTable, *, now: str, since: str = "", fdr: float = FDR
) -> TrackDetectDocument:
    """Judges all nights and records the alerts that began on the night ``since`` or later.

    ``now``: ISO 8601 in UTC.
    """
    analysis = analyze_series(store, table, fdr)
    record_alerts(store, analysis, now, since)
    return detect_document(analysis, since=since, fdr=fdr)


def record_alerts(store: SeriesStore, analysis: SeriesAnalysis, now: str, since: str = "") -> None:
    """Stores the alerts that began on the night ``since`` or later, as found at ``now``."""
    alerts = analysis.alerts_since(since)
    with store.transaction():
        store.alerts.keep([AlertRecord(a, begun(analysis.findings[a.id]), now) for a in alerts])


def detect_document(analysis: SeriesAnalysis, *, since: str, fdr: float) -> TrackDetectDocument:
    """The public JSON of an analysis: what began on the night ``since`` or later."""
    families = analysis.families
    names: tuple[FamilyName, ...] = get_args(FamilyName)
    suppressed = [change for family in families for change in family.suppressed]
    return TrackDetectDocument(
        fdr=fdr,
        since=since,
        until=analysis.until,
        alerts=analysis.alerts_since(since),
        listed=tuple(_suppressed(change) for change in suppressed if night_of(change.first) >= since),
        joint_changes=tuple(
            JointChange(
                after=night_of(event.window[0]),
                by=night_of(event.window[1]),
                p=min(1.0, event.p),
                series=event.members,
                servers=event.votes,
                against=event.against,
            )
            for family in families
            for event in family.joint_events
        ),
        discontinuities=_discontinuities(analysis, since),
        vanished=_vanished(analysis),
        census=CoverageDocument(
            families=tuple(
                FamilyCoverage(
                    name=name,
                    judged=family.coverage.judged,
                    alarmed=len({alert.series.key for alert in family.alerts}),
                    cut=family.coverage.cut,
                )
                for name, family in zip(names, families, strict=True)
            ),
            series=tuple(entry for family in families for entry in family.coverage.series),
            not_judged=Counter(reason for family in families for reason in family.not_judged.values()),
            builds_not_of_main=analysis.away,
        ),
    )


def _vanished(analysis: SeriesAnalysis) -> tuple[VanishedAlert, ...]:
    """Reported alerts that are not found any more; those of the last run first."""
    last = max((record.seen for record in analysis.known), default="")
    vanished = []
    for record in analysis.known:
        alert, seen = record.alert, record.seen
        if alert.id not in analysis.findings:
            same = {"id": alert.id, "cell": alert.cell, "metric": alert.metric, "state": alert.state}
            vanished.append(VanishedAlert(**same, seen=seen, new=seen == last))
    return tuple(sorted(vanished, key=lambda alert: (not alert.new, alert.id)))


def _suppressed(change: SeriesChange) -> SuppressedChange:
    assert change.suppression is not None
    point = change.point
    return SuppressedChange(
        cell=change.series.cell,
        metric=change.series.metric,
        first=night_of(change.first),
        shape=point.shape,
        effect=point.effect,
        interval=(point.low, point.high),
        p=point.p,
        kind=change.suppression,
        why=suppression_sentence(change),
    )


def _discontinuities(analysis: SeriesAnalysis, since: str) -> tuple[DiscontinuityDocument, ...]:
    """Discontinuities of series, and nights from which on another kind of machine measures a cell."""
    cells: dict[tuple[str, str, str], list[str]] = {}
    for item in analysis.series:
        for mark in item.boundaries:
            night = night_of(item.nights[mark.index])
            cells.setdefault((night, mark.kind, mark.what), []).append(item.cell)
    counts = Counter(item.cell for item in analysis.series)
    for start in analysis.machine_starts:
        names = cells.setdefault((start.first.night, "machine", start.what), [])
        names.extend([start.name] * counts[start.name])
    return tuple(
        DiscontinuityDocument(
            night=night, kind=kind, what=what, series=len(names), cells=tuple(dict.fromkeys(names))
        )
        for (night, kind, what), names in sorted(cells.items())
        if night >= since
    )


class TrackStateDocument(Document):
    """JSON of ``track ack``, ``close`` and ``reopen``; of an event, that of its first alert.

    ``alerts``: how many were changed.
    """

    schema_: Literal["perfbisect.track-state/1"] = Field(default="perfbisect.track-state/1", alias="schema")
    id: str
    cell: str
    metric: str
    state: State
    before: State
    why: str
    alerts: int = 1


def set_state(store: SeriesStore, name: str, state: State, reason: str) -> TrackStateDocument:
    if not reason.strip():
        raise UsageError("--reason is empty", next_step='such as --reason "issue 2711"')
    alerts = store.alerts.find(name)
    with store.transaction():
        for alert in alerts:
            store.alerts.mark(alert.id, state, reason.strip())
    return TrackStateDocument(
        id=alerts[0].id if len(alerts) == 1 else name,
        cell=alerts[0].cell,
        metric=alerts[0].metric,
        state=state,
        before=alerts[0].state,
        why=reason.strip(),
        alerts=len(alerts),
    )
