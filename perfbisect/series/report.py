"""Report of ``track detect``: new events in full, known ones in short, and what was judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from perfbisect.common.numbers import number, percent
from perfbisect.report.document import Block, Column, Command, Items, Report, Section, Table, Verdict
from perfbisect.series.alerts import Alert, leading_alert, weight

if TYPE_CHECKING:
    from perfbisect.series.detect import SuppressedChange, TrackDetectDocument

_SUPPRESSED_SHOWN = 10
_EVIDENCE_SHOWN = 3


def detect_report(document: TrackDetectDocument, *, everything: bool = False) -> Report:
    """Report of ``track detect``; ``everything``: known events in full, too."""
    groups = group_by_event(document.alerts)
    full = [group for group in groups if everything or any(alert.is_news for alert in group[1])]
    known = _vanished_lines(document, everything)
    if not everything:
        known = [*_known_lines(group for group in groups if group not in full), *known]
    sections = [
        *(_event_section(event, alerts) for event, alerts in full),
        *_list_section("Known before", known),
        *_list_section("Joint changes", _joint_lines(document)),
        *_list_section("Suppressed changes", _suppressed_lines(document.listed)),
        *_list_section("Discontinuities", _discontinuity_lines(document)),
        Section("Coverage", (Items(tuple(coverage_lines(document))),)),
    ]
    first = next((a for a in document.alerts if a.state == "open" and a.cause == "product"), None)
    if first is not None:
        alert = leading_alert(document.alerts, first.event)
        sections.append(Section("Next", (Command(f"perfbisect track suspects {alert.id} --repo PATH"),)))
    count = sum(alert.is_news for alert in document.alerts)
    verdict = Verdict(f"{count} new alert{'s' * (count != 1)}" if count else "no new alerts")
    return Report(f"Series up to {document.until}", verdict, (), tuple(sections))


def group_by_event(alerts: Sequence[Alert]) -> list[tuple[str, list[Alert]]]:
    """Alerts by event: those of the product first, the newest of either first."""
    ordered = sorted(alerts, key=lambda alert: alert.event, reverse=True)
    ordered.sort(key=lambda alert: (alert.cause != "product", -int(alert.event[:8])))
    return [(event, list(group)) for event, group in groupby(ordered, key=lambda alert: alert.event)]


def size_text(effect: float) -> str:
    """``+12.3 %``, or ``x 24`` where it is more than threefold."""
    return f"x {number(1 + effect, 3)}" if effect > 2 else percent(effect)


def summarize_event(event: str, alerts: Sequence[Alert]) -> str:
    """An event in a line: its leading alert, how many cells, and its state."""
    first = leading_alert(alerts, event)
    cells = len({alert.cell for alert in alerts})
    change = f"{first.first[:10]}: {first.cause}, {first.shape}, {size_text(first.effect)} of {first.metric}"
    others = f" in {first.cell}" + (f" and {cells - 1} other cells" if cells > 1 else "")
    recovered = sum(alert.recovered for alert in alerts)
    back = ""
    if recovered:
        back = (
            ", recovered" if recovered == len(alerts) else f", {recovered} of {len(alerts)} alerts recovered"
        )
    state = f", {first.state}: {first.why}" if first.state != "open" else ""
    return change + others + back + state


def coverage_lines(document: TrackDetectDocument) -> list[str]:
    """Which series were judged, what they can show, and why others were not judged."""
    coverage = document.census
    texts = [
        f"{family.judged} series of {family.name} judged, {family.alarmed} alarmed: at most "
        f"{document.fdr * 100:g} % of those by chance"
        for family in coverage.families
    ]
    judged = [series for series in coverage.series if series.smallest is not None]
    if judged:
        middle = len(judged) // 2
        step = sorted(series.smallest or 0.0 for series in judged)[middle]
        nights = sorted(series.nights for series in judged)[middle]
        texts.append(
            f"steps that would be detected: in half of the series {percent(step, signed=False)} or less; "
            f"half of them have {nights} nights or fewer"
        )
    refused = {**coverage.not_judged, **Counter(series.why for series in coverage.series if series.why)}
    texts += [f"not judged: {count} {why}" for why, count in refused.items()]
    if coverage.builds_not_of_main:
        texts.append(f"{coverage.builds_not_of_main} builds are not of main and were left out")
    return texts


def _list_section(title: str, texts: Sequence[str]) -> Iterator[Section]:
    if texts:
        yield Section(title, (Items(tuple(texts)),))


def _event_section(event: str, alerts: Sequence[Alert]) -> Section:
    first = leading_alert(alerts, event)
    by_size = sorted(alerts, key=lambda alert: alert.size, reverse=True)
    shapes = "/".join(dict.fromkeys(alert.shape for alert in by_size))
    cells = groupby(sorted(alerts, key=lambda alert: alert.cell), key=lambda alert: alert.cell)
    rows = tuple(_cell_row(list(group)) for _, group in cells)
    columns = (
        *(Column("alert"), Column("cell"), Column("metric"), Column("change", numeric=True)),
        *(Column("95 % CI"), Column("nights", numeric=True), Column("")),
    )
    title = (
        f"{first.first[:10]}  {first.cause}, {shapes}: {len(alerts)} alerts of {len(rows)} cells  ({event})"
    )
    blocks: tuple[Block, ...] = (Items(first.evidence[:_EVIDENCE_SHOWN]), Table(columns, rows))
    return Section(title, blocks)


def _cell_row(alerts: Sequence[Alert]) -> tuple[str, ...]:
    """The weightiest alert of a cell."""
    alert = max(alerts, key=weight)
    more = f"and {len(alerts) - 1} more metrics" if len(alerts) > 1 else ""
    status = "" if alert.now == "still there" else alert.now
    marks = ("" if alert.worse else "better", status, _state_text(alert), more)
    low, high = alert.interval
    interval = f"{percent(low)} to {percent(high)}"
    if alert.effect > 2:
        interval = f"x {number(1 + low, 3)} to {number(1 + high, 3)}"
    numbers = (size_text(alert.effect), interval, str(alert.nights))
    return (alert.id, alert.cell, alert.metric, *numbers, ", ".join(filter(None, marks)))


def _state_text(alert: Alert) -> str:
    if alert.state != "open":
        return f"{alert.state}: {alert.why}" if alert.why else alert.state
    if alert.new:
        return ""
    return f"reported as {alert.was}" if alert.was else "reported before"


def _known_lines(groups: Iterator[tuple[str, list[Alert]]]) -> Iterator[str]:
    over = 0
    for event, alerts in groups:
        if all((alert.recovered and not alert.came_back) or alert.state == "closed" for alert in alerts):
            over += 1
            continue
        states = Counter(alert.state for alert in alerts)
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        back = sum(alert.came_back for alert in alerts)
        yield f"{event}: {counts}" + (f"; {back} recovered since" if back else "")
    if over:
        yield f"over or closed: {over} event{'s' * (over > 1)} (--all)"


def _vanished_lines(document: TrackDetectDocument, everything: bool) -> list[str]:
    shown = [alert for alert in document.vanished if alert.new or everything]
    texts = [
        f"not found any more: {alert.id} {alert.cell} {alert.metric}, found last on {alert.seen[:10]}"
        for alert in shown
    ]
    older = len(document.vanished) - len(shown)
    return [*texts, f"not found any more since earlier runs: {older} (--all)"] if older else texts


def _joint_lines(document: TrackDetectDocument) -> list[str]:
    return [
        f"after {change.after}, by {change.by}: {len(change.series)} series of {len(change.servers)} servers "
        f"moved together, none significantly by itself (p {change.p:.1g}): {', '.join(change.series[:3])}"
        for change in document.joint_changes
    ]


def _suppressed_lines(changes: Sequence[SuppressedChange]) -> list[str]:
    shown = sorted((c for c in changes if c.kind != "reported by the median"), key=lambda c: c.first)
    texts = [
        f"{c.first}  {c.cell} {c.metric} {percent(c.effect)}: {c.why}" for c in shown[-_SUPPRESSED_SHOWN:]
    ]
    left = len(shown) - len(texts)
    return [*texts, f"and {left} earlier ones (--json)"] if left else texts


def _discontinuity_lines(document: TrackDetectDocument) -> list[str]:
    return [
        f"{mark.night}  {mark.kind} changed, {mark.series} series begin anew: {mark.what}"
        for mark in document.discontinuities
    ]
