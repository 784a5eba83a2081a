"""Virtual environments from the package registry, made by the uv command."""

from __future__ import annotations

import ast
import functools
import importlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import requests
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from perfbisect.environments.build import BuildRun, registry_environment
from perfbisect.environments.packages import TORCH, EnginePackage, torch_backend
from perfbisect.errors import BuildError, MachineError, UsageError
from perfbisect.system import commands, processes
from perfbisect.system.commands import ProcessResult
from perfbisect.system.http import open_session, send_request
from perfbisect.system.logs import excerpt

_REGISTRY = re.compile(
    r"error sending request|dns error|connect error|connection (refused|reset|closed)|timed out|certificate"
    r"|request failed after|network (connectivity )?(is|was) (unreachable|disabled)|failed to fetch"
    r"|HTTP status (server error|client error \((401|403|407|429))",
    re.IGNORECASE,
)
_DISK = re.compile(r"no space left on device|disk quota exceeded|read-only file system", re.IGNORECASE)
_NO_MEMORY = re.compile(
    r"killed signal terminated program|virtual memory exhausted|cannot allocate memory"
    r"|ptxas.*signal 9|nvcc.*(killed|out of memory)",
    re.IGNORECASE,
)
_UNSOLVED = re.compile(
    r"no solution found|unsatisfiable|was not found in the package|client error \((404|410)"
    r"|failed to extract|hash mismatch",
    re.IGNORECASE,
)


_UNDATED = re.compile(r"`([^`]+)` is missing an upload date")
_FILTERED = re.compile(r"`([^`]+)` was filtered by `exclude-newer")
_INDEX_TYPE = "application/vnd.pypi.simple.v1+json"
_INDEX_TIMEOUT_S = (5.0, 20.0)
_INDEX_LIMIT_S = 60.0
_INDEX_BYTES = 64 * 1024 * 1024


def find_uv() -> Path:
    """The uv command of our own environment, else of PATH."""
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise MachineError("uv is not installed", next_step="pip install uv")
    return Path(found)


def base_python() -> Path:
    """The interpreter that our own environment was made from."""
    return Path(os.path.realpath(sys.executable))


def base_python_version() -> str:
    """Version of ``base_python`` with its patch level, part of environment keys."""
    return platform.python_version()


def create(build: BuildRun, folder: Path, python: str = "") -> Path:
    """Create an empty virtual environment that may be moved; returns its interpreter."""
    python = python or str(base_python())
    _uv(
        build,
        ("venv", "--no-project", "--no-config", "--relocatable", "--python", python, str(folder)),
        action=f"make an environment of Python {python}",
        cwd=folder.parent,
    )
    return folder / "bin" / "python"


def install(
    build: BuildRun, interpreter: Path, requirements: Sequence[str], package: EnginePackage, *, folder: Path,
    torch_backend: str = "",
) -> None:  # fmt: skip
    """Install requirements and their dependencies, compiled to byte code, without those the engine drops."""
    overrides: tuple[str, ...] = ()
    if package.drop:
        dropped = folder / "dropped.txt"
        dropped.write_text("".join(f'{name} ; python_version < "3"\n' for name in package.drop))
        overrides = ("--override", str(dropped))
    sources = _source_arguments(torch_backend or package.torch_backend)
    options = ("--compile-bytecode", *build.limits.arguments(package.distribution), *overrides, *sources)
    _pip(build, "install", interpreter, *options, *requirements,
         action=f"install {' '.join(requirements)}", cwd=folder)  # fmt: skip


def install_layer(build: BuildRun, target: Path, pip: str, python: str, *, dry_run: bool = False) -> None:
    """Install ``NAME==VERSION`` without dependencies into a folder of its own; no limits apply."""
    mode = "--dry-run" if dry_run else "--compile-bytecode"
    name, _, version = pip.partition("==")
    is_torch = canonicalize_name(name) in TORCH
    # The local version of torch (+cu129) names its build.
    backend = (torch_backend(version.partition("+")[2]) or "auto") if is_torch else ""
    options = ("--target", str(target), "--no-deps", mode, *_source_arguments(backend))
    _pip(build, "install", python, *options, pip,
         action=f"{'find' if dry_run else 'install'} {pip}", cwd=target.parent)  # fmt: skip


