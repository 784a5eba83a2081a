"""``perfbisect track show``: the table of a cell's nights, with what marks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from perfbisect.common.numbers import number, percent
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document, MetricDocument, metric_document
from perfbisect.model.metric import Metric, parse_metric, row
from perfbisect.report.document import Column, Paragraph, Report, Section, Table, Verdict
from perfbisect.series.points import (
    MachineSeriesStart,
    Point,
    RejectedResult,
    cell_of_series,
    machine_series_starts,
)
from perfbisect.series.selection import eras_of, points_of
from perfbisect.series.series import HEADLINES, CellSeries, build_series
from perfbisect.series.store import SeriesStore

Marks = Callable[[CellSeries], Mapping[int, str]]
"""What whoever scores a series says of its points, by their place."""


class NightRow(Document):
    """One night of a cell. ``value`` None: it has none, ``marks`` say why. ``change``: against the last value
    before, as a share (of a share: the difference). ``main``: None where the branch is not known."""

    began: str
    night: str
    build: str
    url: str
    commit: str
    main: bool | None
    value: float | None
    change: float | None
    marks: tuple[str, ...]


class NightTable(Document):
    """A metric of a cell. ``lacking``: points of the cell that do not report it.

    ``neutral``: neither more nor less of it is better, whatever its ``direction`` says: it is a property of
    what is asked or answered.
    """

    cell: str
    metric: MetricDocument
    rows: tuple[NightRow, ...]
    lacking: int
    neutral: bool = False


class CellSummary(Document):
    """A cell in the list: its last value of a metric."""

    cell: str
    metric: str
    unit: str
    nights: int
    first: str
    last: str
    value: float
    change: float | None
    marks: tuple[str, ...]


class TrackShowDocument(Document):
    """JSON of ``track show``: the requested tables, or the list of all cells."""

    schema_: Literal["perfbisect.track-show/1"] = Field(default="perfbisect.track-show/1", alias="schema")
    tables: tuple[NightTable, ...]
    cells: tuple[CellSummary, ...]
    unknown_branch: int


def show_nights(
    store: SeriesStore,
    cells: Sequence[str],
    *,
    metric: str = "",
    since: str = "",
    marks: Marks = lambda _: {},
) -> TrackShowDocument:
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
        chosen += _chosen(build_series(points, eras_of, cell=name), metric)
    if not chosen:
        who = "none of these cells" if len(by_cell) > 1 else f"no point of {next(iter(by_cell))}"
        raise UsageError(
            f"{who} reports {metric}; reported: {', '.join(_reported(by_cell))}",
            next_step="perfbisect track show CELL --metric M",
        )
    whole = store.points(sorted(set(map(cell_of_series, by_cell))))
    began = {start.name: start for start in machine_series_starts(whole)}
    unknown = {p.build.key for s in chosen for p in s.points if p.build.of_main is None}
    if not cells:
        lines = tuple(_line(series, marks(series), began.get(series.cell)) for series in chosen)
        return TrackShowDocument(tables=(), cells=lines, unknown_branch=len(unknown))
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
    return TrackShowDocument(tables=tables, cells=(), unknown_branch=len(unknown))


def _chosen(found: Sequence[CellSeries], metric: str) -> Sequence[CellSeries]:
    if metric:
        name = str(parse_metric(metric))
        return [series for series in found if series.metric == name]
    typical = {series.metric: series for series in found if series.part == "typical"}
    first = next((typical[name] for name in HEADLINES if name in typical), None)
    return [first] if first else list(typical.values())[:1]


def _reported(by_cell: Mapping[str, Sequence[Point]]) -> list[str]:
    return sorted({point.metric for points in by_cell.values() for point in build_series(points, eras_of)})


def _line(series: CellSeries, marks: Mapping[int, str], began: MachineSeriesStart | None) -> CellSummary:
    last = len(series.values) - 1
    return CellSummary(
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
    gone: Sequence[RejectedResult],
    marks: Mapping[int, str],
    began: MachineSeriesStart | None,
) -> NightTable:
    place = {id(point): i for i, point in enumerate(series.points)}
    rows: list[NightRow] = []
    for point in points:
        index = place.get(id(point))
        if index is None:
            rows.append(_row(point, None, None, (f"does not report {series.metric}",)))
            continue
        before = change(series.values[index - 1], series.values[index], series.row) if index else None
        rows.append(_row(point, series.values[index], before, _marks(series, index, marks, began)))
    rows += [
        NightRow(
            began="", night=r.night, build=r.build.name, url=r.build.url, commit=r.build.commit,
            main=r.build.of_main, value=None, change=None, marks=(f"no point: {r.reason}",),
        )
        for r in gone
        if r.fate != "twin"
    ]  # fmt: skip
    ordered = tuple(sorted(rows, key=lambda row: (row.night, row.began, row.build)))
    lacking = sum(id(point) not in place for point in points)
    return NightTable(
        cell=series.cell,
        metric=metric_document(parse_metric(series.metric)),
        rows=ordered,
        lacking=lacking,
        neutral=series.row.neutral,
    )


def _row(point: Point, value: float | None, before: float | None, marks: tuple[str, ...]) -> NightRow:
    build = point.build
    return NightRow(
        began=point.began, night=point.night, build=build.name, url=build.url, commit=build.commit,
        main=build.of_main, value=value, change=before, marks=marks,
    )  # fmt: skip


def _marks(
    series: CellSeries, index: int, marks: Mapping[int, str], began: MachineSeriesStart | None
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


def nights_report(document: TrackShowDocument) -> Report:
    """Report of ``track show``: a table for each cell, or one line for each."""
    sections = [_table_section(table) for table in document.tables]
    blocks: list[Table | Paragraph] = []
    if document.cells:
        columns = (
            *(Column("cell"), Column("metric"), Column("nights", numeric=True), Column("last")),
            *(Column("value", numeric=True), Column("unit"), Column("change", numeric=True), Column("")),
        )
        rows = tuple(
            (
                cell.cell,
                cell.metric,
                str(cell.nights),
                cell.last,
                number(cell.value),
                cell.unit,
                _change_text(cell.metric, cell.change),
                "; ".join(cell.marks),
            )
            for cell in document.cells
        )
        blocks.append(Table(columns, rows))
    if document.unknown_branch:
        mark = "?: " if document.tables else ""
        note = f"{mark}{document.unknown_branch} builds do not say their branch: not known to be of main"
        blocks.append(Paragraph(note))
    count = len(document.tables) or len(document.cells)
    return Report("Nights", Verdict(f"{count} cell{'s' * (count != 1)}"), tuple(blocks), tuple(sections))


def _table_section(table: NightTable) -> Section:
    metric = table.metric
    better = "neither more nor less is better" if table.neutral else f"{metric.direction} is better"
    columns = (
        *(Column("date (UTC)"), Column("build"), Column("commit"), Column("value", numeric=True)),
        *(Column("change", numeric=True), Column("")),
    )
    rows = tuple(
        (
            (night.began or night.night)[:16].replace("T", " "),
            night.build + ("?" if night.main is None else ""),
            night.commit[:12] or "-",
            number(night.value),
            _change_text(metric.name, night.change),
            "; ".join(night.marks),
        )
        for night in table.rows
    )
    blocks: list[Table | Paragraph] = [Table(columns, rows)]
    if table.lacking:
        blocks.append(Paragraph(f"{table.lacking} of {len(rows)} points do not report {metric.name}"))
    return Section(f"{table.cell}: {metric.name} in {metric.unit}, {better}", tuple(blocks))


def _change_text(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:+.3g}" if row(metric.partition(":")[0]).absolute else percent(value)
