"""What the pages of a site read: a payload for the first page, and one for each cell, event and metric.

A payload is JSON. Text from outside is neutralised (no control or bidirectional character acts) and the pages
show it as text; addresses that are not of the web are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from statistics import median
from typing import Any, Literal, get_args

from perfbisect.bisect.result import BisectResult
from perfbisect.commands.outcomes import SiteBisection, outcomes_by_alert
from perfbisect.common.quantities import moment
from perfbisect.common.text import line
from perfbisect.dashboard.collect import Site, SiteCell, SiteSeries
from perfbisect.jobs.documents import MetricDocument
from perfbisect.model.metric import parse_metric
from perfbisect.series.alerts import Alert, MeasuredOutcome
from perfbisect.series.report import (
    sentences_of,
)

EventKind = Literal["wrong", "better", "other", "silent", "over", "acknowledged", "closed"]
"""The list of an alert.

``wrong``: worse now, by the product or for an unknown reason. ``better``: the same for the better. ``other``:
an instrument, a workload or a night changed. ``silent``: the series has had no result for a week. ``over``:
it is back at its former level.
"""

_KINDS: tuple[EventKind, ...] = get_args(EventKind)

Payload = dict[str, Any]

_MAX_TEXT = 8000
_BUCKETS = 60
_HEIGHTS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
_RUN_FIELDS = frozenset(
    {
        *("new", "nights", "was", "came_back", "now", "seen", "by_rule"),
        *("night", "begun", "worse", "change", "counts", "measured"),
    }
)
"""Fields of an alert that the page of its event does not show."""

_SUMMARY_FIELDS = (
    *("id", "metric", "worse", "first", "last", "shape"),
    *("cause", "effect", "interval", "p", "state"),
)
"""Fields of an alert that the first page shows."""

_SILENT_DAYS = 7
"""So many days before the site's newest point, what has no later result is silent."""

_MIN_SPAN = 0.10
"""A small curve spans at least this share, so that noise of one per cent looks flat."""


@dataclass(frozen=True)
class SiteEvent:
    """Alerts of one cause, each of its own kind: those of their cells' headlines first, then by weight."""

    id: str
    kind: EventKind
    weight: float
    alerts: tuple[Alert, ...]
    kinds: tuple[EventKind, ...]


def kind(alert: Alert, *, silent: bool = False) -> EventKind:
    """The list of an alert. ``silent``: its series has had no result for a week."""
    if alert.state != "open":
        return alert.state
    if alert.recovered:
        return "over"
    if silent:
        return "silent"
    if alert.cause not in ("product", "unknown"):
        return "other"
    return "wrong" if alert.worse else "better"


def weight(alert: Alert, metric: MetricDocument) -> float:
    """Combine size and certainty of an alert.

    The end of the interval that is nearest to zero, in smallest relevant effects, times 1 - ``p``. Relative
    effects count as logarithms, so that twice as slow weighs as much as twice as fast.
    """
    low, high = alert.interval
    if low <= 0 <= high:
        return 0.0
    near = min(low, high, key=abs)
    is_absolute = parse_metric(metric.name).metric.absolute
    # The logarithm of a value that fell to nothing is infinite.
    size = abs(near) if is_absolute else abs(math.log1p(max(near, -0.999)))
    unit = metric.smallest_effect if is_absolute else math.log1p(metric.smallest_effect)
    return size / unit * (1.0 - (alert.p or 0.0))


