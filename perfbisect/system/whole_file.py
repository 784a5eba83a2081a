"""Files that are there whole or not at all: what reads them meanwhile sees the old one or the new one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from perfbisect.errors import MachineError


def write_whole(path: Path, text: str) -> None:
    """Writes a file under a temporary name beside it and renames it; its folders are made.

    :raises MachineError: the disk, or no right to write there; nothing is left under the name.
    """
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with staging.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
    except OSError as error:
        with suppress(OSError):
            staging.unlink()
        raise MachineError(
            f"the file cannot be written: {error.strerror or error}",
            where=path,
            next_step="name another place, or make room",
        ) from error
