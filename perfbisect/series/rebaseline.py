"""``track rebaseline``: the baselines of the last seven nights, by the rule of vLLM-Omni's maintainers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from perfbisect.series.points import Point, day_number, night_of
from perfbisect.series.series import CellSeries
from perfbisect.series.sources.results import key_of
from perfbisect.series.store import SeriesStore

DAYS = 7
MIN_NIGHTS = 4
"""Nights, of seven, without which there is no baseline."""
TOLERATED = 0.07
"""Share of the old baseline by which a mean may be worse; also its largest relative error."""

USUAL = (
    *("median_audio_ttfp_ms", "median_audio_rtf", "audio_throughput", "median_ttft_ms", "median_tpot_ms"),
    *("output_throughput", "latency_mean", "throughput_qps", "peak_memory_mb_mean"),
)
"""What a cell without a baseline would have one of, as its specification names it."""

_REDEFINING = ("instrument", "workload")
"""Causes after which a cell measures something else."""
_CELL_WIDE = ("product", "night")
"""Causes of a transient that spoils a night for all metrics of its cell."""
_REDEFINING_HINTS = ("workload", "warmups", "server")

Change = tuple[Alert, SeriesChange]
"""An alert, with the finding that it was made of."""

Status = Literal["skipped", "too few", "kept", "new", "same", "better", "worse, tolerated"]


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
    status: Status
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


@dataclass(frozen=True)
class BaselineNights:
    """``values``: one a night. ``left_out``: the other nights of the last seven. ``blocking``: an alert with
    which there is no baseline at all."""

    values: tuple[float, ...] = ()
    left_out: tuple[int, ...] = ()
    blocking: Alert | None = None


def choose_nights(
    series: CellSeries, changes: Sequence[Change], *, last: int, breaks: Iterable[int] = ()
) -> BaselineNights:
    """The nights of one level among the seven that end with ``last``.

    ``changes``: of its cell. ``breaks``: nights on which other cells show that the prompts changed.
    """
    hints = (hint for hint in series.hints if hint.kind in _REDEFINING_HINTS)
    starts = [*breaks, *(series.nights[mark.index] for mark in (*series.boundaries, *hints))]
    excluded: set[int] = set()
    blocking = None
    alerts = [alert for alert, _ in changes]
    for alert, finding in changes:
        if finding.first > last:
            continue
        nights, back = finding.series.nights, recovery(finding)
        is_own = finding.series.key == series.key
        changed = nights[finding.point.places[0] : back or finding.after[-1] + 1]
        is_accepted = alert.state == "closed" or alert.cause in _REDEFINING
        if alert.shape == "transient" and (finding.is_over or not is_accepted):
            if is_own or (alert.part == "typical" and alert.cause in _CELL_WIDE):
                excluded.update(changed)
        elif alert.cause in _REDEFINING:
            starts.append(nights[max(finding.point.index, finding.point.places[-1])])
        elif is_own and not is_accepted and (alert.worse or beside_worse(alert, alerts)):
            excluded.update(changed)
            end = finding.end if back is None else back
            if end == len(nights) or nights[end] > last:
                blocking = alert
        elif is_own:
            starts.append(nights[back or finding.after[0]])
    start = max((night for night in starts if night <= last), default=0)
    recent = {n: v for n, v in zip(series.nights, series.values, strict=True) if last - DAYS < n <= last}
    kept = {night: v for night, v in recent.items() if night >= start and night not in excluded}
    left_out = tuple(night for night in recent if night not in kept)
    return BaselineNights(tuple(kept.values()), left_out, blocking)


def propose(
    cell: str,
    name: str,
    old: float | None,
    nights: BaselineNights,
    series: CellSeries | None,
    unit: float = 1.0,
) -> BaselineRow:
    """The baseline from the mean of these nights.

    ``series``: None where the cell does not report the metric. ``unit``: of the baseline, in that of the
    series.
    """
    values = [value / unit for value in nights.values]
    count = len(values)
    mean = fsum(values) / count if count else None
    change = mean / old - 1 if mean is not None and old else None
    spread, status = None, "too few"
    if nights.blocking:
        status = "skipped"
    elif series is None or mean is None or count < MIN_NIGHTS:
        status = "too few"
    elif stdev(values) / sqrt(count) > TOLERATED * abs(mean):
        spread, status = (min(values), max(values)), "skipped" if old is None else "kept"
    elif change is None:
        status = "new"
    elif series.sign * change > TOLERATED:
        status = "kept"
    elif abs(change) < series.min_effect:
        status = "same"
    else:
        status = "better" if series.sign * change < 0 else "worse, tolerated"
    return BaselineRow(
        cell=cell,
        name=name,
        old=old,
        mean=mean,
        new=old if status in ("skipped", "too few", "kept") else mean,
        change=change,
        n=count,
        status=status,
        alert=nights.blocking.id if nights.blocking else "",
        alert_state=nights.blocking.state if nights.blocking else "",
        spread=spread,
        left_out=tuple(map(night_of, nights.left_out)),
    )


def rebaseline(
    store: SeriesStore, analysis: SeriesAnalysis, cells: Sequence[str] = (), *, until: str = ""
) -> TrackRebaselineDocument:
    """The baselines of these cells (none named: of all) from the seven days that end with ``until``.

    By default these end with the last night of all of them. No mean goes over a change, reported or not.
    """
    by_cell = dict(series_for_export(store, cells))
    last = day_number(until or max(point.night for points in by_cell.values() for point in points))
    rows = (row for cell, points in by_cell.items() for row in _rows(cell, points, analysis, last))
    return TrackRebaselineDocument(first=night_of(last - DAYS + 1), last=night_of(last), rows=tuple(rows))


def _rows(cell: str, points: Sequence[Point], analysis: SeriesAnalysis, last: int) -> Iterator[BaselineRow]:
    until = [point for point in points if day_number(point.night) <= last]
    by_metric = {item.metric: item for item in analysis.series if item.cell == cell}
    if not until or not by_metric:
        return
    old = _old_baselines(max(until, key=lambda point: point.order))
    changes = [(alert, analysis.findings[alert.id]) for alert in analysis.alerts if alert.cell == cell]
    like = next(iter(by_metric.values()))
    breaks = [night for night, *_ in analysis.index.changed_prompts(like, range(last + 1))]
    for name in old or USUAL:
        metric, unit = key_of(name) or ("", 1.0)
        series = by_metric.get(str(parse_metric(metric))) if metric else None
        if series is not None:
            nights = choose_nights(series, changes, last=last, breaks=breaks)
            yield propose(cell, name, old.get(name), nights, series, unit)
        elif old:
            yield propose(cell, name, old[name], BaselineNights(), None)


def _old_baselines(point: Point) -> dict[str, float]:
    """What the nightly compared with, by name; of several devices that of the point's own."""
    named = list[tuple[str, object]]()
    for name, value in (point.covariates.get("baseline") or {}).items():
        device, _, inner = name.rpartition(".")
        if isinstance(value, Mapping):
            named += value.items() if name == point.hardware else ()
        elif not device or not point.hardware or device == point.hardware:
            named.append((inner, value))
    # A bool is an int to Python, and no baseline.
    numbers = ((name, value) for name, value in named if isinstance(value, int | float))
    return {name: float(value) for name, value in numbers if not isinstance(value, bool) and value > 0}
