"""A folder of result files of ``vllm bench serve`` or of the diffusion benchmark.

Folders in it are builds: named by a number, a commit or anything else. Files that lie in it directly are one
build a day. vLLM's own nightly lays its results out in this way and writes beside each the commands that made
it; a result that was stamped with its commit (``--metadata commit=...``) says it itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from perfbisect.errors import UsageError
from perfbisect.series.points import Build
from perfbisect.series.sources.base import IngestOptions, SourceBuild, json_files, local_file, read_text

_COMMIT = re.compile(r"^[0-9a-f]{7,40}$")
_NIGHT = re.compile(r"(?<!\d)(20\d{2})-?(\d{2})-?(\d{2})(?!\d)")
_STAMPS = ("commit", "git_commit", "vllm_commit", "sha")


class BenchFolder:
    """See :class:`ResultSource`; a single JSON file is a folder of one."""

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
        builds: dict[str, list[Path]] = {}
        for file in [path] if path.is_file() else json_files(path):
            inside = file.relative_to(root)
            builds.setdefault(inside.parts[0] if len(inside.parts) > 1 else _day(file), []).append(file)
        if not builds:
            raise UsageError(f"{path} holds no result file, *.json")
        for name, paths in sorted(builds.items()):
            night = _night(name)
            if options.since and night and night < options.since:
                continue
            commit = name if _COMMIT.match(name) and not name.isdigit() else _stamped_commit(paths)
            files = tuple(local_file(file, root if file.parent == root else root / name) for file in paths)
            yield SourceBuild(Build("folder", str(root), name, commit=commit), files, options.zone)


def _night(text: str) -> str:
    match = _NIGHT.search(text)
    return "-".join(match.groups()) if match else ""


def _day(path: Path) -> str:
    """The day of a file outside a build's folder: of its name, else of its result."""
    return _night(path.name) or _night(str(_read_result(path).get("date") or "")) or "undated"


def _stamped_commit(paths: Sequence[Path]) -> str:
    """The commit with which the first result was stamped; empty where it was not."""
    result = next((result for path in paths if (result := _read_result(path))), {})
    stamps = (result.get(name) for name in _STAMPS)
    return next((stamp for stamp in stamps if isinstance(stamp, str) and _COMMIT.match(stamp)), "")


def _read_result(path: Path) -> Mapping[str, object]:
    try:
        result = json.loads(read_text(path))
    except (ValueError, RecursionError):
        return {}
    return result if isinstance(result, Mapping) else {}
