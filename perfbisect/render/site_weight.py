"""Which alerts stand first: what is wrong now, by size and certainty. Alerts of one cause are one event."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from perfbisect.core.alert import Alert
from perfbisect.render.site_documents import SeriesMetricDocument, SiteDocument

Kind = Literal["wrong", "better", "other", "over", "acknowledged", "closed"]
"""Where an alert is listed.

``wrong``: slower now, by the product or for a reason that is not known. ``better``: the same for the better.
``other``: an instrument, a workload or a night moved. ``over``: the series is back where it was.
"""

KINDS: tuple[Kind, ...] = ("wrong", "better", "other", "over", "acknowledged", "closed")


@dataclass(frozen=True)
class Event:
    """Alerts of one cause: first those of their cells' headlines, the weightiest of either first."""

    id: str
    kind: Kind
    weight: float
    alerts: tuple[Alert, ...]


def kind(alert: Alert) -> Kind:
    """Where it is listed."""
    if alert.state != "open":
        return alert.state
    if alert.recovered:
        return "over"
    if alert.cause not in ("product", "unknown"):
        return "other"
    return "wrong" if alert.worse else "better"


def weight(alert: Alert, metric: SeriesMetricDocument) -> float:
    """Size and certainty in one number: the end of the interval that is nearest to nothing, in smallest
    effects worth telling, less the share ``p`` of it that chance would show. Relative effects count as
    logarithms, so that twice as slow weighs as much as twice as fast."""
    low, high = alert.interval
    if low <= 0 <= high:
        return 0.0
    near = min(low, high, key=abs)
    size = abs(near) if metric.absolute else abs(math.log1p(max(near, -0.999)))
    unit = metric.smallest_effect if metric.absolute else math.log1p(metric.smallest_effect)
    return size / unit * (1.0 - (alert.p or 0.0))


def metrics(document: SiteDocument) -> Mapping[tuple[str, str], SeriesMetricDocument]:
    """(cell, metric's name) -> the metric."""
    return {(cell.name, one.metric.name): one.metric for cell in document.cells for one in cell.series}


def events(document: SiteDocument) -> tuple[Event, ...]:
    """All events, in the order in which they are read."""
    table = metrics(document)
    groups: dict[str, list[Alert]] = {}
    for alert in document.alerts:
        groups.setdefault(alert.event or alert.id, []).append(alert)

    headlines = {(cell.name, cell.headline) for cell in document.cells}

    def placed(alert: Alert) -> tuple[int, bool, float, str]:
        own, named = table[alert.cell, alert.metric], (alert.cell, alert.metric) in headlines
        return KINDS.index(kind(alert)), not named, -weight(alert, own), alert.id

    found = []
    for name, alerts in groups.items():
        ordered = tuple(sorted(alerts, key=placed))
        own = table[ordered[0].cell, ordered[0].metric]
        found.append(Event(name, kind(ordered[0]), weight(ordered[0], own), ordered))
    return tuple(sorted(found, key=lambda event: (KINDS.index(event.kind), -event.weight, event.id)))
