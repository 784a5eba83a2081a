"""Between two builds: which commits of the main line can be in the later and not in the earlier.

A build that says its commit is at its place on the line. Of another only the time is known: its commit was
chosen before its first result began, by how much is not known. So the earliest commit that it can be is the
last one before that lead, the latest the last one before the result; a window goes from the earliest of the
one build to the latest of the other. Where nights are missing, their commits are in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import accumulate

from perfbisect.changes.details import commits_between
from perfbisect.changes.git import Repository
from perfbisect.common.durations import moment
from perfbisect.errors import RevisionError
from perfbisect.model.change import Change
from perfbisect.model.commit_details import (
    CauseWord,
    Commit,
    LaterCommit,
    MeasuredCell,
    OnsetNight,
    Phase,
    SuspectQuestion,
)
from perfbisect.series.points import Build

LEAD = timedelta(hours=6)
"""How long before a build's first result its commit may have been chosen, at the most.

vLLM-Omni's nightly builds an image and waits for machines before it measures: hours, and it is nowhere told.
"""


@dataclass(frozen=True)
class MainLine:
    """The first-parent commits of the main branch, oldest first; each date says its zone."""

    commits: tuple[Change, ...]

    def last_before(self, when: datetime, *, surely: bool) -> int:
        """The place of the last commit that was in by then, -1 if none was.

        Dates may run backwards where clocks did: ``surely`` asks that all before it were in too, without it
        the place is as late as may be.

        :raises ValueError: a commit's date does not say its zone.
        """
        return bisect_right(self._came if surely else self._left, when) - 1

    def place(self, sha: str) -> int | None:
        """The place of a commit by its full or abbreviated id; None: it is not on the line."""
        if sha in self._places:
            return self._places[sha]
        found = [i for i, commit in enumerate(self.commits) if len(sha) >= 7 and commit.id.startswith(sha)]
        return found[0] if len(found) == 1 else None

    @cached_property
    def _dates(self) -> tuple[datetime, ...]:
        return tuple(moment(commit.date) for commit in self.commits)

    @cached_property
    def _came(self) -> tuple[datetime, ...]:
        return tuple(accumulate(self._dates, max))

    @cached_property
    def _left(self) -> tuple[datetime, ...]:
        return tuple(accumulate(self._dates[::-1], min))[::-1]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {commit.id: i for i, commit in enumerate(self.commits)}


@dataclass(frozen=True)
class LinePosition:
    """Where a build's commit is on the line: ``earliest`` to ``latest``, both included."""

    earliest: int
    latest: int

    @property
    def known(self) -> bool:
        return self.earliest == self.latest


@dataclass(frozen=True)
class CommitWindow:
    """The commits that can be behind what changed between two builds, oldest first.

    ``exact``: both builds say their commits. ``why``: how the ends were found, in words.
    """

    commits: tuple[Change, ...]
    before: LinePosition
    after: LinePosition
    why: str

    @property
    def exact(self) -> bool:
        return self.before.known and self.after.known


def spot(line: MainLine, build: Build, began: datetime, lead: timedelta = LEAD) -> LinePosition:
    """Where a build's commit is. ``began``: when its first result began.

    :raises RevisionError: the line begins after that, or its commit is not on it.
    """
    if build.commit:
        place = line.place(build.commit)
        if place is not None:
            return LinePosition(place, place)
        if build.of_main is not False:
            raise RevisionError(
                f"build {build.name} is of commit {build.commit[:12]}, which the history does not have on "
                "its line of first parents",
                next_step="fetch the whole history: git fetch --unshallow",
            )
    if build.fixed:
        fixed = moment(build.fixed)
        return _checked(
            line,
            build,
            LinePosition(line.last_before(fixed, surely=True), line.last_before(fixed, surely=False)),
        )
    earliest = line.last_before(began - lead, surely=True)
    return _checked(line, build, LinePosition(earliest, line.last_before(began, surely=False)))


