"""Builder ``release:NAME``: a virtual environment for each release in the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from perfbisect.environments import uv
from perfbisect.environments.base import Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import BuildContext, CachedBuilder, Installation, Recipe
from perfbisect.environments.builders.wheel import DEFAULT, ReleaseWheels
from perfbisect.environments.cache import CheckedEnvironment
from perfbisect.environments.health import check_version
from perfbisect.environments.packages import package
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError
from perfbisect.model.change import Change


@dataclass(frozen=True)
class ReleaseSettings:
    installation: Installation
    wheels: ReleaseWheels


@dataclass(frozen=True)
class Release:
    """A change ``NAME==VERSION``; without ``version`` it is of another package."""

    change: Change
    version: str


def builder(spec: Spec, context: BuildContext) -> CachedBuilder[ReleaseSettings, Release]:
    """The builder of a package's releases."""
    requirement = spec.requirement("a package name")
    if str(requirement) != requirement.name:
        raise spec.error(
            f"{spec.argument!r} names a version; the version is the change",
            f"write release:{requirement.name}, and the versions as --good and --bad",
        )
    installation = Installation.of(spec, context, package(requirement.name, spec.option("package")))
    name, variant = installation.package.name, spec.option("variant")
    wheels = ReleaseWheels(installation, variant, spec.option("wheel"), context)
    if variant not in ("", DEFAULT) and not wheels.index.template:
        problem = f"variant= of {name} needs the index of its releases"
        raise spec.error(problem, "add wheel=URL with {version} in it")
    client = None
    if version := spec.option("client"):
        try:
            client = Change(f"{name}=={Version(version)}", "release")
        except InvalidVersion as error:
            problem = f"client={version!r} is not a version"
            raise spec.error(problem, "for example client=0.32.0") from error
    settings = ReleaseSettings(installation, wheels)
    return CachedBuilder(RECIPE, spec.text, context, settings, kind="release", client=client)


def look_up(
    settings: ReleaseSettings, changes: Sequence[Change], _known: Mapping[str, Release]
) -> dict[str, Release]:
    name = settings.installation.package.name
    return {change.id: Release(change, version_of(change, name)) for change in changes}


def version_of(change: Change, name: str) -> str:
    """The version of a release; empty if it is not a release of this package."""
    try:
        requirement = Requirement(change.id)
        (pin,) = requirement.specifier
        if pin.operator == "==" and canonicalize_name(requirement.name) == name:
            return str(Version(pin.version))
    except (InvalidRequirement, InvalidVersion, ValueError):
        pass
    return ""


def refuses(settings: ReleaseSettings, release: Release) -> Refusal | None:
    if not release.version:
        name = settings.installation.package.name
        return Refusal(f"{release.change.id!r} is not a release {name}==VERSION", error=True)
    return settings.wheels.refusal(release.version)


def key_parts(settings: ReleaseSettings, release: Release) -> tuple[object, ...]:
    version = release.version
    return (version, *settings.installation.key_parts(), *settings.wheels.key_parts(version))


def make(settings: ReleaseSettings, release: Release, build: BuildRun, staging: Path) -> Mapping[str, Any]:
    installation = settings.installation
    requirements, variant = settings.wheels.requirements(release.version)
    installation.create_venv(build, staging, requirements, variant)
    if installation.package.alias is not None:
        add_alias(site_packages(staging / "venv"), *installation.package.alias, release.version)
    return {"variant": variant or DEFAULT, **installation.limits.facts()}


def check(settings: ReleaseSettings, release: Release, build: BuildRun, folder: Path) -> CheckedEnvironment:
    what = f"{settings.installation.package.name}=={release.version}"
    found = settings.installation.import_venv(build, folder, what)
    check_version(build, found, release.version, what)
    return found.checked(found.commit, uv.list_packages(build, found.interpreter), {})


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


RECIPE = Recipe(
    name="release",
    guess_min=1.5,
    look_up=look_up,
    refuses=refuses,
    key_parts=key_parts,
    make=make,
    check=check,
    notes=lambda settings, _known, _stamps: settings.wheels.notes(),
)
