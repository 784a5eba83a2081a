"""What is in the cache of environments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perfbisect.environments.base import Cabinet, Stamp, read_stamp
from perfbisect.environments.sizes import disk_bytes


@dataclass(frozen=True)
class Listed:
    """A folder of the cache; ``stamp`` None: what a dead build left, which the next build of its key removes.

    ``bytes``: on disk; a file that several folders share counts with the first of them that is listed.
    """

    folder: Path
    stamp: Stamp | None
    bytes: int


def list_environments(cache: Path) -> tuple[Listed, ...]:
    """Everything in a cache folder, newest first, unfinished ones last; empty if there is no such folder."""
    root = Cabinet(cache).root
    paths = root.glob("[!.]*") if root.is_dir() else ()
    folders = [(path, read_stamp(path)) for path in sorted(paths) if path.is_dir()]
    folders.sort(key=lambda pair: -pair[1].built_at if pair[1] else 0.0)
    counted: set[tuple[int, int]] = set()
    return tuple(Listed(folder, stamp, disk_bytes(folder, counted)) for folder, stamp in folders)
