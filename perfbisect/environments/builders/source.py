"""Builder ``source[:FOLDER]``: a commit built from its own source with the user's build variables.

Each repository has one build folder, so that an incremental build system compiles only what changed. Its tree
is written from git's objects; the user's checkout is not touched.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfbisect.common.digests import environment_key
from perfbisect.common.secret_references import SECRET_REFUSED, literal_secrets
from perfbisect.environments import uv
from perfbisect.environments.base import BuildPrice, Environment
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import (
    BuildContext,
    CachedBuilder,
    CommitTree,
    CommitTrees,
    Installation,
    Recipe,
    median_minutes,
)
from perfbisect.environments.cache import exclusive_lock, os_errors_as_machine_errors
from perfbisect.environments.packages import EnginePackage
from perfbisect.environments.source_tree import SyncResult, build_requirements, sync_tree, version_at
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError, UsageError
from perfbisect.model.change import Change
from perfbisect.redaction import redacted
from perfbisect.system.commands import capture
from perfbisect.system.files import replace_file

_NAMES = frozenset({
    "CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "PKG_CONFIG_PATH", "CUDAHOSTCXX", "CUDAARCHS", "RUSTFLAGS",
    "TORCH_CUDA_ARCH_LIST", "PYTORCH_ROCM_ARCH", "PYTORCH_NVCC", "FORCE_CUDA", "USE_CUDA", "ROCM_PATH",
    "ACL_ROOT_DIR", "DEEPGEMM_PYTHON_INTERPRETERS", "TORCH_NIGHTLY", "VLLM_DOCKER_BUILD_CONTEXT",
    "VLLM_ROCM_WHEEL_INDEX", "VLLM_CPU_AVX2", "VLLM_CPU_AVX512",
    "VLLM_TARGET_DEVICE", "VLLM_MAIN_CUDA_VERSION", "VLLM_USE_PRECOMPILED", "VLLM_USE_PRECOMPILED_RUST",
    "VLLM_REQUIRE_RUST_FRONTEND", "VLLM_VERSION_OVERRIDE", "VLLM_SKIP_PRECOMPILED_VERSION_SUFFIX",
    "VLLM_CUTLASS_SRC_DIR", "VLLM_FLASH_ATTN_SRC_DIR", "DEEPGEMM_SRC_DIR", "FLASH_KDA_SRC_DIR",
    "FLASH_MLA_SRC_DIR", "FMHA_SM100_SRC_DIR", "QUTLASS_SRC_DIR", "TML_FA4_SRC_DIR", "TRITON_KERNELS_SRC_DIR",
    "VLLM_PYTHON_EXECUTABLE", "VLLM_CPU_DISABLE_AVX512", "VLLM_CPU_AVX512BF16", "VLLM_CPU_AVX512VNNI",
    "VLLM_CPU_AMXBF16", "VLLM_CPU_ARM_BF16", "VLLM_CPU_ARM_I8MM", "VLLM_CPU_RVV_BF16", "VLLM_CPU_X86",
    "VLLM_OMNI_TARGET_DEVICE", "VLLM_OMNI_VERSION_OVERRIDE",
})  # fmt: skip
_PREFIXES = ("CMAKE_", "SETUPTOOLS_SCM_PRETEND_VERSION", "VLLM_PRECOMPILED_", "CARGO_BUILD_", "FETCHCONTENT_")
_SPEED = frozenset({
    "MAX_JOBS", "NVCC_THREADS", "MAKEFLAGS", "NINJAFLAGS", "VERBOSE", "CARGO_HOME", "VLLM_DISABLE_SCCACHE",
})  # fmt: skip
_SPEED_PREFIXES = ("CCACHE_", "SCCACHE_", "CMAKE_BUILD_PARALLEL_")
"""Variables that affect the speed of a build, not its result; they are in no key."""


def build_variables(shell: Mapping[str, str], named: Sequence[str] = ()) -> dict[str, str]:
    """Variables of ``shell`` that control builds, and those named: ``NAME`` or ``NAME=VALUE``."""
    prefixes = (*_PREFIXES, *_SPEED_PREFIXES)
    known = {
        name: value
        for name, value in shell.items()
        if name in _NAMES or name in _SPEED or name.startswith(prefixes)
    }
    for word in named:
        name, equals, value = word.partition("=")
        if any(literal_secrets({name: value})):
            message, allowed = f"--env env={name}=...: {SECRET_REFUSED}", f"env={name}, with {name} set"
            raise UsageError(message, next_step=allowed)
        if equals or name in shell:
            known[name] = value if equals else shell[name]
    return known


def relevant_variables(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(variables.items())
        if name not in _SPEED and not name.startswith(_SPEED_PREFIXES)
    }


def with_precompiled_commit(variables: Mapping[str, str], package: EnginePackage, sha: str) -> dict[str, str]:
    """Add the commit whose compiled files the build downloads, unless the user set one."""
    if package.precompiled is not None:
        _, commit, *alternatives = package.precompiled
        # Without the commit, a build takes the compiled files of the latest nightly.
        if is_precompiled(variables, package) and not {commit, *alternatives} & set(variables):
            return {**variables, commit: sha}
    return dict(variables)


def is_precompiled(variables: Mapping[str, str], package: EnginePackage) -> bool:
    """Whether the build downloads compiled files."""
    if package.precompiled is None:
        return False
    values = (value for name, value in variables.items() if name.startswith(package.precompiled[0]))
    return any(value.lower() not in ("", "0", "false", "no") for value in values)


def compiler_versions(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Version line of each installed compiler."""
    commands = (variables.get("CC", "cc"), variables.get("CXX", "c++"), "nvcc")
    lines = []
    for command in commands:
        words = [*command.split(), "--version"]
        if shutil.which(words[0]) is None:
            continue
        done = capture(words, 60.0)
        versions = [line.strip() for line in done.stdout.splitlines() if re.search(r"\d+\.\d+", line)]
        lines += versions[:1]
    return tuple(lines)


