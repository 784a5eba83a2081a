"""The bisection that git has under way in a repository: its two ends, and the commit that it asks about."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from perfbisect.core.change import Change
from perfbisect.errors import RevisionError
from perfbisect.system.git import Repository

_END = re.compile(r"^# (?P<term>\S+): \[(?P<sha>[0-9a-f]{40,64})\]", re.MULTILINE)


@dataclass(frozen=True)
class Ends:
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


def bisect_ends(repository: Repository) -> Ends:
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
    return Ends(good, bad)


def _read(repository: Repository, name: str) -> str | None:
    """A file of git's own about a bisection; None if there is none."""
    place = repository.text("rev-parse", "--git-path", name).rstrip("\n")
    path = Path(place) if Path(place).is_absolute() else repository.path / place
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
