"""Health checks: which engine an interpreter imports, and whether it is the change under test."""

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
from perfbisect.environments.cache import CheckedEnvironment, variables
from perfbisect.environments.packages import EnginePackage
from perfbisect.environments.source_tree import blobs_inside
from perfbisect.environments.uv import Output, interpreter_environment, run
from perfbisect.errors import BuildError, FaultCode, MachineError
from perfbisect.model.change import Change
from perfbisect.system.logs import neutral

_LIMIT_S = 900.0

_LOCATE = """
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

_IMPORT = """
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
class LocatedEngine:
    """Where an interpreter would import the engine from; ``file``: its ``__init__``, empty if there is none.

    ``tag``: of byte code, ``cpython-311``.
    """

    file: str
    python: str
    tag: str
    platform: str

    @property
    def package_folder(self) -> Path | None:
        return Path(self.file).parent if self.file else None


@dataclass(frozen=True)
class ImportedEngine:
    """What an interpreter imported: file, version, and commit if the engine reports one."""

    file: Path
    version: str
    commit: str
    facts: Mapping[str, Any]

    def reports_commit(self, sha: str) -> bool | None:
        """Whether the engine reports that commit; None if it reports none."""
        reported = self.commit.removeprefix("g").lower()
        return sha.startswith(reported) if len(reported) >= 7 else None


def locate_engine(interpreter: Path, module: str, *, env: Mapping[str, str], log: Path) -> LocatedEngine:
    """Find the engine without importing it.

    :raises BuildError: the interpreter does not run.
    """
    output, found = _run_script(_LOCATE, interpreter, module, env, log, 120.0)
    if output.code != 0 or "tag" not in found:
        last = _last_line(output)
        raise BuildError(f"{interpreter} does not run: {last}", where=log, output=last)
    return LocatedEngine(found["file"], found["python"], found["tag"], found["platform"])


def import_engine(
    interpreter: Path, module: str, *, env: Mapping[str, str], log: Path, what: str, timeout: float = _LIMIT_S
) -> ImportedEngine:
    """Import the engine as its server will; ``what`` names the environment in errors.

    :raises BuildError: it does not import; the message ends in the last line of the traceback.
    :raises MachineError: out of memory or disk.
    """
    limit = min(timeout, _LIMIT_S)
    output, found = _run_script(_IMPORT, interpreter, module, env, log, limit)
    if output.timed_out:
        raise BuildError(f"{what}: import {module} took more than {limit:.0f} s", where=log)
    if "error" in found:
        reason = neutral(found["error"])
        code: FaultCode | None = None
        if found["kind"] == "MemoryError" or found["errno"] == errno.ENOMEM:
            code = "out_of_memory"
        elif found["errno"] in (errno.ENOSPC, errno.EDQUOT):
            code = "disk_full"
        kind = MachineError if code else BuildError
        raise kind(f"{what}: import {module} failed: {reason}", where=log, code=code, output=reason)
    if output.code == -9:
        raise MachineError(
            f"{what}: import {module} was killed from outside (out of memory?)", where=log, code="killed"
        )
    if output.code != 0 or "file" not in found:
        ended, last = exit_text(output.code), _last_line(output)
        raise BuildError(f"{what}: import {module} ended with {ended}: {last}", where=log, output=last)
    if not found["file"]:
        raise BuildError(f"{what}: {module} is a folder without __init__.py, not an engine", where=log)
    facts = {name: value for name, value in found.items() if name not in ("file", "version", "commit")}
    return ImportedEngine(Path(found["file"]), found["version"], found["commit"], facts)


def exit_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _run_script(
    script: str, interpreter: Path, module: str, env: Mapping[str, str], log: Path, timeout: float
) -> tuple[Output, dict[str, Any]]:
    """Run a script in the interpreter; returns its output and the JSON that it wrote."""
    with tempfile.TemporaryDirectory(prefix="perfbisect-") as folder:
        target = Path(folder) / "found.json"
        argv = [str(interpreter), "-c", script, module, str(target)]
        environment = interpreter_environment(interpreter, env)
        output = run(argv, env=environment, cwd=Path(folder), log=log, timeout=timeout)
        try:
            found = json.loads(target.read_text())
        except (OSError, ValueError):
            found = {}
    return output, found


def _last_line(output: Output) -> str:
    lines = [line for line in output.text.splitlines() if line.strip()]
    return neutral(lines[-1].strip()) if lines else "it wrote nothing"


PACKAGES_FILE = "packages.txt"


