"""``track detect``, ``ack``, ``close`` and ``reopen``: the changes of a store's series, and their reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Literal, get_args

from pydantic import Field

from perfbisect.common.quantities import counted, number, percent
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document, LongDocument
from perfbisect.model.metric import row
from perfbisect.report.document import Command, Items, Paragraph, Report, Section, Tone, Verdict, make_table
from perfbisect.series.alerts import (
    Alert,
    AlertRecord,
    FoundAlert,
    State,
    begun,
    found_alerts,
    leading_alert,
    match_alerts,
    weight,
)
from perfbisect.series.cause_text import suppression_sentence
from perfbisect.series.causes import SeriesIndex, infer_causes
from perfbisect.series.detection.fdr import FDR, SeriesCoverage
from perfbisect.series.detection.model import Shape
from perfbisect.series.events import EventDocument, event_document, group_by_event, next_command
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
    without_point_values,
)
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.table import SuspectTable

FamilyName = Literal["medians and single numbers", "means and percentiles"]

_SUPPRESSED_SHOWN = 10
_EVIDENCE_SHOWN = 3


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
    """JSON of ``track detect``: changes since the night ``since`` (empty: all) up to ``until``.

    ``events``: those to act on first, the largest before the others. ``needs_action``: how many these are.
    ``next``: the command for the first of them, or for the newest regression that has not recovered.
    """

    shown: ClassVar[Mapping[str, int]] = {"alerts": 6, "listed": 5, "vanished": 12, "discontinuities": 12}
    schema_: Literal["perfbisect.track-detect/3"] = Field(default="perfbisect.track-detect/3", alias="schema")
    fdr: float
    since: str
    until: str
    needs_action: int
    events: tuple[EventDocument, ...]
    next: str
    alerts: tuple[Alert, ...]
    listed: tuple[SuppressedChange, ...]
    joint_changes: tuple[JointChange, ...]
    discontinuities: tuple[DiscontinuityDocument, ...]
    vanished: tuple[VanishedAlert, ...]
    census: CoverageDocument

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
    by its name. ``away``: builds of other branches.
    """

    series: tuple[CellSeries, ...]
    index: SeriesIndex
    families: tuple[JudgedFamily, JudgedFamily]
    found: tuple[FoundAlert, ...]
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
    judge = store.memory.judge
    medians = select_alerts([item for item in series if item.part == "typical"], fdr, judge)
    tails = select_alerts([item for item in series if item.part != "typical"], fdr, judge)
    tails = drop_duplicate_tails(tails, medians)
    changes = (*medians.alerts, *tails.alerts)
    known = store.alerts.all()
    until = max(item.nights[-1] for item in series)
    found = found_alerts(changes, infer_causes(changes, index), until=until)
    alerts = match_alerts(found, known)
    findings = {alert.id: change for alert, change in zip(alerts, changes, strict=True)}
    ordered = sorted(alerts, key=lambda alert: (-findings[alert.id].first, alert.cell, alert.metric))
    return SeriesAnalysis(series, index, (medians, tails), found, tuple(ordered), findings, known, away)


def series_of_main(store: SeriesStore) -> tuple[tuple[CellSeries, ...], int]:
    """Every series with one value a night, and how many builds of other branches are left out.

    :raises UsageError: the store has no points.
    """
    series, away, has_main = list[CellSeries](), set[str](), False
    for points in store.points_by_cell():
        main = [point for point in points if point.build.of_main is not False]
        has_main = has_main or bool(main)
        away.update(point.build.key for point in points if point.build.of_main is False)
        for name, own in machine_series(main):
            series += map(nightly, without_point_values(build_series(own, cell=name)))
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
    key = store.memory.key_of_store({"fdr": fdr, "table": table.model_dump_json()})
    remembered = store.memory.outcome(key)
    outcome = (
        detection_outcome(analyze_series(store, table, fdr))
        if remembered is None
        else DetectionOutcome.model_validate_json(remembered)
    )
    known = store.alerts.all()
    with store.transaction():
        if remembered is None:
            store.memory.keep_judged()
            store.memory.keep_outcome(key, outcome.model_dump_json())
        store.alerts.keep(
            [
                AlertRecord(alert, item.begun, now)
                for alert, item in _matched(outcome.found, known)
                if night_of(item.night) >= since
            ]
        )
    return outcome_document(outcome, known, since=since, fdr=fdr)


def record_alerts(store: SeriesStore, analysis: SeriesAnalysis, now: str, since: str = "") -> None:
    """Stores the alerts that began on the night ``since`` or later, as found at ``now``."""
    alerts = analysis.alerts_since(since)
    with store.transaction():
        store.memory.keep_judged()
        store.alerts.keep([AlertRecord(a, begun(analysis.findings[a.id]), now) for a in alerts])


def detect_document(analysis: SeriesAnalysis, *, since: str, fdr: float) -> TrackDetectDocument:
    """The public JSON of an analysis: what began on the night ``since`` or later."""
    return outcome_document(detection_outcome(analysis), analysis.known, since=since, fdr=fdr)


