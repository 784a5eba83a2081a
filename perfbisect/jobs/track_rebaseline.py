"""``perfbisect track rebaseline``: the baselines of the last days, as the maintainers print them by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfbisect.clients.reported import key_of
from perfbisect.core.baseline import DAYS, propose
from perfbisect.core.baseline_nights import Anew, chosen
from perfbisect.core.metric import parse_metric
from perfbisect.core.point import Point
from perfbisect.core.reported_series import CellSeries, day_number, night_of
from perfbisect.errors import UsageError
from perfbisect.jobs.track_detect import SeriesAnalysis
from perfbisect.jobs.track_series import points_of
from perfbisect.render.track_documents import BaselineDocument, LeftOutDocument, TrackRebaselineDocument
from perfbisect.store.series import SeriesStore

USUAL = (
    "median_audio_ttfp_ms",
    "median_audio_rtf",
    "audio_throughput",
    "median_ttft_ms",
    "median_tpot_ms",
    "output_throughput",
    "latency_mean",
    "throughput_qps",
    "peak_memory_mb_mean",
)
"""What a cell without a baseline would have one of, as its specification names it."""


def rebaseline(
    store: SeriesStore, seen: SeriesAnalysis, cells: Sequence[str] = (), *, until: str = "", days: int = DAYS
) -> TrackRebaselineDocument:
    """Old, mean, new, n and status of every baseline of these cells (none named: of all).

    The days end with ``until``, or with the last night of all these cells: one that has ended is told as too
    few. ``seen``: what was found in the store, told before or not: no mean goes over a change.

    :raises UsageError: a cell without points.
    """
    named = {name for name, _ in points_of(store, cells)}
    found: dict[str, list[CellSeries]] = {}
    for one in seen.series:
        if one.cell in named:
            found.setdefault(one.cell, []).append(one)
    if not found:
        raise UsageError(f"no build of main measured {' or '.join(sorted(named))}")
    last = until or max(one.points[-1].night for of in found.values() for one in of)
    days_of = Days(day_number(last) - days + 1, day_number(last), days)
    rows = tuple(row for of in found.values() for row in _rows(of, seen, days_of))
    return TrackRebaselineDocument(first=night_of(days_of.first), last=last, rows=rows)


@dataclass(frozen=True)
class Days:
    """The nights (days since 1970-01-01) of a mean, both included, and how many there can be."""

    first: int
    last: int
    count: int


def _rows(of: Sequence[CellSeries], seen: SeriesAnalysis, days: Days) -> Iterator[BaselineDocument]:
    """Those of one cell, by its series."""
    cell = of[0].cell
    points = [point for one in of for point in one.points if day_number(point.night) <= days.last]
    if not points:
        return
    series = {one.metric: one for one in of}
    old = _baselines(max(points, key=lambda point: (point.began, point.raw)))
    alerts = [(alert, seen.findings[alert.id]) for alert in seen.alerts if alert.cell == cell]
    others = _changed_elsewhere(of[0], seen)
    for name in old or USUAL:
        ours = key_of(name)
        found = series.get(str(parse_metric(ours[0]))) if ours else None
        if ours is None or found is None:
            if old:
                yield BaselineDocument(
                    cell=cell, name=name, old=old[name], mean=None, new=old[name], change=None,
                    n=0, status="kept", why="the cell does not report it",
                )  # fmt: skip
            continue
        nights = chosen(found, alerts, first=days.first, last=days.last, others=others)
        made = propose(
            old.get(name),
            tuple(value / ours[1] for value in nights.values),
            sign=found.sign,
            smallest=found.min_effect,
            days=days.count,
            skip=nights.skip,
        )
        yield BaselineDocument(
            cell=cell, name=name, old=made.old, mean=made.mean, new=made.new, change=made.change,
            n=made.nights, status=made.status, why=made.why,
            left_out=tuple(
                LeftOutDocument(night=night_of(one.night), word=one.word, why=one.why)
                for one in nights.left_out
            ),
        )  # fmt: skip


def _changed_elsewhere(series: CellSeries, seen: SeriesAnalysis) -> tuple[Anew, ...]:
    """Nights on which cells of the same data set and model say that the prompts changed: not every server
    counts what a picture becomes."""
    load = series.points[-1].workload
    if not load.dataset or not load.model:
        return ()
    return tuple(
        Anew(night, "workload changed", f"{what} in {cell}, of the same data set and model")
        for night, cell, what, _ in seen.cells.changed_work(load, range(series.nights[-1] + 1))
    )


def _baselines(point: Point) -> dict[str, float]:
    """What the nightly compared with, by name; of several devices that of the point's own."""
    told = point.covariates.get("baseline") or {}
    hardware = str(point.covariates.get("hardware") or "")
    found: dict[str, float] = {}
    for name, value in told.items():
        if isinstance(value, Mapping) and name == hardware:
            found |= {inner: float(v) for inner, v in value.items() if _is_number(v)}
        elif _is_number(value):
            device, dot, inner = name.rpartition(".")
            if not dot or not hardware or device == hardware:
                found[inner if dot else name] = float(value)
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
