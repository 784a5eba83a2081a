"""Health checks: which engine an interpreter imports, and whether it is the change under test."""

from __future__ import annotations

import errno
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.version import InvalidVersion, Version

from perfbisect.common.digests import file_blob_id, text_digest
from perfbisect.common.json_text import parse_json
from perfbisect.environments.base import Environment
from perfbisect.environments.build import BuildRun, interpreter_environment
from perfbisect.errors import BuildError, FaultCode, MachineError
from perfbisect.model.change import commit_in_version
from perfbisect.system.commands import ProcessResult
from perfbisect.system.logs import excerpt

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
    json.dump({"file": origin or "", "python": platform.python_version(),
               "tag": sys.implementation.cache_tag or ""}, stream)
"""

_IMPORT = """
import hashlib, importlib, json, os, platform, sys, traceback
name, server, target = sys.argv[1:4]
found, asked = {}, name
def compiled(folder):
    files = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]
    digest = hashlib.sha256()
    files = sorted(file for file in files if file.endswith(".so") and os.path.isfile(file))
    for file in files:
        digest.update(os.path.relpath(file, folder).encode() + bytes(1))
        with open(file, "rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
    return digest.hexdigest() if files else ""
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
    if found["file"]:
        found["compiled"] = compiled(os.path.dirname(found["file"]))
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
    if server:
        asked = server
        importlib.import_module(server)
except BaseException as error:
    traceback.print_exc()
    at = ""
    for frame in traceback.extract_tb(error.__traceback__)[1:]:
        folders = [folder for folder in sys.path if folder and frame.filename.startswith(folder + os.sep)]
        if folders and frame.filename != importlib.__file__:
            at = os.path.relpath(frame.filename, max(folders, key=len)) + ":" + str(frame.lineno)
    found = {"error": traceback.format_exception_only(type(error), error)[-1].strip(), "asked": asked,
             "at": at, "kind": type(error).__name__, "errno": getattr(error, "errno", None)}
    write()
    sys.exit(3)
write()
"""


@dataclass(frozen=True)
class LocatedEngine:
    """Where an interpreter would import the engine from; ``tag``: of byte code, ``cpython-311``."""

    file: str
    python: str
    tag: str

    @property
    def folder(self) -> Path | None:
        return Path(self.file).parent if self.file else None


@dataclass(frozen=True)
class ImportedEngine:
    """What an interpreter imported: file, version, and commit if the engine reports one."""

    file: Path
    version: str
    commit: str
    facts: Mapping[str, Any]
    interpreter: Path

    @property
    def stated_commit(self) -> str:
        """What the engine itself reports as its commit, in lower case."""
        return self.commit.lower().removeprefix("g")

    @property
    def reported_commit(self) -> str:
        """Seven or more digits of the commit that engine or version name; empty if neither does."""
        stated = self.stated_commit
        return stated if re.fullmatch(r"[0-9a-f]{7,64}", stated) else commit_in_version(self.version)

    def checked(
        self, commit: str, packages: Sequence[str], facts: Mapping[str, Any], *python_path: Path
    ) -> Environment:
        """The environment before it has a key and a stamp; ``commit``: which one the engine is."""
        return Environment(
            key="",
            interpreter=self.interpreter,
            engine_version=self.version,
            engine_commit=commit,
            engine_file=str(self.file),
            packages_digest=text_digest("".join(f"{line}\n" for line in packages)),
            facts={**self.facts, "packages": list(packages), **facts},
            python_path=python_path,
        )


def locate_engine(build: BuildRun, interpreter: Path, module: str, env: Mapping[str, str]) -> LocatedEngine:
    """Find the engine without importing it."""
    output, found = _run_script(_LOCATE, build, interpreter, (module,), env, 120.0)
    if output.code != 0 or "tag" not in found:
        last = output.last_line
        raise BuildError(f"{interpreter} does not run: {last}", where=build.log, output=last)
    return LocatedEngine(found["file"], found["python"], found["tag"])


def import_engine(
    build: BuildRun,
    interpreter: Path,
    module: str,
    *,
    server: str = "",
    env: Mapping[str, str],
    what: str,
) -> ImportedEngine:
    """Import the engine as its server will, and then ``server``; ``what`` names the environment in errors.

    Raises:
        BuildError: it does not import.
        MachineError: out of memory or disk.
    """
    limit = min(build.timeout, _LIMIT_S)
    output, found = _run_script(_IMPORT, build, interpreter, (module, server), env, limit)
    problem = f"{what}: import {module}"
    if output.timed_out:
        raise BuildError(f"{problem} took more than {limit:.0f} s", where=build.log)
    if "error" in found:
        reason = excerpt(found["error"])
        code: FaultCode | None = None
        # What the machine lacks says nothing about the commit.
        if found["kind"] == "MemoryError" or found["errno"] == errno.ENOMEM:
            code = "out_of_memory"
        elif found["errno"] in (errno.ENOSPC, errno.EDQUOT):
            code = "disk_full"
        kind = MachineError if code else BuildError
        code = code or "engine_import_failed"
        at = f", at {found['at']}" if found["at"] else ""
        raise kind(
            f"{what}: import {found['asked']} failed: {reason}{at}", where=build.log, code=code, output=reason
        )
    if output.code != 0 or "file" not in found:
        last = output.last_line
        raise BuildError(f"{problem} ended with {output.ending}: {last}", where=build.log, output=last)
    if not found["file"]:
        raise BuildError(f"{what}: {module} is a folder without __init__.py, not an engine", where=build.log)
    file, version, commit = (found.pop(name) for name in ("file", "version", "commit"))
    return ImportedEngine(Path(file), version, commit, found, interpreter)


def _run_script(
    script: str,
    build: BuildRun,
    interpreter: Path,
    modules: Sequence[str],
    env: Mapping[str, str],
    timeout: float,
) -> tuple[ProcessResult, dict[str, Any]]:
    """Run a script in the interpreter; returns its output and the JSON that it wrote."""
    with tempfile.TemporaryDirectory(prefix="perfbisect-") as folder:
        target = Path(folder) / "found.json"
        # The result has a file of its own: an engine prints to both outputs while it is imported.
        argv = [str(interpreter), "-c", script, *modules, str(target)]
        environment = interpreter_environment(interpreter, env)
        output = build.run(argv, env=environment, cwd=Path(folder), timeout=timeout)
        try:
            found = parse_json(target.read_bytes())
        except (OSError, ValueError):
            found = {}
    return output, found if isinstance(found, dict) else {}


def is_same_version(found: str, wanted: str) -> bool:
    """Compare versions; a local part counts only if it was asked for."""
    try:
        actual, expected = Version(found), Version(wanted)
    except InvalidVersion:
        return found == wanted
    # Builds append a local part (+cpu, +cu129), which nobody types.
    return actual == expected or (expected.local is None and actual.public == expected.public)


def check_version(build: BuildRun, found: ImportedEngine, version: str, what: str) -> None:
    if not is_same_version(found.version, version):
        message = f"{what}: the engine says it is version {found.version or '(none)'}, not {version}"
        raise BuildError(message, where=build.log)


FOREIGN_SHARE = 0.1
"""If a larger share of an engine's files differs from a commit, it was not built from that commit."""


def identify_commit(
    found: ImportedEngine, sha: str, tracked: Mapping[str, str], *, what: str, log: Path
) -> str:
    """What identifies an engine as a commit: ``commit`` (it reports it) or ``content`` (its files match).

    ``tracked``: path inside the package -> object name.

    Raises:
        BuildError: it reports another commit, reports none and differs, or differs in most files.
    """
    reported = found.reported_commit
    if reported and not sha.startswith(reported):
        raise BuildError(f"{what}: the engine ({found.version}) says it is commit {reported}", where=log)
    folder = found.file.parent
    python = {path: blob for path, blob in tracked.items() if path.endswith(".py")}
    present = {path for path in python if (folder / path).is_file()}
    # A file is not missing if nothing of its folder was installed.
    parents = {PurePosixPath(path).parent for path in present}
    differing = sorted(path for path in present if file_blob_id(folder / path, python[path]) != python[path])
    missing = sorted(path for path in python if path not in present and PurePosixPath(path).parent in parents)
    files = (*differing, *missing)
    # Builds rewrite a few files, such as the version's: with a reported commit some may differ.
    if len(differing) > FOREIGN_SHARE * max(len(present), 1) or (files and not reported):
        says = f"says no commit (its version is {found.version}), and"
        if reported:
            says = f"says it is {reported}, but"
        named = f"{', '.join(files[:3])}{' and more' if len(files) > 3 else ''}"
        message = f"{what}: the engine {says} {len(files)} of its files are not those of {sha[:12]}: {named}"
        raise BuildError(message, where=log)
    return "commit" if reported else "content"
