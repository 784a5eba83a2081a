"""Which environments are in use: a shared lock on a file in each, gone when its holder is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

USED = "used"
"""The file whose time is that of the last use."""
_MOST = 64
"""Environments that one process holds at once: it measures in far fewer at a time."""


class Holds:
    """The environments that this process uses; the ones used longest ago are let go first."""

    def __init__(self) -> None:
        self._handles: OrderedDict[Path, int] = OrderedDict()
        self._guard = threading.Lock()

    def hold(self, folder: Path) -> bool:
        """Mark a folder as used now and hold it; False if somebody is removing it. Held already is held.

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
                self._handles.move_to_end(folder)
                os.utime(self._handles[folder])
            except OSError:
                return folder.is_dir()
            while len(self._handles) > _MOST:
                os.close(self._handles.popitem(last=False)[1])
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
    """True inside if nobody holds the folder, and nobody can while this lasts."""
    try:
        handle = os.open(folder / USED, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError:
            free = False
        yield free
    finally:
        os.close(handle)


def last_used(folder: Path) -> float | None:
    """Seconds since 1970 of the last use; None if it was never used."""
    try:
        return (folder / USED).stat().st_mtime
    except OSError:
        return None
