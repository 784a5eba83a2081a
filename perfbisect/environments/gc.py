"""Removing environments that nobody has used for long, or the longest unused where the cache is too large.

One that is in use or being built is never removed. What dead builds left is removed always.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import filelock

from perfbisect.environments.base import Cabinet, read_stamp, told_as_machine
from perfbisect.environments.sizes import Inode, inodes
from perfbisect.environments.use import alone, last_used

_TRASH = ".removed."


@dataclass(frozen=True)
class Item:
    """A folder of the cache. ``kind``: ``environment``, ``build folder`` (of source builds), ``unfinished``.

    ``bytes``: what removing it frees, in the order in which they are removed: files that others link, such as
    a base's in its overlays or uv's cache, are freed with the last of them. ``used_at``: seconds since
    1970.
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
    bytes_before: int
    dry_run: bool

    @property
    def freed(self) -> int:
        return sum(item.bytes for item in self.removed)


def collect(
    cache: Path,
    *,
    older_than: timedelta | None = None,
    keep_bytes: int | None = None,
    dry_run: bool = False,
    now: float,
) -> Collected:
    """Remove what was last used before ``now - older_than``, then the longest unused above ``keep_bytes``.

    ``now`` in seconds since 1970. Sizes are bytes that only this cache holds.

    :raises MachineError: a folder cannot be removed.
    """
    if not dry_run:
        _finish(cache)
    items = _items(cache)
    tables = {item.folder: inodes(item.folder) for item in items}
    left = _Ledger(tables.values())
    before = left.total
    removed: list[Item] = []
    busy: list[Item] = []
    for item in sorted(items, key=lambda item: (item.kind != "unfinished", item.used_at)):
        why = _why(item, older_than, keep_bytes, now, left.total)
        if not why:
            continue
        with told_as_machine(f"remove {item.folder}"), _free(cache, item) as free:
            if not free:
                busy.append(item)
                continue
            freed = left.remove(tables[item.folder])
            removed.append(_with(item, freed, why))
            if not dry_run:
                _remove(item.folder)
    if older_than is not None and not dry_run:
        _forget_failures(cache, now - older_than.total_seconds())
    gone = {item.folder for item in (*removed, *busy)}
    kept = tuple(
        _with(item, left.alone(tables[item.folder]), "") for item in items if item.folder not in gone
    )
    return Collected(tuple(removed), tuple(busy), kept, before, dry_run)


class _Ledger:
    """Which of the cache's bytes are free once which folders are gone."""

    def __init__(self, tables: Iterable[dict[Inode, int]]) -> None:
        self._here: Counter[Inode] = Counter()
        for table in tables:
            self._here.update(table)
        self._gone: Counter[Inode] = Counter()
        self.total = sum(inode.bytes for inode, count in self._here.items() if count >= inode.links)

    def alone(self, table: dict[Inode, int]) -> int:
        """Bytes that removing a folder would free now."""
        return sum(inode.bytes for inode, count in table.items() if self._gone[inode] + count >= inode.links)

    def remove(self, table: dict[Inode, int]) -> int:
        freed = self.alone(table)
        self._gone.update(table)
        self.total -= freed
        return freed


def _items(cache: Path) -> list[Item]:
    cabinet = Cabinet(cache)
    found = []
    for folder in _folders(cabinet.root):
        stamp = read_stamp(folder)
        if stamp is None:
            found.append(Item(folder.name, folder, "unfinished", used_at=_time(folder)))
        else:
            used = last_used(folder) or stamp.built_at
            found.append(Item(folder.name, folder, "environment", stamp.change, used))
    for folder in _folders(cabinet.root / ".staging"):
        found.append(Item(folder.name.partition(".")[0], folder, "unfinished", used_at=_time(folder)))
    for folder in _folders(cache / "builds"):
        mark = folder / "built"
        found.append(
            Item(folder.name, folder, "build folder", used_at=_time(mark if mark.exists() else folder))
        )
    return found


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
def _free(cache: Path, item: Item) -> Iterator[bool]:
    """True inside if nobody builds or uses a folder, and nobody can begin to."""
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
            with alone(item.folder) as free:
                yield free
        else:
            yield True
    finally:
        lock.release()


def _finish(cache: Path) -> None:
    """Remove what a removal that died has renamed."""
    for root in (Cabinet(cache).root, cache / "builds"):
        for trash in root.glob(f"{_TRASH}*"):
            shutil.rmtree(trash, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Out of sight at once, then file by file: a reader sees it whole or not at all."""
    trash = folder.with_name(f"{_TRASH}{secrets.token_hex(4)}")
    folder.rename(trash)
    shutil.rmtree(trash)


def _forget_failures(cache: Path, before: float) -> None:
    folder = Cabinet(cache).root / ".failed"
    for note in folder.iterdir() if folder.is_dir() else ():
        if _time(note) < before:
            note.unlink(missing_ok=True)


def _with(item: Item, size: int, why: str) -> Item:
    return Item(item.key, item.folder, item.kind, item.change, item.used_at, size, why)
