"""``track show``: the table of a cell's nights with their marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document, MetricDocument, metric_document
from perfbisect.model.commit_details import Evidence
from perfbisect.model.metric import parse_metric
from perfbisect.series.alerts import Alert
from perfbisect.series.points import Point, RejectedResult
from perfbisect.series.series import (
    HEADLINES,
    CellSeries,
    MachineSeriesStart,
    build_series,
    cell_of_series,
    machine_series_starts,
)
from perfbisect.series.store import SeriesStore


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
    marks: tuple[Evidence, ...]


class NightTable(Document):
    """A metric of a cell on so many ``nights`` since the ``first``.

    ``lacking``: points of the cell that do not report it. ``neutral``: neither more nor less of it is better,
    whatever its ``direction`` says.
    """

    cell: str
    metric: MetricDocument
    nights: int
    first: str
    rows: tuple[NightRow, ...]
    lacking: int
    neutral: bool = False


class TrackShowDocument(Document):
    """JSON of ``track show``: the requested tables, or of all cells the newest row (``newest``)."""

    schema_: Literal["perfbisect.track-show/2"] = Field(default="perfbisect.track-show/2", alias="schema")
    tables: tuple[NightTable, ...]
    newest: bool
    unknown_branch: int


def show_nights(
    store: SeriesStore, cells: Sequence[str], *, metric: str = "", since: str = ""
) -> TrackShowDocument:
    """The tables of these cells; without cells, a line for each."""
    wanted = str(parse_metric(metric)) if metric else ""
    by_cell = dict(store.machine_series(cells, since=since))
    if not by_cell:
        raise UsageError(f"no point since {since}", next_step="leave --since out")
    series_by_cell = {name: build_series(points, cell=name) for name, points in by_cell.items()}
    chosen: list[CellSeries] = []
    for of_cell in series_by_cell.values():
        # By default the first headline that the cell reports.
        typical = {item.metric: item for item in of_cell if item.part == "typical"}
        headline = next((name for name in (*HEADLINES, *typical) if name in typical), "")
        chosen += [item for item in of_cell if item.metric == (wanted or headline)]
    if not chosen:
        subject = "none of these cells" if len(by_cell) > 1 else f"no point of {next(iter(by_cell))}"
        reported = sorted({item.metric for of_cell in series_by_cell.values() for item in of_cell})
        raise UsageError(
            f"{subject} reports {metric}; reported: {', '.join(reported)}",
            next_step="perfbisect track show CELL --metric M",
        )
    # All nights are read, not only those that are shown: a series begins at its first point.
    all_points = store.points(sorted(set(map(cell_of_series, by_cell))))
    starts = {start.name: start for start in machine_series_starts(all_points)}
    alerts = store.alerts.all()
    marks_of = {item.cell: _collect_marks(item, alerts, starts.get(item.cell)) for item in chosen}
    unknown = {p.build.key for item in chosen for p in item.points if p.build.of_main is None}
    of_cells = [points[0].cell for points in by_cell.values()]
    rejected = store.rejections(of_cells, since=since) if cells else None
    tables = tuple(_table(item, by_cell[item.cell], rejected, marks_of[item.cell]) for item in chosen)
    return TrackShowDocument(tables=tables, newest=not cells, unknown_branch=len(unknown))


def _collect_marks(
    series: CellSeries, alerts: Sequence[Alert], start: MachineSeriesStart | None
) -> list[list[Evidence]]:
    """The marks of each point: the alerts that began there, and what changed."""
    own = [alert for alert in alerts if (alert.cell, alert.metric) == series.key]
    collected: list[list[Evidence]] = []
    for index, point in enumerate(series.points):
        names = ("metric", "effect", "shape", "cause", "state", "id")
        marks = [
            Evidence("alert", {name: getattr(alert, name) for name in names})
            for alert in own
            if alert.first == point.began
        ]
        if start is not None and point == start.first:
            marks.append(Evidence("series begins", start.change.values))
        marks += [
            Evidence("changed", {"kind": mark.kind, "change": mark.change.kind, **mark.change.values})
            for mark in (*series.boundaries, *series.hints)
            if mark.index == index
        ]
        missing = series.nights[index] - series.nights[index - 1] - 1 if index else 0
        if missing > 0:
            marks.append(Evidence("nights missing", {"nights": missing}))
        if point.build.of_main is False:
            marks.append(Evidence("not of main", {"branch": point.build.branch}))
        collected.append(marks)
    return collected


def _table(
    series: CellSeries,
    points: Sequence[Point],
    rejected: Sequence[RejectedResult] | None,
    marks: Sequence[Sequence[Evidence]],
) -> NightTable:
    """``points``: of the cell. Without ``rejected`` results the newest row alone."""
    index_of = {id(point): index for index, point in enumerate(series.points)}
    rows = []
    for point in points if rejected is not None else series.points[-1:]:
        row = _row(point, Evidence("not reported", {"metric": series.metric}))
        if (index := index_of.get(id(point))) is not None:
            value, before = series.values[index], series.values[index - 1]
            change = series.change(before, value) if index else None
            row = row.model_copy(update={"value": value, "change": change, "marks": tuple(marks[index])})
        rows.append(row)
    rows += [
        _row(result, Evidence("no point", {"why": result.why.kind, **result.why.values}))
        for result in rejected or ()
        if result.cell == series.cell and result.kind != "twin"
    ]
    return NightTable(
        cell=series.cell,
        metric=metric_document(parse_metric(series.metric)),
        nights=len(set(series.nights)),
        first=series.points[0].night,
        rows=tuple(sorted(rows, key=lambda item: (item.night, item.began, item.build))),
        lacking=len(points) - len(series.points),
        neutral=series.row.neutral,
    )


def _row(result: Point | RejectedResult, mark: Evidence) -> NightRow:
    """The row of a result that has no value of the metric."""
    build = result.build
    return NightRow(
        began=result.began if isinstance(result, Point) else "",
        night=result.night,
        build=build.name,
        url=build.url,
        commit=build.commit,
        main=build.of_main,
        value=None,
        change=None,
        marks=(mark,),
    )
