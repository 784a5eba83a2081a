"""The range of a bisection: its ends, the changes between them, their weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from perfbisect.bisect.plan import Direction, Position, end_names
from perfbisect.changes import priors
from perfbisect.changes.history import Branch, commit_history, list_releases, release_history
from perfbisect.changes.syntax import parse_change_text
from perfbisect.commands import changes
from perfbisect.commands.workspace import Workspace
from perfbisect.errors import RevisionError, UsageError
from perfbisect.model.change import History

_MODIFIED = re.compile(r"\+(?:patch|revert|pip):")


def resolve_range(
    workspace: Workspace,
    good: str,
    bad: str,
    *,
    direction: Direction,
    releases: str | None = None,
    versions: Sequence[str] = (),
) -> tuple[History, Branch | None]:
    """The changes from the earlier end to the later, and the branch of an earlier end beside the line.

    ``releases``: the package whose ``versions``, by default all, are in question, and not commits.
    """
    names = end_names(direction)
    ends = {"good": good, "bad": bad}
    first, last = (_resolve_end(workspace, name, ends[name], releases) for name in names)
    try:
        if releases:
            known = versions or list_releases(releases)
            return release_history(releases, known, first, last, names), None
        return commit_history(workspace.needed_repository(), first, last, names)
    except RevisionError as error:
        if direction == "regression":
            raise
        raise RevisionError(
            f"{error.message} (with --direction improvement the bad end is the earlier)",
            where=error.where,
            next_step=error.next_step,
        ) from error


def _resolve_end(workspace: Workspace, name: str, end: str, releases: str | None) -> str:
    """An end as it is: a revision, a release, or the head of a pull request."""
    # Versions of a registry need no repository.
    if releases and not _MODIFIED.search(end):
        return end
    repository = None if releases else workspace.needed_repository()
    if repository is not None:
        with suppress(RevisionError):
            repository.resolve(end)
            return end
    text = parse_change_text(end)
    if end == text.base:
        if repository is not None and text.pull is not None:
            return changes.resolve_pull(repository, text.pull).id
        return end
    modification = end[len(text.base) :]
    package = f"{releases}==" if releases else ""
    instead = f"perfbisect compare CELL --a {package}{text.base} --b {package}{end}"
    if modification == f"+{text.variant}":
        instead = f"--{name} {text.base} --variant {text.variant}, on all sides; or: {instead}"
    elif text.pips:
        instead = f"--{name} {text.base} --constraints FILE pins {text.pips[0]} on all sides; or: {instead}"
    raise UsageError(
        f"--{name} {end!r}: an end of a bisection is a commit or a release as it is: {modification} would be "
        "done to it and to none of the changes between",
        next_step=instead,
    )


def position_weigher(workspace: Workspace, path: Path) -> Callable[[Sequence[Position]], tuple[float, ...]]:
    """Prior weights of positions, by touched files or by commit, from a file."""
    rules = priors.load_weights(path)
    if isinstance(rules, dict):
        commits = rules
        # A position weighs as its likeliest commit; a commit that is not ranked weighs 1.
        return lambda positions: tuple(
            max((commits.get(change.source, 1.0) for change in position.changes), default=1.0)
            for position in positions
        )
    repository = workspace.needed_repository()

    def weigh(positions: Sequence[Position]) -> tuple[float, ...]:
        files = repository.files_of(change.id for position in positions for change in position.changes)
        touched = [
            tuple(name for change in position.changes for name in files.get(change.id, ()))
            for position in positions
        ]
        return priors.weights(touched, rules)

    return weigh
