"""Files that are there whole or not at all: what reads them meanwhile sees the old one or the new one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from perfbisect.errors import MachineError

_ELSEWHERE = "name another place, or make room"


def write_whole(path: Path, text: str, *, what: str = "the file", next_step: str = _ELSEWHERE) -> None:
    """Writes a file under a temporary name beside it and renames it; its folders are made.

    ``what``, ``next_step``: what the user is told of it where that fails.

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
            f"{what} cannot be written: {error.strerror or error}", where=path, next_step=next_step
        ) from error
