"""A specification -> the builder that it means."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Builder
from perfbisect.environments.builders.chain import ChainBuilder
from perfbisect.environments.builders.command import PLACES, CommandBuilder
from perfbisect.environments.builders.existing import ExistingBuilder, InterpreterBase
from perfbisect.environments.builders.nearest import NearestOverlay
from perfbisect.environments.builders.overlay import OverlayBuilder
from perfbisect.environments.builders.overrides import SwapBuilder
from perfbisect.environments.builders.pinned import Origin, PinnedBuilder
from perfbisect.environments.builders.release import ReleaseBase, ReleaseBuilder
from perfbisect.environments.builders.source import SourceBuilder
from perfbisect.environments.builders.toolchain import build_variables
from perfbisect.environments.builders.wheel import DEFAULT, WheelBuilder, driver_cuda, variants
from perfbisect.environments.cache import Cabinet
from perfbisect.environments.packages import engine, package
from perfbisect.environments.spec import EXAMPLES, Spec, bad, parse_chain
from perfbisect.environments.uv import Limits
from perfbisect.errors import UsageError
from perfbisect.model.change import Change


def make_builder(
    spec: str,
    *,
    repository: Repository | None,
    cache: Path,
    exclude_newer: str | None = None,
    constraints: Path | None = None,
) -> Builder:
    """The builder that a specification means; it also swaps packages (``REV+pip:NAME==V``).

    ``cache`` is the folder of environments; ``exclude_newer`` (a day) and ``constraints`` (a file) say which
    versions of dependencies are taken from the registry.

    :raises UsageError: the specification is wrong, its interpreter or constraints file is not there, or it
        needs a repository.
    :raises RevisionError: its base commit does not exist.
    """
    specs = parse_chain(spec)
    if constraints is not None and not constraints.is_file():
        raise UsageError(f"no such constraints file: {constraints}")
    limits = Limits(exclude_newer, constraints.absolute() if constraints else None)
    maker = _Maker(Cabinet(cache.expanduser().absolute()), limits, repository)
    builders = [made for name, same in groupby(specs, _kind) for made in maker.row(name, tuple(same))]
    inner = builders[0] if len(builders) == 1 else ChainBuilder(builders, maker.cabinet)
    pythons = {one.options.get("python", "") for one in specs}
    return SwapBuilder(inner, maker.cabinet, limits, pythons.pop() if len(pythons) == 1 else "")


def _kind(spec: Spec) -> str:
    return spec.name


@dataclass(frozen=True)
class _Maker:
    """What all builders of a chain have in common."""

    cabinet: Cabinet
    limits: Limits
    repository: Repository | None

    def row(self, name: str, specs: Sequence[Spec]) -> list[Builder]:
        """Builders of one kind that stand side by side: overlays choose among their bases."""
        if name == "overlay":
            overlays = [self.overlay(spec) for spec in specs]
            return [overlays[0]] if len(overlays) == 1 else [NearestOverlay(overlays)]
        return [self.one(spec) for spec in specs]

    def one(self, spec: Spec) -> Builder:
        if spec.name == "release":
            return self.release(spec)
        if spec.name == "existing":
            return self.existing(spec)
        if spec.name == "wheel":
            return self.wheel(spec)
        if spec.name == "source":
            return self.source(spec)
        if spec.name == "pinned":
            return self.pinned(spec)
        return self.command(spec)

    def release(self, spec: Spec) -> ReleaseBuilder:
        row = package(_name(spec), spec.options.get("package", ""))
        client = spec.options.get("client")
        if client is not None:
            _version(spec, client)
        return ReleaseBuilder(
            spec.text, row, self.cabinet, self.limits, spec.options.get("python", ""), client
        )

    def existing(self, spec: Spec) -> ExistingBuilder:
        interpreter = _interpreter(spec, spec.argument)
        path = spec.options.get("path")
        folder = None if path is None else Path(path).expanduser().absolute()
        if folder is not None and not folder.is_dir():
            raise bad(
                spec.text, f"no such folder: {folder}", "path= is the folder that holds the engine's package"
            )
        row = engine(spec.options.get("package", "vllm"))
        trust = _yes(spec, "trust")
        return ExistingBuilder(spec.text, interpreter, row, self.cabinet, self.repository, folder, trust)

    def overlay(self, spec: Spec) -> OverlayBuilder:
        repository = self.needed_repository(spec)
        module = spec.options.get("package", "")
        base: ReleaseBase | InterpreterBase
        if "==" in spec.argument:
            requirement = _requirement(spec)
            row = package(requirement.name, module)
            python = spec.options.get("python", "")
            release = ReleaseBuilder(f"release:{row.name}", row, self.cabinet, self.limits, python, None)
            base = ReleaseBase(release, str(next(iter(requirement.specifier)).version))
        else:
            row = engine(module or "vllm")
            base = InterpreterBase(_interpreter(spec, spec.argument), row, self.cabinet)
        revision = spec.options.get("base")
        commit = None if revision in (None, "any") else repository.resolve(str(revision))
        return OverlayBuilder(spec.text, base, row, self.cabinet, repository, commit, revision == "any")

    def wheel(self, spec: Spec) -> WheelBuilder:
        template = _address(spec, spec.argument)
        return WheelBuilder(
            spec.text,
            template,
            _variants(template, spec.options.get("variant")),
            engine(spec.options.get("package", "vllm")),
            self.cabinet,
            self.limits,
            spec.options.get("python", ""),
            self.needed_repository(spec),
            self.client_commit(spec),
        )

    def source(self, spec: Spec) -> SourceBuilder:
        folder = spec.argument.strip("/")
        if folder.startswith(("..", "~")) or spec.argument.startswith("/"):
            raise bad(
                spec.text,
                f"{spec.argument!r} is not a folder inside the repository",
                "name the folder of the project inside the repository, or none; the repository is --repo",
            )
        return SourceBuilder(
            spec.text,
            folder.removeprefix("./").strip("."),
            engine(spec.options.get("package", "vllm")),
            self.cabinet,
            self.limits,
            spec.options.get("python", ""),
            self.needed_repository(spec),
            build_variables(os.environ, _words(spec, "env")),
            _words(spec, "with"),
            _yes(spec, "whole"),
            self.client_commit(spec),
        )

    def pinned(self, spec: Spec) -> PinnedBuilder:
        if not spec.argument.replace(".", "_").isidentifier():
            raise bad(
                spec.text, f"{spec.argument!r} is no package", "name what is imported: pinned:vllm_omni"
            )
        template = _address(spec, spec.options["wheel"]) if "wheel" in spec.options else ""
        origin = Origin(
            package(spec.options.get("release", "vllm")),
            template,
            _variants(template, spec.options.get("variant")) if template else ("",),
            spec.options.get("python", ""),
        )
        return PinnedBuilder(
            spec.text,
            engine(spec.argument),
            origin,
            spec.options.get("platform") or ("cuda" if driver_cuda() else "cpu"),
            self.cabinet,
            self.limits,
            self.needed_repository(spec),
            self.client_commit(spec),
        )

    def command(self, spec: Spec) -> CommandBuilder:
        try:
            words = shlex.split(spec.argument)
        except ValueError as error:
            raise bad(spec.text, f"the command cannot be read: {error}", "close its quotes") from error
        if "{env}" not in spec.argument or not words:
            raise bad(
                spec.text,
                "the command does not say where the environment goes",
                f"write {{env}}; known are {', '.join(f'{{{place}}}' for place in PLACES)}",
            )
        return CommandBuilder(
            spec.text,
            spec.argument,
            engine(spec.options.get("package", "vllm")),
            self.cabinet,
            self.limits,
            self.needed_repository(spec),
            build_variables(os.environ, _words(spec, "env")),
        )

    def needed_repository(self, spec: Spec) -> Repository:
        if self.repository is None:
            what = f"{'an' if spec.name[0] in 'aeiou' else 'a'} {spec.name}"
            raise bad(spec.text, f"{what} is made of commits and needs their repository", "add --repo PATH")
        return self.repository

    def client_commit(self, spec: Spec) -> Change | None:
        revision = spec.options.get("client")
        return None if revision is None else self.needed_repository(spec).resolve(revision)


def _address(spec: Spec, template: str) -> str:
    """The address of an index of wheels."""
    parts = urlsplit(template)
    if parts.scheme not in ("http", "https") or not parts.netloc or "{sha}" not in template:
        raise bad(
            spec.text,
            f"{template!r} is not the address of an index with {{sha}} in it",
            f"for example {EXAMPLES['wheel']}",
        )
    if "@" in parts.netloc:
        raise bad(spec.text, "an address with a user name or password", "put them into ~/.netrc")
    return template


def _variants(template: str, said: str | None) -> tuple[str, ...]:
    """Builds that may be taken, best first; empty: what the index has at the commit's own address."""
    if said is not None:
        return ("",) if said == DEFAULT else (said,)
    runs = variants(driver_cuda())
    return runs if "{variant}" in template else (*runs, "")


