"""Which commits of the main line can be in one build and not in an earlier one.

A build that reports its commit is at its place on the line. The commit of another was chosen up to
:data:`LEAD` before its first result began: a window goes from the earliest possible commit of one build to
the latest of the other. Where nights are missing, their commits are in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import accumulate

from perfbisect.changes.git import Repository
from perfbisect.changes.history import commits_between
from perfbisect.common.quantities import moment, stamp
from perfbisect.errors import RevisionError
from perfbisect.model.change import Change
from perfbisect.model.commit_details import (
    CauseWord,
    Commit,
    Evidence,
    MeasuredCell,
    OnsetNight,
    Phase,
    SuspectQuestion,
)
from perfbisect.series.points import Build, Point

LEAD = timedelta(hours=6)
"""vLLM-Omni's nightly builds an image and waits for machines, for hours, and reports neither."""

LATER = 300  # commits after all nights of an alert among which a revert is looked for

_FETCH_NEWER = "git fetch, and the same command again with the branch up to date"
_FETCH = "fetch the whole history: git fetch --unshallow"


@dataclass(frozen=True)
class MainLine:
    """The first-parent commits of the main branch, oldest first; each date has its time zone."""

    commits: tuple[Change, ...]

    @classmethod
    def of(cls, repository: Repository, tip: str = "HEAD") -> MainLine:
        # First parents: a merge is one change of main, however many commits it brought.
        newest_first = repository.records("--first-parent", tip)
        return cls(tuple(record.change for record in reversed(newest_first)))

    def last_before(self, when: datetime, *, surely: bool) -> int:
        """The place of the last commit that was merged by then, -1 if none was.

        Dates may run backwards where clocks did: ``surely``, all commits before it were merged too; otherwise
        the place is as late as possible.
        """
        return bisect_right(self._latest_so_far if surely else self._earliest_after, when) - 1

    def place(self, sha: str) -> int | None:
        """The place of a commit by its full or abbreviated id; None if it is not on the line."""
        if sha in self._places:
            return self._places[sha]
        # Dashboards abbreviate hashes; a shorter one may be that of several commits.
        places = [i for i, commit in enumerate(self.commits) if len(sha) >= 7 and commit.id.startswith(sha)]
        return places[0] if len(places) == 1 else None

    @property
    def ends(self) -> datetime | None:
        """When its last commit was merged; None of an empty line."""
        return moment(self.commits[-1].date) if self.commits else None

    @property
    def end_text(self) -> str:
        return f"this clone ends {self.commits[-1].date[:10]}"

    @cached_property
    def _dates(self) -> tuple[datetime, ...]:
        return tuple(moment(commit.date) for commit in self.commits)

    @cached_property
    def _latest_so_far(self) -> tuple[datetime, ...]:
        return tuple(accumulate(self._dates, max))

    @cached_property
    def _earliest_after(self) -> tuple[datetime, ...]:
        return tuple(accumulate(self._dates[::-1], min))[::-1]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {commit.id: i for i, commit in enumerate(self.commits)}


@dataclass(frozen=True)
class LinePosition:
    """Where a build's commit is on the line: ``earliest`` to ``latest``, both included."""

    earliest: int
    latest: int


@dataclass(frozen=True)
class CommitWindow:
    """The commits that can be behind what changed between two builds, oldest first.

    ``found_by``: how its ends were found.
    """

    commits: tuple[Change, ...]
    before: LinePosition
    after: LinePosition
    found_by: tuple[Evidence, Evidence]


def locate_build(line: MainLine, build: Build, began: datetime) -> LinePosition:
    """Where a build's commit is. ``began``: when its first result began.

    :raises RevisionError: the line begins after that, or its commit is not on it.
    """
    if build.commit:
        place = line.place(build.commit)
        if place is not None:
            return LinePosition(place, place)
        # A build of another branch is placed by its time: its commit is not on the line.
        if build.of_main is not False:
            is_later = line.ends is not None and began > line.ends
            raise RevisionError(
                f"build {build.name} is of commit {build.commit[:12]}, which the history does not have on "
                "its line of first parents" + (f": {line.end_text}" if is_later else ""),
                next_step=_FETCH_NEWER if is_later else _FETCH,
            )
    latest = moment(build.fixed) if build.fixed else began
    # Dates of commits may run backwards (wrong clocks): both ends allow for that.
    earliest = line.last_before(latest if build.fixed else latest - LEAD, surely=True)
    if earliest < 0:
        first = f"begins on {line.commits[0].date}" if line.commits else "is empty"
        raise RevisionError(
            f"the history {first}, after the commit of build {build.name} was chosen: it lacks the commits "
            "before",
            next_step=_FETCH,
        )
    return LinePosition(earliest, line.last_before(latest, surely=False))


