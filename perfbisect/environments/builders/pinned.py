"""Builder ``pinned:PACKAGE``: a Python package over the engine that each commit pins (vLLM-Omni on vLLM).

Each commit's tree is a thin layer, so that commits with different pins can be compared in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from perfbisect.changes.pins import DOCKERFILE, Pins
from perfbisect.common.quantities import counted
from perfbisect.environments import uv
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import (
    LAYER,
    BuildContext,
    CachedBuilder,
    CommitTree,
    CommitTrees,
    Installation,
    Recipe,
    base_environment,
    compile_files,
)
from perfbisect.environments.builders.release import add_alias, site_packages, write_metadata
from perfbisect.environments.builders.wheel import (
    CPU,
    CUDA,
    ReleaseWheels,
    allowed_variants,
    machine_cuda,
    wheel_index,
)
from perfbisect.environments.builders.wheel_index import WheelIndex, WheelLookup
from perfbisect.environments.cache import variables
from perfbisect.environments.health import check_version, locate_engine
from perfbisect.environments.packages import engine, package
from perfbisect.environments.source_tree import DeclaredBase, declared_bases, sync_tree, version_at
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError
from perfbisect.model.change import Change


@dataclass(frozen=True)
class PinnedBaseSettings:
    """The engine that commits pin: a release, or a commit from a wheel index."""

    installation: Installation
    trees: CommitTrees
    platform: str
    index: WheelIndex
    releases: ReleaseWheels


@dataclass(frozen=True)
class PinnedCommit(CommitTree):
    """A commit, and what it declares of the engine below it."""

    declared: DeclaredBase

    @property
    def pins(self) -> Pins:
        # A commit without pins is refused before this is asked.
        assert self.declared.pins is not None
        return self.declared.pins


def pinned_base_builder(
    spec: Spec, context: BuildContext, trees: CommitTrees
) -> CachedBuilder[PinnedBaseSettings, PinnedCommit]:
    installation = Installation.of(spec, context, package(spec.option("release", "vllm")))
    template = spec.index_url(spec.options["wheel"]) if "wheel" in spec.options else ""
    variant = spec.option("variant")
    variants = allowed_variants(template, variant, context.machine) if template else ("",)
    settings = PinnedBaseSettings(
        installation,
        trees,
        spec.option("platform") or (CUDA if machine_cuda(context.machine) else CPU),
        wheel_index(installation, template, context, variants),
        ReleaseWheels(installation, variant, "", context),
    )
    return CachedBuilder(BASE_RECIPE, spec.text, context.here, settings)


def look_up_base(
    settings: PinnedBaseSettings, changes: Sequence[Change], _known: Mapping[str, PinnedCommit]
) -> dict[str, PinnedCommit]:
    trees = settings.trees.look_up(changes)
    declared = declared_bases(settings.trees.repository, list(trees), settings.platform)
    return {change.id: PinnedCommit(change, trees[change.id], declared[change.id]) for change in changes}


def refuses_base(settings: PinnedBaseSettings, base: PinnedCommit) -> Refusal | None:
    pins, name = base.declared.pins, settings.installation.package.name
    if pins is None:
        return Refusal(f"it has no {DOCKERFILE}, which names its {name}")
    if pins.kind == "unknown":
        return Refusal(f"its {DOCKERFILE} names no {name} of a known form")
    if not pins.commit:
        return settings.releases.refusal(pins.release)
    short = pins.commit[:12]
    if not settings.index.template:
        reason = f"it needs the wheel of {name} commit {short}: add wheel=URL with {{sha}} in it"
        return Refusal(reason)
    lookup = _wheel(settings, pins.commit)[1]
    return Refusal(f"no wheel of {short}: {lookup.reason}") if lookup.state == "hole" else None


def base_key_parts(settings: PinnedBaseSettings, base: PinnedCommit) -> tuple[object, ...]:
    pins = base.pins
    source: tuple[str, ...] = ("release", pins.release, *settings.releases.key_parts(pins.release))
    if pins.commit:
        source = (settings.index.template, pins.commit, _wheel(settings, pins.commit)[0])
    replaced = [(package.name, package.version) for package in pins.packages]
    return (source, replaced, base.declared.requirements, *settings.installation.key_parts())


def base_label(settings: PinnedBaseSettings, base: PinnedCommit) -> str:
    return f"{settings.installation.package.name} {base.declared.group}"


def make_base(
    settings: PinnedBaseSettings, base: PinnedCommit, build: BuildRun, staging: Path
) -> Mapping[str, Any]:
    pins, installation, engine = base.pins, settings.installation, settings.installation.package
    if pins.commit:
        variant = _wheel(settings, pins.commit)[0]
        requirements = settings.index.requirements(pins.commit, variant)
    else:
        requirements, variant = settings.releases.requirements(pins.release)
    interpreter = installation.create_venv(build, staging, requirements, variant)
    if declared := base.declared.requirements:
        file = staging / "requirements.txt"
        file.write_text("".join(f"{line}\n" for line in declared))
        uv.install(build, interpreter, ["-r", str(file)], engine, folder=staging)
    # The project's image replaces these packages after its installation, too.
    replaced = _replaced(pins, uv.list_packages(build, interpreter))
    if replaced:
        uv.install(build, interpreter, replaced, engine, folder=staging)
    if engine.alias is not None and not pins.commit:
        add_alias(site_packages(staging / "venv"), *engine.alias, pins.release)
    return {"pin": pins.text, "replaced": replaced, **installation.limits.facts()}


def check_base(
    settings: PinnedBaseSettings, base: PinnedCommit, build: BuildRun, folder: Path
) -> Environment:
    pins, group = base.pins, base.declared.group
    found = settings.installation.import_venv(build, folder, group)
    said = found.reported_commit
    if not pins.commit:
        check_version(build, found, pins.release, group)
    elif said and not pins.commit.startswith(said):
        name = settings.installation.package.name
        message = f"the wheel of {name} {pins.commit[:12]} says it is commit {said}"
        raise BuildError(message, where=build.log)
    return found.checked(pins.commit, uv.list_packages(build, found.interpreter), {})


def _wheel(settings: PinnedBaseSettings, sha: str) -> tuple[str, WheelLookup]:
    """The variant of which the index has the commit's wheel, and that wheel; or why it has none."""
    variant, _ = settings.index.choose_variant((sha,))
    return variant, settings.index.find((sha,), variant)[sha]


