"""Local models, data sets and images: their content as a revision."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from perfbisect.errors import UsageError
from perfbisect.model.cell import LOCAL

MOST_FILES = 100_000
MOST_BYTES = 4_000_000_000_000

_NOT_MODEL = frozenset({".git", ".cache", "__pycache__", ".DS_Store"})
"""Names in a model folder that are not part of the model."""

_STATE = frozenset({"journal.jsonl", "series.sqlite"})
"""Files of perfbisect's state, which change with every job."""

_KERNEL = tuple(map(Path, ("/proc", "/sys", "/dev", "/run")))
"""Folders whose files the kernel makes as they are read."""

_MEMORY = Path("/dev/shm")


def content_revision(path: Path) -> str:
    """``sha256:...`` of a file's bytes, or of a folder's files by relative path and content.

    The folder's own name, times and permissions do not matter; symbolic links are followed. What did not
    change since it was read by this process is not read again.

    Raises:
        UsageError: it cannot be read, is no place of a model, has no file, or too many or too large ones.
    """
    try:
        if path.is_file():
            _refuse_kernel(path)
            files = {"": path}
        else:
            files = _list_files(path)
        states = [(name, file.stat()) for name, file in sorted(files.items())]
        if sum(state.st_size for _, state in states) > MOST_BYTES:
            _refuse(path, f"holds more than {MOST_BYTES // 10**12} TB")
        times = tuple(
            (name, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
            for name, state in states
        )
        return LOCAL + _read_content(path, times)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}", where=path) from None


def _list_files(folder: Path) -> dict[str, Path]:
    """The files of a model folder by relative path. :raises UsageError: it is none."""
    _refuse_kernel(folder)
    home = Path.home().resolve()
    # "model: ~" would read gigabytes each time the cell is read.
    if folder == home or folder in home.parents:
        _refuse(folder, "is your home folder" if folder == home else "holds your home folder")
    files: dict[str, Path] = {}
    for file in folder.rglob("*"):
        if not file.is_file() or _NOT_MODEL.intersection(file.relative_to(folder).parts):
            continue
        if file.name in _STATE:
            _refuse(folder, f"holds the state of perfbisect, which every job changes ({file})")
        files[file.relative_to(folder).as_posix()] = file
        if len(files) > MOST_FILES:
            _refuse(folder, f"holds more than {MOST_FILES} files")
    if not files:
        raise UsageError(f"{folder} holds no file", where=folder)
    return files


def _refuse_kernel(path: Path) -> None:
    # /dev/shm is a file system in memory: users keep weights there.
    if _MEMORY not in path.parents and any(folder in (path, *path.parents) for folder in _KERNEL):
        _refuse(path, "is made by the kernel")


def _refuse(path: Path, why: str) -> NoReturn:
    raise UsageError(
        f"{path} {why}: give a file, or a folder with the files of one model or data set", where=path
    )


@lru_cache(maxsize=64)
def _read_content(path: Path, states: tuple[tuple[str | int, ...], ...]) -> str:
    if path.is_file():
        return _file_digest(path)
    whole = hashlib.sha256()
    for name, *_ in states:
        whole.update(f"{name}\0{_file_digest(path / str(name))}\n".encode())
    return whole.hexdigest()


def _file_digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            found.update(block)
    return found.hexdigest()
