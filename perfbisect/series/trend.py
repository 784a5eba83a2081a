"""``perfbisect track trend``: the table of a cell's nights, with what marks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from perfbisect.errors import UsageError
from perfbisect.jobs.documents import metric_document
from perfbisect.model.metric import Metric, parse_metric
from perfbisect.series.documents import CellLineDocument, TrackTrendDocument, TrendDocument, TrendRowDocument
from perfbisect.series.gather import eras_of, points_of
from perfbisect.series.points import Beginning, Point, Rejection, beginnings, cell_of
from perfbisect.series.series import CellSeries, gather
from perfbisect.series.store import SeriesStore

Marks = Callable[[CellSeries], Mapping[int, str]]
"""What whoever scores a series says of its points, by their place."""

HEADLINES = ("audio_ttfp", "ttft", "latency", "image_generation", "video_generation", "e2el")
"""Which metric is shown of a cell where none is named: the first that it reports."""


def trend(
    store: SeriesStore,
    cells: Sequence[str],
    *,
    metric: str = "",
    since: str = "",
    marks: Marks = lambda _: {},
) -> TrackTrendDocument:
    """The tables of these cells; without cells, a line for each.

    :raises UsageError: a cell without points, a metric that there is not or that none of these cells reports.
    """
    if metric:
        parse_metric(metric)
    by_cell = dict(points_of(store, cells, since=since))
    if not by_cell:
        raise UsageError(f"no point since {since}", next_step="leave --since out")
    chosen: list[CellSeries] = []
    for name, points in by_cell.items():
        chosen += _chosen(gather(points, eras_of, cell=name), metric)
    if not chosen:
        who = "none of these cells" if len(by_cell) > 1 else f"no point of {next(iter(by_cell))}"
        raise UsageError(
            f"{who} reports {metric}; reported: {', '.join(_reported(by_cell))}",
            next_step="perfbisect track trend CELL --metric M",
        )
    whole = store.points(sorted(set(map(cell_of, by_cell))))
    began = {one.lineage: one for one in beginnings(whole)}
    unknown = {p.build.key for s in chosen for p in s.points if p.build.of_main is None}
    if not cells:
        lines = tuple(_line(series, marks(series), began.get(series.cell)) for series in chosen)
        return TrackTrendDocument(tables=(), cells=lines, unknown_branch=len(unknown))
    gone = store.rejections([points[0].cell for points in by_cell.values()], since=since)
    tables = tuple(
        _table(
            series,
            by_cell[series.cell],
            [r for r in gone if r.cell == series.cell],
            marks(series),
            began.get(series.cell),
        )
        for series in chosen
    )
    return TrackTrendDocument(tables=tables, cells=(), unknown_branch=len(unknown))


def _chosen(found: Sequence[CellSeries], metric: str) -> Sequence[CellSeries]:
    if metric:
        name = str(parse_metric(metric))
        return [series for series in found if series.metric == name]
    typical = {series.metric: series for series in found if series.part == "typical"}
    first = next((typical[name] for name in HEADLINES if name in typical), None)
    return [first] if first else list(typical.values())[:1]


def _reported(by_cell: Mapping[str, Sequence[Point]]) -> list[str]:
    return sorted({one.metric for points in by_cell.values() for one in gather(points, eras_of)})


def _line(series: CellSeries, marks: Mapping[int, str], began: Beginning | None) -> CellLineDocument:
    last = len(series.values) - 1
    return CellLineDocument(
        cell=series.cell,
        metric=series.metric,
        unit=series.row.unit,
        nights=len(set(series.nights)),
        first=series.points[0].night,
        last=series.points[-1].night,
        value=series.values[-1],
        change=change(series.values[-2], series.values[-1], series.row) if last else None,
        marks=_marks(series, last, marks, began),
    )


def _table(
    series: CellSeries,
    points: Sequence[Point],
    gone: Sequence[Rejection],
    marks: Mapping[int, str],
    began: Beginning | None,
) -> TrendDocument:
    place = {id(point): i for i, point in enumerate(series.points)}
    rows: list[TrendRowDocument] = []
    for point in points:
        index = place.get(id(point))
        if index is None:
            rows.append(_row(point, None, None, (f"does not report {series.metric}",)))
            continue
        before = change(series.values[index - 1], series.values[index], series.row) if index else None
        rows.append(_row(point, series.values[index], before, _marks(series, index, marks, began)))
    rows += [
        TrendRowDocument(
            began="", night=r.night, build=r.build.name, url=r.build.url, commit=r.build.commit,
            main=r.build.of_main, value=None, change=None, marks=(f"no point: {r.reason}",),
        )
        for r in gone
        if r.fate != "twin"
    ]  # fmt: skip
    ordered = tuple(sorted(rows, key=lambda row: (row.night, row.began, row.build)))
    lacking = sum(id(point) not in place for point in points)
    return TrendDocument(
        cell=series.cell,
        metric=metric_document(parse_metric(series.metric)),
        rows=ordered,
        lacking=lacking,
        neutral=series.row.neutral,
    )


def _row(point: Point, value: float | None, before: float | None, marks: tuple[str, ...]) -> TrendRowDocument:
    build = point.build
    return TrendRowDocument(
        began=point.began, night=point.night, build=build.name, url=build.url, commit=build.commit,
        main=build.of_main, value=value, change=before, marks=marks,
    )  # fmt: skip


def _marks(
    series: CellSeries, index: int, marks: Mapping[int, str], began: Beginning | None
) -> tuple[str, ...]:
    found = [marks[index]] if index in marks else []
    if began is not None and series.points[index] == began.first:
        found.append(f"machine changed: {began.what}, the series begins")
    beside = (*series.boundaries, *series.hints)
    found += [f"{b.kind} changed: {b.what}" for b in beside if b.index == index]
    if index:
        missing = series.nights[index] - series.nights[index - 1] - 1
        found += [f"{missing} night{'s' if missing > 1 else ''} missing before"] if missing > 0 else []
    if series.points[index].build.of_main is False:
        found.append(f"not of main: {series.points[index].build.branch}")
    return tuple(found)


def change(before: float, after: float, metric: Metric) -> float | None:
    """Against the value before: as a share, or the difference where the metric is itself a share."""
    if metric.absolute:
        return after - before
    return after / before - 1 if before else None
