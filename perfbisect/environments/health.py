"""What an interpreter has: looked at without importing the engine (probe), or by importing it (health)."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfbisect.environments.running import Output, interpreter_environment, run
from perfbisect.errors import BuildError, FaultCode, MachineError
from perfbisect.system.logs import neutral

_LIMIT = 900.0

_PROBE = """
import importlib.util, json, platform, sys
name, target = sys.argv[1:3]
try:
    spec = importlib.util.find_spec(name)
except (ImportError, ValueError):
    spec = None
origin = spec.origin if spec is not None and spec.has_location else None
with open(target, "w") as stream:
    json.dump({"file": origin or "", "python": platform.python_version(), "tag": sys.implementation.cache_tag
    or "",
               "platform": platform.platform(), "executable": sys.executable, "prefix": sys.prefix}, stream)
"""

_HEALTH = """
import importlib, json, platform, sys, traceback
name, target = sys.argv[1:3]
found = {}
def write():
    with open(target, "w") as stream:
        json.dump(found, stream)
try:
    engine = importlib.import_module(name)
    version = engine
    try:
        version = importlib.import_module(name + "._version")
    except Exception:
        pass
    def first(*names):
        for holder in (engine, version):
            for known in names:
                value = getattr(holder, known, None)
                if isinstance(value, str) and value:
                    return value
        return ""
    found = {"file": getattr(engine, "__file__", None) or "", "version": first("__version__", "version"),
             "commit": first("__commit_id__", "commit_id", "__commit__"), "python": platform.python_version(),
             "executable": sys.executable, "platform": platform.platform()}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
except BaseException as error:
    traceback.print_exc()
    found = {"error": traceback.format_exception_only(type(error), error)[-1].strip(),
             "kind": type(error).__name__, "errno": getattr(error, "errno", None)}
    write()
    sys.exit(3)
write()
"""


@dataclass(frozen=True)
class Probe:
    """An interpreter, seen from outside: ``file``: the engine's ``__init__`` (empty: none)."""

    file: str
    python: str
    tag: str
    platform: str

    @property
    def package_folder(self) -> Path | None:
        return Path(self.file).parent if self.file else None


@dataclass(frozen=True)
class Health:
    """What an interpreter imported: the engine's file, version, and commit where it says one."""

    file: Path
    version: str
    commit: str
    facts: Mapping[str, Any]

    def says_commit(self, sha: str) -> bool | None:
        """Whether the engine says it is that commit; None where it says nothing."""
        said = self.commit.removeprefix("g").lower()
        return sha.startswith(said) if len(said) >= 7 else None


def probe(interpreter: Path, module: str, *, env: Mapping[str, str], log: Path) -> Probe:
    """Where an interpreter would import the engine from.

    :raises BuildError: it does not run.
    """
    output, found = _ask(_PROBE, interpreter, module, env, log, 120.0)
    if output.code != 0 or "tag" not in found:
        raise BuildError(f"{interpreter} does not run: {_last(output)}", where=log, output=_last(output))
    return Probe(found["file"], found["python"], found["tag"], found["platform"])


def health(
    interpreter: Path, module: str, *, env: Mapping[str, str], log: Path, what: str, timeout: float = _LIMIT
) -> Health:
    """Import the engine as its server will, and say what was imported.

    :raises BuildError: the engine does not import; the message ends in the last line of its traceback.
    :raises MachineError: the machine was out of memory or disk.
    """
    output, found = _ask(_HEALTH, interpreter, module, env, log, min(timeout, _LIMIT))
    if output.timed_out:
        raise BuildError(f"{what}: import {module} took more than {min(timeout, _LIMIT):.0f} s", where=log)
    if "error" in found:
        said = neutral(found["error"])
        code: FaultCode | None = None
        if found["kind"] == "MemoryError" or found["errno"] == errno.ENOMEM:
            code = "out_of_memory"
        elif found["errno"] in (errno.ENOSPC, errno.EDQUOT):
            code = "disk_full"
        kind = MachineError if code else BuildError
        raise kind(f"{what}: import {module} failed: {said}", where=log, code=code, output=said)
    if output.code == -9:
        raise MachineError(
            f"{what}: import {module} was killed from outside (out of memory?)", where=log, code="killed"
        )
    if output.code != 0 or "file" not in found:
        ended = f"signal {-output.code}" if output.code < 0 else f"exit code {output.code}"
        raise BuildError(
            f"{what}: import {module} ended with {ended}: {_last(output)}", where=log, output=_last(output)
        )
    if not found["file"]:
        raise BuildError(f"{what}: {module} is a folder without __init__.py, not an engine", where=log)
    rest = {name: value for name, value in found.items() if name not in ("file", "version", "commit")}
    return Health(Path(found["file"]), found["version"], found["commit"], rest)


def _ask(
    script: str, interpreter: Path, module: str, env: Mapping[str, str], log: Path, timeout: float
) -> tuple[Output, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="perfbisect-") as folder:
        target = Path(folder) / "found.json"
        variables = interpreter_environment(interpreter, env)
        argv = [str(interpreter), "-c", script, module, str(target)]
        output = run(argv, env=variables, cwd=Path(folder), log=log, timeout=timeout)
        try:
            found = json.loads(target.read_text())
        except (OSError, ValueError):
            found = {}
    return output, found


def _last(output: Output) -> str:
    lines = [line for line in output.text.splitlines() if line.strip()]
    return neutral(lines[-1].strip()) if lines else "it wrote nothing"


def inside(file: Path, folder: Path) -> bool:
    """True if a file is in a folder, symbolic links followed on both sides."""
    return Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder))
