"""Build variables from the user's shell, compilers and ccache."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from perfbisect.environments.packages import EnginePackage

_NAMES = frozenset({
    "CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "PKG_CONFIG_PATH", "CUDAHOSTCXX", "CUDAARCHS", "RUSTFLAGS",
    "TORCH_CUDA_ARCH_LIST", "PYTORCH_ROCM_ARCH", "PYTORCH_NVCC", "FORCE_CUDA", "USE_CUDA", "ROCM_PATH",
    "VLLM_TARGET_DEVICE", "VLLM_MAIN_CUDA_VERSION", "VLLM_USE_PRECOMPILED", "VLLM_VERSION_OVERRIDE",
    "VLLM_SKIP_PRECOMPILED_VERSION_SUFFIX", "VLLM_CUTLASS_SRC_DIR", "VLLM_FLASH_ATTN_SRC_DIR",
    "VLLM_PYTHON_EXECUTABLE", "VLLM_CPU_DISABLE_AVX512", "VLLM_CPU_AVX512BF16", "VLLM_CPU_AVX512VNNI",
    "VLLM_CPU_AMXBF16", "VLLM_OMNI_TARGET_DEVICE", "VLLM_OMNI_VERSION_OVERRIDE",
})  # fmt: skip
_PREFIXES = ("CMAKE_", "SETUPTOOLS_SCM_PRETEND_VERSION", "VLLM_PRECOMPILED_", "CARGO_BUILD_", "FETCHCONTENT_")
_SPEED = frozenset({"MAX_JOBS", "NVCC_THREADS", "MAKEFLAGS", "NINJAFLAGS", "VERBOSE", "CARGO_HOME"})
_SPEED_PREFIXES = ("CCACHE_", "SCCACHE_", "CMAKE_BUILD_PARALLEL_")
"""Variables that affect the speed of a build, not its result; they are in no key."""


def build_variables(shell: Mapping[str, str], named: Sequence[str] = ()) -> dict[str, str]:
    """Variables of ``shell`` that control builds, and those that are ``named``.

    ``named``: ``NAME`` takes a variable from the shell, ``NAME=VALUE`` sets it.
    """
    prefixes = (*_PREFIXES, *_SPEED_PREFIXES)
    known = {
        name: value
        for name, value in shell.items()
        if name in _NAMES or name in _SPEED or name.startswith(prefixes)
    }
    for word in named:
        name, equals, value = word.partition("=")
        if equals or name in shell:
            known[name] = value if equals else shell[name]
    return known


def relevant_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that affect the result of a build."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if name not in _SPEED and not name.startswith(_SPEED_PREFIXES)
    }


def with_precompiled_commit(variables: Mapping[str, str], package: EnginePackage, sha: str) -> dict[str, str]:
    """Add the commit whose compiled files the build downloads, unless the user set one.

    The project's build would read it from git history, which the build folder does not have.
    """
    if package.precompiled is None:
        return dict(variables)
    switch, commit, *alternatives = package.precompiled
    is_on = variables.get(switch, "").lower() not in ("", "0", "false", "no")
    if not is_on or any(name in variables for name in (commit, *alternatives)):
        return dict(variables)
    return {**variables, commit: sha}


def compiler_versions(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Version line of each installed compiler."""
    commands = (variables.get("CC", "cc"), variables.get("CXX", "c++"), "nvcc")
    lines = []
    for command in commands:
        words = [*command.split(), "--version"]
        if shutil.which(words[0]) is None:
            continue
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, errors="replace", timeout=60, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            continue
        versions = [line.strip() for line in done.stdout.splitlines() if re.search(r"\d+\.\d+", line)]
        lines += versions[:1]
    return tuple(lines)


def with_ccache(variables: Mapping[str, str], ccache: str | None, *, cmake: bool) -> dict[str, str]:
    """Add variables for ccache: CMake's launchers, or the names of the compilers.

    Variables that the user set win.
    """
    if ccache is None:
        return dict(variables)
    if cmake:
        added = {f"CMAKE_{language}_COMPILER_LAUNCHER": ccache for language in ("C", "CXX", "CUDA")}
    else:
        added = {"CC": f"{ccache} cc", "CXX": f"{ccache} c++"}
    return {**added, **variables}
