"""Removes environments by age and size, and always what dead builds left; never one in use or being built."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import filelock

from perfbisect.environments.cache import (
    Cabinet,
    Stamp,
    disk_bytes,
    last_used,
    read_stamp,
    told_as_machine,
    used_alone,
)


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


@dataclass(frozen=True)
class Item:
    """A folder of the cache. ``kind``: ``environment``, ``build folder`` (of source builds), ``unfinished``.

    ``bytes``: on disk, files that a folder used since holds too not counted. ``used_at``: seconds since 1970.
    """

    key: str
    folder: Path
    kind: str
    change: str = ""
    used_at: float = 0.0
    bytes: int = 0
    why: str = ""


@dataclass(frozen=True)
class Collected:
    """What was removed, or with ``dry_run`` would be; what would have been but is in use; what is kept."""

    removed: tuple[Item, ...]
    in_use: tuple[Item, ...]
    kept: tuple[Item, ...]
    dry_run: bool


def collect(
    cache: Path,
    *,
    older_than: timedelta | None = None,
    keep_bytes: int | None = None,
    dry_run: bool = False,
    now: float,
) -> Collected:
    """Remove what was last used before ``now - older_than``, then the longest unused above ``keep_bytes``.

    ``now`` in seconds since 1970.

    :raises MachineError: a folder cannot be removed.
    """
    items = _items(cache)
    total = sum(item.bytes for item in items)
    removed: list[Item] = []
    in_use: list[Item] = []
    kept: list[Item] = []
    for item in items:
        why = _why(item, older_than, keep_bytes, now, total)
        if not why:
            kept.append(item)
            continue
        with told_as_machine(f"remove {item.folder}"), _locked(cache, item) as is_free:
            if not is_free:
                in_use.append(item)
                continue
            if not dry_run:
                _remove(cache, item)
        removed.append(replace(item, why=why))
        total -= item.bytes
    if older_than is not None and not dry_run:
        _forget_failures(cache, now - older_than.total_seconds())
    return Collected(tuple(removed), tuple(in_use), tuple(kept), dry_run)


def _items(cache: Path) -> list[Item]:
    """The folders of a cache in the order of removal: unfinished ones, then the longest unused first."""
    root = Cabinet(cache).root
    items = []
    for folder in _folders(root):
        stamp = read_stamp(folder)
        if stamp is None:
            items.append(Item(folder.name, folder, "unfinished", used_at=_time(folder)))
        else:
            used = last_used(folder) or stamp.built_at
            items.append(Item(folder.name, folder, "environment", stamp.change, used))
    for folder in _folders(root / ".staging"):
        items.append(Item(folder.name.partition(".")[0], folder, "unfinished", used_at=_time(folder)))
    for folder in _folders(cache / "builds"):
        mark = folder / "built"
        used = _time(mark if mark.exists() else folder)
        items.append(Item(folder.name, folder, "build folder", used_at=used))
    items.sort(key=lambda item: (item.kind != "unfinished", item.used_at))
    # From the last used on: a shared file is freed with the last folder that holds it.
    counted: set[tuple[int, int]] = set()
    sized = [replace(item, bytes=disk_bytes(item.folder, counted)) for item in reversed(items)]
    return sized[::-1]


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _time(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _why(item: Item, older_than: timedelta | None, keep_bytes: int | None, now: float, total: int) -> str:
    if item.kind == "unfinished":
        return "left by a build that died"
    if older_than is not None and now - item.used_at > older_than.total_seconds():
        return f"not used for {(now - item.used_at) / 86400:.1f} days"
    if keep_bytes is not None and total > keep_bytes:
        return f"longest unused, and the cache holds {total / 1e9:.2f} GB"
    return ""


@contextlib.contextmanager
def _locked(cache: Path, item: Item) -> Iterator[bool]:
    """True inside if no process builds or uses a folder, and none can begin to."""
    root = cache / "builds" if item.kind == "build folder" else Cabinet(cache).root
    locks = root / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(locks / f"{item.key}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        yield False
        return
    try:
        if item.kind == "environment":
            with used_alone(item.folder) as is_free:
                yield is_free
        else:
            yield True
    finally:
        lock.release()


def _remove(cache: Path, item: Item) -> None:
    """Move away first: a removal that dies leaves an unfinished folder, never half an environment."""
    trash = Cabinet(cache).root / ".staging" / f"{item.key}.{secrets.token_hex(4)}"
    trash.parent.mkdir(parents=True, exist_ok=True)
    item.folder.rename(trash)
    shutil.rmtree(trash)


def _forget_failures(cache: Path, before: float) -> None:
    folder = Cabinet(cache).root / ".failed"
    for note in folder.iterdir() if folder.is_dir() else ():
        if _time(note) < before:
            note.unlink(missing_ok=True)
