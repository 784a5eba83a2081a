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
from perfbisect.environments.builders.nearest_wheel import read_build_states
from perfbisect.environments.builders.overlay_layer import BuildState
from perfbisect.environments.cache import exclusive_lock, os_errors_as_machine_errors
from perfbisect.environments.packages import PACKAGES, EnginePackage
from perfbisect.environments.source_tree import sync_tree, toml_strings, version_at
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
_BUILT = "built"
"""Lists the files of the last build, if it succeeded."""
_BUILDING = "building"
"""Exists while a build runs, and after one was killed."""

_COMPILED_MIN, _PYTHON_MIN = (40.0, 15.0), (4.0, 2.0)
"""Guesses for a first and an incremental build, with and without compiling: one of vLLM takes 20 to 60."""


@dataclass(frozen=True)
class SourceSettings:
    """``path``: the build folder, with ``tree/``, ``venv/``, and marks of what they contain.

    ``states``: of the build inputs of commits, as far as they were asked for.
    """

    installation: Installation
    trees: CommitTrees
    variables: Mapping[str, str]
    compilers: tuple[str, ...]
    ccache: str | None
    path: Path
    states: dict[str, BuildState]

    @property
    def knows_inputs(self) -> bool:
        """Whether the files are known that a build of the package compiles."""
        return self.installation.package.name in PACKAGES and not self.trees.folder

    @property
    def is_warm(self) -> bool:
        """True if an earlier build finished here, so that the next can be incremental."""
        return (self.path / "tree").exists() and not (self.path / _BUILDING).exists()


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
        context.cache.path / "builds" / name,
        {},
    )
    return CachedBuilder(RECIPE, spec.text, context, settings, client=client)


def look_up(
    settings: SourceSettings, changes: Sequence[Change], _known: Mapping[str, CommitTree]
) -> dict[str, CommitTree]:
    found = settings.trees.find(changes)
    if settings.knows_inputs:
        there = [sha for sha, commit in found.items() if commit.tree is not None]
        platform = settings.variables.get("VLLM_TARGET_DEVICE", "")
        package, repository = settings.installation.package, settings.trees.repository
        read_build_states(settings.states, repository, package, there, platform)
    return found


def binaries(settings: SourceSettings, commit: CommitTree) -> tuple[object, ...]:
    """The files that the build compiles, how, and against what; downloaded ones are of their commit."""
    package, sha = settings.installation.package, commit.change.id
    state = settings.states[sha] if settings.knows_inputs else None
    return (
        commit.tree if state is None else (state.needed, state.optional),
        relevant_variables(with_precompiled_commit(settings.variables, package, sha)),
        settings.compilers,
        *settings.installation.key_parts(),
    )


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
    path, out = settings.path, staging / "wheel"
    lock = path.parent / ".locks" / f"{path.name}.lock"
    with os_errors_as_machine_errors(f"build in {path}"), exclusive_lock(lock, f"in {path}", build.timeout):
        is_warm = settings.is_warm
        if not is_warm:
            # A killed build may leave truncated files that look new.
            shutil.rmtree(path, ignore_errors=True)
        try:
            wheel, facts = build_wheel(settings, build, sha, given, is_warm, out)
        except BuildError as error:
            if not is_warm:
                raise
            # An incremental build may have failed because of old files.
            build.note(f"# {error.message}\n# again, from scratch")
            shutil.rmtree(path)
            wheel, facts = build_wheel(settings, build, sha, given, False, out)
    installation.create_venv(build, staging, [str(wheel)])
    shutil.rmtree(wheel.parent)
    return {
        "variables": redacted(variables),
        "ccache": settings.ccache or "",
        "compilers": list(settings.compilers),
        **facts,
        **installation.limits.facts(),
    }


