"""The points of series as others read them: a table in CSV, and the JSON of github-action-benchmark."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import Field

from perfbisect.common.text import line
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.report.document import Paragraph, Report, Verdict
from perfbisect.series.points import Point
from perfbisect.series.selection import points_of
from perfbisect.series.store import SeriesStore
from perfbisect.system.files import write_atomic

COLUMNS = (
    *("night", "began", "cell", "model", "metric", "value", "unit", "better", "build", "pipeline", "branch"),
    *("commit", "engine", "hardware", "host", "launch", "completed", "input_tokens", "output_tokens"),
    *("digest", "url"),
)
"""Of the CSV: a row is one metric of one point."""

_FORMULA = ("=", "+", "-", "@")
"""How a cell begins that a spreadsheet would work out (OWASP, CSV injection)."""

_LONGEST = 1000
"""Characters of a cell of text."""

_TONIGHT = timedelta(hours=24)

MachineSeries = Sequence[tuple[str, Sequence[Point]]]
"""The points of each cell and kind of machine, with the name that tells them apart."""


def csv_text(points: Iterable[Point], metric: str = "") -> str:
    """The points as rows, one for each metric that the table knows; ``metric``: that one alone.

    Text that a spreadsheet would take for a formula begins with an apostrophe; it is always of one line.
    """
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    for point in points:
        for ref, value in _values(point, metric):
            table.writerow([_cell(x) for x in _row(point, ref, value)])
    return out.getvalue()


@dataclass(frozen=True)
class Benchmarks:
    """Entries for github-action-benchmark: for its tool ``customSmallerIsBetter``, and for
    ``customBiggerIsBetter``."""

    smaller: tuple[dict[str, Any], ...]
    bigger: tuple[dict[str, Any], ...]


def benchmarks(series: MachineSeries, metric: str = "") -> Benchmarks:
    """The newest night, an entry for each machine series and metric: the median of the night's launches.

    The action keeps the history itself and compares each entry with the last of its name, so cells that were
    not measured in the 24 hours before the newest point are left out. Without ``metric`` medians and single
    numbers, none of the guards: a percentile of one night moves by more than its threshold by itself.
    """
    newest = max((point.moment for _, points in series for point in points), default=None)
    smaller: list[dict[str, Any]] = []
    bigger: list[dict[str, Any]] = []
    for name, points in series:
        of = sorted(points, key=lambda p: (p.began, p.raw, p.record))
        if newest is None or newest - of[-1].moment > _TONIGHT:
            continue
        tonight = [p for p in of if p.night == of[-1].night and p.build.commit == of[-1].build.commit]
        for ref in dict.fromkeys(ref for point in tonight for ref, _ in _values(point, metric)):
            if metric or _typical(ref):
                (smaller if ref.metric.direction == "lower" else bigger).append(_entry(name, ref, tonight))
    return Benchmarks(tuple(smaller), tuple(bigger))


def _typical(ref: MetricRef) -> bool:
    return ref.statistic in ("", "median") and not ref.metric.guard


def _entry(series: str, ref: MetricRef, tonight: Sequence[Point]) -> dict[str, Any]:
    last = tonight[-1]
    values = [value for point in tonight for found, value in _values(point, str(ref)) if found == ref]
    entry: dict[str, Any] = {
        "name": line(f"{series} {ref}"),
        "unit": ref.metric.unit,
        "value": median(values),
    }
    if len(values) > 1:
        entry["range"] = f"± {(max(values) - min(values)) / 2:.4g}"
    told = {
        "night": last.night,
        "commit": last.build.commit,
        "engine": last.covariates.get("engine"),
        "hardware": last.covariates.get("hardware"),
        "launches": len(values),
    }
    entry["extra"] = "\n".join(f"{name}: {line(str(value))}" for name, value in told.items() if value)
    return entry


def _values(point: Point, metric: str) -> Iterator[tuple[MetricRef, float]]:
    wanted = parse_metric(metric) if metric else None
    for name in sorted(point.values):
        try:
            ref = parse_metric(name)
        except UsageError:
            continue
        if wanted is None or ref == wanted:
            yield ref, point.values[name]


def _row(point: Point, ref: MetricRef, value: float) -> tuple[object, ...]:
    build, facts = point.build, point.covariates
    return (
        point.night, point.began, point.cell, point.workload.model, str(ref), value, ref.metric.unit,
        ref.metric.direction, build.name, build.pipeline, build.branch, build.commit, facts.get("engine"),
        facts.get("hardware"), facts.get("host"), point.start, facts.get("completed"),
        facts.get("input_tokens"), facts.get("output_tokens"), point.workload.digest, build.url,
    )  # fmt: skip


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    shown = line(value, _LONGEST)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


Form = Literal["csv", "github-action-benchmark"]


def series_for_export(
    store: SeriesStore, cells: Sequence[str] = (), *, metric: str = "", since: str = ""
) -> MachineSeries:
    """The points of these cells by kind of machine, without builds that are known to be of another branch.

    :raises UsageError: a cell without points, a metric that there is not or that none of the points reports.
    """
    ref = parse_metric(metric) if metric else None
    found = [
        (name, tuple(point for point in points if point.build.of_main is not False))
        for name, points in points_of(store, cells, since=since)
    ]
    kept = tuple((name, points) for name, points in found if points)
    if not kept:
        raise UsageError(f"no point since {since}" if since else "no point of the main branch")
    if ref and not any(ref == parse_metric(name) for _, points in kept for p in points for name in _known(p)):
        raise UsageError(f"no point reports {metric}", next_step="perfbisect track show CELL")
    return kept


def export_files(series: MachineSeries, form: Form, path: Path, *, metric: str = "") -> dict[str, Path]:
    """Writes the series in a form; the files by what they are. Each is there whole or not at all.

    For github-action-benchmark two: of ``bench.json``, ``bench-smaller.json`` for its tool
    ``customSmallerIsBetter`` and ``bench-bigger.json`` for ``customBiggerIsBetter``.

    :raises MachineError: the files cannot be written.
    """
    if form == "csv":
        write_atomic(path, table(series, metric))
        return {"csv": path}
    files = {}
    for name, text in benchmark_texts(series, metric).items():
        files[name] = path.with_name(f"{path.stem}-{name}{path.suffix or '.json'}")
        write_atomic(files[name], text)
    return files


def table(series: MachineSeries, metric: str = "") -> str:
    """All of it as CSV."""
    return csv_text((point for _, points in series for point in points), metric)


def benchmark_texts(series: MachineSeries, metric: str = "") -> Mapping[str, str]:
    """``smaller`` and ``bigger``: the JSON of the action's two custom tools."""
    found = benchmarks(series, metric)
    told = {"smaller": found.smaller, "bigger": found.bigger}
    return {
        name: json.dumps(entries, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        for name, entries in told.items()
    }


def _known(point: Point) -> list[str]:
    found = []
    for name in point.values:
        try:
            parse_metric(name)
        except UsageError:
            continue
        found.append(name)
    return found


class TrackExportDocument(Document):
    """JSON of ``track export``: the written files by kind; ``points``: how many were read."""

    schema_: Literal["perfbisect.track-export/1"] = Field(default="perfbisect.track-export/1", alias="schema")
    format: str
    files: dict[str, str]
    points: int
    cells: int


def export_report(document: TrackExportDocument) -> Report:
    """Report of ``track export`` into files."""
    lines = [f"{path}: {kind}" for kind, path in document.files.items()]
    lines.append(f"{document.points} points of {document.cells} cells were read")
    return Report("Export", Verdict(f"{len(document.files)} files"), tuple(map(Paragraph, lines)))