def _replaced(pins: Pins, packages: Iterable[str]) -> list[str]:
    """Packages that the image replaces and that are installed here: a CPU has no CUDA libraries."""
    present = {canonicalize_name(line.partition("==")[0]) for line in packages}
    return [
        f"{package.name}=={package.version}"
        for package in pins.packages
        if package.version and canonicalize_name(package.name) in present
    ]


BASE_RECIPE = Recipe(
    name="pinned base",
    look_up=look_up_base,
    refuses=refuses_base,
    key_parts=base_key_parts,
    make=make_base,
    check=check_base,
    label=base_label,
    # The engine in the base is not the change under test.
    claim=lambda _settings, _base, _build, environment: environment,
)


@dataclass(frozen=True)
class PinnedSettings:
    installation: Installation
    trees: CommitTrees
    bases: CachedBuilder[PinnedBaseSettings, PinnedCommit]


def builder(spec: Spec, context: BuildContext) -> CachedBuilder[PinnedSettings, PinnedCommit]:
    """The builder of commits of a package; ``platform=`` names the requirements file."""
    if not spec.argument.replace(".", "_").isidentifier():
        raise spec.error(f"{spec.argument!r} is no package", "name what is imported: pinned:vllm_omni")
    installation = Installation.of(spec, context, engine(spec.argument))
    trees = CommitTrees(context.required_repository(spec), installation.package.folder)
    client = trees.client(spec)
    bases = pinned_base_builder(spec, context, trees)
    settings = PinnedSettings(installation, trees, bases)
    return CachedBuilder(RECIPE, spec.text, context, settings, client=client)


