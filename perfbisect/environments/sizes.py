"""How much disk a folder holds, and how much of it nobody else does."""

from __future__ import annotations

import os
from pathlib import Path


def own_bytes(folder: Path) -> int:
    """Bytes on disk that would be free if a folder were removed: files linked from elsewhere do not count."""
    links: dict[tuple[int, int], list[int]] = {}
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                status = (Path(parent) / name).lstat()
            except FileNotFoundError:  # somebody is building or removing it
                continue
            seen = links.setdefault(
                (status.st_dev, status.st_ino), [status.st_nlink, status.st_blocks * 512, 0]
            )
            seen[2] += 1
    return sum(size for total, size, here in links.values() if here >= total)
