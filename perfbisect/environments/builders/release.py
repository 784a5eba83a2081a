"""Builder ``release:NAME``: a virtual environment for each release in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from perfbisect.environments import uv
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import BuildContext, CachedBuilder, Found, Installation, Recipe
from perfbisect.environments.builders.wheel import DEFAULT, ReleaseWheels
from perfbisect.environments.health import check_version
from perfbisect.environments.packages import package
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError
from perfbisect.model.change import Change
from perfbisect.system.files import replace_file


def builder(spec: Spec, context: BuildContext) -> CachedBuilder[ReleaseWheels, Found]:
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
    return CachedBuilder(RECIPE, spec.text, context, wheels, kind="release", client=client)


def _version(wheels: ReleaseWheels, release: Found) -> str:
    """The version of a release ``NAME==VERSION``; empty if it is not a release of this package."""
    try:
        requirement = Requirement(release.change.id)
        (pin,) = requirement.specifier
        is_ours = canonicalize_name(requirement.name) == wheels.installation.package.name
        if pin.operator == "==" and is_ours:
            return str(Version(pin.version))
    except (InvalidRequirement, InvalidVersion, ValueError):
        pass
    return ""


def refuses(wheels: ReleaseWheels, release: Found) -> Refusal | None:
    version = _version(wheels, release)
    if not version:
        name = wheels.installation.package.name
        return Refusal(f"{release.change.id!r} is not a release {name}==VERSION", error=True)
    return wheels.refusal(version)


def key_parts(wheels: ReleaseWheels, release: Found) -> tuple[object, ...]:
    version = _version(wheels, release)
    return (version, *wheels.installation.key_parts(), *wheels.key_parts(version))


def make(wheels: ReleaseWheels, release: Found, build: BuildRun, staging: Path) -> Mapping[str, Any]:
    version, installation = _version(wheels, release), wheels.installation
    requirements, variant = wheels.requirements(version)
    installation.create_venv(build, staging, requirements, variant)
    if installation.package.alias is not None:
        add_alias(site_packages(staging / "venv"), *installation.package.alias, version)
    return {"variant": variant or DEFAULT, **installation.limits.facts()}


def check(wheels: ReleaseWheels, release: Found, build: BuildRun, folder: Path) -> Environment:
    version = _version(wheels, release)
    what = f"{wheels.installation.package.name}=={version}"
    found = wheels.installation.import_engine(build, folder, what)
    check_version(build, found, version, what)
    return found.checked(found.commit, uv.list_packages(build, found.interpreter), {})


def site_packages(venv: Path) -> Path:
    folders = sorted(venv.glob("lib/python3*/site-packages"))
    if not folders:
        raise BuildError(f"{venv} has no site-packages")
    return folders[0]


def write_metadata(folder: Path, name: str, version: str) -> None:
    """Write the metadata of a package to its ``.dist-info`` folder."""
    folder.mkdir(exist_ok=True)
    # What uv installed is a link into its cache: written in place, the cache's copy would change.
    replace_file(folder / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    replace_file(folder / "INSTALLER", "perfbisect\n")


def add_alias(site: Path, name: str, local: str, version: str) -> None:
    """Add metadata under the name that the engine looks up: ``vllm-0.32.0+cpu.dist-info``."""
    full = f"{Version(version).public}+{local}"
    folder = site / f"{name}-{full}.dist-info"
    write_metadata(folder, name, full)
    rows = (f"{folder.name}/{file},,\n" for file in ("METADATA", "INSTALLER", "RECORD"))
    replace_file(folder / "RECORD", rows)


RECIPE = Recipe(
    name="release",
    guess_min=1.5,
    refuses=refuses,
    key_parts=key_parts,
    make=make,
    check=check,
    notes=lambda wheels, _known, _stamps: wheels.notes(),
)
