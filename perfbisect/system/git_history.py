"""The line of changes between two revisions, also where the good one is on a branch of its own."""

from __future__ import annotations

from dataclasses import dataclass

from perfbisect.core.change import Change, History
from perfbisect.errors import RevisionError
from perfbisect.system.git import Record, Repository


@dataclass(frozen=True)
class Branch:
    """What a good end that is no ancestor of bad has of its own.

    ``fork``: the last commit on bad's line of first parents that good contains, mostly their merge base.
    ``own``: good's commits since then, without merges, oldest first; ``shared``: the ids of those of which
    bad has an equal patch.
    """

    fork: Change
    own: tuple[Change, ...]
    shared: tuple[str, ...]


def history(repository: Repository, good: str, bad: str) -> tuple[History, Branch | None]:
    """Commits from ``good`` to ``bad`` along first parents, both included, oldest first.

    Where good is on a branch that bad does not contain (a release), good comes first, then the fork, then
    bad's first parents from there, and the branch says what good has of its own.

    :raises RevisionError: an end that does not exist, equal ends, swapped ends, a good end that came into bad
        by a merge, unrelated histories, a shallow clone that ends between them.
    """
    first, last = repository.resolve(good), repository.resolve(bad)
    if first.id == last.id:
        raise RevisionError(
            f"good ({good}) and bad ({bad}) are the same commit {first.short}: nothing lies between",
            next_step="give two revisions of which the metric differs",
        )
    records = repository.records("--first-parent", last.id, f"^{first.id}")
    line = tuple(record.change for record in reversed(records))
    if records and records[-1].parents[:1] == (first.id,):
        return History((first, *line)), None
    wrong = _broken(repository, (good, first), (bad, last), records)
    if wrong is not None:
        raise wrong
    fork = repository.resolve(records[-1].parents[0])
    return History((first, fork, *line)), _branch(repository, fork, first, last)


def _branch(repository: Repository, fork: Change, good: Change, bad: Change) -> Branch:
    own = repository.records("--no-merges", good.id, f"^{bad.id}")
    told = repository.text("rev-list", "--cherry-mark", "--left-only", "--no-merges", f"{good.id}...{bad.id}")
    shared = tuple(word[1:] for word in told.split() if word.startswith("="))
    return Branch(fork, tuple(record.change for record in reversed(own)), shared)


def _broken(
    repository: Repository, good: tuple[str, Change], bad: tuple[str, Change], records: list[Record]
) -> RevisionError | None:
    """Why there is no line from good to bad; None where good is on a branch of its own."""
    first, last = good[1], bad[1]
    left, right = f"good ({good[0]}, {first.short})", f"bad ({bad[0]}, {last.short})"
    pair = f"{left} is not an ancestor of {right}"
    if repository.is_ancestor(last.id, first.id):
        return RevisionError(
            f"{pair}: bad is an ancestor of good, the ends are swapped",
            next_step=f"--good {bad[0]} --bad {good[0]}",
        )
    contained = repository.is_ancestor(first.id, last.id)
    line_ends = not records or not records[-1].parents
    if repository.is_shallow() and line_ends:
        return RevisionError(
            f"{repository.path} is a shallow clone: its history ends before {left} is reached from {right}",
            next_step=f"git -C {repository.path} fetch --unshallow",
        )
    if contained:
        fork = records[-1].parents[0] if records and records[-1].parents else ""
        return RevisionError(
            f"good ({good[0]}, {first.short}) came into bad ({bad[0]}, {last.short}) by a merge: "
            f"it is not on bad's line of first parents, which leaves good's history at "
            f"{fork[:12] or 'its root'}",
            next_step=f"--good {fork[:12]}" if fork else "give a good end on the main line",
        )
    if line_ends or repository.merge_base(first.id, last.id) is None:
        return RevisionError(
            f"{pair}: their histories are unrelated, no commit is in both", next_step=repository.look()
        )
    return None
