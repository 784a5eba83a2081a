"""Builder ``overlay:BASE,base=REV``: a commit's Python tree over a base's compiled files and packages.

It takes about a second a commit. An engine does not check that its Python and compiled files fit, so a
commit is refused unless its compiled sources, build files and requirements equal those of the base's commit.
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

from perfbisect.changes.git import Repository, TreeEntry
from perfbisect.common.digests import environment_key, file_blob_id, text_digest
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.builders.cached import (
    BuildContext,
    CommitBuilder,
    median_bytes,
    median_minutes,
    unknown_commits,
)
from perfbisect.environments.builders.existing import InterpreterBase
from perfbisect.environments.builders.release import ReleaseBase, ReleaseBuilder
from perfbisect.environments.cache import CheckedEnvironment
from perfbisect.environments.health import FOREIGN_SHARE, LocatedEngine, import_own_engine
from perfbisect.environments.packages import package
from perfbisect.environments.source_tree import blobs_inside, verify_files, write_files
from perfbisect.environments.spec import Spec
from perfbisect.environments.uv import interpreter_environment, run
from perfbisect.errors import BuildError
from perfbisect.model.change import Change

_BYTE_CODE = "__pycache__"
_BINARY = (".so", ".pyd", ".bin", ".cubin", ".hsaco")


@dataclass(frozen=True)
class InstalledPackage:
    """Files of a base's package folder: path inside it -> git object name."""

    folder: Path
    blobs: Mapping[str, str]
    tag: str
    """Tag of byte code: ``cpython-311``."""


@dataclass(frozen=True)
class OverlayFiles:
    """Files of an overlay; ``changed`` differ from the base's."""

    linked: int
    changed: tuple[str, ...]
    carried: tuple[str, ...]
    """In the base's package but not in git: compiled and generated files."""
    dropped: int
    """Number of files in the base but not in this commit."""


def read_installed(folder: Path, tag: str, like: str) -> InstalledPackage:
    """Read a base's package folder; ``like``: any object name of the repository, for its hash."""
    blobs = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != _BYTE_CODE)
        for name in files:
            file = Path(parent) / name
            if not name.endswith(".pyc"):
                blobs[file.relative_to(folder).as_posix()] = (
                    "" if _is_binary(name) else file_blob_id(file, like)
                )
    return InstalledPackage(folder, blobs, tag)


def write_tree(
    target: Path,
    *,
    repository: Repository,
    entries: Collection[TreeEntry],
    package: str,
    base: InstalledPackage | None,
    tracked_at_base: Collection[str] | None,
    generated: Collection[str],
) -> OverlayFiles:
    """Write a commit's package folder to ``target``; ``entries``: its files, ``package``: the folder in git.

    ``tracked_at_base``: paths inside the package at the base's commit; the base's other files are carried
    over. None if that commit is unknown: then binary files and those with ``generated`` names are.

    :raises BuildError: the tree has a submodule, or a written file differs from git's.
    """
    wanted: dict[str, TreeEntry] = {}
    for entry in entries:
        if entry.mode == "160000":
            raise BuildError(f"{entry.path} is a submodule, which an overlay cannot hold")
        wanted[str(PurePosixPath(entry.path).relative_to(package))] = entry
    base_blobs = base.blobs if base is not None else {}
    same = [
        path
        for path, entry in wanted.items()
        if entry.mode != "120000" and base_blobs.get(path) == entry.blob
    ]
    linked = set(same)
    carried = [
        path for path in base_blobs if path not in wanted and _is_carried(path, tracked_at_base, generated)
    ]
    for parent in sorted({PurePosixPath(path).parent for path in (*wanted, *carried)}):
        (target / parent).mkdir(parents=True, exist_ok=True)
    if base is not None:
        for path in (*same, *carried):
            _link(base.folder / path, target / path)
            _link_byte_code(base, target, path)
    changed = [path for path in wanted if path not in linked]
    write_files(target, repository, {path: wanted[path] for path in changed})
    verify_files(target, wanted)
    dropped = sum(1 for path in base_blobs if path not in wanted and path not in set(carried))
    return OverlayFiles(len(same), tuple(changed), tuple(sorted(carried)), dropped)


def _is_binary(name: str) -> bool:
    return name.endswith(_BINARY) or ".so." in name


def _is_carried(path: str, tracked: Collection[str] | None, generated: Collection[str]) -> bool:
    if tracked is not None:
        return path not in tracked
    name = PurePosixPath(path).name
    return _is_binary(name) or any(fnmatch.fnmatch(name, pattern) for pattern in generated)


