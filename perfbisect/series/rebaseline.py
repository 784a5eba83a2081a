"""``track rebaseline``: the baselines of the last seven nights, by the rule of vLLM-Omni's maintainers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from statistics import stdev
from typing import Literal

from pydantic import Field

from perfbisect.common.quantities import number, percent
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document
from perfbisect.model.metric import parse_metric
from perfbisect.report.document import Column, Report, Table, Verdict
from perfbisect.series.alerts import Alert, beside_worse, recovery
from perfbisect.series.detect import SeriesAnalysis
from perfbisect.series.findings import SeriesChange
from perfbisect.series.points import Point
from perfbisect.series.series import CellSeries, day_number, night_of
from perfbisect.series.sources.results import key_of
from perfbisect.series.store import SeriesStore

DAYS = 7
TOLERATED = 0.07
"""By how much worse a mean may be, as a share of the old baseline; also its largest relative error."""

MIN_NIGHTS = 4
"""Nights, of seven, without which there is no baseline."""

USUAL = (
    *("median_audio_ttfp_ms", "median_audio_rtf", "audio_throughput", "median_ttft_ms", "median_tpot_ms"),
    *("output_throughput", "latency_mean", "throughput_qps", "peak_memory_mb_mean"),
)
"""What a cell without a baseline would have one of, as its specification names it."""

_REDEFINING = ("instrument", "workload")
"""Causes of a change after which a cell measures something else."""

_CELL_WIDE = ("product", "night")
"""Causes of a transient that spoils a night for all metrics of its cell."""

_REDEFINING_HINTS = ("workload", "warmups", "server")

Change = tuple[Alert, SeriesChange]
"""An alert, with the finding that it was made of."""


class BaselineRow(Document):
    """A proposed baseline in the specification's names and units, from the mean of ``n`` nights.

    ``change``: of the mean against the old baseline, as a share. ``left_out``: measured nights of another
    level or workload.
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
    hints = (hint for hint in series.hints if hint.kind in _REDEFINING_HINTS)
    starts = [*breaks, *(series.nights[mark.index] for mark in (*series.boundaries, *hints))]
    excluded: set[int] = set()
    skip = ""
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
                skip = f"alert {alert.id} is {alert.state}"
        elif is_own:
            starts.append(nights[back or finding.after[0]])
    start = max((night for night in starts if night <= last), default=0)
    recent = {n: v for n, v in zip(series.nights, series.values, strict=True) if last - DAYS < n <= last}
    kept = {night: v for night, v in recent.items() if night >= start and night not in excluded}
    return BaselineNights(tuple(kept.values()), tuple(night for night in recent if night not in kept), skip)


def propose(
    cell: str, name: str, old: float | None, nights: BaselineNights, *, sign: int, smallest: float
) -> BaselineRow:
    """The baseline from the mean of these nights.

    ``sign``: +1 where larger is worse. ``smallest``: the smallest relevant effect, as a share.
    """
    count = len(nights.values)
    mean = fsum(nights.values) / count if count else None
    change = mean / old - 1 if mean is not None and old else None
    new, why = old, ""
    if nights.skip:
        status, why = "skipped", nights.skip
    elif mean is None or count < MIN_NIGHTS:
        status, why = "too few", f"{count} of {DAYS} nights, {MIN_NIGHTS} needed"
    elif stdev(nights.values) / sqrt(count) > TOLERATED * abs(mean):
        status = "skipped" if old is None else "kept"
        why = f"the nights are not one level: {min(nights.values):.6g} to {max(nights.values):.6g}"
    elif change is not None and sign * change > TOLERATED:
        status, why = "kept", f"worse by {abs(change):.1%}: a regression is not absorbed"
    else:
        new = mean
        if change is None:
            status = "new"
        elif abs(change) < smallest:
            status = "same"
        else:
            status = "better" if sign * change < 0 else "worse, tolerated"
    left_out = tuple(map(night_of, nights.left_out))
    return BaselineRow(
        cell=cell, name=name, old=old, mean=mean, new=new, change=change, n=count, status=status, why=why,
        left_out=left_out,
    )  # fmt: skip


def rebaseline(
    store: SeriesStore, analysis: SeriesAnalysis, cells: Sequence[str] = (), *, until: str = ""
) -> TrackRebaselineDocument:
    """The baselines of these cells (none named: of all) from the seven days that end with ``until``, by
    default the last night of all of them.

    ``analysis``: of the store; no mean goes over a change, reported or not.
    """
    names = {name for name, _ in store.machine_series(cells)}
    by_cell: dict[str, list[CellSeries]] = {}
    for series in analysis.series:
        if series.cell in names:
            by_cell.setdefault(series.cell, []).append(series)
    if not by_cell:
        raise UsageError(f"no build of main measured {' or '.join(sorted(names))}")
    last = until or max(item.points[-1].night for of_cell in by_cell.values() for item in of_cell)
    rows = tuple(row for of_cell in by_cell.values() for row in _rows(of_cell, analysis, day_number(last)))
    return TrackRebaselineDocument(first=night_of(day_number(last) - DAYS + 1), last=last, rows=rows)


def _rows(of_cell: Sequence[CellSeries], analysis: SeriesAnalysis, last: int) -> Iterator[BaselineRow]:
    cell, workload = of_cell[0].cell, of_cell[0].points[-1].workload
    points = [point for item in of_cell for point in item.points if day_number(point.night) <= last]
    if not points:
        return
    by_metric = {item.metric: item for item in of_cell}
    old = _old_baselines(max(points, key=lambda point: point.order))
    changes = [(alert, analysis.findings[alert.id]) for alert in analysis.alerts if alert.cell == cell]
    breaks: list[int] = []
    if workload.dataset and workload.model:  # Not every server counts what a picture becomes: others may.
        breaks = [night for night, *_ in analysis.index.changed_prompts(workload, range(last + 1))]
    for name in old or USUAL:
        metric, factor = key_of(name) or ("", 1.0)
        series = by_metric.get(str(parse_metric(metric))) if metric else None
        if series is not None:
            nights = choose_nights(series, changes, last=last, breaks=breaks)
            values = tuple(value / factor for value in nights.values)
            nights = BaselineNights(values, nights.left_out, nights.skip)
            yield propose(cell, name, old.get(name), nights, sign=series.sign, smallest=series.min_effect)
        elif old:
            yield propose(cell, name, old[name], BaselineNights(), sign=1, smallest=0.0)


def _old_baselines(point: Point) -> dict[str, float]:
    """What the nightly compared with, by name; of several devices that of the point's own."""
    baselines: dict[str, float] = {}
    for name, value in (point.covariates.get("baseline") or {}).items():
        if isinstance(value, Mapping) and name == point.hardware:
            baselines |= {inner: float(v) for inner, v in value.items() if _is_number(v)}
        elif _is_number(value):
            device, dot, inner = name.rpartition(".")
            if not dot or not point.hardware or device == point.hardware:
                baselines[inner if dot else name] = float(value)
    return baselines


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def rebaseline_report(document: TrackRebaselineDocument) -> Report:
    """Report of ``track rebaseline``: the table of a rebaseline pull request."""
    numeric = ("old", "mean", "new", "change", "n")
    names = ("cell", "metric", *numeric, "status")
    rows = tuple(
        (
            *(row.cell, row.name, number(row.old, 6), number(row.mean, 6), number(row.new, 6)),
            *("-" if row.change is None else percent(row.change), str(row.n), _status_text(row)),
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