def start_time(points: Sequence[Point], build: Build) -> datetime:
    """When a build's first result began."""
    return min(moment(point.began) for point in points if point.build.key == build.key)


def commit_window(line: MainLine, points: Sequence[Point], before: Build, after: Build) -> CommitWindow:
    """The commits between two builds of these points.

    :raises RevisionError: as :func:`locate_build`.
    :raises ValueError: the builds are in the wrong order.
    """
    began, later = start_time(points, before), start_time(points, after)
    if began > later:
        raise ValueError(f"build {before.name} began after build {after.name}")
    left, right = locate_build(line, before, began), locate_build(line, after, later)
    commits = line.commits[left.earliest + 1 : max(right.latest, left.earliest) + 1]
    found_by = _found_by(before, began, left), _found_by(after, later, right)
    return CommitWindow(commits, left, right, found_by)


def _found_by(build: Build, began: datetime, position: LinePosition) -> Evidence:
    if build.commit and position.earliest == position.latest:
        return Evidence("build of commit", {"build": build.name, "commit": build.commit})
    if build.fixed:
        return Evidence("build made", {"build": build.name, "at": build.fixed})
    hours = LEAD.total_seconds() / 3600
    return Evidence("build began", {"build": build.name, "at": stamp(began), "hours": hours})


def build_question(
    repository: Repository,
    line: MainLine,
    onsets: Sequence[tuple[OnsetNight, CommitWindow]],
    slow: LinePosition,
    recovery: CommitWindow | None = None,
    *,
    cells: Iterable[MeasuredCell] = (),
    cause: CauseWord = "unknown",
) -> tuple[SuspectQuestion, str]:
    """The commits of all windows, the later ones up to :data:`LATER`, and the commit before the windows.

    ``onsets``: each night with its window. ``slow``: the last slow night's commit; ``recovery``: the window
    from there to the first good night. A commit can be both of the onset and of the recovery: where it is not
    known when a night's commit was chosen, it is in both places.

    :raises RevisionError: no window holds a commit, or the repository lacks them.
    """
    low = min(window.before.earliest for _, window in onsets)
    high = max(window.after.latest for _, window in onsets)
    if high <= low:
        nights = ", ".join(onset.night for onset, _ in onsets)
        if line.ends is not None and line.ends.date().isoformat() < min(onset.night for onset, _ in onsets):
            raise RevisionError(
                f"the commits between the builds of {nights} and those before are not in this clone: "
                f"{line.end_text}",
                next_step=_FETCH_NEWER,
            )
        raise RevisionError(
            f"no commit of the main line came between the builds of {nights} and those before: "
            "what changed is not in this repository",
            next_step=repository.log_command(),
        )
    last = max(high, slow.latest, recovery.after.latest if recovery else 0) + LATER
    good, bad, tip = (line.commits[place].id for place in (low, high, min(last, len(line.commits) - 1)))

    def phase(commit: Commit) -> Phase | None:
        """When a commit was merged, relative to the recovery; None for one of the onset alone."""
        place = line.place(commit.sha)
        if place is None:
            return None
        # Where a night's commit is not known, onset and recovery overlap: a commit may be in both.
        if recovery is not None and recovery.before.earliest < place <= recovery.after.latest:
            return "recovery"
        if place <= high:
            return None
        return "slow" if place <= slow.earliest else "after"

    window = commits_between(repository, good, bad)
    phases = [(commit, phase(commit)) for commit in (*window, *commits_between(repository, bad, tip))]
    question = SuspectQuestion(
        commits=window,
        places=tuple(onset for onset, _ in onsets),
        cells=tuple(cells),
        later=tuple((commit, of) for commit, of in phases if of is not None),
        recovered=recovery is not None,
        cause=cause,
    )
    return question, good
