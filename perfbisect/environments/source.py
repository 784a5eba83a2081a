"""A commit built from its own source: its work tree, uv, and the user's build variables.

One build folder a repository is used again and again, so that a build system that can builds only what
changed. Its tree is written from git's objects; the user's checkout is not touched.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from perfbisect.core.change import Change
from perfbisect.environments import Environment, Refusal, uv
from perfbisect.environments.base import Built, Cabinet, as_environment
from perfbisect.environments.experience import bytes_of, earlier, median_minutes
from perfbisect.environments.identity import check_commit
from perfbisect.environments.keys import digest, text_digest
from perfbisect.environments.packages import Package
from perfbisect.environments.parts import blobs_inside, tree_digests
from perfbisect.environments.toolchain import compilers, of_commit, shown, that_count
from perfbisect.environments.venv import PACKAGES_FILE, fill, look
from perfbisect.environments.workshop import Workshop
from perfbisect.errors import BuildError
from perfbisect.system.git import Repository


class SourceBuilder:
    """``source[:FOLDER]``: the change is a commit; ``folder`` of the repository holds the project."""

    name = "source"

    def __init__(
        self,
        spec: str,
        folder: str,
        package: Package,
        cabinet: Cabinet,
        limits: uv.Limits,
        python: str,
        repository: Repository,
        variables: Mapping[str, str],
        extra: tuple[str, ...] = (),
        whole: bool = False,
        client: Change | None = None,
    ) -> None:
        self.spec = spec
        self.folder = folder
        self.package = package
        self.cabinet = cabinet
        self.limits = limits
        self.python = python
        self.repository = repository
        self.variables = variables
        self.extra = extra
        self.whole = whole
        self.client_commit = client
        self.workshop = Workshop(
            cabinet.cache / "builds",
            repository,
            folder,
            package,
            limits,
            python,
            whole=whole,
            way=(that_count(variables), self._compilers),
        )
        self._trees: dict[str, str | None] = {}

    def prepare(self, changes: Iterable[Change]) -> None:
        shas = [change.id for change in changes if change.kind == "commit"]
        unknown = [sha for sha in shas if sha not in self._trees]
        if unknown:
            self._trees |= tree_digests(self.repository, unknown, self.folder, whole=self.whole)

    def refuses(self, change: Change) -> Refusal | None:
        if change.kind != "commit":
            return Refusal(f"{self.spec} builds commits; {change.id} is a release", error=True)
        self.prepare((change,))
        if self._trees[change.id] is None:
            return Refusal(f"{change.short} has no folder {self.folder}/")
        return None

    def key(self, change: Change) -> str:
        self.prepare((change,))
        return digest(
            "source/1",
            self.package.name,
            self.package.module,
            self.package.drop,
            self.folder,
            self.whole,
            self._trees[change.id] or change.id,
            self.python or uv.base_python_version(),
            that_count(self.variables),
            self._compilers,
            self.extra,
            *self.limits.digested(),
        )

    def cached(self, change: Change) -> bool:
        return self.cabinet.stamp(self.key(change)) is not None

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        refusal = self.refuses(change)
        if refusal is not None:
            raise BuildError(f"{change.short}: {refusal.reason}")
        key = self.key(change)
        variables = of_commit(self.variables, self.package, change.id)
        facts: dict[str, object] = {}

        def make(staging: Path) -> None:
            made = self.workshop.build(
                change, variables, ccache=self._ccache, out=staging / "wheel", log=log, timeout=timeout
            )
            facts.update(
                incremental=made.incremental, files_written=made.files_written, wheel=made.wheel.name
            )
            fill(
                staging,
                [str(made.wheel), *self.extra],
                package=self.package,
                limits=self.limits,
                python=self.python,
                log=log,
                timeout=timeout,
            )
            shutil.rmtree(made.wheel.parent)

        def check(folder: Path) -> Built:
            found = look(folder, self.package, what=change.short, log=log, timeout=timeout)
            inside = "/".join(filter(None, (self.folder, self.package.folder)))
            tracked = blobs_inside(self.repository, change.id, inside)
            facts["identified_by"] = check_commit(found, change.id, tracked, what=change.short, log=log)
            packages = (folder / PACKAGES_FILE).read_text()
            facts.update(
                found.facts,
                packages=packages.splitlines(),
                variables=shown(variables),
                ccache=self._ccache or "",
                compilers=list(self._compilers),
                **self.limits.facts(),
            )
            interpreter = folder / "venv" / "bin" / "python"
            return Built(
                interpreter, found.version, change.id, found.file, text_digest(packages), dict(facts)
            )

        stamp, seconds = self.cabinet.ensure(
            key, builder=self.name, spec=self.spec, change=change.id, make=make, check=check, timeout=timeout
        )
        ours = stamp.model_copy(update={"engine_commit": change.id})
        return as_environment(ours, self.cabinet.folder(key), seconds=seconds)

    def client(self) -> Environment | None:
        if self.client_commit is None:
            return None
        log = self.cabinet.log(self.key(self.client_commit))
        return self.ensure(self.client_commit, log=log, timeout=3600.0)

    def minutes(self, change: Change) -> float | None:
        if self.cached(change):
            return 0.0
        first, later = self._prices()
        return first if not self.workshop.warm or later is None else later

    def notes(self) -> tuple[str, ...]:
        told = [f"ccache {self._ccache} keeps compiled files" if self._ccache else "there is no ccache"]
        counting = shown(that_count(self.variables))
        if counting:
            told.append("built with " + " ".join(f"{name}={value}" for name, value in counting.items()))
        first, later = self._prices()
        if first is not None and later is not None:
            told.append(f"a first build took {first:.1f} min, later ones {later:.1f} min")
        return (f"source: {'; '.join(told)}",)

    def disk(self, changes: Iterable[Change]) -> int | None:
        missing = {
            self.key(change) for change in changes if self.refuses(change) is None and not self.cached(change)
        }
        return bytes_of(earlier(self.cabinet, self.name, self.spec), missing)

    def _prices(self) -> tuple[float | None, float | None]:
        """Minutes of a first build and of a later one."""
        stamps = earlier(self.cabinet, self.name, self.spec)
        first = median_minutes(stamps, lambda stamp: stamp.facts.get("incremental") is False)
        later = median_minutes(stamps, lambda stamp: stamp.facts.get("incremental") is True)
        return first, later

    @functools.cached_property
    def _compilers(self) -> tuple[str, ...]:
        return compilers(self.variables)

    @functools.cached_property
    def _ccache(self) -> str | None:
        return shutil.which("ccache", path=os.environ.get("PATH"))
