"""From the windows of an alert to the question which commit is behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfbisect.core.suspect_facts import CauseWord, Commit, Later, Phase, Place, Question, Ran
from perfbisect.core.window import Line, Spot, Window
from perfbisect.errors import RevisionError
from perfbisect.system.git import Repository
from perfbisect.system.git_commits import commits_between

LATER = 300
"""Commits after all that is known of an alert in which a revert is still looked for."""


@dataclass(frozen=True)
class Onset:
    """A night at which the series may have moved first.

    ``p``: its probability; ``window``: the commits between the night before it that was measured and itself.
    """

    night: str
    p: float
    window: Window


@dataclass(frozen=True)
class After:
    """What came after the onset.

    ``slow``: where the commit of the last slow night is; ``recovery``: the commits between that night and the
    first good one, None where there is none yet.
    """

    slow: Spot
    recovery: Window | None = None


@dataclass(frozen=True)
class Asked:
    """A question, and the ends between which measuring settles it: ``good`` is the commit before the first of
    the window, ``bad`` the last of it."""

    question: Question
    good: str
    bad: str


def asked(
    repository: Repository,
    line: Line,
    onsets: Sequence[Onset],
    after: After,
    *,
    cells: Iterable[Ran] = (),
    cause: CauseWord = "unknown",
) -> Asked:
    """The commits of all windows with what they touched, and the later ones with when they came: until the
    recovery, and :data:`LATER` more.

    Where it is not known when a night's commit was chosen, a commit can be both of the onset and of the
    recovery: it is asked in both places.

    :raises RevisionError: no window holds a commit, or the repository lacks them.
    """
    low = min(onset.window.before.earliest for onset in onsets)
    high = max(onset.window.after.latest for onset in onsets)
    if high <= low:
        nights = ", ".join(onset.night for onset in onsets)
        raise RevisionError(
            f"no commit of the main line came between the builds of {nights} and those before: "
            "what changed is not in this repository",
            next_step=repository.look(),
        )
    last = max(high, after.slow.latest, after.recovery.after.latest if after.recovery else 0) + LATER
    good, bad, tip = (line.commits[place].id for place in (low, high, min(last, len(line.commits) - 1)))
    window = commits_between(repository, good, bad)
    later = [
        Later(commit, phase)
        for commit in (*window, *commits_between(repository, bad, tip))
        if (phase := _phase(line, commit, after, high)) is not None
    ]
    question = Question(
        commits=window,
        places=tuple(
            Place(onset.night, onset.p, frozenset(commit.id for commit in onset.window.commits))
            for onset in onsets
        ),
        cells=tuple(cells),
        later=tuple(later),
        recovered=after.recovery is not None,
        cause=cause,
    )
    return Asked(question, good, bad)


def _phase(line: Line, commit: Commit, after: After, high: int) -> Phase | None:
    """When a commit came, seen from the recovery; None for one of the onset alone."""
    place = line.place(commit.sha)
    if place is None:
        return None
    if after.recovery is not None and after.recovery.before.earliest < place <= after.recovery.after.latest:
        return "recovery"
    if place <= high:
        return None
    return "slow" if place <= after.slow.earliest else "after"