def with_ccache(variables: Mapping[str, str], ccache: str | None, *, cmake: bool) -> dict[str, str]:
    """Add CMake's compiler launchers, or names of compilers; variables that the user set win."""
    if ccache is None:
        return dict(variables)
    if cmake:
        added = {f"CMAKE_{language}_COMPILER_LAUNCHER": ccache for language in ("C", "CXX", "CUDA")}
    else:
        added = {"CC": f"{ccache} cc", "CXX": f"{ccache} c++"}
    return {**added, **variables}


_KEPT = frozenset({"build", ".deps", "target", "_skbuild"})
"""Folders in which build systems keep intermediate files."""


@dataclass(frozen=True)
class BuildTree:
    """A project's build folder: ``tree/``, ``venv/``, and marks of what they contain."""

    path: Path
    trees: CommitTrees
    installation: Installation

    @property
    def tree(self) -> Path:
        return self.path / "tree"

    @property
    def _last(self) -> Path:
        """Lists the files of the last build, if it succeeded."""
        return self.path / "built"

    @property
    def _unfinished(self) -> Path:
        """Exists while a build runs, and after one was killed."""
        return self.path / "building"

    @property
    def is_warm(self) -> bool:
        """True if an earlier build finished here, so that the next can be incremental."""
        return self.tree.exists() and not self._unfinished.exists()

    def build_wheel(
        self, build: BuildRun, change: Change, variables: Mapping[str, str], *, out: Path
    ) -> tuple[Path, dict[str, Any]]:
        """Build the wheel of a commit in ``out``; returns it, and facts of its build.

        An incremental build that fails is repeated from scratch: it may have failed because of old files.
        """
        lock = self.path.parent / ".locks" / f"{self.path.name}.lock"
        with (
            os_errors_as_machine_errors(f"build in {self.path}"),
            exclusive_lock(lock, f"in {self.path}", build.timeout),
        ):
            warm = self.is_warm
            if not warm:
                # A killed build may leave truncated files that look new.
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
    ) -> tuple[Path, dict[str, Any]]:
        before = self._last.read_text().splitlines() if self._last.exists() else None
        self._last.unlink(missing_ok=True)
        self.path.mkdir(parents=True, exist_ok=True)
        self._unfinished.touch()
        synced = sync_tree(
            self.tree,
            self.trees.repository,
            change.id,
            self.trees.folder,
            whole=bool(self.trees.whole),
            keep=lambda path: path.partition("/")[0] in _KEPT,
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
        return wheel, {"incremental": warm, "files_written": len(synced.written), "wheel": wheel.name}

    def _remove_stale(self, synced: SyncResult, gone: Sequence[str] | None) -> None:
        """Remove files from setuptools' folders that it would pack although the commit does not have them.

        Compiled files stay if only the package's Python changed: setuptools does not notice changed headers.
        ``gone``: files of the last build that the commit does not have; None if the last build failed.
        """
        compiled = [path for path in synced.removed if path.endswith(".so")]
        python_only = gone is not None and all(
            path.startswith(f"{self.installation.package.folder}/") and path.endswith(".py")
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
        key = environment_key(wanted, build.limits.key_parts(), self.installation.package.drop)
        interpreter = venv / "bin" / "python"
        if mark.is_file() and mark.read_text() == key and interpreter.exists():
            return interpreter
        mark.unlink(missing_ok=True)
        shutil.rmtree(venv, ignore_errors=True)
        uv.create(build, venv, self.installation.python)
        if wanted:
            uv.install(build, interpreter, wanted, self.installation.package, folder=self.path)
        mark.write_text(key)
        return interpreter


_COMPILED_MIN, _PYTHON_MIN = (40.0, 15.0), (4.0, 2.0)
"""Guesses for a first and an incremental build, with and without compiling: one of vLLM takes 20 to 60."""


@dataclass(frozen=True)
class SourceSettings:
    installation: Installation
    trees: CommitTrees
    variables: Mapping[str, str]
    compilers: tuple[str, ...]
    ccache: str | None
    build_tree: BuildTree


def builder(spec: Spec, context: BuildContext) -> CachedBuilder[SourceSettings, CommitTree]:
    """The builder of commits of the project in a folder of the repository."""
    folder = spec.argument.strip("/")
    if folder.startswith(("..", "~")) or spec.argument.startswith("/"):
        raise spec.error(
            f"{spec.argument!r} is not a folder inside the repository",
            "name the folder of the project inside the repository, or none; the repository is --repo",
        )
    whole = spec.flag("whole")
    installation = Installation.of(spec, context)
    repository = context.required_repository(spec)
    trees = CommitTrees(repository, folder.removeprefix("./").strip("."), whole)
    client = trees.client(spec)
    variables = build_variables(os.environ, spec.words("env"))
    compilers = compiler_versions(variables)
    name = environment_key(
        str(repository.path.resolve()), trees.folder, installation.package.module,
        installation.python or str(uv.base_python()), whole,
        (relevant_variables(variables), compilers),
    )  # fmt: skip
    settings = SourceSettings(
        installation,
        trees,
        variables,
        compilers,
        shutil.which("ccache", path=os.environ.get("PATH")),
        BuildTree(context.cache.path / "builds" / name, trees, installation),
    )
    return CachedBuilder(RECIPE, spec.text, context, settings, client=client)


def key_parts(settings: SourceSettings, commit: CommitTree) -> tuple[object, ...]:
    return (
        settings.trees.folder,
        settings.trees.whole,
        commit.tree,
        relevant_variables(settings.variables),
        settings.compilers,
        *settings.installation.key_parts(),
    )


def make(settings: SourceSettings, commit: CommitTree, build: BuildRun, staging: Path) -> Mapping[str, Any]:
    installation, repository, sha = settings.installation, settings.trees.repository, commit.change.id
    variables = with_precompiled_commit(settings.variables, installation.package, sha)
    version = {"SETUPTOOLS_SCM_PRETEND_VERSION": version_at(repository, sha)}
    cmake = repository.tree_id(sha, f"{settings.trees.folder}/CMakeLists.txt") is not None
    given = version | with_ccache(variables, settings.ccache, cmake=cmake)
    wheel, facts = settings.build_tree.build_wheel(build, commit.change, given, out=staging / "wheel")
    installation.create_venv(build, staging, [str(wheel)])
    shutil.rmtree(wheel.parent)
    return {
        "variables": redacted(variables),
        "ccache": settings.ccache or "",
        "compilers": list(settings.compilers),
        **facts,
        **installation.limits.facts(),
    }


def check(settings: SourceSettings, commit: CommitTree, build: BuildRun, folder: Path) -> Environment:
    inside = "/".join(filter(None, (settings.trees.folder, settings.installation.package.folder)))
    found = settings.installation.import_venv(build, folder, commit.change.short)
    return settings.trees.check(build, found, commit.change, inside=inside)


def price(settings: SourceSettings, stamps: Sequence[Environment], missing: Sequence[Change]) -> BuildPrice:
    """The first build compiles everything, later ones what changed."""
    path = f"{settings.trees.folder}/CMakeLists.txt"
    compiles = any(settings.trees.repository.tree_ids([change.id for change in missing], path).values())
    compiles = compiles and not is_precompiled(settings.variables, settings.installation.package)
    guess = _COMPILED_MIN if compiles else _PYTHON_MIN
    first, later = _first_and_later_minutes(stamps)
    count = len(missing) - (not settings.build_tree.is_warm)
    each = later if later is not None else guess[1]
    minutes = count * each + (first if first is not None else guess[0]) * (len(missing) - count)
    is_guess = later is None if count else first is None
    return BuildPrice(minutes, {RECIPE.name: guess[0]} if is_guess else {})


def minutes(settings: SourceSettings, stamps: Sequence[Environment]) -> float | None:
    first, later = _first_and_later_minutes(stamps)
    return first if not settings.build_tree.is_warm or later is None else later


def notes(
    settings: SourceSettings, _known: Mapping[str, CommitTree], stamps: Sequence[Environment]
) -> tuple[str, ...]:
    ccache = settings.ccache
    notes = [f"ccache {ccache} keeps compiled files" if ccache else "there is no ccache"]
    variables = redacted(relevant_variables(settings.variables))
    if variables:
        notes.append("built with " + " ".join(f"{name}={value}" for name, value in variables.items()))
    first, later = _first_and_later_minutes(stamps)
    if first is not None and later is not None:
        notes.append(f"a first build took {first:.1f} min, later ones {later:.1f} min")
    return (f"source: {'; '.join(notes)}",)


def _first_and_later_minutes(stamps: Sequence[Environment]) -> tuple[float | None, float | None]:
    first = [stamp for stamp in stamps if stamp.facts.get("incremental") is False]
    later = [stamp for stamp in stamps if stamp.facts.get("incremental") is True]
    return median_minutes(first), median_minutes(later)


RECIPE = Recipe(
    name="source",
    look_up=lambda settings, changes, _: settings.trees.find(changes),
    refuses=lambda settings, commit: settings.trees.refuses(commit),
    key_parts=key_parts,
    make=make,
    check=check,
    minutes=minutes,
    price=price,
    notes=notes,
)
