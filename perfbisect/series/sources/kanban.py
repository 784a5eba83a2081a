"""The raw results of every build of vLLM-Omni's nightlies: checkouts of its kanban.

``data/buildkite_nightly_raw/BUILD/...`` holds the artifacts of a build; the older layout
``data/results/NAME/`` holds the same files without the build. Neither says commit or branch; clocks are
in UTC. What perfbisect publishes lies in the first layout and says whose build it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from perfbisect.errors import UsageError
from perfbisect.series.points import Build
from perfbisect.series.sources.base import (
    UNDATED,
    IngestOptions,
    SourceBuild,
    json_files,
    local_file,
    night_in,
)
from perfbisect.series.sources.journals import published_run

PIPELINE = "vllm/vllm-omni"
"""Whose builds the kanban counts: Buildkite's names of organisation and pipeline."""

RAW = "buildkite_nightly_raw"

NAME = "kanban"
ACCEPTS = f"a checkout with data/{RAW}/BUILD/ or data/results/"
IS_REMOTE = False

_NO_BUILD = f"{PIPELINE}, no build"
_RESULT = re.compile(r"^(?:result_|diffusion_result_|benchmark_results_).*\.json$")

_FoundBuild = tuple[Build, Path, list[Path]]
"""A build, its folder and its files."""


def of_nightly(build: Build) -> bool:
    """Whether vLLM-Omni's nightly harness measured it, also where its number is not known."""
    return build.pipeline in (PIPELINE, _NO_BUILD)


def takes(place: str) -> bool:
    """Whether it is the checkout, its ``data`` or its raw folder."""
    return any(True for _ in _kanban_folders(Path(place)))


def builds(place: str, options: IngestOptions) -> Iterator[SourceBuild]:
    """Every numbered build, then every day of the older layout."""
    is_empty = True
    for folder, is_numbered in _kanban_folders(Path(place)):
        for build, root, paths in _numbered_builds(folder) if is_numbered else _days(folder):
            # Judged by the names of files: --since is there to avoid reading them all.
            if min((night_in(path.name) or UNDATED for path in paths), default="") >= options.since:
                is_empty = False
                files = tuple(local_file(path, root) for path in paths)
                yield SourceBuild(build, files, options.zone or "UTC")
    if is_empty:
        since = f" since {options.since}" if options.since else ""
        raise UsageError(f"{place} has the folders of a kanban and no results in them{since}")


def _kanban_folders(path: Path) -> Iterator[tuple[Path, bool]]:
    """(folder, whether its folders are numbered builds)."""
    if path.name == RAW and path.is_dir():
        yield path, True
        return
    for data in (path / "data", path):
        # Both layouts hold the same files; the numbered one is read first and counts.
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
        # Numbers in their order: 9999 comes before 10037.
        key=lambda folder: (int(folder.name) if folder.name.isdecimal() else 0, folder.name),
    )
    for folder in folders:
        if paths := _results(folder):
            published = published_run(paths[0])
            yield published.build if published else Build("kanban", PIPELINE, folder.name), folder, paths


def _days(results: Path) -> Iterable[_FoundBuild]:
    """Files without a build are of the day on which they began; a day's summary names its day."""
    days: dict[str, list[Path]] = {}
    for path in json_files(results):
        # The older layout has the files of all builds side by side.
        days.setdefault(night_in(path.name) or path.stem, []).append(path)
    return [(Build("kanban", _NO_BUILD, day), results, paths) for day, paths in sorted(days.items())]


def _results(folder: Path) -> list[Path]:
    return [path for path in json_files(folder) if _RESULT.match(path.name)]
