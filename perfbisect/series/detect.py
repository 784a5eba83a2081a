"""``track detect``, ``ack``, ``close`` and ``reopen``: the changes of a store's series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from pydantic import Field

from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document, LongDocument
from perfbisect.model.commit_details import Evidence
from perfbisect.model.environment import differences
from perfbisect.series.alerts import (
    NO_OUTCOMES,
    Alert,
    Event,
    MeasuredOutcome,
    State,
    SuppressedChange,
    found_alerts,
    group_by_event,
    match_alerts,
    next_command,
    weight,
)
from perfbisect.series.causes import infer_causes
from perfbisect.series.detection.fdr import FDR, JointChange, SeriesCoverage
from perfbisect.series.findings import (
    JudgedFamily,
    SeriesChange,
    SeriesIndex,
    drop_duplicate_tails,
    select_alerts,
)
from perfbisect.series.points import night_of
from perfbisect.series.series import (
    CellSeries,
    MachineSeriesStart,
    build_series,
    machine_series,
    machine_series_starts,
    nightly,
)
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.table import SuspectTable

_ENVIRONMENT_ROWS = 20

FamilyName = Literal["medians and single numbers", "means and percentiles"]


class DiscontinuityDocument(Document):
    """A night across which ``series`` many series are not compared."""

    night: str
    kind: str
    change: Evidence
    series: int
    cells: tuple[str, ...]


class FamilyCoverage(Document):
    """Series whose false discovery rate is controlled together, of steps and drifts and of transients apart.

    ``alarmed``, ``alarmed_by_transients``: series of either; ``cut``, ``cut_of_transients``: the largest
    significant p.
    """

    name: FamilyName
    judged: int
    alarmed: int
    alarmed_by_transients: int
    cut: float
    cut_of_transients: float


class CoverageDocument(Document):
    """Which series were judged, and how many were not, by the kind of reason.

    ``set_aside``: the builds with ``results`` that measured another commit than the build's, newest first.
    """

    families: tuple[FamilyCoverage, ...]
    series: tuple[SeriesCoverage, ...]
    not_judged: dict[str, int]
    builds_not_of_main: int
    set_aside: tuple[Evidence, ...]


class DetectedChanges(Document):
    """What the series of a store show by themselves up to the night ``until``."""

    until: str
    alerts: tuple[Alert, ...]
    listed: tuple[SuppressedChange, ...]
    joint_changes: tuple[JointChange, ...]
    discontinuities: tuple[DiscontinuityDocument, ...]
    census: CoverageDocument


class TrackDetectDocument(DetectedChanges, LongDocument):
    """JSON of ``track detect``: changes since the night ``since`` (empty: all).

    ``events``: those to act on first, the largest before the others. ``needs_action``: how many these are.
    ``next``: the command for the first of them, or for the newest regression that has not recovered.
    ``vanished``: reported alerts that are not found any more; ``new``: no earlier run said so.
    """

    shown: ClassVar[Mapping[str, int]] = {"alerts": 6, "listed": 5, "vanished": 12, "discontinuities": 12}
    schema_: Literal["perfbisect.track-detect/7"] = Field(default="perfbisect.track-detect/7", alias="schema")
    fdr: float
    since: str
    needs_action: int
    events: tuple[Event, ...]
    next: str
    vanished: tuple[Alert, ...]

    def brief(self) -> TrackDetectDocument:
        """All events; of the alerts those to act on first, the largest before others; no coverage of single
        series."""
        alerts = sorted(self.alerts, key=lambda alert: (*weight(alert), alert.id), reverse=True)
        alerts.sort(key=lambda alert: (not alert.needs_action, alert.recovered, not alert.is_news))
        brief = LongDocument.brief(self.model_copy(update={"alerts": tuple(alerts)}))
        if not self.census.series:
            return brief
        left = {**brief.left_out, "census.series": len(self.census.series)}
        census = self.census.model_copy(update={"series": ()})
        return brief.model_copy(update={"census": census, "left_out": left})


@dataclass(frozen=True)
class SeriesAnalysis:
    """What a store's series show.

    ``series``: one value a night. ``families``: medians, then means and percentiles. ``found``: alerts before
    they are matched with ``known`` ones, which were reported before. ``findings``: the change of each alert
    by its name. ``away``: builds of other branches. ``set_aside``: see :class:`CoverageDocument`.
    """

    series: tuple[CellSeries, ...]
    index: SeriesIndex
    families: tuple[JudgedFamily, JudgedFamily]
    found: tuple[Alert, ...]
    alerts: tuple[Alert, ...]
    findings: Mapping[str, SeriesChange]
    known: tuple[Alert, ...]
    away: int
    set_aside: tuple[Evidence, ...]

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
        return tuple(alert for alert in self.alerts if night_of(alert.night) >= night)


def analyze_series(store: SeriesStore, table: SuspectTable, fdr: float = FDR) -> SeriesAnalysis:
    """Judges every series of a store; writes nothing.

    :raises UsageError: the store has no points, or the rate is none.
    """
    if not 0 < fdr < 1:
        raise UsageError(f"--fdr {fdr:g} is no share of false alarms: a number between 0 and 1")
    series, away = series_of_main(store)
    index = SeriesIndex(series, table.traits_of, table.features_of)
    judge = store.memory.judge
    medians = select_alerts([item for item in series if item.part == "typical"], fdr, judge)
    tails = select_alerts([item for item in series if item.part != "typical"], fdr, judge)
    # A mean repeats what the median of its cell shows.
    tails = drop_duplicate_tails(tails, medians)
    changes = (*medians.alerts, *tails.alerts)
    known = store.alerts.all()
    until = max(item.nights[-1] for item in series)
    found = []
    causes = infer_causes(changes, index)
    for alert, change in zip(found_alerts(changes, causes, until=until), changes, strict=True):
        points = change.series.points
        sides = (store.environment(points[place]) for place in (change.before[-1], change.after[0]))
        rows = differences(*sides)
        if rows is not None:
            shown = [list(row) for row in rows[:_ENVIRONMENT_ROWS]]
            evidence = Evidence("environments", {"rows": shown, "more": len(rows) - len(shown)})
            alert = replace(alert, evidence=(*alert.evidence, evidence))
        found.append(alert)
    alerts = match_alerts(found, known)
    findings = {alert.id: change for alert, change in zip(alerts, changes, strict=True)}
    others = [result for result in reversed(store.rejections()) if result.kind == "mislabelled"]
    results = Counter(result.build.key for result in others)
    aside = {
        result.build.key: Evidence(
            result.why.kind,
            {
                **result.why.values,
                "build": result.build.name,
                "night": result.night,
                "results": results[result.build.key],
            },
        )
        for result in others
    }
    return SeriesAnalysis(
        series=series,
        index=index,
        families=(medians, tails),
        found=tuple(found),
        alerts=_newest_first(alerts),
        findings=findings,
        known=known,
        away=away,
        set_aside=tuple(aside.values()),
    )


def _newest_first(alerts: Iterable[Alert]) -> tuple[Alert, ...]:
    return tuple(sorted(alerts, key=lambda alert: (-alert.night, alert.cell, alert.metric)))


def series_of_main(store: SeriesStore) -> tuple[tuple[CellSeries, ...], int]:
    """Every series with one value a night, and how many builds of other branches are left out.

    :raises UsageError: the store has no points.
    """
    series, away, has_main = list[CellSeries](), set[str](), False
    no_values: Mapping[str, float] = {}
    for points in store.points_by_cell():
        # A build that does not say its branch counts: the kanban names none.
        main = [point for point in points if point.build.of_main is not False]
        has_main = has_main or bool(main)
        away.update(point.build.key for point in points if point.build.of_main is False)
        for name, own in machine_series(main):
            built = build_series(own, cell=name)
            # Only the series read values from now on; points stay for build, workload and covariates: half
            # of the memory of a large store.
            bare = {id(point): replace(point, values=no_values) for item in built for point in item.points}
            tracks = {id(item.points): tuple(bare[id(point)] for point in item.points) for item in built}
            series += (nightly(replace(item, points=tracks[id(item.points)])) for item in built)
    if not has_main:
        raise UsageError(
            "the store has no points of the main branch" if away else "the store has no points",
            next_step="perfbisect track ingest PATH",
        )
    return tuple(series), len(away)


def detect(
    store: SeriesStore, table: SuspectTable, *, now: str, since: str = "", fdr: float = FDR
) -> TrackDetectDocument:
    """Judges all nights and records the alerts that began on the night ``since`` or later.

    The outcome of an unchanged store is remembered. ``now``: ISO 8601 in UTC.
    """
    # Causes depend on what cells run, which the table of suspects says.
    key = store.memory.key_of_store({"fdr": fdr, "table": table.model_dump_json()})
    remembered = store.memory.outcome(key)
    changes = (
        detected_changes(analyze_series(store, table, fdr))
        if remembered is None
        else DetectedChanges.model_validate_json(remembered)
    )
    document = detect_document(changes, store.alerts.all(), since=since, fdr=fdr)
    with store.transaction():
        if remembered is None:
            store.memory.keep_judged()
            store.memory.keep_outcome(key, changes.model_dump_json())
        store.alerts.keep((*(replace(alert, seen=now) for alert in document.alerts), *document.vanished))
    return document


def detect_document(
    changes: DetectedChanges,
    known: Sequence[Alert],
    *,
    fdr: float,
    since: str = "",
    measured: Mapping[str, MeasuredOutcome] = NO_OUTCOMES,
) -> TrackDetectDocument:
    """The changes since a night, with alerts under the names and states of the known ones that they are.

    ``measured``: by alert, what a bisection says of it.
    """
    matched = _newest_first(match_alerts(changes.alerts, known))
    recent = (alert for alert in matched if night_of(alert.night) >= since)
    alerts = tuple(replace(alert, measured=measured.get(alert.id)) for alert in recent)
    events = tuple(map(Event.of, group_by_event(alerts)))
    shown = {
        "alerts": alerts,
        "listed": tuple(change for change in changes.listed if night_of(change.night) >= since),
        "discontinuities": tuple(mark for mark in changes.discontinuities if mark.night >= since),
    }
    # What an earlier run did not find has no status any more, and was told then.
    found = {alert.id for alert in matched}
    last = max((alert.seen for alert in known), default="")
    gone = (alert for alert in known if alert.id not in found)
    vanished = [replace(alert, new=alert.now != "" and alert.seen == last, now="") for alert in gone]
    return TrackDetectDocument(
        **{**dict(changes), **shown},
        fdr=fdr,
        since=since,
        needs_action=sum(event.needs_action > 0 for event in events),
        events=events,
        next=next_command(alerts),
        vanished=tuple(sorted(vanished, key=lambda alert: (not alert.new, alert.id))),
    )


def detected_changes(analysis: SeriesAnalysis) -> DetectedChanges:
    families = analysis.families
    names: tuple[FamilyName, ...] = get_args(FamilyName)
    return DetectedChanges(
        until=analysis.until,
        alerts=analysis.found,
        listed=tuple(suppressed_change(change) for family in families for change in family.suppressed),
        joint_changes=tuple(change for family in families for change in family.joint_changes),
        discontinuities=_discontinuities(analysis),
        census=CoverageDocument(
            families=tuple(
                FamilyCoverage(
                    name=name,
                    judged=family.coverage.judged,
                    alarmed=len(family.alarmed("level")),
                    alarmed_by_transients=len(family.alarmed("transient")),
                    cut=family.coverage.cut["level"],
                    cut_of_transients=family.coverage.cut["transient"],
                )
                for name, family in zip(names, families, strict=True)
            ),
            series=tuple(entry for family in families for entry in family.coverage.series),
            not_judged=Counter(
                entry.why.kind for family in families for entry in family.coverage.series if entry.why
            ),
            builds_not_of_main=analysis.away,
            set_aside=analysis.set_aside,
        ),
    )


def suppressed_change(change: SeriesChange) -> SuppressedChange:
    assert change.suppression is not None
    point = change.point
    return SuppressedChange(
        cell=change.series.cell,
        metric=change.series.metric,
        night=change.first,
        shape=point.shape,
        effect=point.effect,
        interval=(point.low, point.high),
        p=point.p,
        kind=change.suppression,
        smallest=change.series.min_effect,
        reported_by=change.duplicate_of,
    )


def _discontinuities(analysis: SeriesAnalysis) -> tuple[DiscontinuityDocument, ...]:
    """Discontinuities of series, and nights from which on another kind of machine measures a cell."""
    marks: list[tuple[str, str, Evidence, tuple[str, ...]]] = [
        (night_of(item.nights[mark.index]), mark.kind, mark.change, (item.cell,))
        for item in analysis.series
        for mark in item.boundaries
    ]
    counts = Counter(item.cell for item in analysis.series)
    marks += [
        (start.first.night, "machine", start.change, (start.name,) * counts[start.name])
        for start in analysis.machine_starts
    ]
    # Values are no keys of a mapping, and their text is.
    groups: dict[tuple[str, str, str], tuple[Evidence, list[str]]] = {}
    for night, kind, change, cells in marks:
        groups.setdefault((night, kind, str(change)), (change, []))[1].extend(cells)
    return tuple(
        DiscontinuityDocument(
            night=night, kind=kind, change=change, series=len(names), cells=tuple(dict.fromkeys(names))
        )
        for (night, kind, _), (change, names) in sorted(groups.items(), key=lambda group: group[0])
    )


class TrackStateDocument(Document):
    """JSON of ``track ack``, ``close`` and ``reopen``: the first of the ``alerts`` that ``name`` is of.

    ``alerts``: how many were changed; ``before``: the state of the first one.
    """

    schema_: Literal["perfbisect.track-state/2"] = Field(default="perfbisect.track-state/2", alias="schema")
    name: str
    alert: Alert
    before: State
    alerts: int = 1


def set_state(store: SeriesStore, name: str, state: State, reason: str) -> TrackStateDocument:
    if not reason.strip():
        raise UsageError("--reason is empty", next_step='such as --reason "issue 2711"')
    first, *others = store.alerts.find(name)
    with store.transaction():
        for alert in (first, *others):
            store.alerts.mark(alert.id, state, reason.strip())
    return TrackStateDocument(
        name=name if others else first.id,
        alert=replace(first, state=state, why=reason.strip(), by_rule=False),
        before=first.state,
        alerts=1 + len(others),
    )
