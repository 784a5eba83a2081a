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

from perfbisect.changes.git import Repository
from perfbisect.common.digests import environment_key
from perfbisect.environments import uv
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.builders.build_tree import Workshop
from perfbisect.environments.builders.toolchain import compilers, of_commit, shown, that_count
from perfbisect.environments.cache import Built, Cabinet, KeptBuilder, median_minutes, unread
from perfbisect.environments.health import check_built, fill
from perfbisect.environments.packages import Package
from perfbisect.environments.tree_digest import tree_digests
from perfbisect.model.change import Change


class SourceBuilder(KeptBuilder):
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
        unknown = unread(changes, self._trees)
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
        return environment_key(
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

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
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
            how = {
                **facts,
                "variables": shown(variables),
                "ccache": self._ccache or "",
                "compilers": list(self._compilers),
                **self.limits.facts(),
            }
            return check_built(
                folder, self.package, self.repository, change,
                inside="/".join(filter(None, (self.folder, self.package.folder))),
                what=change.short, facts=how, log=log, timeout=timeout,
            )  # fmt: skip

        return self.kept(change, make=make, check=check, timeout=timeout)

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

    def _prices(self) -> tuple[float | None, float | None]:
        """Minutes of a first build and of a later one."""
        stamps = self.stamps()
        first = median_minutes(stamps, lambda stamp: stamp.facts.get("incremental") is False)
        later = median_minutes(stamps, lambda stamp: stamp.facts.get("incremental") is True)
        return first, later

    @functools.cached_property
    def _compilers(self) -> tuple[str, ...]:
        return compilers(self.variables)

    @functools.cached_property
    def _ccache(self) -> str | None:
        return shutil.which("ccache", path=os.environ.get("PATH"))
