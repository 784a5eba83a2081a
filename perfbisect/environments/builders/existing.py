"""Builder ``existing:INTERPRETER``: builds nothing, and checks that the engine is the change."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.common.digests import environment_key, text_digest
from perfbisect.environments import uv
from perfbisect.environments.base import Builder, Environment, Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import CLIENT_TIMEOUT_S, BuildContext
from perfbisect.environments.cache import variables
from perfbisect.environments.health import (
    ImportedEngine,
    LocatedEngine,
    check_version,
    import_engine,
    locate_engine,
)
from perfbisect.environments.packages import engine
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError, PerfbisectError
from perfbisect.model.change import Change


class ExistingBuilder(Builder):
    """Imports the engine of an interpreter once, to identify it."""

    name = "existing"

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        self.spec = spec.text
        package = engine(spec.option("package", "vllm"))
        self.module, self.server = package.module, package.server
        self.cache = context.cache
        self.repository = context.repository
        self.interpreter = spec.interpreter()
        path = spec.option("path")
        self.path = Path(path).expanduser().absolute() if path else None
        if self.path is not None and not self.path.is_dir():
            next_step = "path= is the folder that holds the engine's package"
            raise spec.error(f"no such folder: {self.path}", next_step)
        self.trust = spec.flag("trust")
        self._engine: ImportedEngine | None = None

    def refuses(self, change: Change) -> Refusal | None:
        # Only importing the engine shows what it is, and that is not cheap.
        del change
        return None

    def key(self, change: Change) -> str:
        return self._key("existing/1", change.id)

    def _key(self, kind: str, *parts: str) -> str:
        return environment_key(kind, str(self.interpreter), str(self.path or ""), self.module, *parts)

    def cached(self, change: Change) -> bool:
        del change
        return True

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        build, key = BuildRun(log, timeout), self.key(change)
        found = self._import_engine(build, key)
        identified_by = self._identify(build, change, found)
        commit = change.id if change.kind == "commit" else found.commit
        return self._environment(build, key, change.id, found, commit, identified_by)

    def client(self) -> Environment | None:
        return self._client(self._key("existing client/1"))

    def _client(self, key: str) -> Environment:
        """The environment of the engine as it is, whatever commit it may be."""
        build = BuildRun(self.cache.log(key), CLIENT_TIMEOUT_S)
        found = self._import_engine(build, key)
        return self._environment(build, key, "", found, found.commit, "client")

    def _import_engine(self, build: BuildRun, key: str) -> ImportedEngine:
        if self._engine is None:
            env = variables(self.cache.folder(key), str(self.path or ""))
            what = str(self.interpreter)
            self._engine = import_engine(
                build, self.interpreter, self.module, server=self.server, env=env, what=what
            )
        return self._engine

    def _identify(self, build: BuildRun, change: Change, found: ImportedEngine) -> str:
        """What identifies the engine as the change; raises BuildError if nothing does."""
        if change.kind == "release":
            if not self.trust:
                check_version(build, found, change.id.partition("==")[2], str(self.interpreter))
            return "version"
        checkout = None
        with suppress(PerfbisectError, ValueError):
            repository = Repository.open(found.file.parent)
            head_id = repository.head().id
            inside = found.file.resolve().relative_to(repository.path.resolve())
            # A file that git does not track says nothing of the checkout around it.
            if repository.tree_id(head_id, inside.as_posix()) is not None:
                checkout = head_id, repository.is_dirty(inside.parent.as_posix())
        if checkout is not None:
            head, dirty = checkout
            if head == change.id and not dirty:
                return "checkout"
            actual = f"a checkout at {head[:12]}" + (" with uncommitted changes" if dirty else "")
        elif len(found.stated_commit) >= 7 and change.id.startswith(found.stated_commit):
            return "engine"
        elif found.commit:
            actual = f"commit {found.commit}"
        else:
            actual = f"version {found.version or '(none)'} of no known commit"
        if self.trust:
            return f"trusted, though it is {actual}"
        path = self.repository.path if self.repository else "REPO"
        raise BuildError(
            f"{self.interpreter}: {self.module} ({found.file}) is {actual}, not {change.short}",
            where=build.log,
            next_step=f"git -C {path} checkout {change.short}, or add trust=yes, or build commits: "
            f"overlay:{self.interpreter},base=REV",
        )

    def _environment(
        self, build: BuildRun, key: str, change: str, found: ImportedEngine, commit: str, identified_by: str
    ) -> Environment:
        packages = uv.list_packages(build, self.interpreter, with_origin=True)
        path = (self.path,) if self.path else ()
        checked = found.checked(commit, packages, {"identified_by": identified_by}, *path)
        environment = self.cache.ensure(
            key,
            builder=self.name,
            spec=self.spec,
            change=change,
            make=lambda _: {},
            check=lambda _: checked,
            timeout=build.timeout,
        )
        # The stamp may be of an earlier state of the interpreter.
        return replace(
            environment,
            engine_version=found.version,
            engine_commit=commit,
            engine_file=str(found.file),
            packages_digest=checked.packages_digest,
            facts={"builder": self.name, **checked.facts},
        )


class InterpreterBase(ExistingBuilder):
    """A user's interpreter as the base of overlays: read, never written; its engine is not imported."""

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        super().__init__(spec, context)
        self.spec = f"existing:{self.interpreter}"
        log = self.cache.log(f"interpreter-{text_digest(str(self.interpreter))}")
        self._build = BuildRun(log, CLIENT_TIMEOUT_S)

    @cached_property
    def _packages(self) -> list[str]:
        return uv.list_packages(self._build, self.interpreter, with_origin=True)

    @cached_property
    def _located(self) -> LocatedEngine:
        return locate_engine(self._build, self.interpreter, self.module, {"PYTHONPATH": ""})

    @cached_property
    def _state(self) -> str:
        """Names, sizes and times of the package's files are part of it: they reveal changes in place."""
        located, files = self._located, []
        if (folder := located.folder) is not None:
            for file in sorted(folder.rglob("*")):
                if "__pycache__" not in file.parts and file.is_file():
                    status = file.stat()
                    files.append((str(file.relative_to(folder)), status.st_size, status.st_mtime_ns))
        packages = "".join(f"{line}\n" for line in self._packages)
        parts = (str(self.interpreter), located.python, packages, self.module, files)
        return environment_key("interpreter/1", *parts)

    def key(self, change: Change) -> str:
        del change
        return self._state

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        del change, log, timeout
        return Environment(
            key=self._state,
            interpreter=self.interpreter,
            folder=self.cache.folder(self._state),
            env={"PYTHONPATH": ""},
            engine_file=self._located.file,
            packages_digest=text_digest("".join(f"{line}\n" for line in self._packages)),
            facts={"packages": self._packages},
        )

    def client(self) -> Environment | None:
        return self._client(self._state) if self._located.file else None


builder = ExistingBuilder