def _link(source: Path, target: Path) -> None:
    """Hard link, or else copy with the same time, so that byte code stays valid."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _link_byte_code(base: InstalledPackage, target: Path, path: str) -> None:
    if not path.endswith(".py"):
        return
    inside = PurePosixPath(path)
    compiled = inside.parent / _BYTE_CODE / f"{inside.stem}.{base.tag}.pyc"
    if (base.folder / compiled).exists():
        (target / compiled.parent).mkdir(exist_ok=True)
        _link(base.folder / compiled, target / compiled)


_TREE = "tree"
_FIRST_MINUTES = 0.2
_FIRST_BYTES = 50_000_000
"""Estimated cost of the first overlay; the cost of later ones is measured."""


class Base(Protocol):
    """What an overlay lies over: an interpreter with compiled files and dependencies."""

    what: str

    def key(self) -> str: ...

    def minutes(self) -> float | None: ...

    def disk(self) -> int | None: ...

    def engine(self, *, log: Path, timeout: float) -> tuple[Path, LocatedEngine, str]:
        """Interpreter, location of its engine, and packages; built if it is missing."""
        ...

    def environment(self, *, log: Path, timeout: float) -> Environment | None:
        """The base without an overlay; None if it has no engine."""
        ...


class OverlayBuilder(CommitBuilder):
    """Builds commits over a base: a release (``NAME==VERSION``) or a user's interpreter."""

    name = "overlay"

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        module = spec.option("package")
        self.base: Base
        if "==" in spec.argument:
            requirement = spec.requirement("NAME==VERSION")
            pins = list(requirement.specifier)
            if len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version or requirement.marker:
                raise spec.error(f"the base {spec.argument!r} is not one version", "write NAME==VERSION")
            name = package(requirement.name, module).name
            options = {key: spec.options[key] for key in ("package", "python") if key in spec.options}
            release = ReleaseBuilder(Spec(f"release:{name}", "release", name, options), context)
            super().__init__(spec, context, release.package)
            self.base = ReleaseBase(release, pins[0].version)
        else:
            super().__init__(spec, context)
            self.base = InterpreterBase(spec.interpreter(), self.package, self.cache)
        revision = spec.option("base")
        self.any_base = revision == "any"
        self.commit = self.repository.resolve(revision) if revision not in ("", "any") else None
        self._differing: dict[str, tuple[str, ...]] = {}

    def prepare(self, changes: Iterable[Change]) -> None:
        """Look up many changes with two git processes in all."""
        changes = list(changes)
        super().prepare(changes)
        unknown = unknown_commits(changes, self._differing)
        if unknown and self.commit is not None:
            self._differing |= self.repository.differing(self.commit.id, unknown, self.package.pathspecs)

    def refuses(self, change: Change) -> Refusal | None:
        if change.kind == "commit" and self.commit is None and not self.any_base:
            return Refusal(
                f"{self.spec} does not say which commit {self.base.what} was built from: add base=REV "
                "(base=any if nothing in the repository is compiled)",
                error=True,
            )
        refusal = super().refuses(change)
        if refusal is not None:
            return refusal
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
        if self.refuses(change) is not None:  # never built: equal to no other key
            return environment_key("overlay refused/1", self.base.key(), change.id)
        return environment_key(
            "overlay/1",
            self.base.key(),
            self._trees[change.id],
            self.package.module,
            self._base_tree(),
        )

    def _base_tree(self) -> str:
        """The tree that decides which of the base's files are carried over."""
        if self.commit is None:
            return "any"
        self.prepare((self.commit,))
        return str(self._trees[self.commit.id])

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        folder = self.folder_of(change)
        interpreter, located, packages = self.base.engine(log=log, timeout=timeout)
        tree = folder / _TREE
        facts: dict[str, object] = {}

        def make(staging: Path) -> None:
            written = self._write(staging / _TREE, change, located)
            facts.update(
                files_linked=written.linked,
                files_changed=len(written.changed),
                files_carried=list(written.carried),
                files_dropped=written.dropped,
            )
            self._compile(interpreter, staging / _TREE, written.changed, log, timeout)

        def check(folder: Path) -> CheckedEnvironment:
            found = import_own_engine(
                folder, self.package, what=change.short, log=log, timeout=timeout, interpreter=interpreter,
                tree=tree,
            )  # fmt: skip
            stamped = {
                **found.facts,
                "packages": packages.splitlines(),
                "base": self.base.what,
                "base_commit": self.commit.id if self.commit else "any",
                "tree": self._trees[change.id],
                "engine_says_commit": found.commit,
                **facts,
            }
            digest = text_digest(packages)
            return CheckedEnvironment(interpreter, found.version, change.id, found.file, digest, stamped)

        return self.ensure_cached(change, make=make, check=check, timeout=timeout, python_path=str(tree))

    def client(self) -> Environment | None:
        return self.base.environment(log=self.cache.log(self.base.key()), timeout=3600.0)

    def minutes(self, change: Change) -> float | None:
        if self.cached(change):
            return 0.0
        base = self.base.minutes()
        return None if base is None else base + (median_minutes(self.stamps()) or _FIRST_MINUTES)

    def disk(self, changes: Iterable[Change]) -> int | None:
        missing = self.missing(changes)
        base = self.base.disk() if missing else 0
        each = median_bytes(self.stamps()) or _FIRST_BYTES
        return None if base is None else base + len(missing) * each

    @functools.cached_property
    def _tracked_at_base(self) -> dict[str, str] | None:
        """Path inside the package -> object name, at the base's commit; None if that is unknown."""
        if self.commit is None:
            return None
        return blobs_inside(self.repository, self.commit.id, self.package.folder)

    def _write(self, tree: Path, change: Change, located: LocatedEngine) -> OverlayFiles:
        base = None
        if located.package_folder is not None:
            base = read_installed(located.package_folder, located.tag, change.id)
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

    def _check_base(self, base: InstalledPackage) -> None:
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
        """Compile changed files to byte code; the import reports those that do not compile."""
        files = [str(tree / self.package.folder / path) for path in changed if path.endswith(".py")]
        if not files:
            return
        listed = tree.parent / "changed.txt"
        listed.write_text("".join(f"{file}\n" for file in files))
        argv = [str(interpreter), "-I", "-m", "compileall", "-q", "-i", str(listed)]
        run(argv, env=interpreter_environment(interpreter), cwd=tree.parent, log=log, timeout=timeout)
