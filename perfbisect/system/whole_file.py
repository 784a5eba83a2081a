"""Files that are there whole or not at all: what reads them meanwhile sees the old one or the new one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from perfbisect.errors import MachineError

_ELSEWHERE = "name another place, or make room"


def write_whole(path: Path, text: str, *, what: str = "the file", next_step: str = _ELSEWHERE) -> None:
    """Writes a file under a temporary name beside it and renames it; its folders are made. A link stays one;
    a device or a pipe (``/dev/stdout``) is written to, and never replaced.

    ``what``, ``next_step``: what the user is told of it where that fails.

    :raises MachineError: the disk, or no right to write there; nothing is left under the name.
    """
    special = path.exists() and not path.is_file() and not path.is_dir()
    there = path if special else Path(os.path.realpath(path))
    staging = there.with_name(f".{there.name}.{os.getpid()}")
    try:
        if special:
            path.write_text(text, encoding="utf-8", newline="")
            return
        there.parent.mkdir(parents=True, exist_ok=True)
        with staging.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(there)
    except OSError as error:
        with suppress(OSError):
            staging.unlink()
        raise MachineError(
            f"{what} cannot be written: {error.strerror or error}", where=path, next_step=next_step
        ) from error
