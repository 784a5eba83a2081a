"""What a source of results is, and how files below a folder are listed."""

from __future__ import annotations

import gzip
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

from perfbisect.common import json_text
from perfbisect.common.text import line
from perfbisect.errors import MachineError
from perfbisect.model.change import commit_in_version
from perfbisect.series.points import Build

COMMANDS = ".commands"
"""Beside its results vLLM's nightly writes the commands that made them, under this suffix."""

LARGEST = 64 * 1024 * 1024
"""Bytes of a result that is read; a larger file is none."""

UNREADABLE = "perfbisect.unreadable/1"
"""Schema of what is stored in place of a file that cannot be read."""

UNDATED = "9999"
"""In place of a night that is not known: after all others."""

_STAMPS = ("vllm_commit", "vllm_omni_commit", "commit", "git_commit", "sha")
_VERSIONS = ("engine_version", "vllm_version", "vllm_omni_version")
_COMMIT = re.compile(r"^[0-9a-f]{7,40}$")
# Tags of vLLM's images: nightly-SHA, or a hash among words; digits alone are a date.
_COMMIT_TAG = re.compile(r"^nightly-([0-9a-f]{7,40})|(?:^|[-_.])([0-9a-f]{12,40})(?=$|[-_.])", re.IGNORECASE)
_COLLECTED = re.compile(r"vLLM Version\s*: *(\S+)")
"""In the text of vLLM's ``collect_env``."""

_NIGHT = re.compile(r"(?<!\d)(20\d{2})-?(\d{2})-?(\d{2})(?!\d)")
_GZIP = b"\x1f\x8b"
_LONGEST_NAME = 500


class UnreadableFileError(ValueError):
    """A file, or a record of it, that is damaged, encrypted or too large; it is rejected, others are read."""

    @property
    def text(self) -> str:
        """What is stored in its place."""
        return json.dumps({"schema": UNREADABLE, "reason": str(self)})