def look_up(
    settings: PinnedSettings, changes: Sequence[Change], _known: Mapping[str, PinnedCommit]
) -> dict[str, PinnedCommit]:
    settings.bases.prepare(changes)
    return {change.id: settings.bases.found(change) for change in changes}


def key_parts(settings: PinnedSettings, commit: PinnedCommit) -> tuple[object, ...]:
    return (settings.bases.key(commit.change), commit.tree, settings.installation.package.module)


def make(settings: PinnedSettings, commit: PinnedCommit, build: BuildRun, staging: Path) -> Mapping[str, Any]:
    """Write the commit's package, and its version as a build does: in a file and as metadata."""
    package, repository, sha = settings.installation.package, settings.trees.repository, commit.change.id
    base, layer = base_environment((settings.bases, commit.change), build), staging / LAYER
    target, version = layer / package.folder, version_at(repository, sha)
    written = sync_tree(target, repository, sha, package.folder).written
    if not (target / "_version.py").exists():
        (target / "_version.py").write_text(_version_file(version))
    metadata = layer / f"{package.name.replace('-', '_')}-{version}.dist-info"
    write_metadata(metadata, package.name, version)
    compile_files(build, base.interpreter, target, (*written, "_version.py"))
    return {}


def check(settings: PinnedSettings, commit: PinnedCommit, build: BuildRun, folder: Path) -> Environment:
    change, layer = commit.change, folder / LAYER
    base = base_environment((settings.bases, change), build)
    found = settings.installation.import_layer(build, change, base, folder)
    module = settings.bases.settings.installation.package.module
    below = locate_engine(build, base.interpreter, module, variables(folder, str(layer)))
    # The layer comes first on the path: a package of the same name in it would hide the engine below.
    if below.file != base.engine_file:
        raise BuildError(
            f"{change.short}: {module} would come from {below.file or 'nowhere'}, not from "
            f"{base.engine_file}",
            where=build.log,
        )
    facts = {
        "pin": base.facts["pin"],
        "replaced": base.facts["replaced"],
        "below": {"key": base.key, "version": base.engine_version, "commit": base.engine_commit},
        "tree": commit.tree,
    }
    checked = found.checked(change.id, base.facts["packages"], facts, layer)
    version = found.version or version_at(settings.trees.repository, change.id)
    return replace(checked, engine_version=version)


def group(settings: PinnedSettings, commit: PinnedCommit) -> str:
    return base_label(settings.bases.settings, commit) if commit.declared.group else ""


def notes(
    settings: PinnedSettings, known: Mapping[str, PinnedCommit], _stamps: Sequence[Environment]
) -> tuple[str, ...]:
    images: dict[str, str] = {}
    groups: Counter[str] = Counter()
    for sha, commit in known.items():
        declared = commit.declared
        groups.update([declared.group] if declared.group else [])
        pins = declared.pins
        if pins and not pins.commit and pins.tag.removeprefix("v") != pins.release:
            images.setdefault(
                pins.tag,
                f"the image of {sha[:12]} is {pins.tag}; installed is the release {pins.release}",
            )
    shares = ", ".join(f"{group} under {counted(count, 'commit')}" for group, count in groups.items())
    base = settings.bases.settings
    pinned = f"{base.installation.package.name} as {DOCKERFILE} of each commit pins it: {shares}"
    return (pinned, *images.values(), *base.releases.notes(), *base.index.notes())


def _version_file(version: str) -> str:
    """The version file that setuptools-scm writes in a build."""
    parts = tuple(int(part) if part.isdigit() else part for part in version.replace("+", ".").split("."))
    return (
        f"__version__ = version = {version!r}\n"
        f"__version_tuple__ = version_tuple = {parts!r}\n"
        "__commit_id__ = commit_id = None\n"
    )


RECIPE = Recipe(
    name="pinned",
    look_up=look_up,
    refuses=lambda settings, commit: settings.trees.refuses(commit) or settings.bases.refuses(commit.change),
    key_parts=key_parts,
    make=make,
    check=check,
    base=lambda settings, commit: (settings.bases, commit.change),
    group=group,
    notes=notes,
)
