"""Where a repository is built: one tree and one set of tools, kept from commit to commit under a lock."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfbisect.changes.git import Entry, Repository
from perfbisect.common.digests import environment_key
from perfbisect.environments import uv
from perfbisect.environments.builders.nearest import version_at
from perfbisect.environments.builders.overlay import holds, write_files
from perfbisect.environments.builders.toolchain import build_requirements, with_ccache
from perfbisect.environments.cache import alone, told_as_machine
from perfbisect.environments.packages import Package
from perfbisect.environments.tree_digest import matching
from perfbisect.environments.uv import append
from perfbisect.errors import BuildError
from perfbisect.model.change import Change
from perfbisect.system.files import replace_file


@dataclass(frozen=True)
class Synced:
    """Paths that were written because they differed, and paths that were removed."""

    written: tuple[str, ...]
    removed: tuple[str, ...]


def sync(
    target: Path,
    *,
    repository: Repository,
    entries: Collection[Entry],
    folder: str = "",
    keep: Callable[[str], bool] = lambda _: False,
) -> Synced:
    """Make ``target`` hold a commit's ``entries`` (those below ``folder`` of the repository) and no more.

    ``keep``: relative path of a file or folder that git does not have -> True if it stays (a build folder).

    :raises BuildError: a submodule is among them, a link leads out, or git gave other bytes.
    """
    cut = len(folder) + 1 if folder else 0
    wanted = {entry.path[cut:]: entry for entry in entries}
    for path, entry in wanted.items():
        if entry.mode == "160000":
            raise BuildError(f"{path} is a submodule, which cannot be written from this repository")
    target.mkdir(parents=True, exist_ok=True)
    removed = _remove_others(target, wanted, keep)
    missing = {path: entry for path, entry in wanted.items() if not holds(target / path, entry)}
    for path in missing:
        place = target / path
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
    write_files(target, repository, missing)
    return Synced(tuple(missing), removed)


def _remove_others(target: Path, wanted: Mapping[str, Entry], keep: Callable[[str], bool]) -> tuple[str, ...]:
    parents = {parent.as_posix() for path in wanted for parent in Path(path).parents}
    removed = []
    for here, folders, files in os.walk(target):
        inside = Path(here).relative_to(target)
        for name in list(folders):
            path = (inside / name).as_posix()
            link = (target / path).is_symlink()
            if keep(path) or (link and path in wanted):
                folders.remove(name)
            elif link or path not in parents:
                folders.remove(name)
                removed.append(path)
                (target / path).unlink() if link else shutil.rmtree(target / path)
        for name in files:
            path = (inside / name).as_posix()
            if path not in wanted and not keep(path):
                removed.append(path)
                (target / path).unlink()
    return tuple(removed)


_KEPT = frozenset({"build", ".deps", "target", "_skbuild"})
"""Folders of a project in which build systems keep what they can use again."""
_PRETEND = "SETUPTOOLS_SCM_PRETEND_VERSION"


@dataclass(frozen=True)
class Made:
    """A wheel of one commit; ``incremental``: what an earlier build left was used."""

    wheel: Path
    incremental: bool
    files_written: int


class Workshop:
    """The build folder of one project, built one way: ``tree/``, ``venv/``, and marks of what is in them.

    ``way``: what else makes two builds unlike (variables, compilers); each has a folder of its own.
    """

    def __init__(
        self,
        root: Path,
        repository: Repository,
        folder: str,
        package: Package,
        limits: uv.Limits,
        python: str,
        *,
        whole: bool,
        way: object = None,
    ) -> None:
        self.repository = repository
        self.folder = folder
        self.package = package
        self.limits = limits
        self.python = python or str(uv.base_python())
        self.whole = whole
        path = str(repository.path.resolve())
        self.name = environment_key(path, folder, package.module, self.python, whole, way)
        self.place = root / self.name
        self.lock = root / ".locks" / f"{self.name}.lock"

    @property
    def tree(self) -> Path:
        return self.place / "tree"

    @property
    def warm(self) -> bool:
        """True if an earlier build here came to an end, so that the next may use what it left."""
        return self.tree.exists() and not self._unfinished.exists()

    def build(
        self, change: Change, variables: Mapping[str, str], *, ccache: str | None, out: Path, log: Path,
        timeout: float,
    ) -> Made:  # fmt: skip
        """A wheel of a commit in ``out``.

        What fails on top of an earlier build is built once more from nothing: an old build must not be held
        against the commit.

        :raises BuildError: it does not build.
        :raises MachineError: no disk, no memory, no registry, or another build here held the lock.
        """
        with told_as_machine(f"build in {self.place}"), alone(self.lock, f"in {self.place}", timeout):
            warm = self.warm
            if not warm:  # a build that was killed may leave half a file that looks new
                shutil.rmtree(self.place, ignore_errors=True)
            try:
                return self._build(change, variables, warm, ccache, out, log, timeout)
            except BuildError as error:
                if not warm:
                    raise
                append(log, f"# {error.message}\n# once more, from nothing")
            shutil.rmtree(self.place)
            return self._build(change, variables, False, ccache, out, log, timeout)

    def _build(
        self, change: Change, variables: Mapping[str, str], warm: bool, ccache: str | None, out: Path,
        log: Path, timeout: float,
    ) -> Made:  # fmt: skip
        entries = matching(self.repository.entries(change.id, self.folder), self.folder, self.whole)
        before = self._last.read_text().splitlines() if self._last.exists() else None
        self._last.unlink(missing_ok=True)
        self.place.mkdir(parents=True, exist_ok=True)
        self._unfinished.touch()
        synced = sync(
            self.tree, repository=self.repository, entries=entries, folder=self.folder, keep=_is_kept
        )
        now = {entry.path.removeprefix(f"{self.folder}/") for entry in entries}
        self._forget(synced, None if before is None else [path for path in before if path not in now])
        interpreter = self._tools(log, timeout)
        shutil.rmtree(out, ignore_errors=True)
        given = {
            _PRETEND: version_at(self.repository, change.id),
            **with_ccache(variables, ccache, cmake=(self.tree / "CMakeLists.txt").exists()),
        }
        try:
            wheel = uv.build_wheel(
                self.tree, interpreter, out=out, variables=given, ceiling=self.place, log=log, timeout=timeout
            )
        except BuildError:
            self._unfinished.unlink()
            raise
        replace_file(self._last, "".join(f"{path}\n" for path in sorted(now)))
        self._unfinished.unlink()
        return Made(wheel, warm, len(synced.written))

    def _forget(self, synced: Synced, gone: Sequence[str] | None) -> None:
        """Remove from setuptools' folders what would be packed though the commit does not have it.

        Compiled files there stay if nothing but the package's Python has changed since they were made:
        setuptools does not see a changed header. Build systems with folders of their own do. ``gone``: files
        of the last build that the commit does not have; None if the last build failed.
        """
        compiled = [path for path in synced.removed if path.endswith(".so")]
        python_only = gone is not None and all(
            path.startswith(f"{self.package.folder}/") and path.endswith(".py")
            for path in (*synced.written, *gone, *compiled)
        )
        build = self.tree / "build"
        for library in (*build.glob("lib*"), *build.glob("bdist*")):
            if not python_only:
                shutil.rmtree(library)
                continue
            for file in library.rglob("*"):
                if file.is_file() and file.suffix != ".so":
                    file.unlink()

    def _tools(self, log: Path, timeout: float) -> Path:
        """The interpreter with what the build needs, at one path for all commits: build files hold paths."""
        wanted = build_requirements(self.tree)
        mark, venv = self.place / "tools", self.place / "venv"
        told = environment_key(wanted, self.limits.digested(), self.package.drop)
        interpreter = venv / "bin" / "python"
        if mark.is_file() and mark.read_text() == told and interpreter.exists():
            return interpreter
        mark.unlink(missing_ok=True)
        shutil.rmtree(venv, ignore_errors=True)
        uv.create(venv, python=self.python, log=log, timeout=timeout)
        if wanted:
            uv.install(
                interpreter,
                wanted,
                limits=self.limits,
                drop=self.package.drop,
                torch_backend=self.package.torch_backend,
                folder=self.place,
                log=log,
                timeout=timeout,
            )
        mark.write_text(told)
        return interpreter

    @property
    def _last(self) -> Path:
        """The files of the last build, if it succeeded."""
        return self.place / "built"

    @property
    def _unfinished(self) -> Path:
        """There while a build is under way, and where one was killed."""
        return self.place / "building"


def _is_kept(path: str) -> bool:
    return path.partition("/")[0] in _KEPT