class DetectionOutcome(Document):
    """What the series of a store show by themselves, before alerts are matched with those reported before."""

    until: str
    found: tuple[FoundAlert, ...]
    listed: tuple[SuppressedChange, ...]
    joint_changes: tuple[JointChange, ...]
    discontinuities: tuple[DiscontinuityDocument, ...]
    census: CoverageDocument


def outcome_document(
    outcome: DetectionOutcome, known: Sequence[AlertRecord], *, since: str, fdr: float
) -> TrackDetectDocument:
    matched = _matched(outcome.found, known)
    alerts = tuple(alert for alert, item in matched if night_of(item.night) >= since)
    events = tuple(event_document(event, of) for event, of in group_by_event(alerts))
    return TrackDetectDocument(
        fdr=fdr,
        since=since,
        until=outcome.until,
        needs_action=sum(event.needs_action > 0 for event in events),
        events=events,
        next=next_command(alerts),
        alerts=alerts,
        listed=tuple(change for change in outcome.listed if change.first >= since),
        joint_changes=outcome.joint_changes,
        discontinuities=tuple(mark for mark in outcome.discontinuities if mark.night >= since),
        vanished=_vanished(known, {alert.id for alert, _ in matched}),
        census=outcome.census,
    )


def _matched(found: Sequence[FoundAlert], known: Sequence[AlertRecord]) -> list[tuple[Alert, FoundAlert]]:
    """The alerts with what was found of them, the newest first."""
    matched = list(zip(match_alerts(found, known), found, strict=True))
    return sorted(matched, key=lambda pair: (-pair[1].night, pair[0].cell, pair[0].metric))


def detection_outcome(analysis: SeriesAnalysis) -> DetectionOutcome:
    families = analysis.families
    names: tuple[FamilyName, ...] = get_args(FamilyName)
    return DetectionOutcome(
        until=analysis.until,
        found=analysis.found,
        listed=tuple(_suppressed(change) for family in families for change in family.suppressed),
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
            not_judged=Counter(reason for family in families for reason in family.not_judged.values()),
            builds_not_of_main=analysis.away,
        ),
    )


def _vanished(known: Sequence[AlertRecord], found: Collection[str]) -> tuple[VanishedAlert, ...]:
    """Reported alerts that are not found any more; those of the last run first."""
    last = max((record.seen for record in known), default="")
    vanished = []
    for record in known:
        alert, seen = record.alert, record.seen
        if alert.id not in found:
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


def _discontinuities(analysis: SeriesAnalysis) -> tuple[DiscontinuityDocument, ...]:
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


def detect_report(document: TrackDetectDocument, *, everything: bool = False) -> Report:
    """Report of ``track detect``; ``everything``: known events in full, too."""
    groups = group_by_event(document.alerts)
    full = [everything or any(alert.is_news for alert in alerts) for _, alerts in groups]
    known = [group for group, is_full in zip(groups, full, strict=True) if not is_full]
    lists = {
        "Known before": [*_known_lines(known), *_vanished_lines(document, everything)],
        "Joint changes": [
            f"after {change.after}, by {change.by}: {len(change.series)} series of {len(change.servers)} "
            f"servers moved together, none significantly by itself (p {change.p:.1g}): "
            f"{', '.join(change.series[:3])}"
            for change in document.joint_changes
        ],
        "Suppressed changes": _suppressed_lines(document),
        "Discontinuities": [
            f"{mark.night}  {mark.kind} changed, {mark.series} series begin anew: {mark.what}"
            for mark in document.discontinuities
        ],
        "Coverage": coverage_lines(document),
    }
    sections = [_event_section(*group) for group, is_full in zip(groups, full, strict=True) if is_full]
    sections += [Section(title, (Items(tuple(texts)),)) for title, texts in lists.items() if texts]
    if document.next:
        sections.append(Section("Next", (Command(document.next),)))
    new = [event for event in document.events if event.news]
    alerts = sum(event.news for event in new)
    text = "no new events" if not new else f"{counted(len(new), 'new event')} ({counted(alerts, 'alert')})"
    tone: Tone = "bad" if document.needs_action else "good"
    verdict = Verdict(f"{text}; to act on today: {document.needs_action}", tone)
    return Report(f"Series up to {document.until}", verdict, (), tuple(sections))


def size_text(effect: float) -> str:
    """``+12.3 %``, or ``x 24`` where it is more than threefold."""
    return f"x {number(1 + effect, 3)}" if effect > 2 else percent(effect)


def change_text(metric: str, value: float | None) -> str:
    """A change of a metric: as a percentage, of a share as the difference."""
    if value is None:
        return "-"
    return f"{value:+.3g}" if row(metric.partition(":")[0]).absolute else percent(value)


def summarize_event(event: str, alerts: Sequence[Alert]) -> str:
    """An event in a line: its leading alert, how many cells, and its state."""
    first = leading_alert(alerts, event)
    cells = len({alert.cell for alert in alerts})
    text = f"{first.first[:10]}: {first.cause}, {first.shape}, {size_text(first.effect)} of {first.metric}"
    text += f" in {first.cell}" + (f" and {cells - 1} other cells" if cells > 1 else "")
    if recovered := sum(alert.recovered for alert in alerts):
        some = f"{recovered} of {len(alerts)} alerts " if recovered < len(alerts) else ""
        text += f", {some}recovered"
    return text + (f", {first.state}: {first.why}" if first.state != "open" else "")


