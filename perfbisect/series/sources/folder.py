"""A folder of result files of ``vllm bench serve`` or of the diffusion benchmark, from wherever.

Folders in it are builds: named by a number, a commit or whatever they are called. Files that lie in it
directly are one build a day. vLLM's own nightly lays its results out in this way and writes beside each the
commands that made it; a result that was stamped with its commit (``--metadata commit=...``) says it itself.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from perfbisect.errors import UsageError
from perfbisect.series.points import Build
from perfbisect.series.sources import IngestOptions, SourceBuild
from perfbisect.series.sources.files import below, listed, text_of

_COMMIT = re.compile(r"^[0-9a-f]{7,40}$")
_NIGHT = re.compile(r"(?<!\d)(20\d{2})-?(\d{2})-?(\d{2})(?!\d)")
_STAMPED = ("commit", "git_commit", "vllm_commit", "sha")


class BenchFolder:
    """See :class:`perfbisect.series.sources.Source`."""

    name = "folder"
    what = "a folder of result files, *.json, or one such file"
    remote = False

    def takes(self, argument: str) -> bool:
        """True for a JSON file, and for a folder that has one somewhere."""
        if "://" in argument:
            return False
        path = Path(argument).expanduser()
        if path.is_file():
            return path.suffix == ".json"
        return path.is_dir() and next(below(path), None) is not None

    def batches(self, argument: str, asked: IngestOptions) -> Iterator[SourceBuild]:
        """A batch for every folder directly below; one for every day of the files beside them."""
        path = Path(argument).expanduser().absolute()
        root = path.parent if path.is_file() else path
        builds: dict[str, list[tuple[str, os.DirEntry[str]]]] = {}
        for name, entry in below(root):
            if path.is_file() and entry.path != str(path):
                continue
            folder, _, inside = name.partition("/")
            key = folder if inside else _day(entry)
            builds.setdefault(key, []).append((inside or name, entry))
        if not builds:
            raise UsageError(f"{path} holds no result file, *.json")
        for name, entries in sorted(builds.items()):
            files = tuple(listed(inside, entry) for inside, entry in entries)
            night = _of(name)
            if asked.since and night and night < asked.since:
                continue
            commit = name if _COMMIT.match(name) and not name.isdigit() else _stamped(entries)
            yield SourceBuild(Build("folder", str(root), name, commit=commit), files, asked.zone)


def _of(name: str) -> str:
    match = _NIGHT.search(name)
    return "-".join(match.groups()) if match else ""


def _day(entry: os.DirEntry[str]) -> str:
    """The day of a file that is in no build's folder: of its name, else of its result."""
    return _of(entry.name) or _of(str(_document(entry).get("date") or "")) or "undated"


def _stamped(entries: list[tuple[str, os.DirEntry[str]]]) -> str:
    """The commit with which the first result was stamped; empty where it was not."""
    for _, entry in entries:
        document = _document(entry)
        for name in _STAMPED:
            told = document.get(name)
            if isinstance(told, str) and _COMMIT.match(told):
                return told
        if document:
            return ""
    return ""


def _document(entry: os.DirEntry[str]) -> Mapping[str, object]:
    try:
        found = json.loads(text_of(Path(entry.path)))
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


SOURCE = BenchFolder()
