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

from perfbisect.environments.cache import (
    EnvironmentCache,
    Stamp,
    disk_bytes,
    exclusive_use,
    last_used,
    os_errors_as_machine_errors,
    read_stamp,
)


@dataclass(frozen=True)
class CacheEntry:
    """A folder of the cache. ``kind``: ``environment``, ``build folder`` (of source builds), ``unfinished``.

    ``bytes``: on disk; shared files count in equal parts. ``used_at``: Unix time of the last use.
    """

    key: str
    folder: Path
    kind: str
    stamp: Stamp | None = None
    used_at: float = 0.0
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
    dry_run: bool


def list_environments(path: Path) -> tuple[CacheEntry, ...]:
    """Every environment in a cache folder: newest first, unfinished ones last."""
    entries = [_environment(folder) for folder in _folders(EnvironmentCache(path).root)]
    entries.sort(key=lambda entry: -entry.stamp.built_at if entry.stamp else 0.0)
    return tuple(entries)


def collect(
    path: Path,
    *,
    older_than: timedelta | None = None,
    keep_bytes: int | None = None,
    dry_run: bool = False,
    now: float,
) -> GcResult:
    """Remove entries last used before ``now - older_than``, then the longest unused above ``keep_bytes``.

    What dead builds left is always removed. ``now``: Unix time.

    :raises MachineError: a folder cannot be removed.
    """
    entries = _entries(path)
    total = sum(entry.bytes for entry in entries)
    removed: list[CacheEntry] = []
    in_use: list[CacheEntry] = []
    kept: list[CacheEntry] = []
    for entry in entries:
        reason = _removal_reason(entry, older_than, keep_bytes, now, total)
        if not reason:
            kept.append(entry)
            continue
        with os_errors_as_machine_errors(f"remove {entry.folder}"), _locked(path, entry) as is_free:
            if not is_free:
                in_use.append(entry)
                continue
            if not dry_run:
                _remove(path, entry)
        removed.append(replace(entry, reason=reason))
        total -= entry.bytes
    if older_than is not None and not dry_run:
        _forget_failures(path, now - older_than.total_seconds())
    return GcResult(tuple(removed), tuple(in_use), tuple(kept), dry_run)


def _entries(path: Path) -> list[CacheEntry]:
    """The folders of a cache in the order of removal: unfinished ones, then the longest unused first."""
    root = EnvironmentCache(path).root
    entries = [_environment(folder) for folder in _folders(root)]
    for folder in _folders(root / ".staging"):
        entries.append(_entry(folder.name.partition(".")[0], folder, "unfinished", _modified_at(folder)))
    for folder in _folders(path / "builds"):
        mark = folder / "built"
        used = _modified_at(mark if mark.exists() else folder)
        entries.append(_entry(folder.name, folder, "build folder", used))
    return sorted(entries, key=lambda entry: (entry.kind != "unfinished", entry.used_at))


def _environment(folder: Path) -> CacheEntry:
    stamp = read_stamp(folder)
    if stamp is None:
        return _entry(folder.name, folder, "unfinished", _modified_at(folder))
    return _entry(folder.name, folder, "environment", last_used(folder) or stamp.built_at, stamp)


def _entry(key: str, folder: Path, kind: str, used_at: float, stamp: Stamp | None = None) -> CacheEntry:
    return CacheEntry(key, folder, kind, stamp, used_at, disk_bytes(folder))


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _modified_at(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _removal_reason(
    entry: CacheEntry, older_than: timedelta | None, keep_bytes: int | None, now: float, total: int
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
def _locked(path: Path, entry: CacheEntry) -> Iterator[bool]:
    """Yield True if no process builds or uses a folder; none can start to inside the block."""
    root = path / "builds" if entry.kind == "build folder" else EnvironmentCache(path).root
    locks = root / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(locks / f"{entry.key}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        yield False
        return
    try:
        if entry.kind == "environment":
            with exclusive_use(entry.folder) as is_free:
                yield is_free
        else:
            yield True
    finally:
        lock.release()


def _remove(path: Path, entry: CacheEntry) -> None:
    """Move away first: an interrupted removal leaves an unfinished folder, never half an environment."""
    trash = EnvironmentCache(path).root / ".staging" / f"{entry.key}.{secrets.token_hex(4)}"
    trash.parent.mkdir(parents=True, exist_ok=True)
    entry.folder.rename(trash)
    shutil.rmtree(trash)


def _forget_failures(path: Path, before: float) -> None:
    folder = EnvironmentCache(path).root / ".failed"
    for note in folder.iterdir() if folder.is_dir() else ():
        if _modified_at(note) < before:
            note.unlink(missing_ok=True)
