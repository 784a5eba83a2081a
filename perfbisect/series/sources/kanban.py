"""The kanban of vLLM-Omni's nightlies: a checkout with the raw results of every build.

``data/buildkite_nightly_raw/BUILD/...`` holds the artifacts of a build of the pipeline as they were; the
older layout ``data/results/NAME/`` holds the same files without the build. Neither says commit or branch.
The agents' clocks are in UTC. What we publish lies in the first layout too, and says whose build it is.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path

from perfbisect.errors import UsageError
from perfbisect.series.points import Build
from perfbisect.series.sources import IngestOptions, SourceBuild, SourceFile
from perfbisect.series.sources.files import below, listed, text_of
from perfbisect.series.sources.published import build_in

PIPELINE = "vllm/vllm-omni"
"""Whose builds are counted: Buildkite's names of organisation and pipeline."""

RAW = "buildkite_nightly_raw"
_NO_BUILD = f"{PIPELINE}, no build"
_RESULT = re.compile(r"^(?:result_|diffusion_result_|benchmark_results_).*\.json$")
_DAY = re.compile(r"_(\d{4})(\d{2})(\d{2})-\d{6}\.json$")


def of_nightly(build: Build) -> bool:
    """True for what vLLM-Omni's nightly harness measured, whether or not its number is known."""
    return build.pipeline in (PIPELINE, _NO_BUILD)


class Kanban:
    """See :class:`perfbisect.series.sources.Source`."""

    name = "kanban"
    what = f"a checkout with data/{RAW}/BUILD/ or data/results/"
    remote = False

    def takes(self, argument: str) -> bool:
        """True for the checkout, its ``data`` or its raw folder."""
        return "://" not in argument and any(True for _ in _roots(Path(argument).expanduser()))

    def batches(self, argument: str, asked: IngestOptions) -> Iterator[SourceBuild]:
        """A batch for every numbered build, then one for every day of the older layout.

        :raises UsageError: no results in it.
        """
        root = Path(argument).expanduser().absolute()
        zone = asked.zone or timezone.utc
        found = False
        for folder, numbered in _roots(root):
            batches = _builds(folder) if numbered else _days(folder)
            for build, files in batches:
                if asked.since and (_night(files) if numbered else build.name) < asked.since:
                    continue
                found = True
                yield SourceBuild(build, files, zone)
        if not found:
            since = f" since {asked.since}" if asked.since else ""
            raise UsageError(f"{root} has the folders of a kanban and no results in them{since}")


def _roots(path: Path) -> Iterator[tuple[Path, bool]]:
    """(folder, whether its folders are numbered builds)."""
    if path.name == RAW and path.is_dir():
        yield path, True
        return
    for data in (path / "data", path):
        raw, results = data / RAW, data / "results"
        if raw.is_dir():
            yield raw, True
        if results.is_dir() and (raw.is_dir() or (data.name == "data" and _results(below(results)))):
            yield results, False
        if raw.is_dir():
            return


def _builds(raw: Path) -> Iterator[tuple[Build, tuple[SourceFile, ...]]]:
    numbers = sorted((entry for entry in raw.iterdir() if entry.is_dir()), key=_number)
    for folder in numbers:
        files = _results(below(folder))
        if files:
            yield _ours(files[0]) or Build("kanban", PIPELINE, folder.name), files


def _ours(file: SourceFile) -> Build | None:
    """The build of a folder that we published: its first result says it."""
    try:
        return build_in(json.loads(text_of(Path(file.place))))
    except (ValueError, RecursionError):
        return None


def _number(folder: Path) -> tuple[int, str]:
    return (int(folder.name) if folder.name.isdigit() else 0, folder.name)


def _days(results: Path) -> Iterator[tuple[Build, tuple[SourceFile, ...]]]:
    """A file without a build is of the day on which it began; a day's own summary is told as what it is."""
    days: dict[str, list[SourceFile]] = {}
    for name, entry in below(results):
        match = _DAY.search(name)
        day = "-".join(match.groups()) if match else Path(name).stem
        days.setdefault(day, []).append(listed(name, entry))
    for day, files in sorted(days.items()):
        yield Build("kanban", _NO_BUILD, day), tuple(files)


def _results(found: Iterator[tuple[str, os.DirEntry[str]]]) -> tuple[SourceFile, ...]:
    return tuple(listed(name, entry) for name, entry in found if _RESULT.match(entry.name))


def _night(files: tuple[SourceFile, ...]) -> str:
    days = ["-".join(match.groups()) for file in files if (match := _DAY.search(file.name))]
    return min(days, default="9999")


SOURCE = Kanban()
