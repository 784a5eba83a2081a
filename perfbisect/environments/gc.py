"""Lists environments, and removes them by age and size; never one that is in use or being built."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import filelock

from perfbisect.environments.base import Environment
from perfbisect.environments.cache import (
    USED,
    EnvironmentCache,
    file_stats,
    os_errors_as_machine_errors,
    read_stamp,
)


@dataclass(frozen=True)
class CacheEntry:
    """A folder of the cache: ``environment``, ``build folder`` or ``unfinished``.

    ``bytes``: on disk, each file once; of :func:`collect` without what a later entry holds as well, so that
    they add up to the cache. ``used_at``: Unix time of the last use.
    """

    key: str
    folder: Path
    kind: str
    stamp: Environment | None
    used_at: float
    bytes: int = 0
    reason: str = ""

    @property
    def change(self) -> str:
        return self.stamp.change if self.stamp else ""


@dataclass(frozen=True)
class GcResult:
    """Entries that were removed (with ``dry_run``: would be), are in use, or are kept."""

    removed: tuple[CacheEntry, ...]
    in_use: tuple[CacheEntry, ...]
    kept: tuple[CacheEntry, ...]


def list_environments(path: Path) -> tuple[tuple[CacheEntry, ...], int]:
    """Every environment in a cache folder, newest first, unfinished ones last; and their bytes together."""
    found = [_entry(folder) for folder in _folders(EnvironmentCache(path).root)]
    entries = [replace(entry, bytes=disk_bytes(entry.folder)) for entry in found]
    counted: set[tuple[int, int]] = set()
    # A file that several environments share counts once.
    together = sum(disk_bytes(entry.folder, counted) for entry in entries)
    newest_first = sorted(entries, key=lambda entry: -entry.stamp.built_at if entry.stamp else 0.0)
    return tuple(newest_first), together


def collect(
    path: Path,
    *,
    older_than: timedelta | None = None,
    keep_bytes: float | None = None,
    dry_run: bool = False,
    now: float,
) -> GcResult:
    """Remove entries last used before ``now - older_than``, then the longest unused above ``keep_bytes``."""
    cache = EnvironmentCache(path)
    entries = [_entry(folder) for folder in _folders(cache.root)]
    entries += [_entry(folder, "unfinished") for folder in _folders(cache.root / ".staging")]
    entries += [_entry(folder, "build folder", "built") for folder in _folders(cache.path / "builds")]
    # Unfinished folders are of no use to anybody: they go first.
    entries.sort(key=lambda entry: (entry.kind != "unfinished", entry.used_at))
    counted: set[tuple[int, int]] = set()
    # From the last on: a file with several links is freed by the removal of the last that holds it.
    freed = [disk_bytes(entry.folder, counted) for entry in reversed(entries)]
    entries = [replace(entry, bytes=size) for entry, size in zip(entries, reversed(freed), strict=True)]
    total = sum(entry.bytes for entry in entries)
    removed: list[CacheEntry] = []
    in_use: list[CacheEntry] = []
    kept: list[CacheEntry] = []
    for entry in entries:
        reason = _removal_reason(entry, older_than, keep_bytes, now, total)
        if not reason:
            kept.append(entry)
            continue
        with os_errors_as_machine_errors(f"remove {entry.folder}"), _locked(cache, entry) as is_free:
            if not is_free:
                in_use.append(entry)
                continue
            if not dry_run:
                # Moved away first: an interrupted removal leaves an unfinished folder, never half an
                # environment.
                trash = cache.root / ".staging" / f"{entry.key}.{secrets.token_hex(4)}"
                trash.parent.mkdir(parents=True, exist_ok=True)
                entry.folder.rename(trash)
                shutil.rmtree(trash)
        removed.append(replace(entry, reason=reason))
        total -= entry.bytes
    if older_than is not None and not dry_run:
        cache.forget_failures(now - older_than.total_seconds())
    return GcResult(tuple(removed), tuple(in_use), tuple(kept))


def disk_bytes(folder: Path, counted: set[tuple[int, int]] | None = None) -> int:
    """Bytes on disk, each file once, however many hard links it has.

    ``counted``: files (device, inode) with several links that do not count; those of the folder are added.
    """
    counted = set() if counted is None else counted
    total = 0
    for status in file_stats(folder):
        file = (status.st_dev, status.st_ino)
        if file not in counted:
            total += status.st_blocks * 512
        if status.st_nlink > 1:
            counted.add(file)
    return total


def _entry(folder: Path, kind: str = "", mark: str = USED) -> CacheEntry:
    """``mark``: the file whose time is that of the last use."""
    stamp = read_stamp(folder)
    kind = kind or ("environment" if stamp else "unfinished")
    used_at = _modified_at(folder / mark) or (stamp.built_at if stamp else _modified_at(folder))
    return CacheEntry(folder.name.partition(".")[0], folder, kind, stamp, used_at)


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _modified_at(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _removal_reason(
    entry: CacheEntry, older_than: timedelta | None, keep_bytes: float | None, now: float, total: int
) -> str:
    """Why an entry is removed; empty if it is kept."""
    if entry.kind == "unfinished":
        return "left by a build that died"
    if older_than is not None and now - entry.used_at > older_than.total_seconds():
        return f"not used for {(now - entry.used_at) / 86400:.1f} days"
    if keep_bytes is not None and total > keep_bytes:
        return f"longest unused, and the cache holds {total / 1e9:.2f} GB"
    return ""


@contextlib.contextmanager
def _locked(cache: EnvironmentCache, entry: CacheEntry) -> Iterator[bool]:
    """Yield True if no process builds or uses a folder; none can start to inside the block."""
    locks = (cache.path / "builds" if entry.kind == "build folder" else cache.root) / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    try:
        # The lock of builds first: else a build could begin between the look and the removal.
        with filelock.FileLock(locks / f"{entry.key}.lock", timeout=0):
            if entry.kind == "environment":
                with cache.unused(entry.folder) as is_free:
                    yield is_free
            else:
                yield True
    except filelock.Timeout:
        yield False
