"""``perfbisect track rebaseline``: the baselines of the last days, as the maintainers print them by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from statistics import stdev
from typing import Literal

from pydantic import Field

from perfbisect.common.numbers import number, percent
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document
from perfbisect.model.metric import parse_metric
from perfbisect.report.document import Column, Report, Table, Verdict
from perfbisect.series.alerts import Alert, beside_worse, recovery
from perfbisect.series.detect import SeriesAnalysis
from perfbisect.series.findings import SeriesChange
from perfbisect.series.points import Point
from perfbisect.series.selection import points_of
from perfbisect.series.series import CellSeries, day_number, night_of
from perfbisect.series.sources.results import key_of
from perfbisect.series.store import SeriesStore

DAYS = 7
TOLERATED = 0.07
"""By how much worse a mean may be, as a share of the old baseline; also its largest relative error."""
LEAST = 4
"""Nights, of seven, without which there is no baseline."""

Status = Literal["better", "same", "worse, tolerated", "kept", "too few", "new", "skipped"]


@dataclass(frozen=True)
class Proposal:
    """``change``: of the mean against the old baseline, as a share. None: there was none."""

    mean: float | None
    new: float | None
    change: float | None
    status: Status
    why: str = ""


def propose(
    old: float | None, values: Sequence[float], *, sign: int, smallest: float, skip: str = ""
) -> Proposal:
    """``values``: one a night. ``sign``: +1 where larger is worse. ``smallest``: the smallest relevant
    effect, as a share. ``skip``: why there is no baseline of these nights."""
    count = len(values)
    mean = fsum(values) / count if values else None
    change = mean / old - 1 if mean is not None and old else None
    if skip:
        return Proposal(mean, old, change, "skipped", skip)
    if mean is None or count < LEAST:
        return Proposal(mean, old, change, "too few", f"{count} of {DAYS} nights, {LEAST} needed")
    if stdev(values) / sqrt(count) > TOLERATED * abs(mean):
        why = f"the nights are not one level: {min(values):.6g} to {max(values):.6g}"
        return Proposal(mean, old, change, "skipped" if old is None else "kept", why)
    if change is None:
        return Proposal(mean, mean, None, "new")
    if sign * change > TOLERATED:
        why = f"worse by {abs(change):.1%}: a regression is not absorbed"
        return Proposal(mean, old, change, "kept", why)
    if abs(change) < smallest:
        return Proposal(mean, mean, change, "same")
    return Proposal(mean, mean, change, "better" if sign * change < 0 else "worse, tolerated")


Change = tuple[Alert, SeriesChange]
"""An alert, with the finding that it was made of."""

_NOT_THE_PRODUCT = ("instrument", "workload")
"""Causes of a change after which a cell measures something else."""

_OF_THE_CELL = ("product", "night")
"""Causes of a transient that spoils a night for all metrics of its cell."""

_BREAKS = ("workload", "warmups", "server")
"""Hints after which a cell measures something else."""


@dataclass(frozen=True)
class BaselineNights:
    """``values``: one a night. ``left_out``: the other nights (days since 1970-01-01) of the last seven.

    ``skip``: why there is no baseline at all.
    """

    values: tuple[float, ...] = ()
    left_out: tuple[int, ...] = ()
    skip: str = ""


def choose_nights(
    series: CellSeries, changes: Sequence[Change], *, last: int, breaks: Iterable[int] = ()
) -> BaselineNights:
    """The nights of one level among the seven that end with ``last``.

    ``series`` has one value a night; ``changes`` are those of its cell; ``breaks``: nights from which on it
    measures something else, as other cells show.
    """
    hints = (hint for hint in series.hints if hint.kind in _BREAKS)
    starts = [*breaks, *(series.nights[mark.index] for mark in (*series.boundaries, *hints))]
    bad: set[int] = set()
    skip = ""
    alerts = [alert for alert, _ in changes]
    for alert, finding in changes:
        if finding.first > last:
            continue
        nights, back = finding.series.nights, recovery(finding)
        own = finding.series.key == series.key
        changed = nights[finding.point.places[0] : back or finding.after[-1] + 1]
        accepted = alert.state == "closed" or alert.cause in _NOT_THE_PRODUCT
        if alert.shape == "transient" and (finding.is_over or not accepted):
            if own or (alert.part == "typical" and alert.cause in _OF_THE_CELL):
                bad.update(changed)
        elif alert.cause in _NOT_THE_PRODUCT:
            starts.append(nights[max(finding.point.index, finding.point.places[-1])])
        elif own and not accepted and (alert.worse or beside_worse(alert, alerts)):
            bad.update(changed)
            end = finding.end if back is None else back
            if end == len(nights) or nights[end] > last:
                skip = f"alert {alert.id} is {alert.state}"
        elif own:
            starts.append(nights[back or finding.after[0]])
    start = max((night for night in starts if night <= last), default=0)
    asked = {n: v for n, v in zip(series.nights, series.values, strict=True) if last - DAYS < n <= last}
    kept = {n: v for n, v in asked.items() if n >= start and n not in bad}
    return BaselineNights(tuple(kept.values()), tuple(n for n in asked if n not in kept), skip)


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


class BaselineRow(Document):
    """A proposed baseline in the specification's names and units, from the mean of ``n`` nights.

    ``left_out``: measured nights of another level or workload.
    """

    cell: str
    name: str
    old: float | None
    mean: float | None
    new: float | None
    change: float | None
    n: int
    status: str
    why: str
    left_out: tuple[str, ...] = ()


class TrackRebaselineDocument(Document):
    """``perfbisect track rebaseline``: means from ``first`` to ``last``, both included."""

    schema_: Literal["perfbisect.track-rebaseline/1"] = Field(
        default="perfbisect.track-rebaseline/1", alias="schema"
    )
    first: str
    last: str
    rows: tuple[BaselineRow, ...]


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
    last = until or max(item.points[-1].night for of in by_cell.values() for item in of)
    rows = tuple(row for of in by_cell.values() for row in _rows(of, seen, day_number(last)))
    return TrackRebaselineDocument(first=night_of(day_number(last) - DAYS + 1), last=last, rows=rows)


def _rows(of: Sequence[CellSeries], seen: SeriesAnalysis, last: int) -> Iterator[BaselineRow]:
    """Those of one cell, by its series."""
    cell, load = of[0].cell, of[0].points[-1].workload
    points = [point for item in of for point in item.points if day_number(point.night) <= last]
    if not points:
        return
    reported = {item.metric: item for item in of}
    old = _baselines(max(points, key=lambda point: (point.began, point.raw)))
    changes = [(alert, seen.findings[alert.id]) for alert in seen.alerts if alert.cell == cell]
    breaks: list[int] = []
    if load.dataset and load.model:  # not every server counts what a picture becomes: another cell's may
        breaks = [night for night, *_ in seen.index.changed_prompts(load, range(last + 1))]
    for name in old or USUAL:
        metric, factor = key_of(name) or ("", 1.0)
        series = reported.get(str(parse_metric(metric))) if metric else None
        if series is None and not old:
            continue
        nights = choose_nights(series, changes, last=last, breaks=breaks) if series else BaselineNights()
        values = [value / factor for value in nights.values]
        sign, smallest = (series.sign, series.min_effect) if series else (1, 0.0)
        proposal = propose(old.get(name), values, sign=sign, smallest=smallest, skip=nights.skip)
        yield BaselineRow(
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


def rebaseline_report(document: TrackRebaselineDocument) -> Report:
    """Report of ``track rebaseline``: the table of a rebaseline pull request."""
    numeric = ("old", "mean", "new", "change", "n")
    names = ("cell", "metric", *numeric, "status")
    rows = tuple(
        (
            row.cell,
            row.name,
            number(row.old, 6),
            number(row.mean, 6),
            number(row.new, 6),
            "-" if row.change is None else percent(row.change),
            str(row.n),
            _status_text(row),
        )
        for row in document.rows
    )
    table = Table(tuple(Column(name, numeric=name in numeric) for name in names), rows)
    return Report("Baselines", Verdict(f"Means of {document.first} to {document.last}"), (table,))


def _status_text(row: BaselineRow) -> str:
    notes = [row.why] if row.why else []
    if row.left_out:
        notes.append(f"without {', '.join(night[5:] for night in row.left_out)}")
    return f"{row.status} ({'; '.join(notes)})" if notes else row.status
