"""The Python tree of a commit over the compiled files and dependencies of a base: about a second a commit.

Nothing in an engine checks that its Python and its compiled files fit, so this does: a commit is testable if
and only if its compiled sources, build files and requirements equal those of the commit that the base was
built from.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from perfbisect.changes.git import Entry, Repository
from perfbisect.common.digests import blob_id, environment_key, file_blob_id, text_digest
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.cache import (
    Built,
    Cabinet,
    KeptBuilder,
    median_bytes,
    median_minutes,
    unread,
    variables,
)
from perfbisect.environments.health import FOREIGN_SHARE, Probe, health, inside
from perfbisect.environments.packages import Package
from perfbisect.environments.tree_digest import blobs_inside
from perfbisect.environments.uv import interpreter_environment, run
from perfbisect.errors import BuildError, RevisionError
from perfbisect.model.change import Change

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


_TREE = "tree"
_MINUTES = 0.2
_BYTES = 50_000_000
"""What the first overlay is taken to cost: its files are links but for those that changed, its import is not
warm. Later ones cost what the first ones did."""


class Base(Protocol):
    """What an overlay lies over: an interpreter with compiled files and dependencies."""

    what: str

    def key(self) -> str: ...

    def cached(self) -> bool: ...

    def minutes(self) -> float | None: ...

    def disk(self) -> int | None: ...

    def engine(self, *, log: Path, timeout: float) -> tuple[Path, Probe, str]:
        """Interpreter, where its engine is, its packages; built if it is not there."""
        ...

    def environment(self, *, log: Path, timeout: float) -> Environment | None:
        """The base without an overlay; None if it has no engine."""
        ...


class OverlayBuilder(KeptBuilder):
    """``overlay:BASE,base=REV``: the change is a commit of the repository."""

    name = "overlay"

    def __init__(
        self,
        spec: str,
        base: Base,
        package: Package,
        cabinet: Cabinet,
        repository: Repository,
        commit: Change | None,
        any_base: bool,
    ) -> None:
        self.spec = spec
        self.base = base
        self.package = package
        self.cabinet = cabinet
        self.repository = repository
        self.commit = commit
        self.any_base = any_base
        self._trees: dict[str, str | None] = {}
        self._differing: dict[str, tuple[str, ...]] = {}

    def prepare(self, changes: Iterable[Change]) -> None:
        """Look many changes up at once: two git processes in all, instead of two a change."""
        changes = list(changes)
        unknown = unread(changes, self._trees)
        if unknown:
            self._trees |= self.repository.tree_ids(unknown, self.package.folder)
        unknown = unread(changes, self._differing)
        if unknown and self.commit is not None:
            self._differing |= self.repository.differing(self.commit.id, unknown, self.package.pathspecs)

    def refuses(self, change: Change) -> Refusal | None:
        if change.kind != "commit":
            return Refusal(f"{self.spec} makes commits; {change.id} is a release", error=True)
        if self.commit is None and not self.any_base:
            return Refusal(
                f"{self.spec} does not say which commit {self.base.what} was built from: add base=REV "
                "(base=any if nothing in the repository is compiled)",
                error=True,
            )
        try:
            self.prepare((change,))
        except RevisionError as error:
            return Refusal(f"{change.short} cannot be read: {error.message}", error=True)
        if self._trees[change.id] is None:
            return Refusal(f"{change.short} has no folder {self.package.folder}/")
        files = self._differing.get(change.id, ())
        if files and self.commit is not None:
            count = "1 file differs" if len(files) == 1 else f"{len(files)} files differ"
            more = f" and {len(files) - 3} more" if len(files) > 3 else ""
            return Refusal(
                f"needs compiling or other packages than {self.base.what} (built from {self.commit.short}): "
                f"{count}: {', '.join(files[:3])}{more}"
            )
        return None

    def key(self, change: Change) -> str:
        if self.refuses(change) is not None:  # never built, so the same as no other
            return environment_key("overlay refused/1", self.base.key(), change.id)
        return environment_key(
            "overlay/1", self.base.key(), self._trees[change.id], self.package.module, *self._carrying()
        )

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        folder = self.folder_of(change)
        interpreter, looked, packages = self.base.engine(log=log, timeout=timeout)
        tree = folder / _TREE
        written: list[Written] = []

        def make(staging: Path) -> None:
            written.append(self._write(staging / _TREE, change, looked))
            self._compile(interpreter, staging / _TREE, written[0].changed, log, timeout)

        def check(folder: Path) -> Built:
            found = health(
                interpreter,
                self.package.module,
                env=variables(folder, str(tree)),
                log=log,
                what=change.short,
                timeout=timeout,
            )
            if not inside(found.file, tree):
                raise BuildError(f"{change.short}: imported {found.file}, which is not in {tree}", where=log)
            facts = {
                **found.facts,
                "packages": packages.splitlines(),
                "base": self.base.what,
                "base_commit": self.commit.id if self.commit else "any",
                "tree": self._trees[change.id],
                "engine_says_commit": found.commit,
                "files_linked": written[0].linked,
                "files_changed": len(written[0].changed),
                "files_carried": list(written[0].carried),
                "files_dropped": written[0].dropped,
            }
            return Built(interpreter, found.version, change.id, found.file, text_digest(packages), facts)

        return self.kept(change, make=make, check=check, timeout=timeout, python_path=str(tree))

    def client(self) -> Environment | None:
        return self.base.environment(log=self.cabinet.log(self.base.key()), timeout=3600.0)

    def minutes(self, change: Change) -> float | None:
        if self.cached(change):
            return 0.0
        below = self.base.minutes()
        each = median_minutes(self.stamps())
        return None if below is None else below + (_MINUTES if each is None else each)

    def disk(self, changes: Iterable[Change]) -> int | None:
        missing = self.missing(changes)
        if not missing:
            return 0
        below = self.base.disk()
        each = median_bytes(self.stamps())
        return None if below is None else below + len(missing) * (_BYTES if each is None else each)

    def _carrying(self) -> tuple[str, ...]:
        """What decides which of the base's files are carried in."""
        if self.commit is None:
            return ("any",)
        self.prepare((self.commit,))
        return (str(self._trees[self.commit.id]),)

    @functools.cached_property
    def _tracked_at_base(self) -> dict[str, str] | None:
        """Path inside the package -> object name, at the base's commit."""
        if self.commit is None:
            return None
        return blobs_inside(self.repository, self.commit.id, self.package.folder)

    def _write(self, tree: Path, change: Change, looked: Probe) -> Written:
        base = None
        if looked.package_folder is not None:
            base = installed(looked.package_folder, looked.tag, change.id)
            self._check_base(base)
        return write_tree(
            tree / self.package.folder,
            repository=self.repository,
            entries=self.repository.entries(change.id, self.package.folder),
            package=self.package.folder,
            base=base,
            tracked_at_base=self._tracked_at_base,
            generated=self.package.generated,
        )

    def _check_base(self, base: Installed) -> None:
        """:raises BuildError: the base is not what its commit says."""
        tracked = self._tracked_at_base
        if tracked is None or self.commit is None:
            return
        shared = [path for path, blob in base.blobs.items() if blob and path in tracked]
        foreign = [path for path in shared if base.blobs[path] != tracked[path]]
        if len(foreign) > FOREIGN_SHARE * max(len(shared), 1) or (tracked and not shared):
            raise BuildError(
                f"{self.base.what} was not built from {self.commit.short}: "
                f"{len(foreign)} of {len(shared)} files differ"
                + (f", among them {', '.join(sorted(foreign)[:3])}" if foreign else ""),
                next_step="name the commit it was built from: base=REV",
            )

    def _compile(
        self, interpreter: Path, tree: Path, changed: Iterable[str], log: Path, timeout: float
    ) -> None:
        """Byte code for what changed; a file that does not compile is left to the import."""
        files = [str(tree / self.package.folder / path) for path in changed if path.endswith(".py")]
        if not files:
            return
        listed = tree.parent / "changed.txt"
        listed.write_text("".join(f"{file}\n" for file in files))
        argv = [str(interpreter), "-I", "-m", "compileall", "-q", "-i", str(listed)]
        run(argv, env=interpreter_environment(interpreter), cwd=tree.parent, log=log, timeout=timeout)
