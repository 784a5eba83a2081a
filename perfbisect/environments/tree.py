"""A commit's package folder, written from git's objects over the files of an installed base.

A file that is the same in both is a hard link to the base's, with its byte code; so a commit costs what it
changed.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from perfbisect.environments.keys import blob_id, file_blob_id
from perfbisect.errors import BuildError
from perfbisect.system.git import Entry, Repository

_BYTE_CODE = "__pycache__"
_BINARY = (".so", ".pyd", ".bin", ".cubin", ".hsaco")


@dataclass(frozen=True)
class Installed:
    """The files of a base's package folder: path inside it -> object name that git would give them."""

    folder: Path
    blobs: Mapping[str, str]
    tag: str
    """Of byte code: ``cpython-311``."""


@dataclass(frozen=True)
class Written:
    """What an overlay consists of, in numbers of files; ``changed`` are those not equal to the base's."""

    linked: int
    changed: tuple[str, ...]
    carried: tuple[str, ...]
    """In the base's package and not in git: compiled files, generated files."""
    dropped: int
    """In the base, and not in this commit."""


def installed(folder: Path, tag: str, like: str) -> Installed:
    """Read a base's package folder; ``like`` is any object name of the repository it is compared with."""
    blobs = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != _BYTE_CODE)
        for name in files:
            file = Path(parent) / name
            if not name.endswith(".pyc"):
                blobs[file.relative_to(folder).as_posix()] = "" if _binary(name) else file_blob_id(file, like)
    return Installed(folder, blobs, tag)


def write_tree(
    target: Path,
    *,
    repository: Repository,
    entries: Collection[Entry],
    package: str,
    base: Installed | None,
    tracked_at_base: Collection[str] | None,
    generated: Collection[str],
) -> Written:
    """Write a commit's package folder to ``target``; ``entries`` are its files, ``package`` the folder in
    git.

    ``tracked_at_base``: paths inside the package that git has at the base's commit: all else in the base is
    carried in. None if that commit is not known: then binary files and those of ``generated`` names are.

    :raises BuildError: the tree holds what no overlay can (a submodule), or what was written is not what git
        has.
    """
    wanted: dict[str, Entry] = {}
    for entry in entries:
        if entry.mode == "160000":
            raise BuildError(f"{entry.path} is a submodule, which an overlay cannot hold")
        wanted[str(PurePosixPath(entry.path).relative_to(package))] = entry
    have = base.blobs if base is not None else {}
    same = [path for path, entry in wanted.items() if entry.mode != "120000" and have.get(path) == entry.blob]
    linked = set(same)
    carried = [path for path in have if path not in wanted and _carries(path, tracked_at_base, generated)]
    for parent in sorted({PurePosixPath(path).parent for path in (*wanted, *carried)}):
        (target / parent).mkdir(parents=True, exist_ok=True)
    if base is not None:
        for path in (*same, *carried):
            _link(base.folder / path, target / path)
            _link_byte_code(base, target, path)
    changed = [path for path in wanted if path not in linked]
    _write_changed(target, repository, {path: wanted[path] for path in changed})
    _verify(target, wanted)
    dropped = sum(1 for path in have if path not in wanted and path not in set(carried))
    return Written(len(same), tuple(changed), tuple(sorted(carried)), dropped)


def _binary(name: str) -> bool:
    return name.endswith(_BINARY) or ".so." in name


def _carries(path: str, tracked: Collection[str] | None, generated: Collection[str]) -> bool:
    if tracked is not None:
        return path not in tracked
    name = PurePosixPath(path).name
    return _binary(name) or any(fnmatch.fnmatch(name, pattern) for pattern in generated)


def _link(source: Path, target: Path) -> None:
    """A hard link; where there can be none, a copy with the same time: byte code stays valid."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _link_byte_code(base: Installed, target: Path, path: str) -> None:
    if not path.endswith(".py"):
        return
    inside = PurePosixPath(path)
    compiled = inside.parent / _BYTE_CODE / f"{inside.stem}.{base.tag}.pyc"
    if (base.folder / compiled).exists():
        (target / compiled.parent).mkdir(exist_ok=True)
        _link(base.folder / compiled, target / compiled)


def _write_changed(target: Path, repository: Repository, entries: Mapping[str, Entry]) -> None:
    places: dict[str, list[str]] = {}
    for path, entry in entries.items():
        places.setdefault(entry.blob, []).append(path)
    for blob, data in repository.contents(places):
        for path in places[blob]:
            file = target / path
            if entries[path].mode == "120000":
                _write_link(target, file, data)
                continue
            file.write_bytes(data)
            if entries[path].mode == "100755":
                file.chmod(0o755)


def _write_link(target: Path, file: Path, data: bytes) -> None:
    """A symbolic link of git, if it stays inside the package."""
    to = os.fsdecode(data)
    if not Path(os.path.normpath(file.parent / to)).is_relative_to(target) or Path(to).is_absolute():
        raise BuildError(f"{file.relative_to(target)} is a symbolic link out of the package, to {to}")
    file.symlink_to(to)


def holds(file: Path, entry: Entry) -> bool:
    """True if a file on disk is what git has: bytes, kind, and whether it can be executed."""
    if file.is_symlink():
        return entry.mode == "120000" and blob_id(os.fsencode(file.readlink()), entry.blob) == entry.blob
    if entry.mode == "120000" or not file.is_file():
        return False
    return (
        os.access(file, os.X_OK) == (entry.mode == "100755") and file_blob_id(file, entry.blob) == entry.blob
    )


def write_files(target: Path, repository: Repository, entries: Mapping[str, Entry]) -> None:
    """Write files of git to places that are free; path inside ``target`` -> entry.

    :raises BuildError: a symbolic link leads out of ``target``, or git gave other bytes.
    """
    _write_changed(target, repository, entries)
    _verify(target, entries)


def _verify(target: Path, wanted: Mapping[str, Entry]) -> None:
    for path, entry in wanted.items():
        file = target / path
        found = (
            blob_id(os.fsencode(file.readlink()), entry.blob)
            if entry.mode == "120000"
            else (file_blob_id(file, entry.blob))
        )
        if found != entry.blob:
            raise BuildError(f"{path} was written as {found[:12]}, git has {entry.blob[:12]}")
