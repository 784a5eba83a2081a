"""An interpreter as it is: nothing is built, but its engine must be the change that is asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.common.digests import environment_key, text_digest
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.builders.release import same_version
from perfbisect.environments.cache import Built, Cabinet, as_environment, variables
from perfbisect.environments.health import Health, Probe, health, probe
from perfbisect.environments.packages import Package
from perfbisect.environments.uv import freeze
from perfbisect.errors import BuildError, PerfbisectError
from perfbisect.model.change import Change


class InterpreterBase:
    """Compiled files and dependencies for overlays, from a user's interpreter: read, never written."""

    def __init__(self, interpreter: Path, package: Package, cabinet: Cabinet) -> None:
        self.interpreter = interpreter
        self.package = package
        self.cabinet = cabinet
        self.what = str(interpreter)

    @functools.cached_property
    def packages(self) -> str:
        """What is installed in it."""
        return freeze(self.interpreter, log=self._log)

    @functools.cached_property
    def looked(self) -> Probe:
        return probe(self.interpreter, self.package.module, env={"PYTHONPATH": ""}, log=self._log)

    @functools.cached_property
    def _key(self) -> str:
        return environment_key(
            "interpreter/1",
            str(self.interpreter),
            self.looked.python,
            self.packages,
            self.package.module,
            _listing(self.looked.package_folder),
        )

    def key(self) -> str:
        return self._key

    def cached(self) -> bool:
        return True

    def minutes(self) -> float | None:
        return 0.0

    def disk(self) -> int | None:
        return 0

    def engine(self, *, log: Path, timeout: float) -> tuple[Path, Probe, str]:
        """Interpreter, what it has, and its packages."""
        del log, timeout
        return self.interpreter, self.looked, self.packages

    def environment(self, *, log: Path, timeout: float) -> Environment | None:
        """The base without an overlay; None if it has no engine of its own.

        :raises BuildError: its engine does not import.
        """
        if not self.looked.file:
            return None

        def check(folder: Path) -> Built:
            found = health(
                self.interpreter,
                self.package.module,
                env=variables(folder),
                log=log,
                what=self.what,
                timeout=timeout,
            )
            facts = {**found.facts, "packages": self.packages.splitlines(), "base": self.what}
            return Built(
                self.interpreter, found.version, found.commit, found.file, text_digest(self.packages), facts
            )

        stamp, seconds = self.cabinet.ensure(
            self.key(),
            builder="existing",
            spec=f"existing:{self.interpreter}",
            change="",
            make=lambda _: None,
            check=check,
            timeout=timeout,
        )
        return as_environment(stamp, self.cabinet.folder(self.key()), seconds=seconds)

    @property
    def _log(self) -> Path:
        return self.cabinet.log(f"interpreter-{text_digest(str(self.interpreter))}")