def _words(spec: Spec, key: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(spec.options.get(key, "")))
    except ValueError as error:
        raise bad(spec.text, f"{key}= cannot be read: {error}", "close its quotes") from error


def _yes(spec: Spec, key: str) -> bool:
    said = spec.options.get(key, "no")
    if said not in ("yes", "no"):
        raise bad(spec.text, f"{key}={said!r} is neither yes nor no", f"write {key}=yes")
    return said == "yes"


def _name(spec: Spec) -> str:
    try:
        requirement = Requirement(spec.argument)
    except InvalidRequirement as error:
        raise bad(
            spec.text, f"{spec.argument!r} is not a package name", f"for example {EXAMPLES['release']}"
        ) from error
    if str(requirement) != requirement.name:
        raise bad(
            spec.text,
            f"{spec.argument!r} names a version; the version is the change",
            f"write release:{requirement.name}, and the versions as --good and --bad",
        )
    return canonicalize_name(requirement.name)


def _requirement(spec: Spec) -> Requirement:
    try:
        requirement = Requirement(spec.argument)
    except InvalidRequirement as error:
        raise bad(
            spec.text, f"{spec.argument!r} is not NAME==VERSION", f"for example {EXAMPLES['overlay']}"
        ) from error
    pins = list(requirement.specifier)
    if len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version or requirement.marker:
        raise bad(spec.text, f"the base {spec.argument!r} is not one version", "write NAME==VERSION")
    return requirement


def _version(spec: Spec, version: str) -> None:
    try:
        Version(version)
    except InvalidVersion as error:
        raise bad(spec.text, f"client={version!r} is not a version", "for example client=0.32.0") from error


def _interpreter(spec: Spec, argument: str) -> Path:
    """An interpreter's path as it is: a virtual environment's is a link that must not be followed."""
    path = Path(argument).expanduser().absolute()
    if path.is_dir():
        inner = path / "bin" / "python"
        told = f"write {spec.name}:{inner}" if inner.exists() else "give the path of its python"
        raise bad(spec.text, f"{path} is a folder, not an interpreter", told)
    if not path.exists():
        what = "give the path of a python" + (
            "" if spec.name == "existing" else ", or NAME==VERSION of a release"
        )
        raise bad(spec.text, f"no such interpreter: {path}", what)
    if not os.access(path, os.X_OK):
        raise bad(spec.text, f"{path} cannot be executed", "give the path of a python")
    return path
