"""What is known of an alert and of the commits that could be behind it: the input of the ranking."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

CauseWord = Literal["product", "instrument", "workload", "night", "unknown"]

Phase = Literal["slow", "recovery", "after"]
"""When a later commit came: ``slow``, a night that ran it was still slow; ``recovery``, between the last slow
night and the first good one; ``after``, later than that, or no night has run it."""

_NUMBER = re.compile(r"\(#(\d+)\)\s*$")


@dataclass(frozen=True)
class ChangedFile:
    """A file that a commit changed, with its lines; None where they are not known (binary, or no diff)."""

    path: str
    added: int | None = None
    removed: int | None = None

    @property
    def lines(self) -> int | None:
        """Lines added and removed."""
        return None if self.added is None or self.removed is None else self.added + self.removed


@dataclass(frozen=True)
class Commit:
    """A commit of the repository under test, against its first parent.

    ``number`` is that of its pull request, read from the end of the subject where it is not given; ``pins``
    what it is built on before and after, in words, where it moves that.
    """

    sha: str
    subject: str = ""
    date: str = ""
    body: str = ""
    files: tuple[ChangedFile, ...] = ()
    pins: tuple[str, str] | None = None
    number: int | None = None

    @property
    def pull(self) -> int | None:
        """The number of its pull request."""
        found = _NUMBER.search(self.subject)
        return self.number if self.number is not None else int(found[1]) if found else None

    @property
    def text(self) -> str:
        """All it says, without its own number."""
        return f"{_NUMBER.sub('', self.subject)}\n{self.body}"


@dataclass(frozen=True)
class OnsetNight:
    """A night at which the series may have moved first, with its probability.

    ``commits``: the commits that this night may have been the first to run. Windows overlap where it is not
    known how long before its night a commit was taken; a commit then counts in parts.
    """

    night: str
    p: float
    commits: frozenset[str]


@dataclass(frozen=True)
class MeasuredCell:
    """A cell that was measured on both sides of the change.

    ``traits``: its family, and the knobs that choose what code runs (``async_chunk``); ``model`` as it is
    served. ``start``: the server start that served it, by which it votes: cells of one server are not
    independent.
    """

    cell: str
    hit: bool
    start: str
    traits: frozenset[str] = frozenset()
    model: str = ""


@dataclass(frozen=True)
class LaterCommit:
    """A commit after the window of the onset; or of it, where it may have come with the recovery alone."""

    commit: Commit
    phase: Phase


@dataclass(frozen=True)
class SuspectQuestion:
    """Which of ``commits`` (first parents, oldest first) is behind an alert?

    ``recovered``: the series came back to where it was before.
    """

    commits: tuple[Commit, ...]
    places: tuple[OnsetNight, ...]
    cells: tuple[MeasuredCell, ...] = ()
    later: tuple[LaterCommit, ...] = ()
    recovered: bool = False
    cause: CauseWord = "unknown"

    def __post_init__(self) -> None:
        known = {commit.sha for commit in self.commits}
        if len(known) < len(self.commits):
            raise ValueError("a window names each commit once")
        if any(not 0 <= place.p <= 1 for place in self.places):
            raise ValueError("the probability of a place is between 0 and 1")
        if not any(place.p > 0 and place.commits & known for place in self.places):
            raise ValueError("no place of the change holds a commit of the window")


@dataclass(frozen=True)
class Factor:
    """One piece of evidence: by how much it multiplies a commit's odds against one that says nothing."""

    name: str
    weight: float
    words: str


@dataclass(frozen=True)
class Suspect:
    """A commit with the probability that it is behind the alert, and why."""

    commit: Commit
    p: float
    evidence: tuple[Factor, ...]


@dataclass(frozen=True)
class Ranking:
    """Suspects, the likeliest first; of equal ones the newest.

    ``p_outside_window``: the probability that none of them is the cause: another repository, the machine, a
    window too narrow. ``blast_radius``: what only the affected cells have, in words. ``attributed``:
    by which commit's revert the series recovered, where one suspect holds nearly everything.
    """

    suspects: tuple[Suspect, ...]
    p_outside_window: float
    blast_radius: str
    attributed: Factor | None = None