def events(site: Site) -> tuple[SiteEvent, ...]:
    """All events in reading order."""
    metrics = {(cell.name, item.metric.name): item.metric for cell in site.cells for item in cell.series}
    headlines = {(cell.name, cell.headline) for cell in site.cells}
    newest = _newest_point(site)
    silent = set()
    for cell in site.cells:
        for item in cell.series:
            values = zip(reversed(cell.points), reversed(item.values), strict=True)
            last = next((point.time for point, value in values if value is not None), "")
            if _is_silent(last, newest):
                silent.add((cell.name, item.metric.name))
    groups: dict[str, list[Alert]] = {}
    for alert in site.alerts:
        groups.setdefault(alert.event or alert.id, []).append(alert)

    def own_weight(alert: Alert) -> float:
        return weight(alert, metrics[alert.cell, alert.metric])

    def own_kind(alert: Alert) -> EventKind:
        return kind(alert, silent=(alert.cell, alert.metric) in silent)

    def order(alert: Alert) -> tuple[int, bool, float, str]:
        is_headline = (alert.cell, alert.metric) in headlines
        return _KINDS.index(own_kind(alert)), not is_headline, -own_weight(alert), alert.id

    found = []
    for name, alerts in groups.items():
        ordered = tuple(sorted(alerts, key=order))
        kinds = tuple(own_kind(alert) for alert in ordered)
        found.append(SiteEvent(name, kinds[0], own_weight(ordered[0]), ordered, kinds))
    return tuple(sorted(found, key=lambda event: (_KINDS.index(event.kind), -event.weight, event.id)))


