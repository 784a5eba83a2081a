"""Events: alerts of one cause that may have begun on one night, those to act on first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from perfbisect.jobs.documents import Document
from perfbisect.model.commit_details import CauseWord
from perfbisect.series.alerts import Alert, AlertStatus, State, leading_alert, weight
from perfbisect.series.detection.model import Shape


class EventDocument(Document):
    """Alerts of one cause that may have begun on one night; ``alert`` represents them.

    ``needs_action``: how many of its ``alerts`` are regressions that the last night still shows. ``news``:
    how many were not reported before. ``metric`` and ``effect`` are of ``alert``.
    """

    event: str
    first: str
    cause: CauseWord
    shape: Shape
    state: State
    needs_action: int
    news: int
    recovered: int
    alerts: int
    cells: int
    alert: str
    cell: str
    metric: str
    effect: float
    worse: bool
    grouping: bool
    now: AlertStatus | Literal[""]


def event_document(event: str, alerts: Sequence[Alert]) -> EventDocument:
    leading = leading_alert(alerts, event)
    return EventDocument(
        event=event,
        first=leading.first,
        cause=leading.cause,
        shape=leading.shape,
        state=leading.state,
        needs_action=sum(alert.needs_action for alert in alerts),
        news=sum(alert.is_news for alert in alerts),
        recovered=sum(alert.recovered for alert in alerts),
        alerts=len(alerts),
        cells=len({alert.cell for alert in alerts}),
        alert=leading.id,
        cell=leading.cell,
        metric=leading.metric,
        effect=leading.effect,
        worse=leading.worse,
        grouping=leading.grouping,
        now=leading.now,
    )


def next_command(alerts: Sequence[Alert]) -> str:
    """The command for the worst regression that lasts, else for the newest that may; empty without one."""
    lasting = [alert for alert in alerts if alert.needs_action]
    if not lasting:
        open_ones = [a for a in alerts if a.state == "open" and a.cause == "product" and not a.recovered]
        newest = max((alert.event for alert in open_ones), default="")
        lasting = [alert for alert in open_ones if alert.event == newest]
    if not lasting:
        return ""
    worst = max(lasting, key=lambda alert: (alert.cause == "product", *weight(alert), alert.id))
    return f"perfbisect track suspects {worst.id} --repo PATH"


def group_by_event(alerts: Sequence[Alert]) -> list[tuple[str, list[Alert]]]:
    """Alerts by event: those to act on first, the product's before others and mere groupings last; then the
    largest to act on, else the newest."""
    groups: dict[str, list[Alert]] = {}
    for alert in sorted(alerts, key=lambda alert: alert.event, reverse=True):
        groups.setdefault(alert.event, []).append(alert)

    def order(group: tuple[str, list[Alert]]) -> tuple[bool, bool, bool, float, int]:
        event, own = group
        largest = max((alert.size for alert in own if alert.needs_action), default=0.0)
        grouping = all(alert.grouping for alert in own)
        return largest == 0.0, grouping, own[0].cause != "product", -largest, -int(event[:8])

    return sorted(groups.items(), key=order)
