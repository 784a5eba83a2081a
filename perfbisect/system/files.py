"""Files that are there whole or not at all: what reads them meanwhile sees the old one or the new one."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from perfbisect.errors import MachineError

_ELSEWHERE = "name another place, or make room"


def replace_file(path: Path, text: str) -> None:
    """Writes under a temporary name, flushes, renames, and flushes the folder. Raises OSError."""
    staging = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with staging.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staging, path)  # noqa: PTH105 - one name for tests of a full disk to take over
    except BaseException:
        with suppress(OSError):
            staging.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_whole(path: Path, text: str, *, what: str = "the file", next_step: str = _ELSEWHERE) -> None:
    """Writes a file with :func:`replace_file`; its folders are made. A link stays one; a device or a pipe
    (``/dev/stdout``) is written to, and never replaced.

    ``what``, ``next_step``: what the user is told of it where that fails.

    :raises MachineError: the disk, or no right to write there; nothing is left under the name.
    """
    special = path.exists() and not path.is_file() and not path.is_dir()
    try:
        if special:
            path.write_text(text, encoding="utf-8", newline="")
            return
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, text)
    except OSError as error:
        raise MachineError(
            f"{what} cannot be written: {error.strerror or error}", where=path, next_step=next_step
        ) from error
