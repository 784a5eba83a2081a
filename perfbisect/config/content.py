"""What a local folder or file holds, as one hash: the revision of a model that has no hub."""

from __future__ import annotations

import hashlib
from pathlib import Path

from perfbisect.core.cell_parts import LOCAL
from perfbisect.errors import UsageError

_PASSED_OVER = frozenset({".git", ".cache", "__pycache__", ".DS_Store"})
"""Names inside a model folder that are not the model."""

_BLOCK = 1 << 20


def content_revision(path: Path) -> str:
    """``sha256:...`` of a file's bytes, or of a folder's files by relative path and content.

    The folder's own name and place, times and permissions do not matter; symbolic links are followed.

    :raises UsageError: it cannot be read, or the folder holds no file.
    """
    try:
        if path.is_file():
            return LOCAL + _file(path)
        files = sorted(
            (file.relative_to(path).as_posix(), file)
            for file in path.rglob("*")
            if file.is_file() and not _PASSED_OVER.intersection(file.relative_to(path).parts)
        )
        if not files:
            raise UsageError(f"{path} holds no file", where=path)
        whole = hashlib.sha256()
        for name, file in files:
            whole.update(f"{name}\0{_file(file)}\n".encode())
        return LOCAL + whole.hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error}", where=path) from None


def _file(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            found.update(block)
    return found.hexdigest()
