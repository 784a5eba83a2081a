"""Atomic file writes, whose readers see the old or the new content; and temporary folders of attempts."""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from perfbisect.common.checked import is_token
from perfbisect.errors import MachineError
from perfbisect.redaction import without_secrets

_OF_THE_MACHINE = frozenset(
    (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EFBIG,
        errno.EMFILE,
        errno.ENFILE,
        errno.EIO,
        errno.ENOMEM,
    )
)


def machine_error(error: OSError) -> MachineError | None:
    """The error for the user if the machine has no room, descriptors or disk; None for any other."""
    if error.errno not in _OF_THE_MACHINE:
        return None
    return MachineError(
        f"the machine failed: {error.strerror}",
        where=error.filename,
        next_step="make room on the disk (df -h, df -i) or for files (ulimit -n); then: perfbisect status",
    )


_NEXT_STEP = "choose another path or free disk space"


def scratch_folder(token: str) -> Path:
    """Temporary folder of the processes with this token; a short path, since sockets are made in it.

    Raises:
        ValueError: it is no token, so the folder may be another's.
    """
    if not is_token(token):
        raise ValueError(f"{token!r} is no token of a launch")
    return Path(tempfile.gettempdir()) / f"pb-{token[:16]}"


def redact_file(path: Path) -> None:
    """Replace the secrets in a file that another program wrote; a pipe, which would block, is left alone."""
    with suppress(OSError, UnicodeDecodeError):
        if not path.is_file():
            return
        text = path.read_text(encoding="utf-8")
        if (redacted := without_secrets(text)) != text:
            replace_file(path, redacted)


Content = str | bytes | Iterable[str]
"""What is written to a file: text, or its parts as they come, as UTF-8; or bytes."""


def replace_file(path: Path, content: Content) -> None:
    """Write to a temporary file, fsync, rename and fsync the folder.

    :raises OSError: the write failed.
    """
    staging = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with staging.open("wb") as file:
            file.writelines(_encoded(content))
            # Before the rename: else a crash of the machine may leave the new name with no content.
            file.flush()
            os.fsync(file.fileno())
        os.replace(staging, path)  # noqa: PTH105 - one name for tests of a full disk to take over
    except BaseException:
        with suppress(OSError):
            staging.unlink()
        raise
    # The rename is an entry of the folder, which has to reach the disk as well.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _encoded(content: Content) -> Iterator[bytes]:
    parts = [content] if isinstance(content, str | bytes) else content
    return (part if isinstance(part, bytes) else part.encode("utf-8") for part in parts)


def write_atomic(
    path: Path, content: Content, *, what: str = "the file", next_step: str = _NEXT_STEP
) -> None:
    """Write a file atomically and create its folders; devices and pipes are written in place.

    Raises:
        MachineError: the disk is full or the path is not writable.
    """
    try:
        # A rename would replace /dev/stdout or a named pipe by a file.
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as file:
                file.writelines(_encoded(content))
            return
        # A link stays a link: a rename onto it would replace it.
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, content)
    except OSError as error:
        reason = f"cannot write {what}: {error.strerror or error}"
        raise MachineError(reason, where=path, next_step=next_step) from error
