"""What is in the cache of environments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perfbisect.environments.base import Cabinet, read_stamp
from perfbisect.environments.sizes import own_bytes


@dataclass(frozen=True)
class Listed:
    """One folder of the cache.

    ``complete`` is False for what a dead build left (the next build of its key removes it). ``bytes`` are
    those that only this environment holds: files linked from elsewhere (uv's cache, the base of an overlay)
    do not count. ``built_at`` is in seconds since 1970, ``seconds`` what building took.
    """

    key: str
    folder: Path
    complete: bool
    builder: str = ""
    spec: str = ""
    change: str = ""
    engine_version: str = ""
    bytes: int = 0
    built_at: float = 0.0
    seconds: float = 0.0


def list_environments(cache: Path) -> tuple[Listed, ...]:
    """Everything in a cache folder, newest first, unfinished ones last; empty if there is no such folder."""
    root = Cabinet(cache).root
    folders = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    found = []
    for folder in folders:
        if folder.name.startswith("."):
            continue
        stamp = read_stamp(folder)
        size = own_bytes(folder)
        if stamp is None:
            found.append(Listed(folder.name, folder, False, bytes=size))
            continue
        found.append(
            Listed(
                key=stamp.key,
                folder=folder,
                complete=True,
                builder=stamp.builder,
                spec=stamp.spec,
                change=stamp.change,
                engine_version=stamp.engine_version,
                bytes=size,
                built_at=stamp.built_at,
                seconds=stamp.seconds,
            )
        )
    return tuple(sorted(found, key=lambda one: (not one.complete, -one.built_at, one.key)))
