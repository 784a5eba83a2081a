"""Shared-memory files that our processes leave: only those seen open or mapped in them are ever removed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from perfbisect.system import processes

FOLDER = Path("/dev/shm")

Segment = tuple[str, int]
"""Path and inode: a file of the same name that somebody makes later is another one."""


def listing(folder: Path = FOLDER) -> frozenset[Segment]:
    """The segments that are there now: they are nobody's that starts later."""
    found: set[Segment] = set()
    try:
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False):
                found.add((entry.path, entry.inode()))
    except OSError:
        pass
    return frozenset(found)


def held(pids: Iterable[int], folder: Path = FOLDER) -> frozenset[Segment]:
    """The segments that these processes have open or mapped."""
    prefix = f"{folder}/"
    paths = {
        path
        for pid in pids
        for path in (*processes.opened(pid), *processes.mapped(pid))
        if path.startswith(prefix)
    }
    found: set[Segment] = set()
    for path in paths:
        try:
            found.add((path, Path(path).stat(follow_symlinks=False).st_ino))
        except OSError:  # unlinked already: nothing to remove
            continue
    return frozenset(found)


def remove(segments: Iterable[Segment], folder: Path = FOLDER) -> tuple[str, ...]:
    """Remove what is still there and held by no living process. Returns the paths removed."""
    wanted = frozenset(segments) & listing(folder)
    if not wanted:
        return ()
    wanted -= held(processes.table(), folder)
    removed: list[str] = []
    for path, inode in sorted(wanted):
        try:
            found = Path(path).stat(follow_symlinks=False)
            if found.st_ino == inode and found.st_uid == os.getuid():
                Path(path).unlink()
                removed.append(path)
        except OSError:
            continue
    return tuple(removed)
