"""Releases of a package from the registry: one virtual environment a version."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from perfbisect.common.digests import environment_key
from perfbisect.environments import uv
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.cache import Built, Cabinet, KeptBuilder
from perfbisect.environments.health import (
    PACKAGES_FILE,
    Health,
    Probe,
    as_built,
    fill,
    look,
    probe,
    site_packages,
)
from perfbisect.environments.packages import Package
from perfbisect.errors import BuildError
from perfbisect.model.change import Change


class ReleaseBuilder(KeptBuilder):
    """``release:NAME``: the change is ``NAME==VERSION``."""

    name = "release"

    def __init__(
        self,
        spec: str,
        package: Package,
        cabinet: Cabinet,
        limits: uv.Limits,
        python: str,
        client: str | None,
    ) -> None:
        self.spec = spec
        self.package = package
        self.cabinet = cabinet
        self.limits = limits
        self.python = python
        if client is not None:
            self.client_commit = Change(f"{package.name}=={client}", "release")

    def prepare(self, changes: Iterable[Change]) -> None:
        """Nothing to look up."""

    def refuses(self, change: Change) -> Refusal | None:
        if change.kind != "release":
            return Refusal(f"{self.spec} makes releases; {change.short} is a commit", error=True)
        try:
            self._version(change)
        except BuildError as error:
            return Refusal(error.message, error=True)
        return None

    def key(self, change: Change) -> str:
        return environment_key(
            "release/1",
            self.package.name,
            self._version(change),
            self.package.module,
            self.package.alias,
            self.package.drop,
            self.python or uv.base_python_version(),
            *self.limits.digested(),
        )

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        version = self._version(change)
        requirement = f"{self.package.name}=={version}"

        def make(staging: Path) -> None:
            fill(
                staging,
                [requirement],
                package=self.package,
                limits=self.limits,
                python=self.python,
                log=log,
                timeout=timeout,
            )
            if self.package.alias is not None:
                add_alias(site_packages(staging / "venv"), *self.package.alias, version)
                interpreter = staging / "venv" / "bin" / "python"
                (staging / PACKAGES_FILE).write_text(uv.listed(interpreter, log=log))

        def check(folder: Path) -> Built:
            found = look(folder, self.package, what=requirement, log=log, timeout=timeout)
            same_version(found, version, requirement, log)
            return as_built(folder, found, found.commit, self.limits.facts())

        return self.kept(change, make=make, check=check, timeout=timeout)

    def _version(self, change: Change) -> str:
        """The version of a release of this package. :raises BuildError: it is none."""
        try:
            requirement = Requirement(change.id)
            (pin,) = requirement.specifier
            if pin.operator != "==" or canonicalize_name(requirement.name) != self.package.name:
                raise ValueError(change.id)
            return str(Version(pin.version))
        except (InvalidRequirement, InvalidVersion, ValueError) as error:
            raise BuildError(f"{change.id!r} is not a release {self.package.name}==VERSION") from error


class ReleaseBase:
    """One release as the base of overlays."""

    def __init__(self, builder: ReleaseBuilder, version: str) -> None:
        self.builder = builder
        self.change = Change(f"{builder.package.name}=={version}", "release")
        self.what = self.change.id

    def key(self) -> str:
        return self.builder.key(self.change)

    def cached(self) -> bool:
        return self.builder.cached(self.change)

    def engine(self, *, log: Path, timeout: float) -> tuple[Path, Probe, str]:
        """Interpreter, what it has, and its packages: built if it is not there."""
        built = self.builder.ensure(self.change, log=log, timeout=timeout)
        looked = probe(built.interpreter, self.builder.package.module, env=built.env, log=log)
        return built.interpreter, looked, (built.folder / PACKAGES_FILE).read_text()

    def minutes(self) -> float | None:
        return self.builder.minutes(self.change)

    def disk(self) -> int | None:
        return self.builder.disk((self.change,))

    def environment(self, *, log: Path, timeout: float) -> Environment | None:
        return self.builder.ensure(self.change, log=log, timeout=timeout)


def same_version(found: Health, version: str, what: str, log: Path) -> None:
    """:raises BuildError: the engine is of another version (a local part counts if it was asked for)."""
    try:
        said, asked = Version(found.version), Version(version)
        same = said == asked or (asked.local is None and said.public == asked.public)
    except InvalidVersion:
        same = found.version == version
    if not same:
        raise BuildError(
            f"{what}: the engine says it is version {found.version or '(none)'}, not {version}", where=log
        )


def add_alias(site: Path, name: str, local: str, version: str) -> None:
    """Metadata under the name by which the engine asks for itself: ``vllm-0.32.0+cpu.dist-info``."""
    full = f"{Version(version).public}+{local}"
    folder = site / f"{name}-{full}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {full}\n")
    (folder / "INSTALLER").write_text("perfbisect\n")
    rows = (f"{folder.name}/{file},,\n" for file in ("METADATA", "INSTALLER", "RECORD"))
    (folder / "RECORD").write_text("".join(rows))
