"""How much disk folders take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def own_bytes(folder: Path) -> int:
    """Bytes on disk of the files that have no other name: those linked from elsewhere do not count."""
    return sum(status.st_blocks * 512 for status in _files(folder) if status.st_nlink == 1)


def disk_bytes(folder: Path, counted: set[tuple[int, int]]) -> int:
    """Bytes on disk of the files that are not yet in ``counted`` (device, inode), to which they are added.

    As ``du`` does for several folders: a file that they share counts with the first of them.
    """
    total = 0
    for status in _files(folder):
        inode = (status.st_dev, status.st_ino)
        if inode not in counted:
            counted.add(inode)
            total += status.st_blocks * 512
    return total


def _files(folder: Path) -> Iterator[os.stat_result]:
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                yield (Path(parent) / name).lstat()
            except FileNotFoundError:  # being built or removed
                continue