def harmless(value: Any) -> Any:
    """Neutralise texts, round numbers to six digits, and drop numbers that JSON does not have."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {text(str(key)): harmless(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [harmless(item) for item in value]
    return value


def text(value: str, limit: int = _MAX_TEXT) -> str:
    """Neutralise a text; nearly all need nothing, which is checked first for speed."""
    plain = value.isascii() and value.isprintable() and len(value) <= limit
    return value if plain else line(value, limit)


def address(value: str) -> str:
    """The address if it is one of the web, otherwise empty."""
    # A result can have any text as its address: javascript: would run in the page.
    return value if value.startswith(("https://", "http://")) else ""


def packed(value: Any) -> Any:
    """A payload in which lists of objects of the same fields are tables, which name each field once."""
    if isinstance(value, Mapping):
        return {name: packed(item) for name, item in value.items()}
    if not isinstance(value, list | tuple):
        return value
    names = list(value[0]) if value and isinstance(value[0], Mapping) else []
    if names and all(isinstance(item, Mapping) and list(item) == names for item in value):
        return {"names": names, "rows": [[packed(item[name]) for name in names] for item in value]}
    return [packed(item) for item in value]


def overview(
    site: Site,
    cell_files: Mapping[str, str],
    event_files: Mapping[str, str],
    metric_files: Mapping[MetricDocument, str],
) -> Payload:
    """The first page: every cell by its headline, every alert in short. ``*_files``: by what they hold."""
    newest = _newest_point(site)
    places = {cell.name: place for place, cell in enumerate(site.cells)}
    rankings = {ranking.alert: ranking for ranking in site.suspects}
    measured = outcomes_by_alert(site.bisections)
    numbers = _metric_numbers(site)

    def event_summary(event: SiteEvent) -> Payload:
        alerts = []
        for alert, own in zip(event.alerts, event.kinds, strict=True):
            outcome, ranking = measured.get(alert.id), rankings.get(alert.id)
            first = ranking.ranking.suspects[0] if ranking and ranking.ranking else None
            nights = [place.time for place in alert.places] or [alert.first]
            summary = {name: getattr(alert, name) for name in _SUMMARY_FIELDS} | {
                "cell": places[alert.cell],
                "places": [nights[0], nights[-1]],
                "suspect": [first.sha, text(first.subject, 100), first.p] if first else None,
                "measured": _measured(outcome) if outcome else None,
                "kind": own,
            }
            alerts.append(summary)
        head = {"id": event.id, "kind": event.kind, "weight": event.weight}
        return head | {"file": event_files[event.id], "alerts": alerts}

    names = ("name", "family", "model", "load", "machine", "headline")
    payload: Payload = harmless(
        {
            "title": site.title,
            "made": site.made,
            "commits": address(site.commit_url),
            "span": _span(site),
            "census": site.census,
            "notes": site.notes,
            "measures": [
                metric.model_dump()
                | {"absolute": parse_metric(metric.name).metric.absolute}
                | {"file": metric_files.get(metric, "")}
                for metric in numbers
            ],
            "cells": [
                {
                    **{name: getattr(cell, name) for name in names},
                    "file": cell_files[cell.name],
                    "metrics": [numbers[item.metric] for item in cell.series],
                    "silent": _is_silent(cell.points[-1].time, newest),
                }
                for cell in site.cells
            ],
            "series": _summaries(site, on_first_page=True),
            "events": [event_summary(event) for event in events(site)],
            "bisections": [_bisection_summary(bisection) for bisection in site.bisections],
        }
    )
    return payload


def metric_payloads(site: Site) -> dict[MetricDocument, Payload]:
    """By metric: its series that the first page does not show, as small curves."""
    rows: dict[int, list[Payload]] = {}
    for row in _summaries(site, on_first_page=False):
        rows.setdefault(row["measure"], []).append(row)
    numbers = _metric_numbers(site)
    return {metric: harmless({"series": rows[at]}) for metric, at in numbers.items() if at in rows}


def cell_payload(cell: SiteCell) -> Payload:
    """All points and series of a cell, by columns."""
    names = sorted({name for point in cell.points for name in point.covariates})
    payload: Payload = harmless(
        {
            "name": cell.name,
            "rows": cell.rows,
            "points": {
                "build": [point.build for point in cell.points],
                "time": [point.time for point in cell.points],
                "commit": [point.commit for point in cell.points],
                "url": [address(point.url) for point in cell.points],
                "main": [point.of_main for point in cell.points],
            },
            "covariates": {name: [point.covariates.get(name) for point in cell.points] for name in names},
            "series": [asdict(item) | {"metric": item.metric.name} for item in cell.series],
        }
    )
    return payload


def event_payload(event: SiteEvent, site: Site) -> Payload:
    """All alerts of an event; one without a ranking shows that of another alert, ``ranked``.

    What a bisection has measured is not to be bisected again.
    """
    rankings = {ranking.alert: ranking for ranking in site.suspects}
    outcomes = outcomes_by_alert(site.bisections)
    shared = next((alert.id for alert in event.alerts if alert.id in rankings), "")
    kept: list[Payload] = []
    alerts = []

    @cache
    def ranking_payload(name: str, settled: bool) -> Payload:
        document, ranking = rankings[name], rankings[name].ranking
        if ranking is None:
            return {"suspects": [], "note": document.problem}
        attributed = [ranking.attributed] if ranking.attributed else []
        radius = [ranking.blast_radius] if ranking.blast_radius else []
        words = iter(sentences_of("factors", [of for one in ranking.suspects for of in one.evidence]))
        suspects: list[Payload] = []
        for one in ranking.suspects:
            told = [{"name": of.name, "weight": of.weight, "words": next(words)} for of in one.evidence]
            suspects.append(asdict(one) | {"evidence": told})
        return {
            "suspects": suspects,
            "p_outside_window": ranking.p_outside_window,
            "blast_radius": "".join(sentences_of("radius", radius)),
            "attributed": "".join(sentences_of("factors", attributed)),
            "bisect": "" if settled else document.bisect,
            "note": "; ".join(sentences_of("remarks", document.note)),
        }

    for alert in event.alerts:
        place, name = None, alert.id if alert.id in rankings else shared
        if name:
            own = ranking_payload(name, alert.id in outcomes)
            # Alerts of one event share a ranking, which is large: it is written once.
            if own not in kept:
                kept.append(own)
            place = kept.index(own)
        fields = {key: value for key, value in asdict(alert).items() if key not in _RUN_FIELDS}
        fields["evidence"] = sentences_of("evidence", alert.evidence)
        alerts.append(fields | {"ranking": place, "ranked": name})
    return {"id": text(event.id), "alerts": harmless(alerts), "rankings": harmless(kept)}


def curve(series: SiteSeries, times: Sequence[int], span: tuple[int, int]) -> str:
    """Draw a series as a small curve: a character for each sixtieth of the span.

    Its median's height goes from ``0`` (lowest) over digits, capitals, small letters and ``-`` to ``_``
    (highest); a dot means no value. ``times`` of the points and ``span`` of the site are in seconds. Positive
    values are drawn as logarithms, so that equal changes look alike. Empty without any value.
    """
    began, ended = span
    # The span of a site with a single moment is 0.
    width = (ended - began) / _BUCKETS or 1.0
    known = [(time, value) for time, value in zip(times, series.values, strict=True) if value is not None]
    if not known:
        return ""
    logs = all(value > 0 for _, value in known)
    filled: list[list[float]] = [[] for _ in range(_BUCKETS)]
    for time, value in known:
        bucket = min(_BUCKETS - 1, int((time - began) / width))
        filled[bucket].append(math.log(value) if logs else value)
    heights = [median(values) if values else None for values in filled]
    drawn = [height for height in heights if height is not None]
    low, high = min(drawn), max(drawn)
    room = max(high - low, _MIN_SPAN if logs else _MIN_SPAN * max(abs(high), abs(low)) or 1.0)
    bottom, top = (high + low - room) / 2, len(_HEIGHTS) - 1
    return "".join(
        "." if height is None else _HEIGHTS[round((height - bottom) / room * top)] for height in heights
    )


def page_of(report: BisectResult) -> str:
    """Path of a bisection's page in the site's folder."""
    kept = "".join(c if (c.isalnum() and c.isascii()) or c in "-_." else "_" for c in report.job)
    # A name that begins with a dot would be hidden, or lead out of the folder.
    return f"bisections/{kept.lstrip('.') or '_'}.html"


def _span(site: Site) -> tuple[int, int]:
    times = [_seconds(point.time) for cell in site.cells for point in cell.points]
    return (min(times), max(times)) if times else (0, 0)


def _metric_numbers(site: Site) -> dict[MetricDocument, int]:
    metrics = dict.fromkeys(item.metric for cell in site.cells for item in cell.series)
    return {metric: number for number, metric in enumerate(metrics)}


def _summaries(site: Site, *, on_first_page: bool) -> list[Payload]:
    """Series in short: those of the first page (headlines, and what leads an event), or all others."""
    first = {(cell.name, cell.headline) for cell in site.cells}
    first |= {(event.alerts[0].cell, event.alerts[0].metric) for event in events(site)}
    span, numbers = _span(site), _metric_numbers(site)
    summaries = []
    for place, cell in enumerate(site.cells):
        times = [_seconds(point.time) for point in cell.points]
        for item in cell.series:
            if ((cell.name, item.metric.name) in first) != on_first_page:
                continue
            values = zip(cell.points, item.values, strict=True)
            known = [(point.time, value) for point, value in values if value is not None]
            time, now = known[-1] if known else ("", None)
            level = item.level
            summaries.append(
                {
                    "cell": place,
                    "measure": numbers[item.metric],
                    "count": len(known),
                    "now": now,
                    "time": time,
                    "level": [level.value, level.low, level.high] if level else None,
                    "curve": curve(item, times, span),
                    "judged": item.judged,
                }
            )
    return summaries


def _measured(outcome: MeasuredOutcome) -> Payload:
    commits = [[of.id, text(of.subject, 100), of.probability] for of in outcome.commits]
    return {"job": outcome.job, "probability": outcome.probability, "commits": commits}


def _bisection_summary(bisection: SiteBisection) -> Payload:
    report = bisection.report
    effect = report.confirmed or report.whole
    return {
        "job": report.job,
        "page": page_of(report),
        "outcome": report.outcome,
        "cell": report.cell.name,
        "metric": report.metric.name,
        "culprit": [report.culprit.id, text(report.culprit.subject, 100)] if report.culprit else None,
        "candidates": [
            [x.position.changes[0].id, text(x.position.changes[0].subject, 100), x.probability]
            for x in report.candidates
        ],
        "probability": report.probability,
        "effect": [effect.effect, effect.low, effect.high] if effect else None,
        "launches": len(report.launches),
        "minutes": report.minutes.total,
        "range": [report.good.short, report.bad.short],
        "began": min((launch.started_at for launch in report.launches if launch.started_at), default=""),
        "alerts": bisection.alerts,
    }


def _newest_point(site: Site) -> str:
    return max((point.time for cell in site.cells for point in cell.points), default="")


def _is_silent(last: str, newest: str) -> bool:
    return not last or (moment(newest).date() - moment(last).date()).days >= _SILENT_DAYS


def _seconds(time: str) -> int:
    return int(moment(time).timestamp())