def build_wheel(
    settings: SourceSettings,
    build: BuildRun,
    sha: str,
    variables: Mapping[str, str],
    is_warm: bool,
    out: Path,
) -> tuple[Path, dict[str, Any]]:
    """Build the wheel of a commit in ``out``; returns it, and facts of its build."""
    tree, built, building = (settings.path / name for name in ("tree", _BUILT, _BUILDING))
    before = built.read_text().splitlines() if built.exists() else None
    built.unlink(missing_ok=True)
    settings.path.mkdir(parents=True, exist_ok=True)
    building.touch()
    trees = settings.trees
    synced = sync_tree(
        tree,
        trees.repository,
        sha,
        trees.folder,
        whole=bool(trees.whole),
        keep=lambda path: path.partition("/")[0] in _KEPT,
    )
    # setuptools would pack files of its folders that the commit does not have. Compiled files stay if only
    # the package's Python changed: it does not notice changed headers.
    package = settings.installation.package
    gone = [path for path in before or () if path not in synced.paths]
    compiled = [path for path in synced.removed if path.endswith(".so")]
    python_only = before is not None and all(
        path.startswith(f"{package.folder}/") and path.endswith(".py")
        for path in (*synced.written, *gone, *compiled)
    )
    for library in (*tree.glob("build/lib*"), *tree.glob("build/bdist*")):
        if not python_only:
            shutil.rmtree(library)
            continue
        for file in library.rglob("*"):
            if file.is_file() and file.suffix != ".so":
                file.unlink()
    interpreter = _install_tools(settings, build)
    shutil.rmtree(out, ignore_errors=True)
    try:
        wheel = uv.build_wheel(build, tree, interpreter, out=out, variables=variables)
    except BuildError:
        building.unlink()
        raise
    replace_file(built, "".join(f"{path}\n" for path in sorted(synced.paths)))
    building.unlink()
    return wheel, {"incremental": is_warm, "files_written": len(synced.written), "wheel": wheel.name}


def _install_tools(settings: SourceSettings, build: BuildRun) -> Path:
    """Interpreter with the build requirements, at one path for all commits: build files contain paths."""
    project = settings.path / "tree" / "pyproject.toml"
    wanted = toml_strings(project.read_text(), "build-system", "requires") if project.is_file() else None
    wanted = ("setuptools", "wheel") if wanted is None else wanted
    mark, venv = settings.path / "tools", settings.path / "venv"
    key = environment_key(wanted, build.limits.key_parts(), settings.installation.package.drop)
    interpreter = venv / "bin" / "python"
    if mark.is_file() and mark.read_text() == key and interpreter.exists():
        return interpreter
    mark.unlink(missing_ok=True)
    shutil.rmtree(venv, ignore_errors=True)
    uv.create(build, venv, settings.installation.python)
    if wanted:
        uv.install(build, interpreter, wanted, settings.installation.package, folder=settings.path)
    mark.write_text(key)
    return interpreter


def check(settings: SourceSettings, commit: CommitTree, build: BuildRun, folder: Path) -> Environment:
    inside = "/".join(filter(None, (settings.trees.folder, settings.installation.package.folder)))
    return settings.trees.check(settings.installation, build, folder, commit.change, inside=inside)


def price(settings: SourceSettings, stamps: Sequence[Environment], missing: Sequence[Change]) -> BuildPrice:
    """The first build compiles everything, later ones what changed."""
    path = f"{settings.trees.folder}/CMakeLists.txt"
    compiles = any(settings.trees.repository.tree_ids([change.id for change in missing], path).values())
    compiles = compiles and not is_precompiled(settings.variables, settings.installation.package)
    guess = _COMPILED_MIN if compiles else _PYTHON_MIN
    first, later = _first_and_later_minutes(stamps)
    count = len(missing) - (not settings.is_warm)
    each = later if later is not None else guess[1]
    minutes = count * each + (first if first is not None else guess[0]) * (len(missing) - count)
    is_guess = later is None if count else first is None
    return BuildPrice(minutes, {RECIPE.name: guess[0]} if is_guess else {})


def minutes(settings: SourceSettings, stamps: Sequence[Environment]) -> float | None:
    first, later = _first_and_later_minutes(stamps)
    return first if not settings.is_warm or later is None else later


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
    look_up=look_up,
    binaries=binaries,
    refuses=lambda settings, commit: settings.trees.refuses(commit),
    key_parts=key_parts,
    make=make,
    check=check,
    minutes=minutes,
    price=price,
    notes=notes,
)