def _listing(folder: Path | None) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a package's files: what tells that somebody has changed it in place."""
    if folder is None:
        return []
    found = []
    for file in sorted(folder.rglob("*")):
        if "__pycache__" not in file.parts and file.is_file():
            status = file.stat()
            found.append((str(file.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return found


class ExistingBuilder:
    """``existing:INTERPRETER``: the engine is imported once in the life of the builder, to see what it is."""

    name = "existing"

    def __init__(
        self,
        spec: str,
        interpreter: Path,
        package: Package,
        cabinet: Cabinet,
        repository: Repository | None,
        path: Path | None,
        trust: bool,
    ) -> None:
        self.spec = spec
        self.interpreter = interpreter
        self.package = package
        self.cabinet = cabinet
        self.repository = repository
        self.path = path
        self.trust = trust
        self._health: Health | None = None

    def prepare(self, changes: Iterable[Change]) -> None:
        """Nothing to look up."""

    def refuses(self, change: Change) -> Refusal | None:
        del change  # only the engine itself can tell, and importing it is not cheap
        return None

    def key(self, change: Change) -> str:
        return environment_key(
            "existing/1", str(self.interpreter), str(self.path or ""), self.package.module, change.id
        )

    def cached(self, change: Change) -> bool:
        del change
        return True

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        key = self.key(change)
        folder = self.cabinet.folder(key)
        found = self._look(folder, log, timeout)
        told = self._is(change, found, log)
        return self._environment(key, found, told, change, log, timeout)

    def client(self) -> Environment | None:
        key = environment_key(
            "existing client/1", str(self.interpreter), str(self.path or ""), self.package.module
        )
        log = self.cabinet.log(key)
        found = self._look(self.cabinet.folder(key), log, 900.0)
        return self._environment(key, found, "client", None, log, 900.0)

    def minutes(self, change: Change) -> float | None:
        del change
        return 0.0

    def notes(self) -> tuple[str, ...]:
        return ()

    def disk(self, changes: Iterable[Change]) -> int | None:
        del changes
        return 0

    def _look(self, folder: Path, log: Path, timeout: float) -> Health:
        if self._health is None:
            env = variables(folder, str(self.path or ""))
            self._health = health(
                self.interpreter,
                self.package.module,
                env=env,
                log=log,
                what=str(self.interpreter),
                timeout=timeout,
            )
        return self._health

    def _is(self, change: Change, found: Health, log: Path) -> str:
        """What showed that the engine is the change. :raises BuildError: nothing did."""
        if change.kind == "release":
            if not self.trust:
                same_version(found, change.id.partition("==")[2], str(self.interpreter), log)
            return "version"
        checkout = self._checkout(found)
        if checkout is not None:
            head, dirty = checkout
            if head == change.id and not dirty:
                return "checkout"
            shown = f"a checkout at {head[:12]}" + (" with uncommitted changes" if dirty else "")
        elif found.says_commit(change.id):
            return "engine"
        elif found.commit:
            shown = f"commit {found.commit}"
        else:
            shown = f"version {found.version or '(none)'} of no known commit"
        if self.trust:
            return f"trusted, though it is {shown}"
        next_step = f"git -C {self.repository.path if self.repository else 'REPO'} checkout {change.short}"
        raise BuildError(
            f"{self.interpreter}: {self.package.module} ({found.file}) is {shown}, not {change.short}",
            where=log,
            next_step=f"{next_step}, or add trust=yes, or build commits: overlay:{self.interpreter},base=REV",
        )

    def _checkout(self, found: Health) -> tuple[str, bool] | None:
        """HEAD, and whether it is dirty, of the checkout that tracks the engine's file; None if none does."""
        try:
            repository = Repository.open(found.file.parent)
            head = repository.head()
            inside = found.file.resolve().relative_to(repository.path.resolve())
            if repository.tree_id(head.id, inside.as_posix()) is None:
                return None
            return head.id, repository.is_dirty(inside.parent.as_posix())
        except (PerfbisectError, ValueError):
            return None

    def _environment(
        self, key: str, found: Health, told: str, change: Change | None, log: Path, timeout: float
    ) -> Environment:
        packages = freeze(self.interpreter, log=log)
        facts = {**found.facts, "identified_by": told, "packages": packages.splitlines()}
        commit = change.id if change is not None and change.kind == "commit" else found.commit
        built = Built(self.interpreter, found.version, commit, found.file, text_digest(packages), facts)
        stamp, seconds = self.cabinet.ensure(
            key,
            builder=self.name,
            spec=self.spec,
            change=change.id if change else "",
            make=lambda _: None,
            check=lambda _: built,
            timeout=timeout,
        )
        # What was found now counts; the stamp may be of an earlier look at the same interpreter.
        now = stamp.model_copy(
            update={
                "engine_version": found.version,
                "engine_commit": commit,
                "engine_file": str(found.file),
                "packages_digest": built.packages_digest,
                "facts": facts,
            }
        )
        return as_environment(
            now, self.cabinet.folder(key), seconds=seconds, python_path=str(self.path or "")
        )
