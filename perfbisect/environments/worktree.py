"""A commit's files in a folder that is used again for the next commit: only what differs is written.

A file that stays keeps its time, so a build system builds again what changed and nothing else. The user's
repository, its index and its work trees are not touched.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfbisect.environments.tree import holds, write_files
from perfbisect.errors import BuildError
from perfbisect.system.git import Entry, Repository


@dataclass(frozen=True)
class Synced:
    """Paths that were written because they differed, and paths that were removed."""

    written: tuple[str, ...]
    removed: tuple[str, ...]


def sync(
    target: Path,
    *,
    repository: Repository,
    entries: Collection[Entry],
    folder: str = "",
    keep: Callable[[str], bool] = lambda _: False,
) -> Synced:
    """Make ``target`` hold a commit's ``entries`` (those below ``folder`` of the repository) and no more.

    ``keep``: relative path of a file or folder that git does not have -> True if it stays (a build folder).

    :raises BuildError: a submodule is among them, a link leads out, or git gave other bytes.
    """
    cut = len(folder) + 1 if folder else 0
    wanted = {entry.path[cut:]: entry for entry in entries}
    for path, entry in wanted.items():
        if entry.mode == "160000":
            raise BuildError(f"{path} is a submodule, which cannot be written from this repository")
    target.mkdir(parents=True, exist_ok=True)
    removed = _remove_others(target, wanted, keep)
    missing = {path: entry for path, entry in wanted.items() if not holds(target / path, entry)}
    for path in missing:
        place = target / path
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
    write_files(target, repository, missing)
    return Synced(tuple(missing), removed)


def _remove_others(target: Path, wanted: Mapping[str, Entry], keep: Callable[[str], bool]) -> tuple[str, ...]:
    parents = {parent.as_posix() for path in wanted for parent in Path(path).parents}
    removed = []
    for here, folders, files in os.walk(target):
        inside = Path(here).relative_to(target)
        for name in list(folders):
            path = (inside / name).as_posix()
            link = (target / path).is_symlink()
            if keep(path) or (link and path in wanted):
                folders.remove(name)
            elif link or path not in parents:
                folders.remove(name)
                removed.append(path)
                (target / path).unlink() if link else shutil.rmtree(target / path)
        for name in files:
            path = (inside / name).as_posix()
            if path not in wanted and not keep(path):
                removed.append(path)
                (target / path).unlink()
    return tuple(removed)
