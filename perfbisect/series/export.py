"""The points of series as a table (CSV, JSON, Parquet, DataFrame), and for github-action-benchmark."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from perfbisect.common.text import json_text, line
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.series.points import Point
from perfbisect.series.store import SeriesStore
from perfbisect.system.files import write_atomic

if TYPE_CHECKING:
    from pandas import DataFrame

Form = Literal["csv", "json", "parquet", "github-action-benchmark"]

MachineSeries = Iterable[tuple[str, Sequence[Point]]]
"""The points of each cell and kind of machine, with the name that tells them apart; read once."""

_FORMULA = ("=", "+", "-", "@")
"""How a cell begins that a spreadsheet would evaluate (OWASP, CSV injection)."""

_LONGEST = 1000
"""Characters of a cell of text."""

_NEWEST = timedelta(hours=24)

_NUMBERS = ("value", "completed", "input_tokens", "output_tokens")


class TrackExportDocument(Document):
    """JSON of ``track export``: the written files by kind; ``points``: how many were read."""

    schema_: Literal["perfbisect.track-export/1"] = Field(default="perfbisect.track-export/1", alias="schema")
    format: str
    files: dict[str, str]
    points: int
    cells: int


def series_for_export(
    store: SeriesStore, cells: Sequence[str] = (), *, metric: str = "", since: str = ""
) -> Iterator[tuple[str, Sequence[Point]]]:
    """The points of these cells by kind of machine, without builds that are known to be of another branch.

    One cell at a time is in memory.

    Raises:
        UsageError: after the last cell, if there is no point, or none that reports ``metric``.
    """
    ref = parse_metric(metric) if metric else None
    # Told after the last cell, since the cells stream through: one of them may report it.
    is_empty, is_reported = True, ref is None
    for name, points in store.machine_series(cells, since=since):
        of_main = tuple(point for point in points if point.build.of_main is not False)
        if of_main:
            is_empty = False
            is_reported = is_reported or any(ref in dict(point.metrics()) for point in of_main)
            yield name, of_main
    if is_empty:
        raise UsageError(f"no point since {since}" if since else "no point of the main branch")
    if not is_reported:
        raise UsageError(f"no point reports {metric}", next_step="perfbisect track show CELL")


def export_files(series: MachineSeries, form: Form, path: Path, *, metric: str = "") -> TrackExportDocument:
    """Write the series to ``path``; each file is there whole or not at all.

    For github-action-benchmark two files: of ``bench.json``, ``bench-smaller.json`` for its tool
    ``customSmallerIsBetter`` and ``bench-bigger.json`` for ``customBiggerIsBetter``.
    """
    points, cells = 0, set[str]()

    def count() -> Iterator[tuple[str, Sequence[Point]]]:
        nonlocal points
        for name, own in series:
            points += len(own)
            cells.add(own[0].cell)
            yield name, own

    files: dict[str, Path] = {form: path}
    if form == "csv":
        write_atomic(path, csv_parts(count(), metric))
    elif form == "json":
        write_atomic(path, json_parts(count(), metric))
    elif form == "parquet":
        if find_spec("pyarrow") is None:
            raise UsageError(
                "--format parquet needs pyarrow, which is not installed",
                next_step="pip install 'perfbisect[parquet]'",
            )
        write_atomic(path, series_frame(count(), metric).to_parquet(engine="pyarrow", index=False))
    else:
        entries = benchmark_entries(count(), metric)
        files = {kind: path.with_name(f"{path.stem}-{kind}{path.suffix or '.json'}") for kind in entries}
        for kind, file in files.items():
            text = json_text(json.dumps(entries[kind], indent=1, ensure_ascii=False, allow_nan=False))
            write_atomic(file, f"{text}\n")
    return TrackExportDocument(
        format=form,
        files={kind: str(file) for kind, file in files.items()},
        points=points,
        cells=len(cells),
    )


def export_rows(series: str, points: Iterable[Point], metric: str = "") -> Iterator[dict[str, Any]]:
    """The rows of a series, one for each metric of each point; ``metric``: that alone. None: not known."""
    wanted = parse_metric(metric) if metric else None
    for point in points:
        build, workload = point.build, point.workload
        shared = {
            **{column: point.covariates.get(column) for column in COLUMNS},
            "night": point.night,
            "began": point.began,
            "cell": point.cell,
            "series": series,
            "model": workload.model,
            "build": build.name,
            "pipeline": build.pipeline,
            "branch": build.branch,
            "commit": build.commit,
            "launch": point.start,
            "digest": workload.digest,
            "url": build.url,
        }
        known = {column: None if item == "" else item for column, item in shared.items()}
        for ref, value in point.metrics():
            if wanted in (None, ref):
                unit, better = ref.metric.unit, ref.metric.direction
                yield {**known, "metric": str(ref), "value": value, "unit": unit, "better": better}


def csv_parts(series: MachineSeries, metric: str = "") -> Iterator[str]:
    """The text of the table, series by series.

    Text that a spreadsheet would take for a formula begins with an apostrophe; it is always of one line.
    """
    out = io.StringIO()
    table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    table.writeheader()
    start = out.tell()
    for name, points in series:
        for row in export_rows(name, points, metric):
            table.writerow({column: _cell_text(item) for column, item in row.items()})
        if out.tell() > start:
            yield out.getvalue()
            out.seek(start := 0)
            out.truncate()
    if start:
        yield out.getvalue()


def json_parts(series: MachineSeries, metric: str = "") -> Iterator[str]:
    """The table as a JSON list, a row a line, series by series; null: not known, or no finite number."""
    before = "["
    for name, points in series:
        for row in export_rows(name, points, metric):
            finite = {c: None if isinstance(x, float) and not isfinite(x) else x for c, x in row.items()}
            yield f"{before}\n{json_text(json.dumps(finite, ensure_ascii=False, allow_nan=False))}"
            before = ","
    yield "\n]\n" if before == "," else "[]\n"


def series_frame(series: MachineSeries, metric: str = "") -> DataFrame:
    """The table in memory, one row for each metric of each point, with :data:`COLUMNS`.

    ``night`` and ``began`` (UTC) are dates and times, ``value`` and counts are float64; all else is text.
    What is not known is missing.
    """
    # Imported here: pandas takes half a second to load, and no other command needs it.
    import pandas as pd

    rows = (row for name, points in series for row in export_rows(name, points, metric))
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    for column in COLUMNS:
        if column in ("night", "began"):
            frame[column] = pd.to_datetime(frame[column], format="ISO8601", utc=column == "began")
        elif column in _NUMBERS:
            frame[column] = pd.to_numeric(frame[column], errors="coerce").astype("float64")
        else:
            frame[column] = frame[column].astype("string")
    return frame


def benchmark_entries(series: MachineSeries, metric: str = "") -> dict[str, list[dict[str, Any]]]:
    """Entries of the newest night for the action's two tools, ``smaller`` and ``bigger``.

    An entry is a machine series and a metric: the median of the night's launches. The action compares it with
    the last of its name, so cells that were not measured in the 24 hours before the newest point are left
    out. Without ``metric`` medians and single numbers, none of the guards: a percentile of one night moves by
    more than its threshold by itself.
    """
    wanted = parse_metric(metric) if metric else None
    nights = list[tuple[datetime, list[tuple[str, dict[str, Any]]]]]()
    for name, points in series:
        last, entries = max(points, key=lambda point: point.order), list[tuple[str, dict[str, Any]]]()
        nights.append((last.moment, entries))
        launches = [p for p in points if p.night == last.night and p.build.commit == last.build.commit]
        values: dict[MetricRef, list[float]] = {}
        for point in launches:
            for ref, value in point.metrics():
                if wanted in (None, ref):
                    values.setdefault(ref, []).append(value)
        for ref, of_launches in values.items():
            # A percentile of one night moves by more than the action's threshold by itself.
            if metric or (ref.statistic in ("", "median") and not ref.metric.guard):
                tool = "smaller" if ref.metric.direction == "lower" else "bigger"
                entries.append((tool, _entry(name, ref, of_launches, last)))
    newest = max((moment for moment, _ in nights), default=None)
    # The action compares with the last entry of a name, which may be the same night of a cell that was not
    # measured since.
    of_newest = [item for moment, items in nights if newest and newest - moment <= _NEWEST for item in items]
    return {tool: [entry for own, entry in of_newest if own == tool] for tool in ("smaller", "bigger")}


def _entry(series: str, ref: MetricRef, values: Sequence[float], last: Point) -> dict[str, Any]:
    extra = {
        "night": last.night,
        "commit": last.build.commit,
        "engine": last.covariates.get("engine"),
        "hardware": last.hardware,
        "launches": len(values),
    }
    spread = {"range": f"± {(max(values) - min(values)) / 2:.4g}"} if len(values) > 1 else {}
    return {
        "name": line(f"{series} {ref}"),
        "unit": ref.metric.unit,
        "value": median(values),
        **spread,
        "extra": "\n".join(f"{name}: {line(str(value))}" for name, value in extra.items() if value),
    }


COLUMNS = (
    *("night", "began", "cell", "series", "model", "metric", "value", "unit", "better", "build", "pipeline"),
    *(
        "branch",
        "commit",
        "engine",
        "hardware",
        "host",
        "launch",
        "completed",
        "input_tokens",
        "output_tokens",
    ),
    *("digest", "url"),
)
"""Of the table; ``series``: the cell, with the machine where several measure it."""


def _cell_text(value: object) -> object:
    if not isinstance(value, str):
        return value
    shown = line(value, _LONGEST)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown
