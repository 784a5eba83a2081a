"""Folders of result files: checkouts of vLLM-Omni's kanban, and results of ``vllm bench serve``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from perfbisect.errors import UsageError
from perfbisect.series.points import Build
from perfbisect.series.sources.base import IngestOptions, SourceBuild, json_files, local_file, read_json
from perfbisect.series.sources.journals import published_run
from perfbisect.series.sources.sweeps import SUMMARY, sweep_setting

PIPELINE = "vllm/vllm-omni"
"""Whose builds the kanban counts: Buildkite's names of organisation and pipeline."""

RAW = "buildkite_nightly_raw"
_NO_BUILD = f"{PIPELINE}, no build"
_RESULT = re.compile(r"^(?:result_|diffusion_result_|benchmark_results_).*\.json$")
_COMMIT = re.compile(r"^[0-9a-f]{7,40}$")
_NIGHT = re.compile(r"(?<!\d)(20\d{2})-?(\d{2})-?(\d{2})(?!\d)")
_STAMPS = ("commit", "git_commit", "vllm_commit", "sha")
_UNDATED = "9999"

_FoundBuild = tuple[Build, Path, list[Path]]
"""A build, its folder and its files."""


def of_nightly(build: Build) -> bool:
    """Whether vLLM-Omni's nightly harness measured it, also where its number is not known."""
    return build.pipeline in (PIPELINE, _NO_BUILD)


class Kanban:
    """The raw results of every build of vLLM-Omni's nightlies.

    ``data/buildkite_nightly_raw/BUILD/...`` holds the artifacts of a build; the older layout
    ``data/results/NAME/`` holds the same files without the build. Neither says commit or branch; clocks are
    in UTC. What perfbisect publishes lies in the first layout and says whose build it is.
    """

    name = "kanban"
    accepts = f"a checkout with data/{RAW}/BUILD/ or data/results/"
    is_remote = False

    def takes(self, place: str) -> bool:
        """Whether it is the checkout, its ``data`` or its raw folder."""
        return any(True for _ in _kanban_folders(Path(place)))

    def builds(self, place: str, options: IngestOptions) -> Iterator[SourceBuild]:
        """Every numbered build, then every day of the older layout."""
        is_empty = True
        for folder, is_numbered in _kanban_folders(Path(place)):
            for build, root, paths in _numbered_builds(folder) if is_numbered else _days(folder):
                # Judged by the names of files: --since is there to avoid reading them all.
                if min((_night(path.name) or _UNDATED for path in paths), default="") >= options.since:
                    is_empty = False
                    files = tuple(local_file(path, root) for path in paths)
                    yield SourceBuild(build, files, options.zone or "UTC")
        if is_empty:
            since = f" since {options.since}" if options.since else ""
            raise UsageError(f"{place} has the folders of a kanban and no results in them{since}")


class BenchFolder:
    """A folder whose folders are builds, named by a number, a commit or anything else; or a single file.

    Files that lie in it directly are one build a day, the settings of a sweep of ``vllm bench sweep`` are one
    build. vLLM's own nightly lays its results out in folders too. A result may be stamped with its commit
    (``--metadata commit=...``).
    """

    name = "folder"
    accepts = "a folder of result files, *.json, or one such file"
    is_remote = False

    def takes(self, place: str) -> bool:
        path = Path(place)
        if path.is_file():
            return path.suffix == ".json"
        return path.is_dir() and next(json_files(path), None) is not None

    def builds(self, place: str, options: IngestOptions) -> Iterator[SourceBuild]:
        path = Path(place)
        root = path.parent if path.is_file() else path
        # A folder of one setting was given: the sweep is the folder above.
        if sweep_setting(f"{root.name}/{SUMMARY}"):
            root = root.parent
        builds: dict[str, list[Path]] = {}
        sweep: list[Path] = []
        for file in [path] if path.is_file() else json_files(path):
            inside = file.relative_to(root)
            if len(inside.parts) == 2 and sweep_setting(inside.as_posix()):
                sweep.append(file)
            else:
                builds.setdefault(inside.parts[0] if len(inside.parts) > 1 else _day(file), []).append(file)
        if sweep:
            # Its settings are no builds, also where it passes midnight.
            builds.setdefault(min(map(_day, sweep)), []).extend(sweep)
        for name, paths in sorted(builds.items()):
            if (_night(name) or _UNDATED) < options.since:
                continue
            # A number of seven digits is a build, though it may be read as a hash.
            commit = name if _COMMIT.match(name) and not name.isdigit() else _stamped_commit(paths)
            files = tuple(
                local_file(file, root / name if (root / name) in file.parents else root) for file in paths
            )
            yield SourceBuild(Build("folder", str(root), name, commit=commit), files, options.zone)


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
        days.setdefault(_night(path.name) or path.stem, []).append(path)
    return [(Build("kanban", _NO_BUILD, day), results, paths) for day, paths in sorted(days.items())]


def _results(folder: Path) -> list[Path]:
    return [path for path in json_files(folder) if _RESULT.match(path.name)]


def _night(text: str) -> str:
    """The last day in a text, ``2026-04-12``; empty without one."""
    days = _NIGHT.findall(text)
    return "-".join(days[-1]) if days else ""


def _day(path: Path) -> str:
    """The day of a file outside a build's folder: of its name, else of its result or the first of them."""
    return _night(path.name) or _night(str(_read_result(path).get("date") or "")) or "undated"


def _stamped_commit(paths: Sequence[Path]) -> str:
    """The commit with which the first result was stamped; empty where it was not."""
    result = next((result for path in paths if (result := _read_result(path))), {})
    stamps = (result.get(name) for name in _STAMPS)
    return next((stamp for stamp in stamps if isinstance(stamp, str) and _COMMIT.match(stamp)), "")


def _read_result(path: Path) -> Mapping[str, object]:
    result = read_json(path)
    first = result[0] if isinstance(result, list) and result else result
    return first if isinstance(first, Mapping) else {}
