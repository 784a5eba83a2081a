"""Build folder of a project: one source tree and one set of tools, kept from commit to commit."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.common.digests import environment_key
from perfbisect.environments import uv
from perfbisect.environments.build import BuildRun
from perfbisect.environments.cache import exclusive_lock, os_errors_as_machine_errors
from perfbisect.environments.packages import EnginePackage
from perfbisect.environments.source_tree import SyncResult, build_requirements, sync_tree
from perfbisect.errors import BuildError
from perfbisect.model.change import Change
from perfbisect.system.files import replace_file

_KEPT = frozenset({"build", ".deps", "target", "_skbuild"})
"""Folders in which build systems keep intermediate files."""


@dataclass(frozen=True)
class BuiltWheel:
    """A wheel of one commit; ``incremental``: it reused files of an earlier build."""

    wheel: Path
    incremental: bool
    files_written: int


class BuildTree:
    """The build folder of a project: ``tree/``, ``venv/``, and marks of what they contain.

    ``variant``: whatever else makes builds differ (variables, compilers); each variant has its own folder.
    """

    def __init__(
        self,
        root: Path,
        repository: Repository,
        folder: str,
        package: EnginePackage,
        python: str,
        *,
        whole: bool,
        variant: object = None,
    ) -> None:
        self.repository = repository
        self.folder = folder
        self.package = package
        self.python = python
        self.whole = whole
        path = str(repository.path.resolve())
        name = environment_key(path, folder, package.module, python or str(uv.base_python()), whole, variant)
        self.path = root / name
        self.tree = self.path / "tree"
        self._lock = root / ".locks" / f"{name}.lock"
        self._last = self.path / "built"
        """Lists the files of the last build, if it succeeded."""
        self._unfinished = self.path / "building"
        """Exists while a build runs, and after one was killed."""

    @property
    def is_warm(self) -> bool:
        """True if an earlier build finished here, so that the next can be incremental."""
        return self.tree.exists() and not self._unfinished.exists()

    def build_wheel(
        self, build: BuildRun, change: Change, variables: Mapping[str, str], *, out: Path
    ) -> BuiltWheel:
        """Build the wheel of a commit in ``out``.

        An incremental build that fails is repeated from scratch: it may have failed because of old files.

        Raises:
            BuildError: it does not build.
            MachineError: no disk, memory or registry, or another build holds the lock.
        """
        with (
            os_errors_as_machine_errors(f"build in {self.path}"),
            exclusive_lock(self._lock, f"in {self.path}", build.timeout),
        ):
            warm = self.is_warm
            if not warm:  # a killed build may leave truncated files that look new
                shutil.rmtree(self.path, ignore_errors=True)
            try:
                return self._build(build, change, variables, warm, out)
            except BuildError as error:
                if not warm:
                    raise
                build.note(f"# {error.message}\n# again, from scratch")
            shutil.rmtree(self.path)
            return self._build(build, change, variables, False, out)

    def _build(
        self, build: BuildRun, change: Change, variables: Mapping[str, str], warm: bool, out: Path
    ) -> BuiltWheel:
        before = self._last.read_text().splitlines() if self._last.exists() else None
        self._last.unlink(missing_ok=True)
        self.path.mkdir(parents=True, exist_ok=True)
        self._unfinished.touch()
        synced = sync_tree(
            self.tree, self.repository, change.id, self.folder, whole=self.whole, keep=_is_kept
        )
        gone = None if before is None else [path for path in before if path not in synced.paths]
        self._remove_stale(synced, gone)
        interpreter = self._install_tools(build)
        shutil.rmtree(out, ignore_errors=True)
        try:
            wheel = uv.build_wheel(build, self.tree, interpreter, out=out, variables=variables)
        except BuildError:
            self._unfinished.unlink()
            raise
        replace_file(self._last, "".join(f"{path}\n" for path in sorted(synced.paths)))
        self._unfinished.unlink()
        return BuiltWheel(wheel, warm, len(synced.written))

    def _remove_stale(self, synced: SyncResult, gone: Sequence[str] | None) -> None:
        """Remove files from setuptools' folders that it would pack although the commit does not have them.

        Compiled files stay if only the package's Python changed: setuptools does not notice changed headers.
        ``gone``: files of the last build that the commit does not have; None if the last build failed.
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

    def _install_tools(self, build: BuildRun) -> Path:
        """Interpreter with the build requirements, at one path for all commits: build files contain paths."""
        wanted = build_requirements(self.tree)
        mark, venv = self.path / "tools", self.path / "venv"
        key = environment_key(wanted, build.limits.key_parts(), self.package.drop)
        interpreter = venv / "bin" / "python"
        if mark.is_file() and mark.read_text() == key and interpreter.exists():
            return interpreter
        mark.unlink(missing_ok=True)
        shutil.rmtree(venv, ignore_errors=True)
        uv.create(build, venv, self.python)
        if wanted:
            uv.install(build, interpreter, wanted, self.package, folder=self.path)
        mark.write_text(key)
        return interpreter


def _is_kept(path: str) -> bool:
    return path.partition("/")[0] in _KEPT