def create_venv(
    staging: Path,
    requirements: Sequence[str],
    *,
    package: EnginePackage,
    limits: uv.DependencyLimits,
    python: str,
    log: Path,
    timeout: float,
    torch_backend: str = "",
) -> Path:
    """Create ``staging/venv`` with requirements and their dependencies; returns its interpreter.

    The installed packages are listed in ``staging/packages.txt``.

    :raises BuildError: the requirements cannot be met.
    :raises MachineError: the registry is unreachable, or the disk is full.
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
    (staging / PACKAGES_FILE).write_text(uv.list_packages(interpreter, log=log))
    return interpreter


def import_own_engine(
    folder: Path,
    package: EnginePackage,
    *,
    what: str,
    log: Path,
    timeout: float,
    interpreter: Path | None = None,
    tree: Path | None = None,
) -> ImportedEngine:
    """Import the engine of the environment in ``folder``; ``tree``: the layer that must hold it.

    :raises BuildError: it does not import, or comes from elsewhere.
    """
    found = import_engine(
        interpreter or folder / "venv" / "bin" / "python",
        package.module,
        env=variables(folder, str(tree or "")),
        log=log,
        what=what,
        timeout=timeout,
    )
    expected = tree or folder
    if not Path(os.path.realpath(found.file)).is_relative_to(os.path.realpath(expected)):
        raise BuildError(
            f"{what}: imported {package.module} from {found.file}, not from {expected}", where=log
        )
    return found


def checked_venv(
    folder: Path,
    found: ImportedEngine,
    commit: str,
    facts: Mapping[str, Any],
    interpreter: Path | None = None,
) -> CheckedEnvironment:
    """The check result of a virtual environment, with the packages listed when it was created."""
    packages = (folder / PACKAGES_FILE).read_text()
    return CheckedEnvironment(
        interpreter or folder / "venv" / "bin" / "python",
        found.version,
        commit,
        found.file,
        text_digest(packages),
        {**found.facts, "packages": packages.splitlines(), **facts},
    )


def site_packages(venv: Path) -> Path:
    """:raises BuildError: it is no virtual environment."""
    folders = sorted(venv.glob("lib/python3*/site-packages"))
    if not folders:
        raise BuildError(f"{venv} has no site-packages")
    return folders[0]


_HEX = re.compile(r"^g([0-9a-f]{7,64})$")
FOREIGN_SHARE = 0.1
"""If a larger share of an engine's files differs from a commit, it was not built from that commit."""


def commit_in_version(version: str) -> str:
    """The abbreviated commit in a local version (``1.2.dev5+gabcdef123.cu129``); empty if there is none."""
    for word in re.split(r"[.\-_]", version.partition("+")[2].lower()):
        if match := _HEX.match(word):
            return match[1]
    return ""


def reported_commit(found: ImportedEngine) -> str:
    """The commit that an engine reports, in seven or more hex digits; empty if it reports none."""
    reported = found.commit.lower().removeprefix("g")
    return reported if re.fullmatch(r"[0-9a-f]{7,64}", reported) else commit_in_version(found.version)


@dataclass(frozen=True)
class ContentMatch:
    """Python files of an installed package compared with a commit; paths inside the package.

    ``missing`` excludes folders of which nothing was installed.
    """

    same: int
    differing: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        return not self.differing and not self.missing

    @property
    def is_foreign(self) -> bool:
        """True if it cannot have been built from the commit."""
        return len(self.differing) > FOREIGN_SHARE * max(self.same + len(self.differing), 1)


def compare_content(folder: Path, tracked: Mapping[str, str]) -> ContentMatch:
    """Compare an installed package with the object names of a commit (path -> name)."""
    python = {path: blob for path, blob in tracked.items() if path.endswith(".py")}
    present = {path for path in python if (folder / path).is_file()}
    parents = {PurePosixPath(path).parent for path in present}
    differing = sorted(path for path in present if file_blob_id(folder / path, python[path]) != python[path])
    missing = sorted(path for path in python if path not in present and PurePosixPath(path).parent in parents)
    return ContentMatch(len(present) - len(differing), tuple(differing), tuple(missing))


def identify_commit(
    found: ImportedEngine, sha: str, tracked: Mapping[str, str], *, what: str, log: Path
) -> str:
    """What identifies an engine as a commit: ``commit`` (it reports it) or ``content`` (its files match).

    ``tracked``: path inside the package -> object name, at that commit.

    :raises BuildError: it reports another commit, reports none and differs, or differs in most files.
    """
    reported = reported_commit(found)
    if reported and not sha.startswith(reported):
        raise BuildError(f"{what}: the engine ({found.version}) says it is commit {reported}", where=log)
    content = compare_content(found.file.parent, tracked)
    if content.is_foreign or (not reported and not content.is_exact):
        files = (*content.differing, *content.missing)
        says = (
            f"says it is {reported}, but"
            if reported
            else f"says no commit (its version is {found.version}), and"
        )
        raise BuildError(
            f"{what}: the engine {says} {len(files)} of its files are not those of {sha[:12]}: "
            f"{', '.join(files[:3])}{' and more' if len(files) > 3 else ''}",
            where=log,
        )
    return "commit" if reported else "content"


def check_commit_environment(
    folder: Path,
    package: EnginePackage,
    repository: Repository,
    change: Change,
    *,
    inside: str,
    what: str,
    facts: Mapping[str, Any],
    log: Path,
    timeout: float,
    interpreter: Path | None = None,
) -> CheckedEnvironment:
    """Check that the environment in ``folder`` runs a commit.

    ``inside``: the package's folder in the repository; ``what`` names the environment in errors.

    :raises BuildError: its engine does not import, comes from elsewhere, or is not the commit.
    """
    found = import_own_engine(
        folder, package, what=change.short, log=log, timeout=timeout, interpreter=interpreter
    )
    tracked = blobs_inside(repository, change.id, inside)
    identity = {
        "identified_by": identify_commit(found, change.id, tracked, what=what, log=log),
        "engine_says_commit": found.commit,
    }
    return checked_venv(folder, found, change.id, {**identity, **facts}, interpreter)
