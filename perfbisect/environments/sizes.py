"""How much disk a folder holds, and how much of it nobody else does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Inode(NamedTuple):
    """A file on disk, whatever names it has: ``links`` in all, ``bytes`` on disk."""

    device: int
    number: int
    links: int
    bytes: int


def inodes(folder: Path) -> dict[Inode, int]:
    """The files in a folder, and how many of their names are in it."""
    found: dict[Inode, int] = {}
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                status = (Path(parent) / name).lstat()
            except FileNotFoundError:  # somebody is building or removing it
                continue
            inode = Inode(status.st_dev, status.st_ino, status.st_nlink, status.st_blocks * 512)
            found[inode] = found.get(inode, 0) + 1
    return found


def own_bytes(folder: Path) -> int:
    """Bytes on disk that would be free if a folder were removed: files linked from elsewhere do not count."""
    return sum(inode.bytes for inode, here in inodes(folder).items() if here >= inode.links)
