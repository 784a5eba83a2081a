"""What the pages of a site read: one payload for the first page, one for each cell, one for each event.

A payload is JSON. Text of others comes into it harmless (no control or bidirectional character acts) and is
shown as text by the pages; addresses that are not of the web are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from statistics import median
from typing import Any, Literal

from perfbisect.bisect.documents import ReportDocument
from perfbisect.common.text import line
from perfbisect.dashboard.site import (
    BisectionDocument,
    PointDocument,
    SeriesDocument,
    SeriesMetricDocument,
    SiteCellDocument,
    SiteDocument,
)
from perfbisect.series.alerts import Alert
from perfbisect.series.suspects.report import SuspectsDocument

EventKind = Literal["wrong", "better", "other", "over", "acknowledged", "closed"]
"""Where an alert is listed.

``wrong``: slower now, by the product or for a reason that is not known. ``better``: the same for the better.
``other``: an instrument, a workload or a night moved. ``over``: the series is back where it was.
"""

KINDS: tuple[EventKind, ...] = ("wrong", "better", "other", "over", "acknowledged", "closed")


@dataclass(frozen=True)
class SiteEvent:
    """Alerts of one cause: first those of their cells' headlines, the weightiest of either first."""

    id: str
    kind: EventKind
    weight: float
    alerts: tuple[Alert, ...]


def kind(alert: Alert) -> EventKind:
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
    return {(cell.name, item.metric.name): item.metric for cell in document.cells for item in cell.series}


def events(document: SiteDocument) -> tuple[SiteEvent, ...]:
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
        found.append(SiteEvent(name, kind(ordered[0]), weight(ordered[0], own), ordered))
    return tuple(sorted(found, key=lambda event: (KINDS.index(event.kind), -event.weight, event.id)))


Payload = dict[str, Any]

_LONGEST = 8000
_BUCKETS = 60
_HEIGHTS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
_OF_ONE_RUN = ("new", "nights", "was", "came_back", "now")
"""Fields of an alert that compare it with the run of ``track detect`` before; a site does not show them."""

_FLAT = 0.10
"""A small curve spans at least so much: noise of one per cent is not drawn as mountains."""


