"""What a build is given of the user's shell, and with which compilers it is made."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfbisect.environments.packages import Package
from perfbisect.system import environ

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
"""These decide how fast a build is, not what comes out: they are in no key."""


def build_variables(shell: Mapping[str, str], named: Sequence[str] = ()) -> dict[str, str]:
    """What a build is given of ``shell``: what is known to steer builds, and what is ``named``.

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


def that_count(variables: Mapping[str, str]) -> dict[str, str]:
    """Those variables of a build that decide what comes out of it."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if name not in _SPEED and not name.startswith(_SPEED_PREFIXES)
    }


def shown(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables of a build as they may be written down."""
    return environ.redacted(variables)


def of_commit(variables: Mapping[str, str], package: Package, sha: str) -> dict[str, str]:
    """The same, and the commit where the project must be told which one it builds.

    A project that takes compiled files from elsewhere asks its git history for them; what is built here has
    none, so the commit is said, unless the user said one.
    """
    if package.precompiled is None:
        return dict(variables)
    switch, commit, *instead = package.precompiled
    asked = variables.get(switch, "").lower() not in ("", "0", "false", "no")
    if not asked or any(name in variables for name in (commit, *instead)):
        return dict(variables)
    return {**variables, commit: sha}


def compilers(variables: Mapping[str, str]) -> tuple[str, ...]:
    """The first line in which each compiler names itself; those that are not there are left out."""
    asked = (variables.get("CC", "cc"), variables.get("CXX", "c++"), "nvcc")
    lines = []
    for command in asked:
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
        told = [line.strip() for line in done.stdout.splitlines() if re.search(r"\d+\.\d+", line)]
        lines += told[:1]
    return tuple(lines)


def with_ccache(variables: Mapping[str, str], ccache: str | None, *, cmake: bool) -> dict[str, str]:
    """Variables that let a build use ccache: CMake by its launchers, others by the compilers' names.

    Nothing is changed where the user said which compiler or launcher to use, or there is no ccache.
    """
    if ccache is None:
        return dict(variables)
    if cmake:
        ours = {f"CMAKE_{language}_COMPILER_LAUNCHER": ccache for language in ("C", "CXX", "CUDA")}
    else:
        ours = {"CC": f"{ccache} cc", "CXX": f"{ccache} c++"}
    return {**ours, **variables}


def build_requirements(tree: Path) -> tuple[str, ...]:
    """What a project says that its build needs (``[build-system] requires``); setuptools if it says nothing.

    Read without a parser of TOML, which Python 3.10 lacks: an array of strings there is a list of Python.
    """
    default = ("setuptools", "wheel")
    project = tree / "pyproject.toml"
    if not project.is_file():
        return default
    section = re.search(
        r"^\[build-system\]\s*$(.*?)(?=^\[|\Z)", project.read_text(), re.MULTILINE | re.DOTALL
    )
    begins = re.search(r"^\s*requires\s*=\s*(?=\[)", section[1], re.MULTILINE) if section else None
    if section is None or begins is None:
        return default
    text = section[1][begins.end() :]
    for end in (place + 1 for place, letter in enumerate(text) if letter == "]"):
        try:
            return tuple(str(word) for word in ast.literal_eval(text[:end]))
        except (SyntaxError, ValueError):
            continue
    return default
