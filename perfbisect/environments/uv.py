"""Virtual environments from the package registry, by the uv command."""

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
    """What an engine's interpreter is looked at in: as its server will run, less our own ``PYTHON*``."""
    own = {"PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}
    return environ.for_interpreter(os.environ, interpreter, own, *layers)


def registry_environment() -> dict[str, str]:
    """What packages are fetched in: the user's proxies and uv settings, no active environment."""
    passed = {name: value for name, value in os.environ.items() if name.startswith(_REGISTRY_PREFIXES)}
    return environ.with_proxies(environ.allowed(os.environ), os.environ) | passed


@dataclass(frozen=True)
class Output:
    """How a command ended, and all it wrote."""

    code: int
    text: str
    timed_out: bool
    seconds: float


def run(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, timeout: float) -> Output:
    """Run a command to its end; its output is appended to ``log`` and returned, redacted in both.

    :raises BuildError: it cannot be started.
    :raises MachineError: the log cannot be written, or a process that was told to end lives on.
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
        append(log, f"$ {shown}\n{text}")
    return Output(done.code, text, done.timed_out, done.seconds)


def append(log: Path, text: str) -> None:
    """Add to a log. :raises MachineError: it cannot be written."""
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
    """The uv command: of our own environment, else of PATH. :raises MachineError: there is none."""
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise MachineError("the uv command is not there", next_step="pip install uv")
    return Path(found)


def base_python() -> Path:
    """The interpreter that perfbisect's own environment was made from."""
    return Path(os.path.realpath(sys.executable))


def base_python_version() -> str:
    """Its version, down to the patch level: environments of another are other environments."""
    return platform.python_version()


@dataclass(frozen=True)
class Limits:
    """Which dependencies may be taken: published before a day (``YYYY-MM-DD``), or pinned in a file."""

    exclude_newer: str | None = None
    constraints: Path | None = None

    def arguments(self) -> tuple[str, ...]:
        day = ("--exclude-newer", self.exclude_newer) if self.exclude_newer else ()
        pins = ("--constraint", str(self.constraints)) if self.constraints else ()
        return (*day, *pins)

    def digested(self) -> tuple[str, str]:
        """What of it decides which dependencies are taken: for keys."""
        return self.exclude_newer or "", self.constraints.read_text() if self.constraints else ""

    def facts(self) -> dict[str, str]:
        """It, for a stamp."""
        return {"exclude_newer": self.exclude_newer or "", "constraints": str(self.constraints or "")}


def create(folder: Path, *, python: str, log: Path, timeout: float) -> Path:
    """An empty environment that may be moved to another place; returns its interpreter.

    :raises BuildError: there is no such Python.
    """
    argv = (
        str(find_uv()),
        "venv",
        "--no-project",
        "--no-config",
        "--relocatable",
        "--python",
        python,
        str(folder),
    )
    output = run(argv, env=_environment(), cwd=folder.parent, log=log, timeout=timeout)
    _judge(output, f"make an environment of Python {python}", log, timeout)
    return folder / "bin" / "python"


def install(
    interpreter: Path,
    requirements: Sequence[str],
    *,
    limits: Limits,
    drop: Sequence[str],
    torch_backend: str,
    folder: Path,
    log: Path,
    timeout: float,
) -> None:
    """Install requirements with their dependencies, less ``drop``, and compile them to byte code.

    ``folder`` is for the files that tell uv so. Where a folder of wheels that pip is told to use has a
    torch, that one is taken, else the one of ``torch_backend``.

    :raises BuildError: the requirements cannot be met, or a package cannot be built.
    :raises MachineError: the registry cannot be reached, or the disk is full.
    """
    environment = _environment()
    overrides: tuple[str, ...] = ()
    if drop:
        listed = folder / "dropped.txt"
        listed.write_text("".join(f'{name} ; python_version < "3"\n' for name in drop))
        overrides = ("--override", str(listed))
    argv = (
        str(find_uv()), "pip", "install", "--no-config", "--python", str(interpreter), "--compile-bytecode",
        *limits.arguments(), *overrides, *_where_from(environment, torch_backend), *requirements,
    )  # fmt: skip
    output = run(argv, env=environment, cwd=folder, log=log, timeout=timeout)
    _judge(output, f"install {' '.join(requirements)}", log, timeout)


def lay(
    target: Path, requirement: str, *, python: str, limits: Limits, torch_backend: str, log: Path,
    timeout: float, look_only: bool = False,
) -> None:  # fmt: skip
    """One package in a folder of its own, for an interpreter, without what it depends on.

    Constraints are not asked: they say what comes by itself, this was asked for. ``look_only``: nothing is
    written.

    :raises BuildError: there is none for that interpreter.
    :raises MachineError: the registry cannot be reached, or the disk is full.
    """
    environment = _environment()
    argv = (
        str(find_uv()), "pip", "install", "--no-config", "--python", python, "--target", str(target),
        "--no-deps", *(("--dry-run",) if look_only else ("--compile-bytecode",)),
        *Limits(limits.exclude_newer).arguments(), *_where_from(environment, torch_backend), requirement,
    )  # fmt: skip
    output = run(argv, env=environment, cwd=target.parent, log=log, timeout=timeout)
    _judge(output, f"{'find' if look_only else 'install'} {requirement}", log, timeout)


def build_wheel(
    tree: Path, interpreter: Path, *, out: Path, variables: Mapping[str, str], ceiling: Path, log: Path,
    timeout: float,
) -> Path:  # fmt: skip
    """Build the project in ``tree`` with the tools that ``interpreter`` has; returns the wheel in ``out``.

    ``ceiling``: no git repository above it is looked for.

    :raises BuildError: it does not build.
    :raises MachineError: not in time, or for want of memory, disk or network.
    """
    environment = _environment()
    path = f"{interpreter.parent}:{environment.get('PATH', '/usr/bin:/bin')}"
    ours = {
        "PATH": path,
        "VIRTUAL_ENV": str(interpreter.parent.parent),
        "GIT_CEILING_DIRECTORIES": str(ceiling),
    }
    argv = (
        str(find_uv()), "build", "--wheel", "--no-build-isolation", "--no-config",
        "--python", str(interpreter), "--out-dir", str(out), str(tree),
    )  # fmt: skip
    output = run(argv, env={**environment, **variables, **ours}, cwd=tree, log=log, timeout=timeout)
    if _NO_MEMORY.search(output.text) and output.code != 0:
        raise MachineError(
            f"cannot build {tree}: a compiler ran out of memory", where=log, next_step="set MAX_JOBS lower"
        )
    _judge(output, f"build {tree}", log, timeout)
    wheels = sorted(out.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(f"building {tree} gave {len(wheels)} wheels instead of one", where=log)
    return wheels[0]


def find_package(name: str, *, folder: Path, log: Path, timeout: float) -> str:
    """Look a package up where uv would take it from, without installing it; says how it went.

    :raises BuildError: there is no such package there.
    :raises MachineError: the registry cannot be reached.
    """
    index = ("--no-index",) if _without_index() else ()
    argv = (
        str(find_uv()), "pip", "install", "--no-config", "--dry-run", "--no-deps", "--refresh", "--python",
        str(base_python()), "--target", str(folder / "nothing"), *index, name,
    )  # fmt: skip
    output = run(argv, env=_environment(), cwd=folder, log=log, timeout=timeout)
    _judge(output, f"look up {name}", log, timeout)
    where = "folders of wheels, no registry," if index else "the registry"
    return f"{where} answered in {output.seconds:.1f} s"


def freeze(interpreter: Path, *, log: Path) -> str:
    """What is installed, one ``name==version`` a line, sorted.

    :raises BuildError: it is no Python.
    """
    argv = (str(find_uv()), "pip", "freeze", "--no-config", "--python", str(interpreter))
    output = run(argv, env=_environment(), cwd=Path("/"), log=log, timeout=120.0)
    _judge(output, f"list the packages of {interpreter}", log, 120.0)
    lines = (line.strip() for line in output.text.splitlines())
    listed = (line for line in lines if re.match(r"^(-e |[A-Za-z0-9][\w.\-]* ?(==|@ ))", line))
    return "".join(f"{line}\n" for line in sorted(listed))


def listed(interpreter: Path, *, log: Path) -> str:
    """What is installed, one ``name==version`` a line, sorted, wherever it came from.

    :raises BuildError: it is no Python.
    """
    argv = (
        str(find_uv()), "pip", "list", "--no-config", "--format", "freeze", "--python", str(interpreter),
    )  # fmt: skip
    output = run(argv, env=_environment(), cwd=Path("/"), log=log, timeout=120.0)
    _judge(output, f"list the packages of {interpreter}", log, 120.0)
    lines = (line.strip() for line in output.text.splitlines())
    return "".join(f"{line}\n" for line in sorted(lines) if re.match(r"^[A-Za-z0-9][\w.\-]*==", line))


def _environment() -> dict[str, str]:
    """uv's process environment: its own variables, and those settings of pip that it does not read."""
    environment = registry_environment()
    wheels, index = _pip_setting("find-links"), _pip_setting("index-url")
    if wheels and "UV_FIND_LINKS" not in environment:
        environment["UV_FIND_LINKS"] = ",".join(wheels.split())
    if index and not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & set(environment):
        environment["UV_DEFAULT_INDEX"] = index
    environment.pop("UV_PROJECT", None)
    return environment | {"UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


def _where_from(environment: Mapping[str, str], torch_backend: str) -> tuple[str, ...]:
    """Arguments that say which registry is asked, and where torch comes from."""
    if _without_index():
        return ("--no-index",)
    told = "UV_TORCH_BACKEND" in environment or _local_torch(environment)
    return ("--torch-backend", torch_backend) if torch_backend and not told else ()


def _without_index() -> bool:
    """True where pip is told to use no registry: uv has a switch for that, and no variable."""
    return _pip_setting("no-index").lower() in ("1", "true", "yes", "on")


def _pip_setting(name: str) -> str:
    """A setting of pip, from its variables or its files; empty if there is none."""
    return os.environ.get("PIP_" + name.upper().replace("-", "_"), "") or _pip_files().get(name, "")


@functools.cache
def _pip_files() -> dict[str, str]:
    """What pip's configuration files say for all its commands; empty where there is no pip."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"],
            capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = re.findall(r"^global\.([a-z-]+)=(.*)$", done.stdout, re.MULTILINE)
    return {key: str(ast.literal_eval(value)) for key, value in rows if value[:1] in "'\""}


def _local_torch(environment: Mapping[str, str]) -> bool:
    places = re.split(r"[,\s]+", environment.get("UV_FIND_LINKS", ""))
    folders = (Path(place.removeprefix("file://")) for place in places if place)
    return any(any(folder.glob("torch-*.whl")) for folder in folders if folder.is_dir())


def _judge(output: Output, doing: str, log: Path, timeout: float) -> None:
    """Raise what a failed command means: whose fault it is."""
    if output.code == 0 and not output.timed_out:
        return
    if output.timed_out:
        raise MachineError(f"cannot {doing}: not done after {timeout:.0f} s", where=log)
    lines = [line.strip() for line in output.text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("error", "cause", "×", "╰", "├"))] or lines[-1:]
    reason = neutral(" ".join(told[:3])) if told else f"exit code {output.code}"
    if _DISK.search(output.text):
        raise MachineError(
            f"cannot {doing}: the disk is full or read-only",
            where=log,
            next_step="free disk space",
            code="disk_full",
        )
    if output.code < 0:
        raise MachineError(
            f"cannot {doing}: uv ended by signal {-output.code}",
            where=log,
            code=processes.signal_code(-output.code),
        )
    if _REGISTRY.search(output.text) and not _UNSOLVED.search(output.text):
        raise MachineError(
            f"cannot {doing}: the package registry cannot be reached: {reason}",
            where=log,
            next_step="check network, proxy and index, then start again",
            code="hub_unreachable",
            output=reason,
        )
    raise BuildError(f"cannot {doing}: {reason}", where=log, output=reason)