def harmless(value: Any) -> Any:
    """The same with its texts made harmless, numbers of six digits, and none that JSON does not have."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {text(str(key)): harmless(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [harmless(item) for item in value]
    return value


def text(value: str, limit: int = _LONGEST) -> str:
    """``safe.line``; at once where nothing is to be done, as nearly everywhere."""
    plain = value.isascii() and value.isprintable() and len(value) <= limit
    return value if plain else line(value, limit)


def address(value: str) -> str:
    """The address if it is one of the web, else nothing."""
    return value if value.startswith(("https://", "http://")) else ""


def overview(
    document: SiteDocument, cell_files: Mapping[str, str], event_files: Mapping[str, str]
) -> Payload:
    """The first page: every series as a small curve, every alert in short. ``*_files``: where the rest is."""
    moments = [_seconds(point.time) for cell in document.cells for point in cell.points]
    span = (min(moments), max(moments)) if moments else (0, 0)
    places = {cell.name: i for i, cell in enumerate(document.cells)}
    rankings = {ranking.alert: ranking for ranking in document.suspects}
    measures = list(dict.fromkeys(metrics(document).values()))
    numbers = {measure: number for number, measure in enumerate(measures)}
    made: Payload = harmless(
        {
            "title": document.title,
            "made": document.made,
            "commits": address(document.commit_url),
            "span": span,
            "census": document.census,
            "notes": document.notes,
            "measures": [measure.model_dump() for measure in measures],
            "cells": [_cell_in_short(cell, numbers, span, cell_files[cell.name]) for cell in document.cells],
            "events": [
                {
                    "id": event.id,
                    "kind": event.kind,
                    "weight": event.weight,
                    "file": event_files[event.id],
                    "alerts": [
                        _alert_in_short(alert, places[alert.cell], rankings.get(alert.id))
                        for alert in event.alerts
                    ],
                }
                for event in events(document)
            ],
            "bisections": [_bisection(bisection) for bisection in document.bisections],
        }
    )
    return made


def cell_payload(cell: SiteCellDocument) -> Payload:
    """All points and series of a cell, by columns."""
    names = sorted({name for point in cell.points for name in point.covariates})
    made = {
        "name": cell.name,
        "rows": cell.rows,
        "points": {
            "build": [point.build for point in cell.points],
            "time": [point.time for point in cell.points],
            "commit": [point.commit for point in cell.points],
            "subject": [text(point.subject, 200) for point in cell.points],
            "commits": [point.commits for point in cell.points],
            "url": [address(point.url) for point in cell.points],
            "main": [point.of_main for point in cell.points],
        },
        "covariates": {name: [point.covariates.get(name) for point in cell.points] for name in names},
        "series": [
            {
                "metric": item.metric.name,
                "values": item.values,
                "levels": [level.model_dump() for level in item.levels],
                "small": [small.model_dump() for small in item.small],
                "discontinuities": [mark.model_dump() for mark in item.discontinuities],
                "judged": item.judged,
                "note": item.note,
            }
            for item in cell.series
        ],
    }
    return {name: harmless(part) for name, part in made.items()}


def event_payload(event: SiteEvent, document: SiteDocument) -> Payload:
    """The alerts of one cause whole, with their suspects; equal rankings stand there once. An alert that has
    none shows that of another one of its cause, ``ranked`` by name: whoever follows an event is told."""
    rankings = {ranking.alert: ranking for ranking in document.suspects}
    kept: list[Payload] = []
    alerts = []
    shared = next((alert.id for alert in event.alerts if alert.id in rankings), "")
    for alert in event.alerts:
        at, name = None, alert.id if alert.id in rankings else shared
        if name:
            own = rankings[name].model_dump(exclude={"alert"})
            at = kept.index(own) if own in kept else len(kept)
            kept += [own] * (at == len(kept))
        fields = {key: value for key, value in asdict(alert).items() if key not in _OF_ONE_RUN}
        alerts.append(fields | {"ranking": at, "ranked": name})
    return {"id": text(event.id), "alerts": harmless(alerts), "rankings": harmless(kept)}


def curve(one: SeriesDocument, times: Sequence[int], span: tuple[int, int]) -> str:
    """A series as a small curve: a character for each sixtieth of the span, its median's height from ``0``
    (lowest) over digits, capitals, small letters and ``-`` to ``_`` (highest), a dot for none.

    ``times`` are those of its points and ``span`` that of the site, in seconds. Logarithms where all values
    are positive, so that equal changes look alike. Empty where nothing was measured at all.
    """
    began, ended = span
    width = (ended - began) / _BUCKETS or 1.0
    known = [(t, v) for t, v in zip(times, one.values, strict=True) if v is not None]
    logs = all(v > 0 for _, v in known)
    filled: list[list[float]] = [[] for _ in range(_BUCKETS)]
    for time, value in known:
        bucket = min(_BUCKETS - 1, int((time - began) / width))
        filled[bucket].append(math.log(value) if logs else value)
    middles = [median(values) if values else None for values in filled]
    there = [middle for middle in middles if middle is not None]
    if not there:
        return ""
    low, high = min(there), max(there)
    room = max(high - low, _FLAT if logs else _FLAT * max(abs(high), abs(low)) or 1.0)
    bottom = (high + low - room) / 2
    top = len(_HEIGHTS) - 1
    return "".join(
        "." if middle is None else _HEIGHTS[round((middle - bottom) / room * top)] for middle in middles
    )


def page_of(report: ReportDocument) -> str:
    """Where a bisection's own page is, from the site's folder."""
    kept = "".join(c if (c.isalnum() and c.isascii()) or c in "-_." else "_" for c in report.job)
    return f"bisections/{kept.lstrip('.') or '_'}.html"


def _cell_in_short(
    cell: SiteCellDocument, numbers: Mapping[SeriesMetricDocument, int], span: tuple[int, int], file: str
) -> Payload:
    times = [_seconds(point.time) for point in cell.points]
    return {
        "name": cell.name,
        "family": cell.family,
        "model": cell.model,
        "load": cell.load,
        "machine": cell.machine,
        "headline": cell.headline,
        "file": file,
        "metrics": [
            {"measure": numbers[item.metric]} | _series_in_short(item, curve(item, times, span), cell.points)
            for item in cell.series
        ],
    }


def _series_in_short(one: SeriesDocument, small: str, points: Sequence[PointDocument]) -> Payload:
    """``now``: the newest value; ``level``: the newest level with its interval, where there is one."""
    known = [(point.time, v) for point, v in zip(points, one.values, strict=True) if v is not None]
    last = one.levels[-1] if one.levels else None
    return {
        "count": len(known),
        "now": known[-1][1] if known else None,
        "time": known[-1][0] if known else "",
        "level": [last.value, last.low, last.high] if last else None,
        "curve": small,
        "judged": one.judged,
    }


def _alert_in_short(alert: Alert, cell: int, ranking: SuspectsDocument | None) -> Payload:
    first = ranking.suspects[0] if ranking and ranking.suspects else None
    return {
        "id": alert.id,
        "cell": cell,
        "metric": alert.metric,
        "kind": kind(alert),
        "worse": alert.worse,
        "first": alert.first,
        "last": alert.last,
        "places": [alert.places[0].time, alert.places[-1].time] if alert.places else [alert.first] * 2,
        "shape": alert.shape,
        "cause": alert.cause,
        "effect": alert.effect,
        "interval": alert.interval,
        "p": alert.p,
        "state": alert.state,
        "suspect": [first.sha, text(first.subject, 100), first.p] if first else None,
    }


def _bisection(bisection: BisectionDocument) -> Payload:
    report = bisection.report
    effect = report.confirmed or report.whole
    return {
        "job": report.job,
        "page": page_of(report),
        "outcome": report.outcome,
        "cell": report.cell.name,
        "metric": report.metric.name,
        "culprit": [report.culprit.id, text(report.culprit.subject, 100)] if report.culprit else None,
        "probability": report.probability,
        "effect": [effect.effect, effect.low, effect.high] if effect else None,
        "launches": len(report.launches),
        "minutes": report.minutes.total,
        "range": [report.good.short, report.bad.short],
        "began": min((x.started_at for x in report.launches if x.started_at), default=""),
        "alerts": bisection.alerts,
    }


def _seconds(moment: str) -> int:
    return int(datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp())
