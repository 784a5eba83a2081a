"""Builder ``source[:FOLDER]``: a commit built from its own source with the user's build variables.

Each repository has one build folder, so that an incremental build system compiles only what changed. Its tree
is written from git's objects; the user's checkout is not touched.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from perfbisect.common.digests import environment_key
from perfbisect.environments import uv
from perfbisect.environments.base import Environment
from perfbisect.environments.builders.build_tree import BuildTree
from perfbisect.environments.builders.cached import BuildContext, CommitBuilder, median_minutes
from perfbisect.environments.builders.toolchain import (
    build_variables,
    compiler_versions,
    redacted_variables,
    relevant_variables,
    with_precompiled_commit,
)
from perfbisect.environments.cache import CheckedEnvironment
from perfbisect.environments.health import check_commit_environment, create_venv
from perfbisect.environments.source_tree import tree_digests
from perfbisect.environments.spec import Spec
from perfbisect.model.change import Change


class SourceBuilder(CommitBuilder):
    """Builds commits of the project in ``folder`` of the repository."""

    name = "source"

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        folder = spec.argument.strip("/")
        if folder.startswith(("..", "~")) or spec.argument.startswith("/"):
            raise spec.error(
                f"{spec.argument!r} is not a folder inside the repository",
                "name the folder of the project inside the repository, or none; the repository is --repo",
            )
        super().__init__(spec, context, folder=folder.removeprefix("./").strip("."))
        self.variables = build_variables(os.environ, spec.words("env"))
        self.extra = spec.words("with")
        self.whole = spec.flag("whole")
        self.build_tree = BuildTree(
            self.cache.path / "builds",
            self.repository,
            self.folder,
            self.package,
            self.limits,
            self.python,
            whole=self.whole,
            variant=(relevant_variables(self.variables), self._compilers),
        )

    def read_trees(self, shas: Collection[str]) -> dict[str, str | None]:
        return tree_digests(self.repository, shas, self.folder, whole=self.whole)

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
            relevant_variables(self.variables),
            self._compilers,
            self.extra,
            *self.limits.key_parts(),
        )

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        variables = with_precompiled_commit(self.variables, self.package, change.id)
        facts: dict[str, object] = {
            "variables": redacted_variables(variables),
            "ccache": self._ccache or "",
            "compilers": list(self._compilers),
            **self.limits.facts(),
        }

        def make(staging: Path) -> None:
            built = self.build_tree.build_wheel(
                change, variables, ccache=self._ccache, out=staging / "wheel", log=log, timeout=timeout
            )
            facts.update(
                incremental=built.incremental, files_written=built.files_written, wheel=built.wheel.name
            )
            create_venv(
                staging, [str(built.wheel), *self.extra], package=self.package, limits=self.limits,
                python=self.python, log=log, timeout=timeout,
            )  # fmt: skip
            shutil.rmtree(built.wheel.parent)

        def check(folder: Path) -> CheckedEnvironment:
            return check_commit_environment(
                folder, self.package, self.repository, change,
                inside="/".join(filter(None, (self.folder, self.package.folder))),
                what=change.short, facts=facts, log=log, timeout=timeout,
            )  # fmt: skip

        return self.ensure_cached(change, make=make, check=check, timeout=timeout)

    def minutes(self, change: Change) -> float | None:
        if self.cached(change):
            return 0.0
        first, incremental = self._median_minutes()
        return first if not self.build_tree.is_warm or incremental is None else incremental

    def notes(self) -> tuple[str, ...]:
        notes = [f"ccache {self._ccache} keeps compiled files" if self._ccache else "there is no ccache"]
        variables = redacted_variables(relevant_variables(self.variables))
        if variables:
            notes.append("built with " + " ".join(f"{name}={value}" for name, value in variables.items()))
        first, incremental = self._median_minutes()
        if first is not None and incremental is not None:
            notes.append(f"a first build took {first:.1f} min, later ones {incremental:.1f} min")
        return (f"source: {'; '.join(notes)}",)

    def _median_minutes(self) -> tuple[float | None, float | None]:
        """Minutes of a first and of an incremental build."""
        stamps = self.stamps()
        first = [stamp for stamp in stamps if stamp.facts.get("incremental") is False]
        incremental = [stamp for stamp in stamps if stamp.facts.get("incremental") is True]
        return median_minutes(first), median_minutes(incremental)

    @functools.cached_property
    def _compilers(self) -> tuple[str, ...]:
        return compiler_versions(self.variables)

    @functools.cached_property
    def _ccache(self) -> str | None:
        return shutil.which("ccache", path=os.environ.get("PATH"))
