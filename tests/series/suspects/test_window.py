"""Which commits can be between two builds, and what is asked of them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.changes.git import Repository
from perfbisect.common.quantities import stamp
from perfbisect.errors import RevisionError
from perfbisect.model.change import Change
from perfbisect.model.commit_details import OnsetNight, SuspectQuestion
from perfbisect.series.findings import select_alerts
from perfbisect.series.points import Build, Point, Workload
from perfbisect.series.suspects.job import cell_of_ours
from perfbisect.series.suspects.window import (
    CommitWindow,
    LinePosition,
    MainLine,
    build_question,
    commit_window,
    locate_build,
)
from tests.changes.repositories import commit, git
from tests.fakes.gitwriter import HistoryWriter
from tests.series.made_series import cell, noise, step

BEGAN = datetime(2026, 4, 1, tzinfo=timezone.utc)


def at(hours: float) -> datetime:
    return BEGAN + timedelta(hours=hours)


def line(*hours: float) -> MainLine:
    """Commits that came in so many hours after the beginning of April."""
    return MainLine(tuple(Change(f"{i:08x}" + "0" * 32, date=stamp(at(h))) for i, h in enumerate(hours)))


def build(name: str = "1", **known: str) -> Build:
    return Build("kanban", "p", name, **known)


def window(line: MainLine, before: tuple[Build, float], after: tuple[Build, float]) -> CommitWindow:
    """Between two builds whose first results began so many hours after the beginning of April."""
    points = [
        Point(build=of, workload=Workload("chat"), began=at(hours).isoformat(), ended="", values={})
        for of, hours in (before, after)
    ]
    return commit_window(line, points, before[0], after[0])


SECOND = line(0, 10, 20).commits[1].id


@pytest.mark.parametrize(
    ("known", "began"),
    [
        ({"commit": SECOND}, 99),
        ({"commit": SECOND[:9]}, 99),
        ({"fixed": stamp(at(15))}, 19),
        ({"commit": "f" * 40, "branch": "fix"}, 17.5),
    ],
    ids=["its commit", "an abbreviated one", "when it was made", "of a branch, by time"],
)
def test_the_place_of_a_build(known: dict[str, str], began: float) -> None:
    assert locate_build(line(0, 10, 20), build(**known), at(began)) == LinePosition(1, 1)


def test_a_window_goes_from_the_earliest_to_the_latest() -> None:
    commits = line(0, 10, 12, 30, 35, 60)
    found = window(commits, (build("1"), 15), (build("2"), 39))
    assert [int(c.id[:8], 16) for c in found.commits] == [1, 2, 3, 4]
    assert [(found.kind, found.values["hours"]) for found in found.found_by] == [("build began", 6.0)] * 2
    reported, made = build("1", commit=commits.commits[2].id), build("2", fixed=stamp(at(36)))
    known = window(commits, (reported, 15), (made, 39))
    assert [int(c.id[:8], 16) for c in known.commits] == [3, 4]


def test_zones_are_reckoned_with() -> None:
    shanghai = Change("a" * 40, date="2026-04-02T01:00:00+08:00")  # 17:00 in UTC on the first
    commits = MainLine((Change("b" * 40, date=stamp(at(0))), shanghai))
    assert locate_build(commits, build(fixed="2026-04-01T16:59:00Z"), at(30)) == LinePosition(0, 0)
    assert locate_build(commits, build(fixed="2026-04-01T17:01:00Z"), at(30)) == LinePosition(1, 1)


def test_a_history_that_begins_too_late_is_told() -> None:
    with pytest.raises(RevisionError, match="begins on 2026-04-01T10") as caught:
        locate_build(line(10, 20), build("6433"), at(12))
    assert "build 6433" in caught.value.message
    assert "unshallow" in str(caught.value.next_step)
    with pytest.raises(RevisionError, match="is of commit ffffffffffff"):
        locate_build(line(0), build(commit="f" * 40, branch="main"), at(5))


def test_builds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="began after"):
        window(line(0), (build("2"), 9), (build("1"), 8))


hours = st.lists(st.floats(0, 200), min_size=1, max_size=12)


@given(hours, st.floats(10, 200), st.floats(0, 100), st.floats(0, 6), st.floats(0, 6))
def test_the_guilty_commit_is_in_the_window(
    came: list[float], first: float, later: float, lead: float, other: float
) -> None:
    """A build has every commit up to one that was in when it was chosen, whatever the commits' clocks say."""
    commits = line(-1, *came)
    builds = []
    for name, began, before in (("1", first, lead), ("2", first + later, other)):
        chosen = max(i for i, c in enumerate(commits.commits) if c.date <= stamp(at(began - before)))
        builds.append((name, began, chosen))
    (_, left, has), (_, right, gets) = builds
    found = window(commits, (build("1"), left), (build("2"), right))
    guilty = {c.id for c in commits.commits[has + 1 : gets + 1]}
    assert guilty <= {c.id for c in found.commits}


