"""Files that processes hold: descriptors, mappings and shared memory (Linux)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path


def opened(pid: int) -> Iterator[str]:
    """Link texts of the process's descriptors (``socket:[123]``, paths)."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for link in os.listdir(folder):  # noqa: PTH208 - read for every process many times an attempt
            with suppress(OSError):
                yield os.readlink(f"{folder}/{link}")  # noqa: PTH115


SHARED_MEMORY = Path("/dev/shm")

Segment = tuple[str, int]
"""Path and inode of shared memory; the inode tells a later file of the same name apart."""


def list_segments() -> frozenset[Segment]:
    with suppress(OSError):
        entries = [entry for entry in os.scandir(SHARED_MEMORY) if entry.is_file(follow_symlinks=False)]
        return frozenset((entry.path, entry.inode()) for entry in entries)
    return frozenset()


def segments_before(created: float) -> frozenset[Segment]:
    """The shared memory that is older than a process: weights that a user keeps there, for example."""
    # Files have wall time, processes have time after boot.
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    older: set[Segment] = set()
    for path, inode in list_segments():
        with suppress(OSError):
            status = Path(path).stat(follow_symlinks=False)
            # The earlier of both times: what may be the user's is kept.
            if min(status.st_mtime, status.st_ctime) < boot + created:
                older.add((path, inode))
    return frozenset(older)


def held_segments(pids: Iterable[int]) -> frozenset[Segment]:
    """The segments that these processes opened or mapped."""
    paths: set[str] = set()
    for pid in pids:
        paths.update(opened(pid))
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines():
                # The path, with its blanks, is the last of six fields; other mappings have none.
                paths.update(line.split(maxsplit=5)[5:])
    found: set[Segment] = set()
    for path in paths:
        if not path.startswith(f"{SHARED_MEMORY}/"):
            continue
        with suppress(OSError):
            # Unlinked already: nothing to remove.
            found.add((path, Path(path).stat(follow_symlinks=False).st_ino))
    return frozenset(found)


def remove_segments(segments: Iterable[Segment]) -> tuple[str, ...]:
    """Remove segments that no living process holds; returns the removed paths."""
    wanted = frozenset(segments) & list_segments()
    if not wanted:
        return ()
    removed: list[str] = []
    # Processes of all users and launches are read: another engine may have opened the segment since.
    everyone = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    for path, inode in sorted(wanted - held_segments(everyone)):
        with suppress(OSError):
            found = Path(path).stat(follow_symlinks=False)
            # Names of segments are used again: only the file that was seen is removed.
            if found.st_ino == inode and found.st_uid == os.getuid():
                Path(path).unlink()
                removed.append(path)
    return tuple(removed)
