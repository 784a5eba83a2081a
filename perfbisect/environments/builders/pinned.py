"""Builder ``pinned:PACKAGE``: a Python package over the engine that each commit pins (vLLM-Omni on vLLM).

Each commit's tree is a thin layer, so that commits with different pins can be compared in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfbisect.changes.pins import DOCKERFILE
from perfbisect.common.quantities import counted
from perfbisect.environments.base import Environment
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders import pinned_base
from perfbisect.environments.builders.cached import (
    LAYER,
    BuildContext,
    CachedBuilder,
    CommitTrees,
    Installation,
    Recipe,
    base_environment,
    compile_files,
)
from perfbisect.environments.builders.pinned_base import REQUIREMENTS, PinnedBaseSettings, PinnedCommit
from perfbisect.environments.builders.release import write_metadata
from perfbisect.environments.cache import variables
from perfbisect.environments.health import locate_engine
from perfbisect.environments.packages import engine
from perfbisect.environments.source_tree import sync_tree, version_at
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError
from perfbisect.model.change import Change


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
    settings = PinnedSettings(installation, trees, pinned_base.builder(spec, context, trees))
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
        words = version.replace("+", ".").split(".")
        parts = tuple(int(word) if word.isdigit() else word for word in words)
        (target / "_version.py").write_text(
            f"__version__ = version = {version!r}\n"
            f"__version_tuple__ = version_tuple = {parts!r}\n"
            "__commit_id__ = commit_id = None\n"
        )
    metadata = layer / f"{package.name.replace('-', '_')}-{version}.dist-info"
    write_metadata(metadata, package.name, version)
    compile_files(build, base.interpreter, target, (*written, "_version.py"))
    return {}


def check(settings: PinnedSettings, commit: PinnedCommit, build: BuildRun, folder: Path) -> Environment:
    change, layer = commit.change, folder / LAYER
    base = base_environment((settings.bases, change), build)
    try:
        found = settings.installation.import_engine(build, folder, change.short, base=base)
    except BuildError as error:
        if not commit.requirements:
            error.next_step = f"{_without_requirements(settings, commit)}: {_OTHER_PLATFORM}"
        raise
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


_OTHER_PLATFORM = "platform=NAME takes another file of requirements/"


def _without_requirements(settings: PinnedSettings, commit: PinnedCommit) -> str:
    """That nothing was found to install over the engine below, and where it was looked for."""
    platform, repository = settings.bases.settings.platform, settings.trees.repository
    entries = repository.entries(commit.change.id, REQUIREMENTS)
    names = sorted(Path(entry.path).name for entry in entries if entry.path.endswith(".txt"))
    there = f" ({REQUIREMENTS}/ has {', '.join(names)})" if names else ""
    return (
        f"{commit.change.short} has neither {REQUIREMENTS}/{platform}.txt{there} nor requirements.txt nor "
        "dependencies in pyproject.toml, so nothing is installed over the engine below"
    )


def group(settings: PinnedSettings, commit: PinnedCommit) -> str:
    return pinned_base.label(settings.bases.settings, commit) if commit.pins.group else ""


def notes(
    settings: PinnedSettings, known: Mapping[str, PinnedCommit], _stamps: Sequence[Environment]
) -> tuple[str, ...]:
    images: dict[str, str] = {}
    groups: Counter[str] = Counter()
    for sha, commit in known.items():
        pins = commit.pins
        groups.update([pins.group] if pins.group else [])
        if not pins.commit and pins.tag.removeprefix("v") != pins.release:
            images.setdefault(
                pins.tag,
                f"the image of {sha[:12]} is {pins.tag}; installed is the release {pins.release}",
            )
    shares = ", ".join(f"{group} under {counted(count, 'commit')}" for group, count in groups.items())
    without = [commit for commit in known.values() if commit.pins.group and not commit.requirements]
    missing: tuple[str, ...] = ()
    if without:
        more = f", as {counted(len(without) - 1, 'other commit')}" if len(without) > 1 else ""
        missing = (f"{_without_requirements(settings, without[0])}{more}: {_OTHER_PLATFORM}",)
    base = settings.bases.settings
    pinned = f"{base.installation.package.name} as {DOCKERFILE} of each commit pins it: {shares}"
    return (pinned, *images.values(), *missing, *base.releases.notes(), *base.index.notes())


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
