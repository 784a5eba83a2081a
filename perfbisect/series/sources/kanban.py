"""The kanban of vLLM-Omni's nightlies: a checkout with the raw results of every build.

``data/buildkite_nightly_raw/BUILD/...`` holds the artifacts of a build of the pipeline as they were; the
older layout ``data/results/NAME/`` holds the same files without the build. Neither says commit or branch.
The agents' clocks are in UTC. What we publish lies in the first layout too, and says whose build it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from perfbisect.errors import UsageError
from perfbisect.series.points import Build
from perfbisect.series.sources.base import IngestOptions, SourceBuild, json_files, local_file, read_text
from perfbisect.series.sources.published import published_build

PIPELINE = "vllm/vllm-omni"
"""Whose builds are counted: Buildkite's names of organisation and pipeline."""

RAW = "buildkite_nightly_raw"
_NO_BUILD = f"{PIPELINE}, no build"
_RESULT = re.compile(r"^(?:result_|diffusion_result_|benchmark_results_).*\.json$")
_DAY = re.compile(r"_(\d{4})(\d{2})(\d{2})-\d{6}\.json$")


def of_nightly(build: Build) -> bool:
    """Whether vLLM-Omni's nightly harness measured it, also where its number is not known."""
    return build.pipeline in (PIPELINE, _NO_BUILD)


class Kanban:
    """See :class:`ResultSource`."""

    name = "kanban"
    accepts = f"a checkout with data/{RAW}/BUILD/ or data/results/"
    is_remote = False

    def takes(self, place: str) -> bool:
        """Whether it is the checkout, its ``data`` or its raw folder."""
        return any(True for _ in _roots(Path(place)))

    def builds(self, place: str, options: IngestOptions) -> Iterator[SourceBuild]:
        """Every numbered build, then every day of the older layout."""
        is_empty = True
        for folder, is_numbered in _roots(Path(place)):
            for build, root, paths in _numbered_builds(folder) if is_numbered else _days(folder):
                first = min(filter(None, map(_day, paths)), default="9999") if is_numbered else build.name
                if options.since and first < options.since:
                    continue
                is_empty = False
                files = tuple(local_file(path, root) for path in paths)
                yield SourceBuild(build, files, options.zone or "UTC")
        if is_empty:
            since = f" since {options.since}" if options.since else ""
            raise UsageError(f"{place} has the folders of a kanban and no results in them{since}")


_FoundBuild = tuple[Build, Path, list[Path]]
"""A build, its folder and its files."""


def _roots(path: Path) -> Iterator[tuple[Path, bool]]:
    """(folder, whether its folders are numbered builds)."""
    if path.name == RAW and path.is_dir():
        yield path, True
        return
    for data in (path / "data", path):
        raw, results = data / RAW, data / "results"
        if raw.is_dir():
            yield raw, True
        if results.is_dir() and (raw.is_dir() or (data.name == "data" and _results(results))):
            yield results, False
        if raw.is_dir():
            return


def _numbered_builds(raw: Path) -> Iterator[_FoundBuild]:
    folders = sorted(
        (entry for entry in raw.iterdir() if entry.is_dir()),
        key=lambda folder: (int(folder.name) if folder.name.isdigit() else 0, folder.name),
    )
    for folder in folders:
        if paths := _results(folder):
            yield _published_build(paths[0]) or Build("kanban", PIPELINE, folder.name), folder, paths


def _published_build(path: Path) -> Build | None:
    try:
        return published_build(json.loads(read_text(path)))
    except (ValueError, RecursionError):
        return None


def _days(results: Path) -> Iterable[_FoundBuild]:
    """Files without a build are of the day on which they began; a day's summary names its day."""
    days: dict[str, list[Path]] = {}
    for path in json_files(results):
        days.setdefault(_day(path) or path.stem, []).append(path)
    return [(Build("kanban", _NO_BUILD, day), results, paths) for day, paths in sorted(days.items())]


def _results(folder: Path) -> list[Path]:
    return [path for path in json_files(folder) if _RESULT.match(path.name)]


def _day(path: Path) -> str:
    match = _DAY.search(path.name)
    return "-".join(match.groups()) if match else ""
