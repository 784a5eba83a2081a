"""Builder ``existing:INTERPRETER``: builds nothing, and checks that the engine is the change."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.common.digests import environment_key, text_digest
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.builders.cached import BuildContext, CachedBuilder
from perfbisect.environments.builders.release import check_version
from perfbisect.environments.cache import CheckedEnvironment, EnvironmentCache, stamped_environment, variables
from perfbisect.environments.health import ImportedEngine, LocatedEngine, import_engine, locate_engine
from perfbisect.environments.packages import EnginePackage
from perfbisect.environments.spec import Spec
from perfbisect.environments.uv import freeze_packages
from perfbisect.errors import BuildError, PerfbisectError
from perfbisect.model.change import Change


class InterpreterBase:
    """A user's interpreter as the base of overlays: read, never written."""

    def __init__(self, interpreter: Path, package: EnginePackage, cache: EnvironmentCache) -> None:
        self.interpreter = interpreter
        self.package = package
        self.cache = cache
        self.what = str(interpreter)

    @functools.cached_property
    def packages(self) -> str:
        return freeze_packages(self.interpreter, log=self._log)

    @functools.cached_property
    def located(self) -> LocatedEngine:
        return locate_engine(self.interpreter, self.package.module, env={"PYTHONPATH": ""}, log=self._log)

    @functools.cached_property
    def _key(self) -> str:
        return environment_key(
            "interpreter/1",
            str(self.interpreter),
            self.located.python,
            self.packages,
            self.package.module,
            _file_states(self.located.package_folder),
        )

    def key(self) -> str:
        return self._key

    def minutes(self) -> float | None:
        return 0.0

    def disk(self) -> int | None:
        return 0

    def engine(self, *, log: Path, timeout: float) -> tuple[Path, LocatedEngine, str]:
        del log, timeout
        return self.interpreter, self.located, self.packages

    def environment(self, *, log: Path, timeout: float) -> Environment | None:
        """The base without an overlay; None if it has no engine.

        :raises BuildError: its engine does not import.
        """
        if not self.located.file:
            return None

        def check(folder: Path) -> CheckedEnvironment:
            found = import_engine(
                self.interpreter, self.package.module, env=variables(folder), log=log, what=self.what,
                timeout=timeout,
            )  # fmt: skip
            facts = {**found.facts, "packages": self.packages.splitlines(), "base": self.what}
            digest = text_digest(self.packages)
            return CheckedEnvironment(
                self.interpreter, found.version, found.commit, found.file, digest, facts
            )

        stamp, seconds = self.cache.ensure(
            self.key(),
            builder="existing",
            spec=f"existing:{self.interpreter}",
            change="",
            make=lambda _: None,
            check=check,
            timeout=timeout,
        )
        return stamped_environment(stamp, self.cache.folder(self.key()), seconds=seconds)

    @property
    def _log(self) -> Path:
        return self.cache.log(f"interpreter-{text_digest(str(self.interpreter))}")


def _file_states(folder: Path | None) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a package's files, which reveal changes in place."""
    states = []
    for file in sorted(folder.rglob("*")) if folder is not None else ():
        if "__pycache__" not in file.parts and file.is_file():
            status = file.stat()
            states.append((str(file.relative_to(folder or file)), status.st_size, status.st_mtime_ns))
    return states


class ExistingBuilder(CachedBuilder):
    """Imports the engine of an interpreter once, to identify it."""

    name = "existing"

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        super().__init__(spec, context)
        self.interpreter = spec.interpreter()
        path = spec.option("path")
        self.path = Path(path).expanduser().absolute() if path else None
        if self.path is not None and not self.path.is_dir():
            raise spec.error(
                f"no such folder: {self.path}", "path= is the folder that holds the engine's package"
            )
        self.trust = spec.flag("trust")
        self.repository = context.repository
        self._engine: ImportedEngine | None = None

    def refuses(self, change: Change) -> Refusal | None:
        del change  # only importing the engine tells, and that is not cheap
        return None

    def key(self, change: Change) -> str:
        return self._key("existing/1", change.id)

    def _key(self, kind: str, *parts: str) -> str:
        return environment_key(kind, str(self.interpreter), str(self.path or ""), self.package.module, *parts)

    def cached(self, change: Change) -> bool:
        del change
        return True

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        key = self.key(change)
        found = self._import_engine(key, log, timeout)
        return self._environment(key, found, self._identify(change, found, log), change, log, timeout)

    def client(self) -> Environment | None:
        key = self._key("existing client/1")
        log = self.cache.log(key)
        return self._environment(key, self._import_engine(key, log, 900.0), "client", None, log, 900.0)

    def minutes(self, change: Change) -> float | None:
        del change
        return 0.0

    def disk(self, changes: Iterable[Change]) -> int | None:
        del changes
        return 0

    def _import_engine(self, key: str, log: Path, timeout: float) -> ImportedEngine:
        if self._engine is None:
            self._engine = import_engine(
                self.interpreter, self.package.module,
                env=variables(self.cache.folder(key), str(self.path or "")),
                log=log, what=str(self.interpreter), timeout=timeout,
            )  # fmt: skip
        return self._engine

    def _identify(self, change: Change, found: ImportedEngine, log: Path) -> str:
        """What identifies the engine as the change. :raises BuildError: nothing does."""
        if change.kind == "release":
            if not self.trust:
                check_version(found, change.id.partition("==")[2], str(self.interpreter), log)
            return "version"
        checkout = self._checkout(found)
        if checkout is not None:
            head, dirty = checkout
            if head == change.id and not dirty:
                return "checkout"
            actual = f"a checkout at {head[:12]}" + (" with uncommitted changes" if dirty else "")
        elif found.reports_commit(change.id):
            return "engine"
        elif found.commit:
            actual = f"commit {found.commit}"
        else:
            actual = f"version {found.version or '(none)'} of no known commit"
        if self.trust:
            return f"trusted, though it is {actual}"
        checkout_command = (
            f"git -C {self.repository.path if self.repository else 'REPO'} checkout {change.short}"
        )
        raise BuildError(
            f"{self.interpreter}: {self.package.module} ({found.file}) is {actual}, not {change.short}",
            where=log,
            next_step=f"{checkout_command}, or add trust=yes, or build commits: "
            f"overlay:{self.interpreter},base=REV",
        )

    def _checkout(self, found: ImportedEngine) -> tuple[str, bool] | None:
        """HEAD of the checkout that tracks the engine's file, and whether it is dirty; None if none does."""
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
        self,
        key: str,
        found: ImportedEngine,
        identified_by: str,
        change: Change | None,
        log: Path,
        timeout: float,
    ) -> Environment:
        packages = freeze_packages(self.interpreter, log=log)
        facts = {**found.facts, "identified_by": identified_by, "packages": packages.splitlines()}
        commit = change.id if change is not None and change.kind == "commit" else found.commit
        digest = text_digest(packages)
        checked = CheckedEnvironment(self.interpreter, found.version, commit, found.file, digest, facts)
        stamp, seconds = self.cache.ensure(
            key,
            builder=self.name,
            spec=self.spec,
            change=change.id if change else "",
            make=lambda _: None,
            check=lambda _: checked,
            timeout=timeout,
        )
        environment = stamped_environment(
            stamp, self.cache.folder(key), seconds=seconds, python_path=str(self.path or "")
        )
        # The stamp may be of an earlier state of the interpreter.
        return replace(
            environment,
            engine_version=found.version,
            engine_commit=commit,
            engine_file=str(found.file),
            packages_digest=digest,
            facts={"builder": self.name, **facts},
        )