def build_wheel(
    build: BuildRun, tree: Path, interpreter: Path, *, out: Path, variables: Mapping[str, str]
) -> Path:
    """Build the project in ``tree`` with the tools of ``interpreter``; returns the wheel in ``out``."""
    _uv(
        build,
        (
            "build", "--wheel", "--no-build-isolation", "--no-config",
            "--python", str(interpreter), "--out-dir", str(out), str(tree),
        ),
        action=f"build {tree}", cwd=tree,
        variables={
            **variables,
            "PATH": f"{interpreter.parent}:{_environment().get('PATH', '/usr/bin:/bin')}",
            "VIRTUAL_ENV": str(interpreter.parent.parent),
            "GIT_CEILING_DIRECTORIES": str(tree.parent),
        },
    )  # fmt: skip
    wheels = sorted(out.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(f"building {tree} gave {len(wheels)} wheels instead of one", where=build.log)
    return wheels[0]


def find_package(build: BuildRun, name: str, *, folder: Path) -> str:
    """Look a package up without installing it; returns what answered, and how fast."""
    index = ("--no-index",) if _is_without_index() else ()
    options = ("--dry-run", "--no-deps", "--refresh", "--target", str(folder / "nothing"), *index)
    output = _pip(build, "install", base_python(), *options, name, action=f"look up {name}", cwd=folder)
    where = "folders of wheels, no registry," if index else "the registry"
    return f"{where} answered in {output.seconds:.1f} s"


def upload_day(package: str, version: Version) -> str:
    """Day (UTC) on which the first file of a release was uploaded; empty if the registry does not say."""
    if _is_without_index():
        return ""
    environment = _environment()
    index = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL")
    if not index:
        # The registry that pip asks where none is configured.
        with suppress(ImportError, AttributeError):
            index = str(importlib.import_module("pip._internal.models.index").PyPI.simple_url)
    if not index:
        return ""
    url = f"{index.rstrip('/')}/{canonicalize_name(package)}/"
    try:
        reply = send_request(
            open_session(url),
            "GET",
            url,
            _INDEX_BYTES,
            _INDEX_LIMIT_S,
            timeout=_INDEX_TIMEOUT_S,
            headers={"Accept": _INDEX_TYPE},
        )
    except (requests.RequestException, MachineError):
        return ""
    document = reply.json() if reply.status == 200 else None
    files = document.get("files") if isinstance(document, dict) else None
    days = []
    for file in files or ():
        name, day = file.get("filename", ""), file.get("upload-time")
        with suppress(InvalidWheelFilename, InvalidSdistFilename):
            parts = parse_wheel_filename(name) if name.endswith(".whl") else parse_sdist_filename(name)
            if day and parts[1] == version:
                days.append(day[:10])
    return min(days, default="")


def list_packages(build: BuildRun, interpreter: Path, *, with_origin: bool = False) -> list[str]:
    """Installed packages, sorted; ``with_origin``: editable and local ones by their path."""
    verb, *options = ("freeze",) if with_origin else ("list", "--format", "freeze")
    pattern = r"-e |[A-Za-z0-9][\w.\-]* ?(==|@ )" if with_origin else r"[A-Za-z0-9][\w.\-]*=="
    action = f"list the packages of {interpreter}"
    output = _pip(build, verb, interpreter, *options, action=action, cwd=Path("/"), timeout=120.0)
    return [line for line in sorted(output.lines) if re.match(pattern, line)]


def _pip(
    build: BuildRun, verb: str, python: object, *arguments: str, action: str, cwd: Path,
    timeout: float | None = None,
) -> ProcessResult:  # fmt: skip
    command = ("pip", verb, "--no-config", "--python", str(python), *arguments)
    return _uv(build, command, action=action, cwd=cwd, timeout=timeout)


def _uv(
    build: BuildRun, arguments: Sequence[str], *, action: str, cwd: Path, timeout: float | None = None,
    variables: Mapping[str, str] | None = None,
) -> ProcessResult:  # fmt: skip
    """Run uv. Raises BuildError, MachineError or UsageError if it fails, by whose fault it is."""
    argv = (str(find_uv()), *arguments)
    output = build.run(argv, env={**_environment(), **(variables or {})}, cwd=cwd, timeout=timeout)
    if output.code != 0 or output.timed_out:
        raise failure_of(output, action, build.log)
    return output


def _environment() -> dict[str, str]:
    """uv's process environment, with the settings of pip that uv itself does not read."""
    environment = registry_environment()
    wheels, index = _pip_setting("find-links"), _pip_setting("index-url")
    if wheels and "UV_FIND_LINKS" not in environment:
        environment["UV_FIND_LINKS"] = ",".join(wheels.split())
    if index and not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & set(environment):
        environment["UV_DEFAULT_INDEX"] = index
    environment.pop("UV_PROJECT", None)
    return environment | {"UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


def _source_arguments(torch_backend: str) -> tuple[str, ...]:
    """uv's arguments for the registry and the source of torch."""
    if _is_without_index():
        return ("--no-index",)
    environment = _environment()
    links = re.split(r"[,\s]+", environment.get("UV_FIND_LINKS", ""))
    folders = (Path(link.removeprefix("file://")) for link in links if link)
    # A folder of wheels that has torch is the source that the user chose for it.
    has_torch = any(any(folder.glob("torch-*.whl")) for folder in folders if folder.is_dir())
    is_set = "UV_TORCH_BACKEND" in environment or has_torch
    return ("--torch-backend", torch_backend) if torch_backend and not is_set else ()


def _is_without_index() -> bool:
    """True if pip is configured without a registry; uv has a switch for it, but no variable."""
    return _pip_setting("no-index").lower() in ("1", "true", "yes", "on")


def _pip_setting(name: str) -> str:
    """A setting of pip, from its variables or files; empty if unset."""
    return os.environ.get("PIP_" + name.upper().replace("-", "_"), "") or _pip_files().get(name, "")


@functools.cache
def _pip_files() -> dict[str, str]:
    """Settings in pip's configuration files for all commands; empty without pip."""
    done = commands.capture([sys.executable, "-m", "pip", "config", "list"], 60.0)
    rows = re.findall(r"^global\.([a-z-]+)=(.*)$", done.stdout, re.MULTILINE)
    return {key: str(ast.literal_eval(value)) for key, value in rows if value[:1] in "'\""}


def failure_of(output: ProcessResult, action: str, log: Path) -> BuildError | MachineError | UsageError:
    """The error behind uv's output."""
    problem = f"cannot {action}"
    if output.code != 0 and _NO_MEMORY.search(output.text):
        next_step = "set MAX_JOBS lower"
        return MachineError(f"{problem}: a compiler ran out of memory", where=log, next_step=next_step)
    if output.timed_out:
        return MachineError(f"{problem}: not done after {output.seconds:.0f} s", where=log)
    if _DISK.search(output.text):
        message = f"{problem}: the disk is full or read-only"
        return MachineError(message, where=log, next_step="free disk space", code="disk_full")
    if output.code < 0:
        code = processes.signal_code(-output.code)
        return MachineError(f"{problem}: uv ended by {output.ending}", where=log, code=code)
    # Packages that uv needed and left out, because the index does not date them.
    undated = {canonicalize_name(file.partition("-")[0]) for file in _UNDATED.findall(output.text)}
    if undated := undated & set(map(canonicalize_name, _FILTERED.findall(output.text))):
        return UsageError(
            f"{problem}: only packages uploaded until the day of --exclude-newer are taken, and the index "
            f"does not say when {', '.join(sorted(undated))} was uploaded",
            where=log,
            next_step="--exclude-newer none (--constraints pins versions), or an index with upload dates",
        )
    errors = [line for line in output.lines if line.startswith(("error", "cause", "×", "╰", "├"))]
    reason = excerpt(" ".join((errors or output.lines[-1:])[:3])) or output.ending
    if _REGISTRY.search(output.text) and not _UNSOLVED.search(output.text):
        return MachineError(
            f"{problem}: the package registry cannot be reached: {reason}",
            where=log,
            next_step="check network, proxy and index, then start again",
            code="hub_unreachable",
            output=reason,
        )
    return BuildError(f"{problem}: {reason}", where=log, output=reason)
