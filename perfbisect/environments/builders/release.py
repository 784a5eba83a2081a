"""Builder ``release:NAME``: a virtual environment for each release in the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from perfbisect.environments import uv
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import (
    BuildContext,
    CachedBuilder,
    Found,
    Installation,
    Recipe,
    requirement_name,
)
from perfbisect.environments.builders.wheel import DEFAULT, ReleaseWheels, platform_of
from perfbisect.environments.health import check_version
from perfbisect.environments.packages import EnginePackage, package
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError
from perfbisect.model.change import Change
from perfbisect.system.files import replace_file


@dataclass(frozen=True)
class ReleaseSettings:
    """``wheels``: of the engine, which is the package itself or ``below`` it.

    ``given``: the requirement of ``with=`` that names the engine below, which then is the same for all.
    """

    installation: Installation
    wheels: ReleaseWheels
    below: EnginePackage | None
    given: str

    def engine_version(self, version: str) -> str:
        """The version of the engine of a release: its own, or the first of the same minor version."""
        number = Version(version)
        return version if self.below is None else f"{number.major}.{number.minor}.0"


def builder(spec: Spec, context: BuildContext) -> CachedBuilder[ReleaseSettings, Found]:
    """The builder of a package's releases."""
    requirement = spec.requirement("a package name")
    if str(requirement) != requirement.name:
        raise spec.error(
            f"{spec.argument!r} names a version; the version is the change",
            f"write release:{requirement.name}, and the versions as --good and --bad",
        )
    installation = Installation.of(spec, context, package(requirement.name, spec.option("package")))
    name, variant = installation.package.name, spec.option("variant")
    below, given, compiled = None, "", installation
    if installation.package.below:
        beside = {requirement_name(word): word for word in installation.beside}
        platform = platform_of(context.machine)
        # Variants are those of an index.
        below = min(
            map(package, installation.package.below),
            key=lambda row: (
                row.name not in beside,
                bool(variant) and not row.release_index,
                row.platform != platform,
            ),
        )
        given = beside.get(below.name, "")
        if not given:
            context = replace(context, limits=replace(context.limits, fixed=(below.distribution,)))
        compiled = replace(installation, package=below)
        layered = replace(
            installation.package,
            alias=below.alias,
            drop=tuple(name for name in below.drop if name not in beside),
            torch_backend=below.torch_backend,
        )
        installation = replace(installation, package=layered)
    if given and (unused := {"variant", "wheel"} & set(spec.options)):
        raise spec.error(f"{min(unused)}= does not apply to {given}", "leave one of them out")
    wheels = ReleaseWheels(compiled, variant, spec.option("wheel"), context)
    if variant not in ("", DEFAULT) and not wheels.index.template:
        problem = f"variant= of {wheels.package.name} needs the index of its releases"
        raise spec.error(problem, "add wheel=URL with {version} in it")
    client = None
    if version := spec.option("client"):
        try:
            client = Change(f"{name}=={Version(version)}", "release")
        except InvalidVersion as error:
            problem = f"client={version!r} is not a version"
            raise spec.error(problem, "for example client=0.32.0") from error
    settings = ReleaseSettings(installation, wheels, below, given)
    return CachedBuilder(RECIPE, spec.text, context, settings, kind="release", client=client)


def _version(settings: ReleaseSettings, release: Found) -> str:
    """The version of a release ``NAME==VERSION``; empty if it is not a release of this package."""
    try:
        requirement = Requirement(release.change.id)
        (pin,) = requirement.specifier
        is_ours = canonicalize_name(requirement.name) == settings.installation.package.name
        if pin.operator == "==" and is_ours:
            return str(Version(pin.version))
    except (InvalidRequirement, InvalidVersion, ValueError):
        pass
    return ""


def refuses(settings: ReleaseSettings, release: Found) -> Refusal | None:
    version = _version(settings, release)
    if not version:
        name = settings.installation.package.name
        return Refusal(f"{release.change.id!r} is not a release {name}==VERSION", error=True)
    return None if settings.given else settings.wheels.refusal(settings.engine_version(version))


def key_parts(settings: ReleaseSettings, release: Found) -> tuple[object, ...]:
    version, parts = _version(settings, release), settings.installation.key_parts()
    if settings.given:
        return (version, *parts)
    engine = settings.engine_version(version)
    below = (settings.below.name, engine) if settings.below else ()
    return (version, *parts, *below, *settings.wheels.key_parts(engine))


def make(settings: ReleaseSettings, release: Found, build: BuildRun, staging: Path) -> Mapping[str, Any]:
    version, installation, below = _version(settings, release), settings.installation, settings.below
    engine, variant = settings.engine_version(version), ""
    requirements: list[str] = []
    if not settings.given:
        requirements, variant = settings.wheels.requirements(engine, build, staging)
    if below is not None:
        requirements.append(f"{installation.package.name}=={version}")
    interpreter = installation.create_venv(build, staging, requirements, variant)
    if installation.package.alias is not None:
        if settings.given:
            listed = dict(line.split("==", 1) for line in uv.list_packages(build, interpreter))
            engine = listed[below.name if below else installation.package.name]
        add_alias(site_packages(staging / "venv"), *installation.package.alias, engine)
    return {"variant": variant or DEFAULT, **installation.limits.facts()}


def check(settings: ReleaseSettings, release: Found, build: BuildRun, folder: Path) -> Environment:
    version = _version(settings, release)
    what = f"{settings.installation.package.name}=={version}"
    found = settings.installation.import_engine(build, folder, what)
    check_version(build, found, version, what)
    return found.checked(found.commit, uv.list_packages(build, found.interpreter), {})


def notes(
    settings: ReleaseSettings, _known: Mapping[str, Found], _stamps: Sequence[Environment]
) -> tuple[str, ...]:
    if settings.below is None:
        return settings.wheels.notes()
    name, engine = settings.installation.package.name, settings.below.name
    if settings.given:
        return (f"each release of {name} is installed over {settings.given}",)
    minor = f"each release of {name} is installed over {engine} of its minor version (0.30.1 over 0.30.0)"
    return (minor, *settings.wheels.notes())


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
    notes=notes,
)
