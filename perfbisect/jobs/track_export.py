"""``perfbisect track export``: the points of the store as files that others read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from perfbisect.core.metric import parse_metric
from perfbisect.core.point import Point
from perfbisect.errors import UsageError
from perfbisect.jobs.track_series import points_of
from perfbisect.render.export import Lineages, benchmarks, csv_text
from perfbisect.store.series import SeriesStore
from perfbisect.system.whole_file import write_whole

Form = Literal["csv", "github-action-benchmark"]


def series_for_export(
    store: SeriesStore, cells: Sequence[str] = (), *, metric: str = "", since: str = ""
) -> Lineages:
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
        raise UsageError(f"no point reports {metric}", next_step="perfbisect track trend CELL")
    return kept


def export_files(series: Lineages, form: Form, path: Path, *, metric: str = "") -> dict[str, Path]:
    """Writes the series in a form; the files by what they are. Each is there whole or not at all.

    For github-action-benchmark two: of ``bench.json``, ``bench-smaller.json`` for its tool
    ``customSmallerIsBetter`` and ``bench-bigger.json`` for ``customBiggerIsBetter``.

    :raises MachineError: the files cannot be written.
    """
    if form == "csv":
        write_whole(path, table(series, metric))
        return {"csv": path}
    files = {}
    for name, text in benchmark_texts(series, metric).items():
        files[name] = path.with_name(f"{path.stem}-{name}{path.suffix or '.json'}")
        write_whole(files[name], text)
    return files


def table(series: Lineages, metric: str = "") -> str:
    """All of it as CSV."""
    return csv_text((point for _, points in series for point in points), metric)


def benchmark_texts(series: Lineages, metric: str = "") -> Mapping[str, str]:
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
