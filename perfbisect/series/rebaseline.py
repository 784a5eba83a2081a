"""``track rebaseline``: the baselines of the last seven nights, by the rule of vLLM-Omni's maintainers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import fsum, sqrt
from statistics import stdev
from typing import Literal

from pydantic import Field

from perfbisect.jobs.documents import Document
from perfbisect.model.metric import parse_metric
from perfbisect.series.alerts import Alert, State, beside_worse, recovery
from perfbisect.series.detect import SeriesAnalysis
from perfbisect.series.export import series_for_export
from perfbisect.series.findings import SeriesChange
from perfbisect.series.points import day_number, night_of
from perfbisect.series.series import CellSeries
from perfbisect.series.sources.results import key_of
from perfbisect.series.store import SeriesStore

DAYS = 7
MIN_NIGHTS = 4  # Of these seven: with fewer there is no baseline.
TOLERATED = 0.07
"""Share of the old baseline by which a mean may be worse; also its largest relative error."""

USUAL = (
    *("median_audio_ttfp_ms", "median_audio_rtf", "audio_throughput", "median_ttft_ms", "median_tpot_ms"),
    *("output_throughput", "latency_mean", "throughput_qps", "peak_memory_mb_mean"),
)
"""What a cell without a baseline would have one of, as its specification names it."""


class BaselineRow(Document):
    """A proposed baseline in the specification's names and units, from the mean of ``n`` nights.

    ``change``: of the mean against the old baseline, as a share. ``left_out``: measured nights of another
    level or workload. ``alert``: which is not accepted; ``spread``: of nights that are not one level.
    """

    cell: str
    name: str
    old: float | None
    mean: float | None
    new: float | None
    change: float | None
    n: int
    status: Literal["skipped", "too few", "kept", "new", "same", "better", "worse, tolerated"]
    alert: str = ""
    alert_state: State | Literal[""] = ""
    spread: tuple[float, float] | None = None
    left_out: tuple[str, ...] = ()


class TrackRebaselineDocument(Document):
    """``perfbisect track rebaseline``: means from ``first`` to ``last``, both included."""

    schema_: Literal["perfbisect.track-rebaseline/2"] = Field(
        default="perfbisect.track-rebaseline/2", alias="schema"
    )
    first: str
    last: str
    rows: tuple[BaselineRow, ...]


def rebaseline(
    store: SeriesStore, analysis: SeriesAnalysis, cells: Sequence[str] = (), *, until: str = ""
) -> TrackRebaselineDocument:
    """The baselines of these cells (none named: of all) from the seven days that end with ``until``.

    By default these end with the last night of all of them. No mean goes over a change, reported or not.
    """
    by_cell = dict(series_for_export(store, cells))
    last = day_number(until or max(point.night for points in by_cell.values() for point in points))
    rows = list[BaselineRow]()
    for cell, points in by_cell.items():
        known = [point for point in points if day_number(point.night) <= last]
        by_metric = {item.metric: item for item in analysis.series if item.cell == cell}
        if not known or not by_metric:
            continue
        old = max(known, key=lambda point: point.order).baselines
        changes = [(alert, analysis.findings[alert.id]) for alert in analysis.alerts if alert.cell == cell]
        like = next(iter(by_metric.values()))
        breaks = [night for night, *_ in analysis.index.changed_prompts(like, range(last + 1))]
        for name in old or USUAL:
            metric, unit = key_of(name) or ("", 1.0)
            series = by_metric.get(str(parse_metric(metric))) if metric else None
            if series or old:
                base = old.get(name)
                rows.append(propose(cell, name, base, series, changes, last=last, breaks=breaks, unit=unit))
    return TrackRebaselineDocument(first=night_of(last - DAYS + 1), last=night_of(last), rows=tuple(rows))


def propose(
    cell: str,
    name: str,
    old: float | None,
    series: CellSeries | None,
    changes: Sequence[tuple[Alert, SeriesChange]],
    *,
    last: int,
    breaks: Iterable[int] = (),
    unit: float = 1.0,
) -> BaselineRow:
    """The baseline from the nights of one level among the seven that end with ``last``.

    ``changes``: alerts of the cell with their findings. ``breaks``: nights on which other cells show that
    the prompts changed. ``unit``: of the baseline, in that of the series.
    """
    level, blocking = _level(series, changes, last, breaks) if series else (set(), None)
    nights = zip(series.nights, series.values, strict=True) if series else ()
    week = {night: value / unit for night, value in nights if last - DAYS < night <= last}
    values = [value for night, value in week.items() if night in level]
    mean = fsum(values) / len(values) if values else None
    change = mean / old - 1 if mean is not None and old else None
    left_out = tuple(night_of(night) for night in week if night not in level)
    row = partial(
        BaselineRow, cell=cell, name=name, old=old, mean=mean, change=change, n=len(values), left_out=left_out
    )
    if blocking:
        return row(new=old, status="skipped", alert=blocking.id, alert_state=blocking.state)
    if series is None or mean is None or len(values) < MIN_NIGHTS:
        return row(new=old, status="too few")
    if stdev(values) / sqrt(len(values)) > TOLERATED * abs(mean):
        status = "skipped" if old is None else "kept"
        return row(new=old, status=status, spread=(min(values), max(values)))
    if change is None:
        return row(new=mean, status="new")
    if series.sign * change > TOLERATED:
        return row(new=old, status="kept")
    if abs(change) < series.min_effect:
        return row(new=mean, status="same")
    return row(new=mean, status="better" if series.sign * change < 0 else "worse, tolerated")


def _level(
    series: CellSeries, changes: Sequence[tuple[Alert, SeriesChange]], last: int, breaks: Iterable[int]
) -> tuple[set[int], Alert | None]:
    """The nights of the level of the night ``last``, and an alert with which there is no baseline."""
    hints = (hint for hint in series.hints if hint.kind in ("workload", "warmups", "server"))
    starts = [*breaks, *(series.nights[mark.index] for mark in (*series.boundaries, *hints))]
    excluded, blocking = set[int](), None
    for alert, finding in changes:
        if finding.first > last:
            continue
        nights, back, is_own = finding.series.nights, recovery(finding), finding.series.key == series.key
        changed = nights[finding.point.places[0] : back or finding.after[-1] + 1]
        is_redefined = alert.cause in ("instrument", "workload")
        is_accepted = alert.state == "closed" or is_redefined
        if alert.shape == "transient" and (finding.is_over or not is_accepted):
            # One that came of the product or of the night spoils that night for all metrics of the cell.
            if is_own or (alert.part == "typical" and alert.cause in ("product", "night")):
                excluded.update(changed)
        elif is_redefined:
            starts.append(nights[max(finding.point.index, finding.point.places[-1])])
        elif is_own and not is_accepted and (alert.worse or beside_worse(alert, [a for a, _ in changes])):
            excluded.update(changed)
            end = finding.end if back is None else back
            if end == len(nights) or nights[end] > last:
                blocking = alert
        elif is_own:
            starts.append(nights[back or finding.after[0]])
    start = max((night for night in starts if night <= last), default=0)
    return {night for night in series.nights if night >= start} - excluded, blocking