def _checked(line: MainLine, build: Build, found: LinePosition) -> LinePosition:
    if found.earliest < 0:
        first = f"begins on {line.commits[0].date}" if line.commits else "is empty"
        raise RevisionError(
            f"the history {first}, after the commit of build {build.name} was chosen: it lacks the commits "
            "before",
            next_step="fetch the whole history: git fetch --unshallow",
        )
    return found


def window(
    line: MainLine,
    before: tuple[Build, datetime],
    after: tuple[Build, datetime],
    lead: timedelta = LEAD,
) -> CommitWindow:
    """The commits between two builds, each with the moment at which its first result began.

    :raises RevisionError: see ``spot``.
    :raises ValueError: the builds are in the wrong order.
    """
    if before[1] > after[1]:
        raise ValueError(f"build {before[0].name} began after build {after[0].name}")
    left, right = spot(line, *before, lead), spot(line, *after, lead)
    commits = line.commits[left.earliest + 1 : max(right.latest, left.earliest) + 1]
    return CommitWindow(commits, left, right, f"{_how(before, left, lead)}; {_how(after, right, lead)}")


def _how(end: tuple[Build, datetime], found: LinePosition, lead: timedelta) -> str:
    build, began = end
    if found.known and build.commit:
        return f"build {build.name} is of {build.commit[:12]}"
    if build.fixed:
        return f"build {build.name} was made at {build.fixed}"
    hours = lead.total_seconds() / 3600
    told = began.strftime("%Y-%m-%d %H:%MZ")
    return f"build {build.name} began to measure at {told}, its commit was chosen up to {hours:g} h before"


def ordered(commits: Sequence[Change]) -> MainLine:
    """A line from commits as git logs them, newest first."""
    return MainLine(tuple(reversed(commits)))


LATER = 300
"""Commits after all that is known of an alert in which a revert is still looked for."""


@dataclass(frozen=True)
class Onset:
    """A night at which the series may have moved first.

    ``p``: its probability; ``window``: the commits between the night before it that was measured and itself.
    """

    night: str
    p: float
    window: CommitWindow


@dataclass(frozen=True)
class Aftermath:
    """What came after the onset.

    ``slow``: where the commit of the last slow night is; ``recovery``: the commits between that night and the
    first good one, None where there is none yet.
    """

    slow: LinePosition
    recovery: CommitWindow | None = None


@dataclass(frozen=True)
class WindowQuestion:
    """A question, and the ends between which measuring settles it: ``good`` is the commit before the first of
    the window, ``bad`` the last of it."""

    question: SuspectQuestion
    good: str
    bad: str


def build_question(
    repository: Repository,
    line: MainLine,
    onsets: Sequence[Onset],
    after: Aftermath,
    *,
    cells: Iterable[MeasuredCell] = (),
    cause: CauseWord = "unknown",
) -> WindowQuestion:
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
            next_step=repository.log_command(),
        )
    last = max(high, after.slow.latest, after.recovery.after.latest if after.recovery else 0) + LATER
    good, bad, tip = (line.commits[place].id for place in (low, high, min(last, len(line.commits) - 1)))
    window = commits_between(repository, good, bad)
    later = [
        LaterCommit(commit, phase)
        for commit in (*window, *commits_between(repository, bad, tip))
        if (phase := _phase(line, commit, after, high)) is not None
    ]
    question = SuspectQuestion(
        commits=window,
        places=tuple(
            OnsetNight(onset.night, onset.p, frozenset(commit.id for commit in onset.window.commits))
            for onset in onsets
        ),
        cells=tuple(cells),
        later=tuple(later),
        recovered=after.recovery is not None,
        cause=cause,
    )
    return WindowQuestion(question, good, bad)


def _phase(line: MainLine, commit: Commit, after: Aftermath, high: int) -> Phase | None:
    """When a commit came, seen from the recovery; None for one of the onset alone."""
    place = line.place(commit.sha)
    if place is None:
        return None
    if after.recovery is not None and after.recovery.before.earliest < place <= after.recovery.after.latest:
        return "recovery"
    if place <= high:
        return None
    return "slow" if place <= after.slow.earliest else "after"
