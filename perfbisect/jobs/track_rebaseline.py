"""``perfbisect track rebaseline``: the baselines of the last days, as the maintainers print them by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfbisect.clients.reported import key_of
from perfbisect.core.baseline import DAYS, propose
from perfbisect.core.baseline_nights import Nights, choose_nights
from perfbisect.core.metric import parse_metric
from perfbisect.core.point import Point
from perfbisect.core.reported_series import CellSeries, day_number, night_of
from perfbisect.errors import UsageError
from perfbisect.jobs.track_detect import SeriesAnalysis
from perfbisect.jobs.track_series import points_of
from perfbisect.render.track_documents import BaselineDocument, TrackRebaselineDocument
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
    store: SeriesStore, seen: SeriesAnalysis, cells: Sequence[str] = (), *, until: str = ""
) -> TrackRebaselineDocument:
    """The baselines of these cells (none named: of all) from the seven days that end with ``until``, by
    default the last night of all of them.

    ``seen``: what was found in the store, reported or not: no mean goes over a change.

    :raises UsageError: a cell without points.
    """
    named = {name for name, _ in points_of(store, cells)}
    by_cell: dict[str, list[CellSeries]] = {}
    for series in seen.series:
        if series.cell in named:
            by_cell.setdefault(series.cell, []).append(series)
    if not by_cell:
        raise UsageError(f"no build of main measured {' or '.join(sorted(named))}")
    last = until or max(one.points[-1].night for of in by_cell.values() for one in of)
    rows = tuple(row for of in by_cell.values() for row in _rows(of, seen, day_number(last)))
    return TrackRebaselineDocument(first=night_of(day_number(last) - DAYS + 1), last=last, rows=rows)


def _rows(of: Sequence[CellSeries], seen: SeriesAnalysis, last: int) -> Iterator[BaselineDocument]:
    """Those of one cell, by its series."""
    cell, load = of[0].cell, of[0].points[-1].workload
    points = [point for one in of for point in one.points if day_number(point.night) <= last]
    if not points:
        return
    reported = {one.metric: one for one in of}
    old = _baselines(max(points, key=lambda point: (point.began, point.raw)))
    changes = [(alert, seen.findings[alert.id]) for alert in seen.alerts if alert.cell == cell]
    breaks: list[int] = []
    if load.dataset and load.model:  # not every server counts what a picture becomes: another cell's may
        breaks = [night for night, *_ in seen.cells.changed_work(load, range(last + 1))]
    for name in old or USUAL:
        metric, factor = key_of(name) or ("", 1.0)
        series = reported.get(str(parse_metric(metric))) if metric else None
        if series is None and not old:
            continue
        nights = choose_nights(series, changes, last=last, breaks=breaks) if series else Nights()
        values = [value / factor for value in nights.values]
        sign, smallest = (series.sign, series.min_effect) if series else (1, 0.0)
        proposal = propose(old.get(name), values, sign=sign, smallest=smallest, skip=nights.skip)
        yield BaselineDocument(
            cell=cell, name=name, old=old.get(name), mean=proposal.mean, new=proposal.new,
            change=proposal.change, n=len(values), status=proposal.status, why=proposal.why,
            left_out=tuple(map(night_of, nights.left_out)),
        )  # fmt: skip


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
