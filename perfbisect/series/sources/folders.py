"""Folders of result files: results of ``vllm bench serve`` and of the diffusion benchmark.

A folder's folders are builds, named by a number, a commit or anything else; or it is a single file. Files
that lie in it directly are one build a day, the settings of a sweep of ``vllm bench sweep`` are one build.
vLLM's own nightly lays its results out in folders too. A result may be stamped with its commit
(``--metadata commit=...``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfbisect.common.json_text import WRONG_SHAPE
from perfbisect.errors import ClientError
from perfbisect.series.points import Build
from perfbisect.series.sources.base import (
    UNDATED,
    IngestOptions,
    SourceBuild,
    UnreadableFileError,
    json_files,
    local_file,
    night_in,
    parse_records,
    read_text,
    stated_commits,
)
from perfbisect.series.sources.forms import form_of
from perfbisect.series.sources.sweeps import SUMMARY, sweep_setting

NAME = "folder"
ACCEPTS = "a folder of result files, *.json and *.jsonl, or one such file"
IS_REMOTE = False

_COMMIT = re.compile(r"^[0-9a-f]{7,40}$")
_STAMPS = ("commit", "git_commit", "vllm_commit", "sha")


def takes(place: str) -> bool:
    path = Path(place)
    if path.is_file():
        return path.suffix in (".json", ".jsonl")
    return path.is_dir() and next(json_files(path), None) is not None


def builds(place: str, options: IngestOptions) -> Iterator[SourceBuild]:
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
        if (night_in(name) or UNDATED) < options.since:
            continue
        # A number of seven digits is a build, though it may be read as a hash.
        commit = name if _COMMIT.match(name) and not name.isdigit() else ""
        if not commit:
            first = next((result for path in paths if (result := _read_result(path))), {})
            stated = stated_commits(first)
            commit = next((stated[stamp] for stamp in _STAMPS if stamp in stated), "")
        files = tuple(
            local_file(file, root / name if (root / name) in file.parents else root) for file in paths
        )
        yield SourceBuild(Build("folder", str(root), name, commit=commit), files, options.zone)


def _day(path: Path) -> str:
    """The day of a file outside a build's folder: of its name, else of its result or the first of them."""
    result = _read_result(path)
    said = str(result.get("date") or "")
    with suppress(*WRONG_SHAPE, ClientError):
        if form := form_of(result):
            read = form.read(form.split(result)[0])
            said = read.began or read.ended
    return night_in(path.name) or night_in(said) or "undated"


def _read_result(path: Path) -> Mapping[str, Any]:
    """The result of a file, or the first of them."""
    with suppress(UnreadableFileError):
        result = parse_records(read_text(path))
        first = result[0] if isinstance(result, list) and result else result
        return first if isinstance(first, Mapping) else {}
    return {}
