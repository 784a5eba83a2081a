"""Builder ``release:NAME``: a virtual environment for each release in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from perfbisect.environments import uv
from perfbisect.environments.base import Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import BuildContext, CachedBuilder
from perfbisect.environments.builders.wheel import DEFAULT, ReleaseWheels
from perfbisect.environments.cache import CheckedEnvironment
from perfbisect.environments.health import check_version
from perfbisect.environments.packages import package
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError
from perfbisect.model.change import Change


class ReleaseBuilder(CachedBuilder):
    """Builds changes ``NAME==VERSION``."""

    name = "release"
    guess_min = 1.5

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        requirement = spec.requirement("a package name")
        if str(requirement) != requirement.name:
            raise spec.error(
                f"{spec.argument!r} names a version; the version is the change",
                f"write release:{requirement.name}, and the versions as --good and --bad",
            )
        super().__init__(spec, context, package(requirement.name, spec.option("package")))
        self.wheels = ReleaseWheels(
            self.package, spec.option("variant"), self.python, spec.option("wheel"), context
        )
        if self.wheels.variant not in ("", DEFAULT) and not self.wheels.index.template:
            problem = f"variant= of {self.package.name} needs the index of its releases"
            raise spec.error(problem, "add wheel=URL with {version} in it")
        if client := spec.option("client"):
            try:
                self.client_change = self.change(str(Version(client)))
            except InvalidVersion as error:
                problem = f"client={client!r} is not a version"
                raise spec.error(problem, "for example client=0.32.0") from error

    def change(self, version: str) -> Change:
        """A release of this package."""
        return Change(f"{self.package.name}=={version}", "release")

    def refuses(self, change: Change) -> Refusal | None:
        if change.kind != "release":
            return Refusal(f"{self.spec} builds releases; {change.short} is a commit", error=True)
        version = self._version(change)
        if version is None:
            reason = f"{change.id!r} is not a release {self.package.name}==VERSION"
            return Refusal(reason, error=True)
        return self.wheels.refusal(version)

    def key_parts(self, change: Change) -> tuple[object, ...]:
        version = self._version(change)
        assert version is not None  # else it is refused
        return (version, *self.install_parts(), *self.wheels.key_parts(version))

    def make(self, build: BuildRun, change: Change, staging: Path) -> Mapping[str, Any]:
        version = self._version(change)
        requirements, variant = self.wheels.requirements(str(version))
        self.create_venv(build, staging, requirements, variant)
        if self.package.alias is not None:
            add_alias(site_packages(staging / "venv"), *self.package.alias, str(version))
        return {"variant": variant or DEFAULT, **self.limits.facts()}

    def check(self, build: BuildRun, change: Change, folder: Path) -> CheckedEnvironment:
        version = self._version(change)
        what = f"{self.package.name}=={version}"
        found = self.import_venv(build, folder, what)
        check_version(build, found, str(version), what)
        return found.checked(found.commit, uv.list_packages(build, found.interpreter), {})

    def notes(self) -> tuple[str, ...]:
        return self.wheels.notes()

    def _version(self, change: Change) -> str | None:
        """The version of a release; None if it is not a release of this package."""
        try:
            requirement = Requirement(change.id)
            (pin,) = requirement.specifier
            if pin.operator == "==" and canonicalize_name(requirement.name) == self.package.name:
                return str(Version(pin.version))
        except (InvalidRequirement, InvalidVersion, ValueError):
            pass
        return None


def site_packages(venv: Path) -> Path:
    folders = sorted(venv.glob("lib/python3*/site-packages"))
    if not folders:
        raise BuildError(f"{venv} has no site-packages")
    return folders[0]


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
