"""Virtual environments from the package registry, made by the uv command."""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfbisect.errors import BuildError, MachineError, ServerError
from perfbisect.system import environ, processes
from perfbisect.system.logs import neutral

_REGISTRY_PREFIXES = ("UV_", "NETRC", "KEYRING", "CC", "CXX")


def interpreter_environment(interpreter: Path, *layers: Mapping[str, str]) -> dict[str, str]:
    """Process environment to inspect an engine's interpreter in: the server's, without our ``PYTHON*``."""
    own = {"PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}
    return environ.for_interpreter(os.environ, interpreter, own, *layers)


def registry_environment() -> dict[str, str]:
    """Process environment to fetch packages in: the user's proxies and uv settings."""
    passed = {name: value for name, value in os.environ.items() if name.startswith(_REGISTRY_PREFIXES)}
    return environ.with_proxies(environ.allowed(os.environ), os.environ) | passed


@dataclass(frozen=True)
class Output:
    """Exit code and output of a command."""

    code: int
    text: str
    timed_out: bool
    seconds: float


def run(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, timeout: float) -> Output:
    """Run a command; its redacted output is appended to ``log`` and returned.

    :raises BuildError: it cannot be started.
    :raises MachineError: the log cannot be written, or a process does not end.
    """
    handle, name = tempfile.mkstemp(prefix="perfbisect-", suffix=".log")
    os.close(handle)
    raw = Path(name)
    try:
        done = processes.run(argv, env=env, cwd=cwd, log=raw, token=secrets.token_hex(8), timeout=timeout)
    except ServerError as error:
        raise BuildError(error.message, where=log, code=error.code, output=error.output) from error
    finally:
        hidden = environ.secret_values(os.environ)
        text = environ.without_secrets(raw.read_text(errors="replace"), hidden)
        command = " ".join("SCRIPT" if "\n" in word else word for word in argv)
        shown = environ.without_secrets(command, hidden)
        with contextlib.suppress(OSError):
            raw.unlink()
        append_log(log, f"$ {shown}\n{text}")
    return Output(done.code, text, done.timed_out, done.seconds)


def append_log(log: Path, text: str) -> None:
    """:raises MachineError: the log cannot be written."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", errors="replace") as stream:
            stream.write(text if text.endswith("\n") else text + "\n")
    except OSError as error:
        raise MachineError(f"cannot write the log {log}: {error.strerror or error}") from error


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


def find_uv() -> Path:
    """The uv command of our own environment, else of PATH. :raises MachineError: there is none."""
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


@dataclass(frozen=True)
class DependencyLimits:
    """Allowed dependencies: published before a day (``YYYY-MM-DD``), or pinned in a constraints file."""

    exclude_newer: str | None = None
    constraints: Path | None = None

    def arguments(self) -> tuple[str, ...]:
        day = ("--exclude-newer", self.exclude_newer) if self.exclude_newer else ()
        pins = ("--constraint", str(self.constraints)) if self.constraints else ()
        return (*day, *pins)

    def key_parts(self) -> tuple[str, str]:
        return self.exclude_newer or "", self.constraints.read_text() if self.constraints else ""

    def facts(self) -> dict[str, str]:
        return {"exclude_newer": self.exclude_newer or "", "constraints": str(self.constraints or "")}


def create(folder: Path, *, python: str, log: Path, timeout: float) -> Path:
    """Create an empty virtual environment that may be moved; returns its interpreter.

    :raises BuildError: there is no such Python.
    """
    _uv(
        ("venv", "--no-project", "--no-config", "--relocatable", "--python", python, str(folder)),
        action=f"make an environment of Python {python}", cwd=folder.parent, log=log, timeout=timeout,
    )  # fmt: skip
    return folder / "bin" / "python"


def install(
    interpreter: Path,
    requirements: Sequence[str],
    *,
    limits: DependencyLimits,
    drop: Sequence[str],
    torch_backend: str,
    folder: Path,
    log: Path,
    timeout: float,
) -> None:
    """Install requirements and their dependencies without ``drop``, compiled to byte code.

    ``folder``: where files for uv are written. Torch comes from pip's configured folder of wheels if that has
    one, else from ``torch_backend``.

    :raises BuildError: the requirements cannot be met, or a package does not build.
    :raises MachineError: the registry is unreachable, or the disk is full.
    """
    overrides: tuple[str, ...] = ()
    if drop:
        dropped = folder / "dropped.txt"
        dropped.write_text("".join(f'{name} ; python_version < "3"\n' for name in drop))
        overrides = ("--override", str(dropped))
    _uv(
        (
            "pip", "install", "--no-config", "--python", str(interpreter), "--compile-bytecode",
            *limits.arguments(), *overrides, *_source_arguments(torch_backend), *requirements,
        ),
        action=f"install {' '.join(requirements)}", cwd=folder, log=log, timeout=timeout,
    )  # fmt: skip


def install_layer(
    target: Path, requirement: str, *, python: str, limits: DependencyLimits, torch_backend: str, log: Path,
    timeout: float, dry_run: bool = False,
) -> None:  # fmt: skip
    """Install one package without its dependencies into a folder of its own.

    Constraints do not apply: they limit dependencies, and this package was named.

    :raises BuildError: there is none for that interpreter.
    :raises MachineError: the registry is unreachable, or the disk is full.
    """
    mode = "--dry-run" if dry_run else "--compile-bytecode"
    day = DependencyLimits(limits.exclude_newer)
    _uv(
        (
            "pip", "install", "--no-config", "--python", python, "--target", str(target), "--no-deps", mode,
            *day.arguments(), *_source_arguments(torch_backend), requirement,
        ),
        action=f"{'find' if dry_run else 'install'} {requirement}",
        cwd=target.parent, log=log, timeout=timeout,
    )  # fmt: skip


def build_wheel(
    tree: Path, interpreter: Path, *, out: Path, variables: Mapping[str, str], ceiling: Path, log: Path,
    timeout: float,
) -> Path:  # fmt: skip
    """Build the project in ``tree`` with the tools of ``interpreter``; returns the wheel in ``out``.

    ``ceiling``: git looks for no repository above this folder.

    :raises BuildError: it does not build.
    :raises MachineError: out of time, memory, disk or network.
    """
    environment = _environment()
    given = {
        **variables,
        "PATH": f"{interpreter.parent}:{environment.get('PATH', '/usr/bin:/bin')}",
        "VIRTUAL_ENV": str(interpreter.parent.parent),
        "GIT_CEILING_DIRECTORIES": str(ceiling),
    }
    _uv(
        (
            "build", "--wheel", "--no-build-isolation", "--no-config",
            "--python", str(interpreter), "--out-dir", str(out), str(tree),
        ),
        action=f"build {tree}", cwd=tree, log=log, timeout=timeout, variables=given,
    )  # fmt: skip
    wheels = sorted(out.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(f"building {tree} gave {len(wheels)} wheels instead of one", where=log)
    return wheels[0]


def find_package(name: str, *, folder: Path, log: Path, timeout: float) -> str:
    """Look a package up without installing it; returns what answered, and how fast.

    :raises BuildError: there is no such package.
    :raises MachineError: the registry is unreachable.
    """
    index = ("--no-index",) if _is_without_index() else ()
    output = _uv(
        (
            "pip", "install", "--no-config", "--dry-run", "--no-deps", "--refresh", "--python",
            str(base_python()), "--target", str(folder / "nothing"), *index, name,
        ),
        action=f"look up {name}", cwd=folder, log=log, timeout=timeout,
    )  # fmt: skip
    where = "folders of wheels, no registry," if index else "the registry"
    return f"{where} answered in {output.seconds:.1f} s"


def list_packages(interpreter: Path, *, log: Path) -> str:
    """Installed packages, one ``name==version`` a line, sorted, wherever they came from.

    :raises BuildError: it is no Python.
    """
    return _packages(interpreter, ("list", "--format", "freeze"), r"^[A-Za-z0-9][\w.\-]*==", log)


def freeze_packages(interpreter: Path, *, log: Path) -> str:
    """Installed packages as ``pip freeze`` lists them: editable and local ones with their origin.

    :raises BuildError: it is no Python.
    """
    return _packages(interpreter, ("freeze",), r"^(-e |[A-Za-z0-9][\w.\-]* ?(==|@ ))", log)


def _packages(interpreter: Path, verb: tuple[str, ...], pattern: str, log: Path) -> str:
    output = _uv(
        ("pip", *verb, "--no-config", "--python", str(interpreter)),
        action=f"list the packages of {interpreter}", cwd=Path("/"), log=log, timeout=120.0,
    )  # fmt: skip
    lines = (line.strip() for line in output.text.splitlines())
    return "".join(f"{line}\n" for line in sorted(lines) if re.match(pattern, line))


def _uv(
    arguments: Sequence[str], *, action: str, cwd: Path, log: Path, timeout: float,
    variables: Mapping[str, str] | None = None,
) -> Output:  # fmt: skip
    """Run uv. :raises BuildError, MachineError: it failed, by whose fault it is."""
    argv = (str(find_uv()), *arguments)
    output = run(argv, env={**_environment(), **(variables or {})}, cwd=cwd, log=log, timeout=timeout)
    _raise_failure(output, action, log, timeout)
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
    is_set = "UV_TORCH_BACKEND" in environment or _has_local_torch(environment)
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
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"],
            capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = re.findall(r"^global\.([a-z-]+)=(.*)$", done.stdout, re.MULTILINE)
    return {key: str(ast.literal_eval(value)) for key, value in rows if value[:1] in "'\""}


def _has_local_torch(environment: Mapping[str, str]) -> bool:
    links = re.split(r"[,\s]+", environment.get("UV_FIND_LINKS", ""))
    folders = (Path(link.removeprefix("file://")) for link in links if link)
    return any(any(folder.glob("torch-*.whl")) for folder in folders if folder.is_dir())


def _raise_failure(output: Output, action: str, log: Path, timeout: float) -> None:
    """Raise the error of a failed command, by whose fault it is."""
    if output.code == 0 and not output.timed_out:
        return
    problem = f"cannot {action}"
    if output.code != 0 and _NO_MEMORY.search(output.text):
        raise MachineError(
            f"{problem}: a compiler ran out of memory", where=log, next_step="set MAX_JOBS lower"
        )
    if output.timed_out:
        raise MachineError(f"{problem}: not done after {timeout:.0f} s", where=log)
    if _DISK.search(output.text):
        raise MachineError(
            f"{problem}: the disk is full or read-only",
            where=log,
            next_step="free disk space",
            code="disk_full",
        )
    if output.code < 0:
        raise MachineError(
            f"{problem}: uv ended by signal {-output.code}",
            where=log,
            code=processes.signal_code(-output.code),
        )
    lines = [line.strip() for line in output.text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("error", "cause", "×", "╰", "├"))] or lines[-1:]
    reason = neutral(" ".join(errors[:3])) if errors else f"exit code {output.code}"
    if _REGISTRY.search(output.text) and not _UNSOLVED.search(output.text):
        raise MachineError(
            f"{problem}: the package registry cannot be reached: {reason}",
            where=log,
            next_step="check network, proxy and index, then start again",
            code="hub_unreachable",
            output=reason,
        )
    raise BuildError(f"{problem}: {reason}", where=log, output=reason)
