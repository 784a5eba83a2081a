"""What an interpreter has: looked at without importing the engine (probe), or by importing it (health)."""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from perfbisect.changes.git import Repository
from perfbisect.common.digests import file_blob_id, text_digest
from perfbisect.environments import uv
from perfbisect.environments.cache import Built, variables
from perfbisect.environments.packages import Package
from perfbisect.environments.tree_digest import blobs_inside
from perfbisect.environments.uv import Output, interpreter_environment, run
from perfbisect.errors import BuildError, FaultCode, MachineError
from perfbisect.model.change import Change
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


PACKAGES_FILE = "packages.txt"


def fill(
    staging: Path,
    requirements: Sequence[str],
    *,
    package: Package,
    limits: uv.Limits,
    python: str,
    log: Path,
    timeout: float,
    torch_backend: str = "",
) -> Path:
    """``staging/venv`` with requirements and their dependencies; returns its interpreter.

    What is installed is written to ``staging/packages.txt``.

    :raises BuildError: the requirements cannot be met.
    :raises MachineError: the registry cannot be reached, or the disk is full.
    """
    interpreter = uv.create(
        staging / "venv", python=python or str(uv.base_python()), log=log, timeout=timeout
    )
    uv.install(
        interpreter,
        requirements,
        limits=limits,
        drop=package.drop,
        torch_backend=torch_backend or package.torch_backend,
        folder=staging,
        log=log,
        timeout=timeout,
    )
    (staging / PACKAGES_FILE).write_text(uv.listed(interpreter, log=log))
    return interpreter


def look(
    folder: Path, package: Package, *, what: str, log: Path, timeout: float, interpreter: Path | None = None
) -> Health:
    """What an environment imports as its engine, which must be its own.

    :raises BuildError: it does not import, or from elsewhere.
    """
    found = health(
        interpreter or folder / "venv" / "bin" / "python",
        package.module,
        env=variables(folder),
        log=log,
        what=what,
        timeout=timeout,
    )
    if not inside(found.file, folder):
        raise BuildError(f"{what}: imported {package.module} from {found.file}, not from {folder}", where=log)
    return found


def as_built(
    folder: Path, found: Health, commit: str, facts: Mapping[str, Any], interpreter: Path | None = None
) -> Built:
    """A looked-at environment as it is stamped, with the packages that were written down as it was filled."""
    packages = (folder / PACKAGES_FILE).read_text()
    return Built(
        interpreter or folder / "venv" / "bin" / "python",
        found.version,
        commit,
        found.file,
        text_digest(packages),
        {**found.facts, "packages": packages.splitlines(), **facts},
    )


def site_packages(venv: Path) -> Path:
    """:raises BuildError: it is no virtual environment."""
    found = sorted(venv.glob("lib/python3*/site-packages"))
    if not found:
        raise BuildError(f"{venv} has no site-packages")
    return found[0]


_HEX = re.compile(r"^g([0-9a-f]{7,64})$")
FOREIGN_SHARE = 0.1
"""An engine of which more files than this share differ from a commit was not built from that commit."""


def commit_in_version(version: str) -> str:
    """The abbreviated commit in a version's local part (``1.2.dev5+gabcdef123.cu129``); empty: none."""
    for word in re.split(r"[.\-_]", version.partition("+")[2].lower()):
        found = _HEX.match(word)
        if found:
            return found[1]
    return ""


def said_commit(found: Health) -> str:
    """The commit that an engine says it is: seven or more hex digits; empty where it says none."""
    said = found.commit.lower().removeprefix("g")
    return said if re.fullmatch(r"[0-9a-f]{7,64}", said) else commit_in_version(found.version)


@dataclass(frozen=True)
class Content:
    """An installed package's Python files beside those that git has at a commit; paths inside the package.

    ``missing`` leaves out folders of which nothing was installed.
    """

    same: int
    differing: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def exact(self) -> bool:
        return not self.differing and not self.missing

    @property
    def foreign(self) -> bool:
        """True if this cannot have been built from the commit."""
        return len(self.differing) > FOREIGN_SHARE * max(self.same + len(self.differing), 1)


def compare(folder: Path, tracked: Mapping[str, str]) -> Content:
    """The files of an installed package against git's object names of a commit."""
    python = {path: blob for path, blob in tracked.items() if path.endswith(".py")}
    there = {path for path in python if (folder / path).is_file()}
    parents = {PurePosixPath(path).parent for path in there}
    differing = sorted(path for path in there if file_blob_id(folder / path, python[path]) != python[path])
    missing = sorted(path for path in python if path not in there and PurePosixPath(path).parent in parents)
    return Content(len(there) - len(differing), tuple(differing), tuple(missing))


def check_commit(found: Health, sha: str, tracked: Mapping[str, str], *, what: str, log: Path) -> str:
    """What shows that an engine is a commit: ``commit`` (it says so) or ``content`` (its files are git's).

    ``tracked``: path inside the package -> object name, at that commit.

    :raises BuildError: it says another commit, or says none and differs from git, or has little in common
        with the commit that it says.
    """
    said = said_commit(found)
    if said and not sha.startswith(said):
        raise BuildError(f"{what}: the engine ({found.version}) says it is commit {said}", where=log)
    content = compare(found.file.parent, tracked)
    if content.foreign or (not said and not content.exact):
        files = (*content.differing, *content.missing)
        says = f"says it is {said}, but" if said else f"says no commit (its version is {found.version}), and"
        raise BuildError(
            f"{what}: the engine {says} {len(files)} of its files are not those of {sha[:12]}: "
            f"{', '.join(files[:3])}{' and more' if len(files) > 3 else ''}",
            where=log,
        )
    return "commit" if said else "content"


def check_built(
    folder: Path,
    package: Package,
    repository: Repository,
    change: Change,
    *,
    inside: str,
    what: str,
    facts: Mapping[str, Any],
    log: Path,
    timeout: float,
    interpreter: Path | None = None,
) -> Built:
    """The environment in ``folder`` as it is stamped, with ``facts``; ``what`` names it in errors.

    ``inside``: the package's folder in the repository.

    :raises BuildError: its engine does not import, comes from elsewhere, or is not the commit.
    """
    found = look(folder, package, what=change.short, log=log, timeout=timeout, interpreter=interpreter)
    tracked = blobs_inside(repository, change.id, inside)
    shown = {
        "identified_by": check_commit(found, change.id, tracked, what=what, log=log),
        "engine_says_commit": found.commit,
    }
    return as_built(folder, found, change.id, {**shown, **facts}, interpreter)
