"""Reports of ``track detect`` and of alert states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from perfbisect.common.quantities import number, percent
from perfbisect.model.metric import row
from perfbisect.report.document import Command, Items, Paragraph, Report, Section, Verdict, make_table
from perfbisect.series.alerts import Alert, leading_alert, weight

if TYPE_CHECKING:
    from perfbisect.series.detect import TrackDetectDocument, TrackStateDocument

_SUPPRESSED_SHOWN = 10
_EVIDENCE_SHOWN = 3


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
        f"{family.judged} series of {family.name} judged, {family.alarmed} alarmed: at most "
        f"{document.fdr * 100:g} % of those by chance"
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
    title = f"{what}: {len(alerts)} alerts of {len(rows)} cells  ({event})"
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
        "" if alert.now == "still there" else alert.now,
        _state_text(alert),
        f"and {len(alerts) - 1} more metrics" if len(alerts) > 1 else "",
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
        yield f"over or closed: {over} event{'s' * (over > 1)} (--all)"


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
