"""The engine that a commit of a package pins, below ``pinned:PACKAGE``: a release, or a commit's wheel."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.utils import canonicalize_name

from perfbisect.changes.git import Repository
from perfbisect.changes.pins import DOCKERFILE, Pins, parse_pins
from perfbisect.environments import uv
from perfbisect.environments.base import Artifact, Environment, Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import (
    BuildContext,
    CachedBuilder,
    CommitTree,
    CommitTrees,
    Installation,
    Recipe,
)
from perfbisect.environments.builders.release import add_alias, site_packages
from perfbisect.environments.builders.wheel import (
    ReleaseWheels,
    allowed_variants,
    platform_of,
    wheel_index,
)
from perfbisect.environments.builders.wheel_index import WheelIndex, WheelLookup
from perfbisect.environments.health import check_version
from perfbisect.environments.packages import package
from perfbisect.environments.source_tree import toml_strings
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError
from perfbisect.model.change import Change

REQUIREMENTS, _PROJECT = "requirements", "pyproject.toml"
_NESTED = re.compile(r"^(?:-r|--requirement)[\s=]+(?P<path>\S+)")


@dataclass(frozen=True)
class PinnedBaseSettings:
    """``platform``: which file of ``requirements/`` counts; ``index``: of pins that are commits."""

    installation: Installation
    trees: CommitTrees
    platform: str
    index: WheelIndex
    releases: ReleaseWheels


@dataclass(frozen=True)
class PinnedCommit(CommitTree):
    """A commit, and what it declares of the engine below it."""

    pins: Pins
    has_dockerfile: bool
    requirements: tuple[str, ...]


def builder(
    spec: Spec, context: BuildContext, trees: CommitTrees
) -> CachedBuilder[PinnedBaseSettings, PinnedCommit]:
    installation = Installation.of(spec, context, package(spec.option("release", "vllm")))
    template = spec.index_url(spec.options["wheel"]) if "wheel" in spec.options else ""
    variant = spec.option("variant")
    variants = allowed_variants(template, variant, context.machine) if template else ("",)
    settings = PinnedBaseSettings(
        installation,
        trees,
        spec.option("platform") or platform_of(context.machine),
        wheel_index(installation, template, context, variants),
        ReleaseWheels(installation, variant, "", context),
    )
    return CachedBuilder(RECIPE, spec.text, context.here, settings)


def look_up(
    settings: PinnedBaseSettings, changes: Sequence[Change], _known: Mapping[str, PinnedCommit]
) -> dict[str, PinnedCommit]:
    trees = settings.trees.look_up(changes)
    declared = declared_bases(settings.trees.repository, list(trees), settings.platform)
    found = {}
    for change in changes:
        pins, requirements = declared[change.id]
        tree, known = trees[change.id], pins or Pins("", "")
        found[change.id] = PinnedCommit(change, tree, known, pins is not None, requirements)
    return found


def declared_bases(
    repository: Repository, shas: Collection[str], platform: str
) -> dict[str, tuple[Pins | None, tuple[str, ...]]]:
    """The pins of each commit (None without a ``docker/Dockerfile.ci``), and its requirements.

    ``platform``: of which ``requirements/PLATFORM.txt`` is read.
    """
    parts = [repository.tree_ids(shas, path) for path in (DOCKERFILE, REQUIREMENTS, _PROJECT)]
    known: dict[tuple[str | None, ...], tuple[Pins | None, tuple[str, ...]]] = {}
    declared = {}
    for sha in shas:
        # Most commits change none of the three, which are read once then.
        state = tuple(ids[sha] for ids in parts)
        if state not in known:
            text = repository.read_text(sha, DOCKERFILE)
            pins = None if text is None else parse_pins(text)
            places = (f"{REQUIREMENTS}/{platform}.txt", "requirements.txt")
            texts = ((path, repository.read_text(sha, path)) for path in places)
            # The first place that a commit has counts.
            path, listed = next((found for found in texts if found[1] is not None), ("", None))
            if listed is None:
                project = repository.read_text(sha, _PROJECT) or ""
                requirements = toml_strings(project, "project", "dependencies") or ()
            else:
                requirements = tuple(_requirement_lines(repository, sha, path, listed, ()))
            known[state] = pins, requirements
        declared[sha] = known[state]
    return declared


def _requirement_lines(
    repository: Repository, sha: str, path: str, text: str, including: tuple[str, ...]
) -> Iterator[str]:
    for line in re.sub(r"\\\n", " ", text).splitlines():
        bare = re.sub(r"(^|\s)#.*$", "", line).strip()
        if nested := _NESTED.match(bare):
            inner = str(PurePosixPath(path).parent / nested["path"])
            included = repository.read_text(sha, inner) if inner not in including else None
            if included is not None:
                yield from _requirement_lines(repository, sha, inner, included, (*including, path))
        elif bare:
            yield bare


def refuses(settings: PinnedBaseSettings, base: PinnedCommit) -> Refusal | None:
    pins, name = base.pins, settings.installation.package.name
    if not base.has_dockerfile:
        return Refusal(f"it has no {DOCKERFILE}, which names its {name}")
    if pins.kind == "unknown":
        return Refusal(f"its {DOCKERFILE} names no {name} of a known form")
    if not pins.commit:
        return settings.releases.refusal(pins.release)
    short = pins.commit[:12]
    if not settings.index.template:
        return Refusal(f"it needs the wheel of {name} commit {short}: add wheel=URL with {{sha}} in it")
    lookup = _wheel(settings, pins.commit)[1]
    return Refusal(f"no wheel of {short}: {lookup.reason}") if lookup.state == "hole" else None


def key_parts(settings: PinnedBaseSettings, base: PinnedCommit) -> tuple[object, ...]:
    pins = base.pins
    source: tuple[str, ...] = ("release", pins.release, *settings.releases.key_parts(pins.release))
    if pins.commit:
        source = (settings.index.template, pins.commit, _wheel(settings, pins.commit)[0])
    replaced = [(package.name, package.version) for package in pins.packages]
    return (source, replaced, base.requirements, *settings.installation.key_parts())


def label(settings: PinnedBaseSettings, base: PinnedCommit) -> str:
    return f"{settings.installation.package.name} {base.pins.group}"


def make(
    settings: PinnedBaseSettings, base: PinnedCommit, build: BuildRun, staging: Path
) -> Mapping[str, Any]:
    pins, installation, engine = base.pins, settings.installation, settings.installation.package
    kept = {}
    if pins.commit:
        variant = _wheel(settings, pins.commit)[0]
        requirements = settings.index.requirements(pins.commit, variant, build, staging)
        wheel = settings.index.find((pins.commit,), variant)[pins.commit]
        kept = {"kept": wheel.kept.digest} if wheel.kept else {}
    else:
        requirements, variant = settings.releases.requirements(pins.release, build, staging)
    interpreter = installation.create_venv(build, staging, requirements, variant)
    if declared := base.requirements:
        file = staging / "requirements.txt"
        file.write_text("".join(f"{line}\n" for line in declared))
        uv.install(build, interpreter, ["-r", str(file)], engine, folder=staging)
    # The project's image replaces these packages after its installation, too.
    listed = uv.list_packages(build, interpreter)
    present = {canonicalize_name(line.partition("==")[0]) for line in listed}
    # A CPU has no CUDA libraries, which need no replacement then.
    replaced = [
        f"{package.name}=={package.version}"
        for package in pins.packages
        if package.version and canonicalize_name(package.name) in present
    ]
    if replaced:
        uv.install(build, interpreter, replaced, engine, folder=staging)
    if engine.alias is not None and not pins.commit:
        add_alias(site_packages(staging / "venv"), *engine.alias, pins.release)
    return {"pin": pins.text, "replaced": replaced, **kept, **installation.limits.facts()}


def check(settings: PinnedBaseSettings, base: PinnedCommit, build: BuildRun, folder: Path) -> Environment:
    pins, group = base.pins, base.pins.group
    found = settings.installation.import_engine(build, folder, group)
    said = found.reported_commit
    if not pins.commit:
        check_version(build, found, pins.release, group)
    elif said and not pins.commit.startswith(said):
        name = settings.installation.package.name
        message = f"the wheel of {name} {pins.commit[:12]} says it is commit {said}"
        raise BuildError(message, where=build.log)
    return found.checked(pins.commit, uv.list_packages(build, found.interpreter), {})


def artifact(settings: PinnedBaseSettings, base: PinnedCommit) -> Artifact | None:
    sha = base.pins.commit
    return settings.index.artifact(sha, _wheel(settings, sha)[0]) if sha else None


def _wheel(settings: PinnedBaseSettings, sha: str) -> tuple[str, WheelLookup]:
    """The variant of which the index has the commit's wheel, and that wheel; or why it has none."""
    variant, _ = settings.index.choose_variant((sha,))
    return variant, settings.index.find((sha,), variant)[sha]


RECIPE = Recipe(
    name="pinned base",
    look_up=look_up,
    refuses=refuses,
    key_parts=key_parts,
    make=make,
    check=check,
    label=label,
    artifact=artifact,
    # The engine in the base is not the change under test.
    claim=lambda _settings, _base, _build, environment: environment,
)
