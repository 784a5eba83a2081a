"""Files below a folder, as sources list them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from perfbisect.errors import MachineError
from perfbisect.series.sources import SourceFile

COMMANDS = ".commands"
"""Beside its results vLLM's nightly writes the commands that made them, under this suffix."""

LARGEST = 64 * 1024 * 1024
"""Bytes of a result that is read; a larger file is none."""


def below(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """(path from the root, entry) of every JSON file, sorted; links to folders are not followed.

    :raises MachineError: a folder cannot be read.
    """
    try:
        with os.scandir(root) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
    except OSError as error:
        raise MachineError(f"the folder cannot be read: {error.strerror or error}", where=root) from error
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name.startswith("."):
                continue
            for name, inner in below(Path(entry.path)):
                yield f"{entry.name}/{name}", inner
        elif entry.name.endswith(".json") and entry.is_file():
            yield entry.name, entry


def listed(name: str, entry: os.DirEntry[str]) -> SourceFile:
    """A file and the commands beside it, if there are any; a change of either is one."""
    path, seen = Path(entry.path), entry.stat()
    beside = path.with_suffix(COMMANDS)
    size, changed = seen.st_size, seen.st_mtime_ns
    try:
        more = beside.stat()
        size, changed = size + more.st_size, max(changed, more.st_mtime_ns)
        has = True
    except OSError:
        has = False

    def read() -> tuple[str, str]:
        return text_of(path), text_of(beside) if has else ""

    return SourceFile(name, str(path), size, str(changed), read)


def text_of(path: Path) -> str:
    """A file's text, without the mark with which some editors begin it; bytes that are no UTF-8 are replaced.

    :raises MachineError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return stream.read(LARGEST).decode("utf-8-sig", "replace")
    except OSError as error:
        raise MachineError(f"the file cannot be read: {error.strerror or error}", where=path) from error