def coverage_lines(document: TrackDetectDocument) -> list[str]:
    """Which series were judged, what they can show, and why others were not judged."""
    coverage = document.census
    texts = [
        f"{family.judged} series of {family.name} judged, {family.alarmed} alarmed by another level and "
        f"{family.alarmed_by_transients} by a transient: at most {document.fdr * 100:g} % of either by chance"
        for family in coverage.families
    ]
    if steps := sorted(series.smallest for series in coverage.series if series.smallest is not None):
        nights = sorted(series.nights for series in coverage.series if series.smallest is not None)
        middle = len(steps) // 2
        texts.append(
            f"steps that would be detected: in half of the series {percent(steps[middle], signed=False)} or "
            f"less; half of them have {nights[middle]} nights or fewer"
        )
    refused = {**coverage.not_judged, **Counter(series.why for series in coverage.series if series.why)}
    texts += [f"not judged: {count} {why}" for why, count in refused.items()]
    if coverage.builds_not_of_main:
        texts.append(f"{coverage.builds_not_of_main} builds are not of main and were left out")
    return texts


def _event_section(event: str, alerts: Sequence[Alert]) -> Section:
    first = leading_alert(alerts, event)
    shapes = dict.fromkeys(a.shape for a in sorted(alerts, key=lambda alert: alert.size, reverse=True))
    cells = groupby(sorted(alerts, key=lambda alert: alert.cell), key=lambda alert: alert.cell)
    rows = tuple(_cell_row(list(group)) for _, group in cells)
    table = make_table(("alert", "cell", "metric", "change*", "95 % CI", "nights*", ""), rows)
    what = f"{first.first[:10]}  {first.cause}, {'/'.join(shapes)}"
    title = f"{what}: {counted(len(alerts), 'alert')} of {counted(len(rows), 'cell')}  ({event})"
    return Section(title, (Items(first.evidence[:_EVIDENCE_SHOWN]), table))


def _cell_row(alerts: Sequence[Alert]) -> tuple[str, ...]:
    """The weightiest alert of a cell."""
    alert = max(alerts, key=weight)
    low, high = alert.interval
    interval = f"{percent(low)} to {percent(high)}"
    if alert.effect > 2:
        interval = f"x {number(1 + low, 3)} to {number(1 + high, 3)}"
    marks = (
        "" if alert.worse else "better",
        "chunks grouped otherwise" if alert.grouping else "",
        "" if alert.now == "still there" else alert.now,
        _state_text(alert),
        f"and {counted(len(alerts) - 1, 'more metric')}" if len(alerts) > 1 else "",
    )
    numbers = (size_text(alert.effect), interval, str(alert.nights))
    return (alert.id, alert.cell, alert.metric, *numbers, ", ".join(filter(None, marks)))


def _state_text(alert: Alert) -> str:
    if alert.state != "open":
        return f"{alert.state}: {alert.why}" if alert.why else alert.state
    if alert.new:
        return ""
    return f"reported as {alert.was}" if alert.was else "reported before"


def _known_lines(groups: Sequence[tuple[str, list[Alert]]]) -> Iterator[str]:
    over = 0
    for event, alerts in groups:
        if all((alert.recovered and not alert.came_back) or alert.state == "closed" for alert in alerts):
            over += 1
            continue
        counts = ", ".join(f"{count} {state}" for state, count in Counter(a.state for a in alerts).items())
        back = sum(alert.came_back for alert in alerts)
        yield f"{event}: {counts}" + (f"; {back} recovered since" if back else "")
    if over:
        yield f"over or closed: {counted(over, 'event')} (--all)"


def _vanished_lines(document: TrackDetectDocument, everything: bool) -> Iterator[str]:
    shown = [alert for alert in document.vanished if alert.new or everything]
    for alert in shown:
        yield f"not found any more: {alert.id} {alert.cell} {alert.metric}, found last on {alert.seen[:10]}"
    if older := len(document.vanished) - len(shown):
        yield f"not found any more since earlier runs: {older} (--all)"


def _suppressed_lines(document: TrackDetectDocument) -> list[str]:
    changes = (change for change in document.listed if change.kind != "reported by the median")
    texts = [
        f"{change.first}  {change.cell} {change.metric} {percent(change.effect)}: {change.why}"
        for change in sorted(changes, key=lambda change: change.first)
    ]
    left = len(texts) - _SUPPRESSED_SHOWN
    return [*texts[-_SUPPRESSED_SHOWN:], f"and {left} earlier ones (--json)"] if left > 0 else texts


def state_report(document: TrackStateDocument) -> Report:
    more = f" and {document.alerts - 1} more" if document.alerts > 1 else ""
    alert = f"{document.id} {document.cell} {document.metric}{more}"
    change = Paragraph(f"{alert}: {document.state}, was {document.before}")
    return Report("Alert state", Verdict(document.state), (change,))
