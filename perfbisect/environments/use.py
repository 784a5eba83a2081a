"""Which environments are in use: a shared lock on a file in each, gone when its holder is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

USED = "used"
"""The file whose time is that of the last use."""


class Holds:
    """The environments that this process uses, each from its first use on."""

    def __init__(self) -> None:
        self._handles: dict[Path, int] = {}
        self._guard = threading.Lock()

    def hold(self, folder: Path) -> bool:
        """Mark a folder as used now and hold it; False if it is being removed. Held already is held.

        A folder that cannot be written to is used without a mark: nobody can remove it either.
        """
        with self._guard:
            try:
                if folder not in self._handles:
                    handle = os.open(folder / USED, os.O_RDWR | os.O_CREAT, 0o644)
                    try:
                        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    except OSError:
                        os.close(handle)
                        return False
                    self._handles[folder] = handle
                os.utime(self._handles[folder])
            except OSError:
                return folder.is_dir()
        return True

    def drop(self, folder: Path) -> None:
        """Let a folder go."""
        with self._guard:
            handle = self._handles.pop(folder, None)
            if handle is not None:
                os.close(handle)

    def __del__(self) -> None:
        for handle in self._handles.values():
            with contextlib.suppress(OSError):
                os.close(handle)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """True inside if no process holds the folder, and none can while this lasts."""
    try:
        handle = os.open(folder / USED, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = True
        except OSError:
            is_free = False
        yield is_free
    finally:
        os.close(handle)


def last_used(folder: Path) -> float | None:
    """Seconds since 1970 of the last use; None if it was never used."""
    try:
        return (folder / USED).stat().st_mtime
    except OSError:
        return None
