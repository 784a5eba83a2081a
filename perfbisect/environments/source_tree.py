"""Reads and writes a commit's source tree: digests, version, declared requirements, files."""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from packaging.version import InvalidVersion, Version

from perfbisect.changes.git import Repository, TreeEntry
from perfbisect.common.digests import blob_id, environment_key, file_blob_id, text_digest
from perfbisect.errors import BuildError

_NOT_BUILT = frozenset({
    "docs", "doc", "tests", "test", "examples", "benchmarks", "mkdocs.yaml", "mkdocs.yml", "support_matrices",
})  # fmt: skip
_PAGES_AND_TABLES = (".md", ".rst", ".csv")

_LEFT_BY_BUILDS = frozenset({"build", "dist", "__pycache__"})

_LONGEST_ARRAY = 20_000
_MOST_BRACKETS = 100
"""Characters of an array, and brackets that may close it."""


def is_built(path: str) -> bool:
    """False for documentation, tables, tests and CI, by the first part of the path."""
    first = path.partition("/")[0]
    return first not in _NOT_BUILT and not first.startswith(".") and not first.endswith(_PAGES_AND_TABLES)


def project_digest(path: Path) -> str:
    """Digest of a file, or of a folder without what git, Python and builds leave in it."""
    rows = []
    for file in sorted(path.rglob("*")) if path.is_dir() else (path,):
        inside = file.relative_to(path)
        left = any(part in _LEFT_BY_BUILDS or part.startswith(".") for part in inside.parts)
        if file.is_file() and not left and not any(part.endswith(".egg-info") for part in inside.parts):
            rows.append((inside.as_posix(), text_digest(file.read_bytes())))
    return environment_key(rows)


def tree_rows(data: bytes, width: int) -> Iterator[tuple[str, str]]:
    """Rows of a git tree object: name, and mode with object name. ``width``: bytes of a hash."""
    at = 0
    while at < len(data):
        space, zero = data.index(b" ", at), data.index(b"\0", at)
        mode, name = data[at:space].decode(), data[space + 1 : zero].decode(errors="surrogateescape")
        at = zero + 1 + width
        yield name, f"{mode} {data[zero + 1 : at].hex()}"


def version_at(repository: Repository, sha: str) -> str:
    """The version of a build of a commit, guessed from its nearest tag as setuptools-scm does.

    Five commits after ``v1.2.3``: ``1.2.4.dev5+gSHA``; after ``v1.2.3rc1``: ``1.2.3rc2.dev5+gSHA``.
    """
    done = repository.run("describe", "--tags", "--long", "--abbrev=12", sha)
    described = done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""
    match = re.match(r"^(.*)-(\d+)-g[0-9a-f]+$", described)
    local = f"g{sha[:12]}"
    if match is None:
        return f"0.1.dev0+{local}"
    try:
        tag = Version(match[1].rpartition("/")[2])
    except InvalidVersion:
        return f"0.1.dev{match[2]}+{local}"
    if match[2] == "0":
        return str(tag)
    after = ".".join(map(str, (*tag.release[:-1], tag.release[-1] + 1)))
    if tag.pre is not None:
        after = f"{tag.base_version}{tag.pre[0]}{tag.pre[1] + 1}"
    return f"{after}.dev{match[2]}+{local}"


def toml_strings(text: str, table: str, key: str) -> tuple[str, ...] | None:
    """An array of strings in a table of a ``pyproject.toml``; None if it is not there.

    Python 3.10 has no TOML parser; an array of plain strings, comments included, is a Python list.
    """
    section = re.search(
        rf"^\[{re.escape(table)}\]\s*$(?P<body>.*?)(?=^\[[^\]\n]+\]\s*$|\Z)", text, re.MULTILINE | re.DOTALL
    )
    start = re.search(rf"^\s*{key}\s*=\s*(?=\[)", section["body"], re.MULTILINE) if section else None
    array = section["body"][start.end() :] if section and start else ""
    array = array[:_LONGEST_ARRAY]
    ends = (index + 1 for index, letter in enumerate(array) if letter == "]")
    for end in islice(ends, _MOST_BRACKETS):
        try:
            return tuple(str(word) for word in ast.literal_eval(array[:end]))
        except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
            continue
    return None


