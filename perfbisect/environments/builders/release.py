"""Builder ``release:NAME``: a virtual environment for each release in the registry."""

from __future__ import annotations

from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from perfbisect.common.digests import environment_key
from perfbisect.environments import uv
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.builders.cached import BuildContext, CachedBuilder
from perfbisect.environments.cache import CheckedEnvironment
from perfbisect.environments.health import (
    PACKAGES_FILE,
    ImportedEngine,
    LocatedEngine,
    checked_venv,
    create_venv,
    import_own_engine,
    locate_engine,
    site_packages,
)
from perfbisect.environments.packages import package
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError
from perfbisect.model.change import Change


class ReleaseBuilder(CachedBuilder):
    """Builds changes ``NAME==VERSION``."""

    name = "release"

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        requirement = spec.requirement("a package name")
        if str(requirement) != requirement.name:
            raise spec.error(
                f"{spec.argument!r} names a version; the version is the change",
                f"write release:{requirement.name}, and the versions as --good and --bad",
            )
        super().__init__(spec, context, package(requirement.name, spec.option("package")))
        if client := spec.option("client"):
            try:
                Version(client)
            except InvalidVersion as error:
                raise spec.error(
                    f"client={client!r} is not a version", "for example client=0.32.0"
                ) from error
            self.client_change = Change(f"{self.package.name}=={client}", "release")

    def refuses(self, change: Change) -> Refusal | None:
        if change.kind != "release":
            return Refusal(f"{self.spec} builds releases; {change.short} is a commit", error=True)
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
            *self.limits.key_parts(),
        )

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        version = self._version(change)
        requirement = f"{self.package.name}=={version}"

        def make(staging: Path) -> None:
            interpreter = create_venv(
                staging, [requirement], package=self.package, limits=self.limits, python=self.python, log=log,
                timeout=timeout,
            )  # fmt: skip
            if self.package.alias is not None:
                add_alias(site_packages(staging / "venv"), *self.package.alias, version)
                (staging / PACKAGES_FILE).write_text(uv.list_packages(interpreter, log=log))

        def check(folder: Path) -> CheckedEnvironment:
            found = import_own_engine(folder, self.package, what=requirement, log=log, timeout=timeout)
            check_version(found, version, requirement, log)
            return checked_venv(folder, found, found.commit, self.limits.facts())

        return self.ensure_cached(change, make=make, check=check, timeout=timeout)

    def _version(self, change: Change) -> str:
        """The version of a release. :raises BuildError: it is not a release of this package."""
        try:
            requirement = Requirement(change.id)
            (pin,) = requirement.specifier
            if pin.operator != "==" or canonicalize_name(requirement.name) != self.package.name:
                raise ValueError(change.id)
            return str(Version(pin.version))
        except (InvalidRequirement, InvalidVersion, ValueError) as error:
            raise BuildError(f"{change.id!r} is not a release {self.package.name}==VERSION") from error


class ReleaseBase:
    """A release as the base of overlays."""

    def __init__(self, builder: ReleaseBuilder, version: str) -> None:
        self.builder = builder
        self.change = Change(f"{builder.package.name}=={version}", "release")
        self.what = self.change.id

    def key(self) -> str:
        return self.builder.key(self.change)

    def engine(self, *, log: Path, timeout: float) -> tuple[Path, LocatedEngine, str]:
        base = self.builder.ensure(self.change, log=log, timeout=timeout)
        located = locate_engine(base.interpreter, self.builder.package.module, env=base.env, log=log)
        return base.interpreter, located, (base.folder / PACKAGES_FILE).read_text()

    def minutes(self) -> float | None:
        return self.builder.minutes(self.change)

    def disk(self) -> int | None:
        return self.builder.disk((self.change,))

    def environment(self, *, log: Path, timeout: float) -> Environment | None:
        return self.builder.ensure(self.change, log=log, timeout=timeout)


def is_same_version(found: str, wanted: str) -> bool:
    """Compare versions; a local part counts only if it was asked for."""
    try:
        actual, expected = Version(found), Version(wanted)
    except InvalidVersion:
        return found == wanted
    return actual == expected or (expected.local is None and actual.public == expected.public)


def check_version(found: ImportedEngine, version: str, what: str, log: Path) -> None:
    """:raises BuildError: the engine has another version."""
    if not is_same_version(found.version, version):
        raise BuildError(
            f"{what}: the engine says it is version {found.version or '(none)'}, not {version}", where=log
        )


def write_metadata(folder: Path, name: str, version: str) -> None:
    """Write the metadata of a package to its ``.dist-info`` folder."""
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "INSTALLER").write_text("perfbisect\n")


def add_alias(site: Path, name: str, local: str, version: str) -> None:
    """Add metadata under the name that the engine looks up: ``vllm-0.32.0+cpu.dist-info``."""
    full = f"{Version(version).public}+{local}"
    folder = site / f"{name}-{full}.dist-info"
    write_metadata(folder, name, full)
    rows = (f"{folder.name}/{file},,\n" for file in ("METADATA", "INSTALLER", "RECORD"))
    (folder / "RECORD").write_text("".join(rows))
