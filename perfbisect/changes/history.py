"""The history between two revisions, including a good end on a branch of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from perfbisect.changes.git import CommitRecord, Repository
from perfbisect.errors import RevisionError
from perfbisect.model.change import Change, History


@dataclass(frozen=True)
class Branch:
    """Commits of a good end that is not an ancestor of bad.

    ``fork``: the last commit on bad's line of first parents that good contains, mostly their merge base.
    ``own``: good's commits since then, without merges, oldest first; ``shared``: the ids of those of which
    bad has an equal patch.
    """

    fork: Change
    own: tuple[Change, ...]
    shared: tuple[str, ...]


def history(
    repository: Repository, good: str, bad: str, names: tuple[str, str] = ("good", "bad")
) -> tuple[History, Branch | None]:
    """Commits from ``good`` to ``bad`` along first parents, both included, oldest first.

    Where good is on a branch that bad does not contain (a release), good comes first, then the fork, then
    bad's first parents from there, and the branch says what good has of its own. ``names``: what the user
    calls the two ends, for messages.

    :raises RevisionError: an end that does not exist, equal ends, swapped ends, a good end that came into bad
        by a merge, unrelated histories, a shallow clone that ends between them.
    """
    first, last = repository.resolve(good), repository.resolve(bad)
    if first.id == last.id:
        raise RevisionError(
            f"{names[0]} ({good}) and {names[1]} ({bad}) are the same commit {first.short}: nothing lies "
            "between",
            next_step="give two revisions of which the metric differs",
        )
    records = repository.records("--first-parent", last.id, f"^{first.id}")
    line = tuple(record.change for record in reversed(records))
    if records and records[-1].parents[:1] == (first.id,):
        return History((first, *line)), None
    ends = (_End(names[0], good, first), _End(names[1], bad, last))
    wrong = _broken(repository, *ends, records)
    if wrong is not None:
        raise wrong
    fork = repository.resolve(records[-1].parents[0])
    return History((first, fork, *line)), _branch(repository, fork, first, last)


def _branch(repository: Repository, fork: Change, good: Change, bad: Change) -> Branch:
    own = repository.records("--no-merges", good.id, f"^{bad.id}")
    marked = repository.text(
        "rev-list", "--cherry-mark", "--left-only", "--no-merges", f"{good.id}...{bad.id}"
    )
    shared = tuple(word[1:] for word in marked.split() if word.startswith("="))
    return Branch(fork, tuple(record.change for record in reversed(own)), shared)


@dataclass(frozen=True)
class _End:
    """An end of a range: what the user calls it, what was typed, and its commit."""

    name: str
    typed: str
    change: Change

    def __str__(self) -> str:
        return f"{self.name} ({self.typed}, {self.change.short})"


def _broken(
    repository: Repository, first: _End, last: _End, records: list[CommitRecord]
) -> RevisionError | None:
    """Why there is no line between two ends; None if the first is on a branch of its own."""
    pair = f"{first} is not an ancestor of {last}"
    if repository.is_ancestor(last.change.id, first.change.id):
        return RevisionError(
            f"{pair}: {last.name} is an ancestor of {first.name}, the ends are swapped",
            next_step=f"--{first.name} {last.typed} --{last.name} {first.typed}",
        )
    contained = repository.is_ancestor(first.change.id, last.change.id)
    line_ends = not records or not records[-1].parents
    if repository.is_shallow() and line_ends:
        return RevisionError(
            f"{repository.path} is a shallow clone: its history ends before {first} is reached from {last}",
            next_step=f"git -C {repository.path} fetch --unshallow",
        )
    if contained:
        fork = records[-1].parents[0] if records and records[-1].parents else ""
        return RevisionError(
            f"{first} came into {last} by a merge: it is not on {last.name}'s line of first parents, which "
            f"leaves {first.name}'s history at {fork[:12] or 'its root'}",
            next_step=f"--{first.name} {fork[:12]}" if fork else f"give a {first.name} end on the main line",
        )
    if line_ends or repository.merge_base(first.change.id, last.change.id) is None:
        return RevisionError(
            f"{pair}: their histories are unrelated, no commit is in both", next_step=repository.log_command()
        )
    return None


_END = re.compile(r"^# (?P<term>\S+): \[(?P<sha>[0-9a-f]{40,64})\]", re.MULTILINE)


@dataclass(frozen=True)
class BisectLogEnds:
    """The commits that ``git bisect`` was started between."""

    good: Change
    bad: Change


def under_test(repository: Repository) -> Change:
    """The commit that git asks about: ``BISECT_HEAD`` of a bisection without checkout, else ``HEAD``.

    :raises RevisionError: there is none.
    """
    try:
        return repository.resolve("BISECT_HEAD")
    except RevisionError:
        return repository.head()


def bisect_ends(repository: Repository) -> BisectLogEnds:
    """The first good and the first bad commit of the bisection under way, from git's own log of it.

    Git's references move with every answer; its log keeps where it began.

    :raises RevisionError: no bisection is under way, or it has only one end.
    """
    terms = (_read(repository, "BISECT_TERMS") or "bad\ngood\n").split()
    log = _read(repository, "BISECT_LOG")
    if log is None:
        raise RevisionError(
            f"no git bisect is under way in {repository.path}",
            next_step="git bisect start BAD GOOD; or name what to hold against: --against REV",
        )
    first: dict[str, str] = {}
    for found in _END.finditer(log):
        first.setdefault(found["term"], found["sha"])
    missing = [term for term in terms[:2] if term not in first]
    if missing:
        raise RevisionError(
            f"the git bisect in {repository.path} has no {missing[0]} end yet",
            next_step=f"git bisect {missing[0]} REV",
        )
    bad, good = (repository.resolve(first[term]) for term in terms[:2])
    return BisectLogEnds(good, bad)


def _read(repository: Repository, name: str) -> str | None:
    """A file of git's own about a bisection; None if there is none."""
    place = repository.text("rev-parse", "--git-path", name).rstrip("\n")
    path = Path(place) if Path(place).is_absolute() else repository.path / place
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