@dataclass(frozen=True)
class SyncResult:
    """All paths of a tree, those that were written because they differed, and those that were removed."""

    paths: frozenset[str]
    written: tuple[str, ...]
    removed: tuple[str, ...]


def sync_tree(
    target: Path,
    repository: Repository,
    sha: str,
    folder: str = "",
    *,
    whole: bool = True,
    keep: Callable[[str], bool] = lambda _: False,
) -> SyncResult:
    """Make ``target`` hold exactly a commit's files below ``folder``, compared with git's objects.

    ``keep``: True for paths in ``target`` that git does not have and that stay (a build folder).

    Raises:
        BuildError: a submodule, a link that leads out, or git returned other bytes.
    """
    wanted = files_inside(repository, sha, folder)
    if not whole:
        wanted = {path: entry for path, entry in wanted.items() if is_built(path)}
    for path, entry in wanted.items():
        if entry.mode == "160000":
            raise BuildError(f"{path} is a submodule, which cannot be written from this repository")
    target.mkdir(parents=True, exist_ok=True)
    removed = tuple(_remove_others(target, wanted, keep))
    missing = {}
    for path, entry in wanted.items():
        file, is_link = target / path, entry.mode == "120000"
        is_same_kind = file.is_symlink() == is_link and (is_link or file.is_file())
        is_same_mode = is_link or os.access(file, os.X_OK) == (entry.mode == "100755")
        if not (is_same_kind and is_same_mode and _blob_on_disk(file, entry) == entry.blob):
            missing[path] = entry
    write_files(target, repository, missing)
    return SyncResult(frozenset(wanted), tuple(missing), removed)


def files_inside(repository: Repository, sha: str, folder: str) -> dict[str, TreeEntry]:
    prefix = len(folder) + 1 if folder else 0
    return {entry.path[prefix:]: entry for entry in repository.entries(sha, folder)}


def blobs_inside(repository: Repository, sha: str, folder: str) -> dict[str, str]:
    """Path inside a folder -> object name, of a commit's files."""
    return {path: entry.blob for path, entry in files_inside(repository, sha, folder).items()}


def _remove_others(
    target: Path, wanted: Mapping[str, TreeEntry], keep: Callable[[str], bool]
) -> Iterator[str]:
    parents = {parent.as_posix() for path in wanted for parent in Path(path).parents}
    for here, folders, files in os.walk(target):
        inside = Path(here).relative_to(target)
        for name in list(folders):
            path = (inside / name).as_posix()
            is_link = (target / path).is_symlink()
            if keep(path) or (is_link and path in wanted):
                folders.remove(name)
            elif is_link or path not in parents:
                folders.remove(name)
                yield path
                (target / path).unlink() if is_link else shutil.rmtree(target / path)
        for name in files:
            path = (inside / name).as_posix()
            if path not in wanted and not keep(path):
                yield path
                (target / path).unlink()


def _blob_on_disk(file: Path, entry: TreeEntry) -> str:
    if entry.mode == "120000":
        return blob_id(os.fsencode(file.readlink()), entry.blob)
    return file_blob_id(file, entry.blob)


def write_files(target: Path, repository: Repository, entries: Mapping[str, TreeEntry]) -> None:
    """Replace files by git's and compare them; path inside ``target`` -> entry."""
    paths: dict[str, list[str]] = {}
    for path, entry in entries.items():
        file = target / path
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        else:
            file.unlink(missing_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        paths.setdefault(entry.blob, []).append(path)
    found = ((path, data) for blob, data in repository.contents(paths) for path in paths[blob])
    for path, data in found:
        file, entry = target / path, entries[path]
        if entry.mode == "120000":
            destination = os.fsdecode(data)
            inside = Path(os.path.normpath(file.parent / destination)).is_relative_to(target)
            if not inside or Path(destination).is_absolute():
                message = f"{path} is a symbolic link out of the package, to {destination}"
                raise BuildError(message)
            file.symlink_to(destination)
        else:
            file.write_bytes(data)
            if entry.mode == "100755":
                file.chmod(0o755)
        written = _blob_on_disk(file, entry)
        if written != entry.blob:
            raise BuildError(f"{path} was written as {written[:12]}, git has {entry.blob[:12]}")