@dataclass(frozen=True)
class SourceFile:
    """A file that was listed and not yet read; see :class:`RawFile`.

    ``version`` changes with the content. ``read`` gives its text, ``commands`` those beside it; both may
    raise UnreadableFileError.
    """

    name: str
    place: str
    version: str
    read: Callable[[], str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    commands: Callable[[], str] = str


@dataclass(frozen=True)
class SourceBuild:
    """The files of one build. ``zone``: of times without one; empty: such a time is refused.

    ``whole``: the build has ended and everything of it is listed.
    """

    build: Build
    files: tuple[SourceFile, ...]
    zone: str = ""
    whole: bool = False


@dataclass(frozen=True)
class IngestOptions:
    """Options of an ingest.

    ``zone``: name of a time zone; ``since``: the first day, ``2026-04-01``; ``branch``: empty for all.
    ``finished``: keys of builds that need not be read again. ``now``: results that began more than a day
    later are rejected. ``variables``: the process environment, for tokens.
    """

    zone: str = ""
    since: str = ""
    branch: str = "main"
    finished: frozenset[str] = frozenset()
    now: datetime | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = lambda _: None
    wait: Callable[[float], None] = time.sleep


class ResultSource(Protocol):
    """A module that reads one kind of place; with its name in ``SOURCES`` it is a new source."""

    NAME: str
    ACCEPTS: str
    """What it takes, in a few words: for messages."""
    IS_REMOTE: bool
    """Whether each build is stored as it comes, since a later one may fail."""

    def takes(self, place: str) -> bool:
        """Whether this is such a place: an absolute path, or an address of a remote source."""
        ...

    def builds(self, place: str, options: IngestOptions) -> Iterator[SourceBuild]:
        """The builds, oldest first where that is known; raises UsageError if the place holds nothing."""
        ...


def night_in(text: str) -> str:
    """The last day in a text, ``2026-04-12``; empty without one."""
    days = _NIGHT.findall(text)
    return "-".join(days[-1]) if days else ""


def commit_of_image(image: str) -> str:
    """The commit in the tag of an image, in lower case; empty if there is none."""
    name, _, tag = image.partition("@")[0].rpartition(":")
    found = _COMMIT_TAG.search(tag) if name and "/" not in tag else None
    commit = (found[1] or found[2] or "").lower() if found else ""
    return "" if commit.isdigit() else commit


def stated_commits(record: object) -> dict[str, str]:
    """By key the commits, whole or abbreviated, that a result names: first those of the engine itself."""
    if not isinstance(record, Mapping):
        return {}
    server, collected = record.get("server_info"), _COLLECTED.search(str(record.get("collect_env")))
    versions = {
        **{name: record.get(name) for name in _VERSIONS},
        "server_info": server.get("version") if isinstance(server, Mapping) else None,
        "collect_env": collected and collected[1],
    }
    stamps = {name: str(record.get(name)).lower() for name in _STAMPS}
    commits = {
        **{name: commit_in_version(str(version)) for name, version in versions.items()},
        "image": commit_of_image(str(record.get("image"))),
        **{name: commit for name, commit in stamps.items() if _COMMIT.match(commit)},
    }
    return {name: commit for name, commit in commits.items() if commit}


def json_files(root: Path) -> Iterator[Path]:
    """Every file of JSON or JSON lines below a folder, sorted; no hidden folders, no links to folders."""

    def fail(error: OSError) -> NoReturn:
        raise MachineError(
            f"the folder cannot be read: {error.strerror or error}", where=error.filename
        ) from error

    for folder, folders, names in os.walk(root, onerror=fail):
        # os.walk has the order of the disk: which of two equal files counts must not depend on it.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [Path(folder, name) for name in sorted(names) if name.endswith((".json", ".jsonl"))]
        yield from (path for path in paths if path.is_file())


def local_file(path: Path, root: Path) -> SourceFile:
    """A file of a build's folder with the commands beside it; a change of either is one."""
    commands = path.with_suffix(COMMANDS)
    states = [path.stat(), *([commands.stat()] if commands.is_file() else [])]
    # Size and time of both files: a digest would read every file at each ingest.
    version = f"{sum(state.st_size for state in states)} {max(state.st_mtime_ns for state in states)}"
    return SourceFile(
        _name(path.relative_to(root)),
        _name(path),
        version,
        partial(read_text, path),
        commands=partial(read_text, commands) if len(states) > 1 else str,
    )


def _name(path: Path) -> str:
    """A path as text; bytes that are no UTF-8 are escaped."""
    return safe_name(os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace"))


def safe_name(name: str) -> str:
    """A name of a file without control characters, cut where it is longer than any."""
    return line(name, _LONGEST_NAME)


def read_text(path: Path) -> str:
    """A file's text without byte order mark; bytes that are no UTF-8 are replaced.

    Raises:
        UnreadableFileError: its content is damaged or too large.
        MachineError: it cannot be read.
    """
    return decode(read_bytes(path, LARGEST + 1))


def read_json(path: Path) -> object:
    """What a file holds; None where it is no JSON. :raises MachineError: it cannot be read."""
    try:
        return parse_json(read_text(path))
    except UnreadableFileError:
        return None


def parse_json(text: str) -> object:
    """None where it is none."""
    try:
        return json_text.parse_json(text)
    except ValueError:
        return None


def parse_records(text: str) -> object:
    """JSON, or a record or a list of records a line, of which a broken one is unreadable; None: neither."""
    with suppress(ValueError):
        return json_text.parse_json(text)
    found: list[object] = []
    for row in filter(str.strip, text.splitlines()):
        try:
            found.append(json_text.parse_json(row))
        except ValueError as error:
            found.append(UnreadableFileError(f"is no JSON: {error}"))
    if len(found) < 2 or not isinstance(found[0], (dict, list)):
        return None
    return [record for row in found for record in (row if isinstance(row, list) else [row])]


def decode(content: bytes) -> str:
    """:raises UnreadableFileError: it is larger than ``LARGEST``."""
    if len(content) > LARGEST:
        raise UnreadableFileError(f"is larger than {LARGEST >> 20} MB")
    # Some editors and Windows tools put a byte order mark in front, which JSON does not allow.
    return content.decode("utf-8-sig", "replace")


def read_bytes(path: Path, size: int) -> bytes:
    """The first bytes of a file, unpacked if it is gzip, as object stores serve it.

    Raises:
        UnreadableFileError: damaged gzip.
        MachineError: the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            if stream.peek(2)[:2] != _GZIP:
                return stream.read(size)
            with gzip.GzipFile(fileobj=stream) as unpacked:
                return unpacked.read(size)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UnreadableFileError(f"is damaged gzip: {error}") from error
    except OSError as error:
        raise MachineError(f"the file cannot be read: {error.strerror or error}", where=path) from error
