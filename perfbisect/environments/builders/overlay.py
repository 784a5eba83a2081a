"""Builder ``overlay:BASE,base=REV``: a commit's Python tree over a release or a user's interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfbisect.environments.base import Builder, Refusal
from perfbisect.environments.builders import nearest_wheel, release
from perfbisect.environments.builders.cached import (
    BuildContext,
    CachedBuilder,
    CommitTrees,
    Installation,
    Recipe,
)
from perfbisect.environments.builders.existing import InterpreterBase
from perfbisect.environments.builders.nearest_wheel import NearestWheel
from perfbisect.environments.builders.overlay_layer import (
    BuildState,
    OverlaidCommit,
    OverlaySettings,
    check,
    key_parts,
    make,
)
from perfbisect.environments.packages import package
from perfbisect.environments.spec import Spec
from perfbisect.model.change import Change


@dataclass(frozen=True)
class FixedBase(OverlaySettings):
    """Overlays over one base: a release (``NAME==VERSION``) or a user's interpreter.

    ``commit``: that it was built from; ``any_base``: nothing in the repository is compiled.
    """

    spec: str
    below: Change
    platform: str
    commit: Change | None
    any_base: bool


def builder(
    spec: Spec, context: BuildContext
) -> CachedBuilder[FixedBase, OverlaidCommit] | CachedBuilder[NearestWheel, OverlaidCommit]:
    """The builder of an overlay, by what its base is: an index of wheels, a release or an interpreter."""
    if spec.has_index:
        return nearest_wheel.builder(spec, context)
    base: Builder
    if "==" in spec.argument:
        requirement = spec.requirement("NAME==VERSION")
        pins = list(requirement.specifier)
        if len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version or requirement.marker:
            raise spec.error(f"the base {spec.argument!r} is not one version", "write NAME==VERSION")
        name = package(requirement.name, spec.option("package")).name
        kept = ("package", "python", "variant", "wheel", "with")
        options = {key: spec.options[key] for key in kept if key in spec.options}
        text = ",".join((f"release:{name}", *(f"{key}={value}" for key, value in options.items())))
        releases = release.builder(Spec(text, "release", name, options), context)
        base, below = releases, Change(f"{name}=={pins[0].version}", "release")
        releases.pinned_client = below
        engine = releases.settings.installation.package
        platform = engine.platform_of(spec.option("variant"))
        installation = Installation.of(spec, context, engine)
    else:
        installation, platform = Installation.of(spec, context), ""
    trees = CommitTrees(context.required_repository(spec), installation.package.folder)
    client = trees.client(spec)
    if "==" not in spec.argument:
        if unused := {"variant", "wheel", "with"} & set(spec.options):
            raise spec.error(f"{min(unused)}= does not apply to an interpreter", "leave it out")
        base = InterpreterBase(spec, context)
        below = Change(str(base.interpreter), "release")
    revision = spec.option("base")
    commit = trees.repository.resolve(revision) if revision not in ("", "any") else None
    settings = FixedBase(installation, trees, base, spec.text, below, platform, commit, revision == "any")
    return CachedBuilder(RECIPE, spec.text, context, settings, client=client or base)


def look_up(
    settings: FixedBase, changes: Sequence[Change], _known: Mapping[str, OverlaidCommit]
) -> dict[str, OverlaidCommit]:
    commit, package = settings.commit, settings.installation.package
    trees = settings.trees.look_up((*changes, commit) if commit else changes)
    differing: dict[str, list[str]] = {}
    if commit is not None:
        there = [change.id for change in changes if trees[change.id] is not None]
        pairs = [(commit.id, sha) for sha in there]
        files = settings.trees.repository.file_changes(pairs, package.pathspecs)
        for sha, changed in zip(there, files, strict=True):
            differing[sha] = [each.path for each in changed if package.is_used(each.path, settings.platform)]
    found = {}
    for change in changes:
        paths = differing.get(change.id, [])
        needed = [path for path in paths if not package.is_optional(path)]
        refusal = None
        if needed and commit is not None:
            count = "1 file differs" if len(needed) == 1 else f"{len(needed)} files differ"
            more = f" and {len(needed) - 3} more" if len(needed) > 3 else ""
            refusal = Refusal(
                f"needs compiling or other packages than {settings.below.id} (built from {commit.short}): "
                f"{count}: {', '.join(needed[:3])}{more}"
            )
        found[change.id] = OverlaidCommit(
            change,
            trees[change.id],
            BuildState(),
            settings.below,
            commit,
            str(trees[commit.id]) if commit else "any",
            len(needed) < len(paths),
            refusal,
        )
    return found


def refuses(settings: FixedBase, commit: OverlaidCommit) -> Refusal | None:
    if settings.commit is None and not settings.any_base:
        return Refusal(
            f"{settings.spec} does not say which commit {settings.below.id} was built from: add base=REV "
            "(base=any if nothing in the repository is compiled)",
            error=True,
        )
    own = settings.trees.refuses(commit) or commit.refusal
    return own or settings.base.refuses(settings.below)


RECIPE = Recipe(
    name="overlay",
    look_up=look_up,
    refuses=refuses,
    key_parts=key_parts,
    make=make,
    check=check,
    base=lambda settings, commit: (settings.base, commit.base),
    notes=lambda settings, _known, _stamps: settings.base.notes(),
)
