"""Builder ``source[:FOLDER]``: a commit built from its own source with the user's build variables.

Each repository has one build folder, so that an incremental build system compiles only what changed. Its tree
is written from git's objects; the user's checkout is not touched.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfbisect.environments import uv
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.build_tree import BuildTree
from perfbisect.environments.builders.cached import BuildContext, CommitBuilder, median_minutes
from perfbisect.environments.builders.toolchain import (
    build_variables,
    compiler_versions,
    relevant_variables,
    with_ccache,
    with_precompiled_commit,
)
from perfbisect.environments.cache import CheckedEnvironment
from perfbisect.environments.source_tree import version_at
from perfbisect.environments.spec import Spec
from perfbisect.model.change import Change
from perfbisect.system import environ


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
        whole = spec.flag("whole")
        super().__init__(spec, context, folder=folder.removeprefix("./").strip("."), whole=whole)
        self.variables = build_variables(os.environ, spec.words("env"))
        self.extra = spec.words("with")
        self._compilers = compiler_versions(self.variables)
        self._ccache = shutil.which("ccache", path=os.environ.get("PATH"))
        self.build_tree = BuildTree(
            self.cache.path / "builds",
            self.repository,
            self.folder,
            self.package,
            self.python,
            whole=whole,
            variant=(relevant_variables(self.variables), self._compilers),
        )

    def key_parts(self, change: Change) -> tuple[object, ...]:
        return (
            self.folder,
            self.whole,
            self.trees[change.id],
            relevant_variables(self.variables),
            self._compilers,
            self.extra,
            *self.install_parts(),
        )

    def make(self, build: BuildRun, change: Change, staging: Path) -> Mapping[str, Any]:
        variables = with_precompiled_commit(self.variables, self.package, change.id)
        version = {"SETUPTOOLS_SCM_PRETEND_VERSION": version_at(self.repository, change.id)}
        given = version | with_ccache(variables, self._ccache, cmake=self._uses_cmake(change))
        built = self.build_tree.build_wheel(build, change, given, out=staging / "wheel")
        requirements = [str(built.wheel), *self.extra]
        uv.create_venv(build, staging, requirements, self.package, python=self.python)
        shutil.rmtree(built.wheel.parent)
        return {
            "variables": environ.redacted(variables),
            "ccache": self._ccache or "",
            "compilers": list(self._compilers),
            "incremental": built.incremental,
            "files_written": built.files_written,
            "wheel": built.wheel.name,
            **self.limits.facts(),
        }

    def check(self, build: BuildRun, change: Change, folder: Path) -> CheckedEnvironment:
        inside = "/".join(filter(None, (self.folder, self.package.folder)))
        return self.check_commit(build, change, folder, inside=inside)

    def minutes(self, change: Change) -> float | None:
        if self.cached(change):
            return 0.0
        first, incremental = self._median_minutes()
        return first if not self.build_tree.is_warm or incremental is None else incremental

    def notes(self) -> tuple[str, ...]:
        notes = [f"ccache {self._ccache} keeps compiled files" if self._ccache else "there is no ccache"]
        variables = environ.redacted(relevant_variables(self.variables))
        if variables:
            notes.append("built with " + " ".join(f"{name}={value}" for name, value in variables.items()))
        first, incremental = self._median_minutes()
        if first is not None and incremental is not None:
            notes.append(f"a first build took {first:.1f} min, later ones {incremental:.1f} min")
        return (f"source: {'; '.join(notes)}",)

    def _uses_cmake(self, change: Change) -> bool:
        path = f"{self.folder}/CMakeLists.txt".lstrip("/")
        return self.repository.tree_id(change.id, path) is not None

    def _median_minutes(self) -> tuple[float | None, float | None]:
        """Minutes of a first and of an incremental build."""
        stamps = self.stamps()
        first = [stamp for stamp in stamps if stamp.facts.get("incremental") is False]
        incremental = [stamp for stamp in stamps if stamp.facts.get("incremental") is True]
        return median_minutes(first), median_minutes(incremental)