def test_the_line_is_of_first_parents_by_the_day_of_the_merge(tmp_path: Path) -> None:
    """Squashed commits keep the day on which they were written: a night has them from the day they landed."""
    path = tmp_path / "repo"
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "repo")
    commit(path, "base", file="0")
    git(path, "checkout", "--quiet", "-b", "side")
    commit(path, "written elsewhere", side="1")
    git(path, "checkout", "--quiet", "main")
    git(path, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
    git(path, "commit", "--quiet", "--allow-empty", "-m", "late", "--date", "2020-01-01T00:00:00+08:00")
    found = MainLine.of(Repository.open(path))
    assert [change.subject for change in found.commits] == ["base", "merge", "late"]
    landed = int(git(path, "log", "-1", "--format=%ct"))
    assert found.commits[-1].date == stamp(datetime.fromtimestamp(landed, timezone.utc))


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, MainLine]:
    """Ten commits, an hour apart."""
    writer = HistoryWriter(tmp_path_factory.mktemp("suspects") / "repo")
    for number in range(10):
        writer.commit(f"commit {number}", {f"src/{number}.py": b"x"})
    writer.finish(checkout=False)
    repository = Repository.open(writer.path)
    return repository, MainLine.of(repository, "main")


def between(line: MainLine, low: int, high: int, lead: int = 0) -> CommitWindow:
    """From a night of commit ``low`` to one of commit ``high``, each chosen up to ``lead`` commits before."""
    before, after = LinePosition(low - lead, low), LinePosition(high - lead, high)
    return CommitWindow(line.commits[before.earliest + 1 : high + 1], before, after, "")


def onset(night: str, p: float, window: CommitWindow) -> tuple[OnsetNight, CommitWindow]:
    return OnsetNight(night, p, frozenset(commit.id for commit in window.commits)), window


def numbers(question: SuspectQuestion) -> list[int]:
    return [int(commit.subject.split()[1]) for commit in question.commits]


def phases(question: SuspectQuestion) -> dict[int, str]:
    return {int(commit.subject.split()[1]): phase for commit, phase in question.later}


def test_the_windows_together_are_asked_and_each_keeps_its_own(ten: tuple[Repository, MainLine]) -> None:
    repository, commits = ten
    onsets = onset("n1", 0.25, between(commits, 1, 3)), onset("n2", 0.7, between(commits, 3, 5))
    question, good = build_question(repository, commits, onsets, LinePosition(5, 5))
    assert numbers(question) == [2, 3, 4, 5]
    assert (good, question.commits[-1].sha) == (commits.commits[1].id, commits.commits[5].id)
    assert [(p.night, p.p, len(p.commits)) for p in question.places] == [("n1", 0.25, 2), ("n2", 0.7, 2)]
    assert not question.recovered
    assert [file.path for file in question.commits[0].files] == ["src/2.py"]


def test_when_later_commits_came(ten: tuple[Repository, MainLine]) -> None:
    """Slow still at 6; good again at 8; 9 no night has run."""
    repository, commits = ten
    onsets = [onset("n1", 1.0, between(commits, 1, 4))]
    found, _ = build_question(repository, commits, onsets, LinePosition(6, 6), between(commits, 6, 8))
    assert phases(found) == {5: "slow", 6: "slow", 7: "recovery", 8: "recovery", 9: "after"}
    assert found.recovered
    unrecovered, _ = build_question(repository, commits, onsets, LinePosition(6, 6))
    assert phases(unrecovered) == {5: "slow", 6: "slow", 7: "after", 8: "after", 9: "after"}


def test_a_commit_that_may_be_of_both_is_asked_in_both(ten: tuple[Repository, MainLine]) -> None:
    """The slow night's commit is 3, 4 or 5: 4 and 5 may have come with the recovery alone."""
    repository, commits = ten
    onsets = [onset("n1", 1.0, between(commits, 2, 5, lead=2))]
    recovery = between(commits, 5, 8, lead=2)
    found, _ = build_question(repository, commits, onsets, LinePosition(3, 5), recovery)
    assert numbers(found) == [1, 2, 3, 4, 5]
    assert phases(found) == {**dict.fromkeys(range(4, 9), "recovery"), 9: "after"}


def test_a_window_without_commits_is_no_question(ten: tuple[Repository, MainLine]) -> None:
    repository, commits = ten
    ended = commits.commits[-1].date[:10]
    for night, words, command in (
        (ended, "not in this repository", " log --oneline"),
        ("2999-01-01", f"not in this clone: this clone ends {ended}", "git fetch"),
    ):
        onsets = [onset(night, 1.0, between(commits, 3, 3))]
        with pytest.raises(RevisionError, match=words) as caught:
            build_question(repository, commits, onsets, LinePosition(3, 3))
        assert command in (caught.value.next_step or "")


IMPORTED = """\
family: text
model: org/talker
num_prompts: [10, 40]
max_concurrency: [1, 4]
dataset_args: {random-input-len: 8, random-output-len: 8}
"""


def test_an_imported_cell_is_known_by_its_name_and_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result of perf-eval says nothing else of its cell."""
    monkeypatch.chdir(tmp_path)
    series = cell({"tpot:median": step(noise(7, 40), 20, 1.3)}, test="talker-h200-8k-in-1k-out")
    (change,) = select_alerts(series, 0.05).alerts
    assert cell_of_ours(change) == ""
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "talker-h200-8k-in-1k-out.yaml").write_text(IMPORTED)
    assert cell_of_ours(change) == "talker-h200-8k-in-1k-out@c4-n40"
