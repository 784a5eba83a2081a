"""``perfbisect track rebaseline``: the baselines of the last days, as the maintainers print them by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfbisect.clients.reported import key_of
from perfbisect.core.baseline import DAYS, propose
from perfbisect.core.metric import parse_metric
from perfbisect.core.point import Point
from perfbisect.core.reported_series import CellSeries, day_number, night_of
from perfbisect.jobs.track_series import gathered, points_of
from perfbisect.jobs.track_trend import last_nights
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
    store: SeriesStore,
    cells: Sequence[str] = (),
    *,
    until: str = "",
    days: int = DAYS,
    skipped: Mapping[tuple[str, str], str] | None = None,
) -> TrackRebaselineDocument:
    """Old, mean, new, n and status of every baseline of these cells (none named: of all).

    The days end with ``until``, or with the last night of all these cells: one that has ended is told as too
    few. ``skipped``: (cell, metric) -> why it is not to be touched, such as an open alert.

    :raises UsageError: a cell without points.
    """
    found = tuple(points_of(store, cells))
    last = until or max(point.night for _, points in found for point in points)
    rows: list[BaselineDocument] = []
    for cell, points in found:
        rows += _rows(cell, [p for p in points if p.night <= last], last, days, skipped or {})
    first = night_of(day_number(last) - days + 1)
    return TrackRebaselineDocument(first=first, last=last, rows=tuple(rows))


def _rows(
    cell: str, points: Sequence[Point], last: str, days: int, skipped: Mapping[tuple[str, str], str]
) -> Iterator[BaselineDocument]:
    if not points:
        return
    series = {s.metric: s for s in gathered(cell, points)}
    old = _baselines(points[-1])
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
        values = tuple(value / ours[1] for value in last_nights(found, last, days))
        made = propose(
            old.get(name),
            values,
            sign=found.sign,
            smallest=found.min_effect,
            days=days,
            skip=skipped.get(found.key, "") or _broken(found, last, days),
        )
        yield BaselineDocument(
            cell=found.cell, name=name, old=made.old, mean=made.mean, new=made.new, change=made.change,
            n=made.nights, status=made.status, why=made.why,
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


def _broken(series: CellSeries, last: str, days: int) -> str:
    """Why a mean over these days is of two things; empty where it is of one."""
    end = day_number(last)
    for boundary in series.boundaries:
        if end - days + 1 < series.nights[boundary.index] <= end:
            return f"{boundary.kind} changed on {night_of(series.nights[boundary.index])}: {boundary.what}"
    return ""
