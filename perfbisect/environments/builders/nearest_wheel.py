"""Overlays over the wheels of a per-commit index: one wheel for all commits with equal build inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.builders import wheel
from perfbisect.environments.builders.cached import BuildContext, CachedBuilder, CommitTrees, Recipe
from perfbisect.environments.builders.overlay_layer import (
    BuildState,
    OverlaidCommit,
    OverlaySettings,
    check,
    key_parts,
    make,
)
from perfbisect.environments.builders.wheel import CommitWheel, WheelSettings, variant_of
from perfbisect.environments.packages import EnginePackage
from perfbisect.environments.spec import Spec
from perfbisect.model.change import Change


@dataclass(frozen=True)
class NearestWheel(OverlaySettings):
    """Overlays over the wheels of a per-commit index, one for all commits with the same build inputs.

    The wheel is that of the first such commit that has one, so that holes of the index are filled, too.
    ``states``: of the build inputs of commits, as far as they were asked for.
    """

    base: CachedBuilder[WheelSettings, CommitWheel]
    states: dict[str, BuildState]


def builder(spec: Spec, context: BuildContext) -> CachedBuilder[NearestWheel, OverlaidCommit]:
    wheels = wheel.builder(spec, context.here)
    installation = wheels.settings.installation
    trees = CommitTrees(wheels.settings.trees.repository, installation.package.folder)
    settings = NearestWheel(installation, trees, wheels, {})
    return CachedBuilder(RECIPE, spec.text, context, settings, client=trees.client(spec))


def read_build_states(
    known: dict[str, BuildState],
    repository: Repository,
    package: EnginePackage,
    shas: Collection[str],
    platform: str,
) -> dict[str, BuildState]:
    """The states of commits, each read as its difference from the one before, by one git process.

    They are comparable with those in ``known`` only, to which they are added.
    """
    unknown = [sha for sha in dict.fromkeys(shas) if sha not in known]
    if unknown:
        last = next(reversed(known), unknown[0])
        state = known.get(last, BuildState())
        pairs = list(zip((last, *unknown), unknown, strict=False))
        changes = repository.file_changes(pairs, package.pathspecs)
        for sha, changed in zip(unknown, changes, strict=True):
            needed, optional = state.needed, state.optional
            for file in changed:
                if not package.is_used(file.path, platform):
                    continue
                # Files in any order, each in and out again: the state is a sum of digests without carry.
                difference = _digest(file.path, file.before) ^ _digest(file.path, file.after)
                if package.is_optional(file.path):
                    optional ^= difference
                else:
                    needed ^= difference
            known[sha] = state = BuildState(needed, optional)
    return {sha: known[sha] for sha in shas}


def _digest(path: str, blob: str) -> int:
    """A file's part of a state; 0 if it does not exist."""
    if not blob.strip("0"):
        return 0
    return int.from_bytes(
        hashlib.sha256(f"{path}\0{blob}".encode(errors="surrogateescape")).digest()[:16], "big"
    )


def look_up(
    settings: NearestWheel, changes: Sequence[Change], known: Mapping[str, OverlaidCommit]
) -> dict[str, OverlaidCommit]:
    wheels, package = settings.base, settings.installation.package
    # A commit that had no wheel may use the wheel of a commit that is asked for now.
    changes = (*changes, *(commit.change for commit in known.values() if commit.below is None))
    trees = settings.trees.look_up(changes)
    if not wheels.known:
        wheels.prepare((changes[0], changes[-1]))
    platform = package.platform_of(variant_of(wheels.known) or "")
    there = [change.id for change in changes if trees[change.id] is not None]
    repository = settings.trees.repository
    states = read_build_states(settings.states, repository, package, there, platform)
    bases = {commit.state.needed: commit.below for commit in known.values() if commit.below}
    without: dict[int, list[Change]] = {}
    for sha, state in states.items():
        if state.needed not in bases:
            without.setdefault(state.needed, []).append(Change(sha))
    while without:
        candidates = {state: changes.pop(0) for state, changes in without.items()}
        wheels.prepare(candidates.values())
        bases |= {state: change for state, change in candidates.items() if wheels.refuses(change) is None}
        without = {state: changes for state, changes in without.items() if changes and state not in bases}
    base_trees = settings.trees.look_up(bases.values())
    ids = [below.id for below in bases.values()]
    optional = read_build_states(settings.states, repository, package, ids, platform)
    found = {}
    for change in changes:
        state = states.get(change.id, BuildState())
        below = bases.get(state.needed) if change.id in states else None
        refusal = None
        if below is None:
            own = wheels.refuses(change)
            reason = own.reason if own else "no wheel"
            refusal = Refusal(
                f"{reason}; nor is there one of a commit with equal compiled sources and requirements"
            )
        found[change.id] = OverlaidCommit(
            change,
            trees[change.id],
            state,
            below,
            below,
            str(base_trees[below.id]) if below else "",
            below is not None and optional[below.id].optional != state.optional,
            refusal,
        )
    return found


def notes(
    settings: NearestWheel, known: Mapping[str, OverlaidCommit], _stamps: Sequence[Environment]
) -> tuple[str, ...]:
    covered = [commit.state.needed for commit in known.values() if commit.below is not None]
    if not covered:
        return settings.base.notes()
    wheels = f"the wheels of {len(set(covered))}: one for all with equal build inputs"
    return (f"{len(covered)} commits lie over {wheels}", *settings.base.notes())


RECIPE = Recipe(
    name="overlay",
    look_up=look_up,
    refuses=lambda settings, commit: settings.trees.refuses(commit) or commit.refusal,
    key_parts=key_parts,
    make=make,
    check=check,
    base=lambda settings, commit: (settings.base, commit.base),
    notes=notes,
)
