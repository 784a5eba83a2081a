"""From windows to a question."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.errors import RevisionError
from perfbisect.model.commit_details import MeasuredCell, OnsetNight, SuspectQuestion
from perfbisect.series.findings import select_alerts
from perfbisect.series.points import Build
from perfbisect.series.suspects.job import cell_of_ours
from perfbisect.series.suspects.ranking import rank_suspects
from perfbisect.series.suspects.table import load_suspect_table
from perfbisect.series.suspects.window import (
    CommitWindow,
    LinePosition,
    MainLine,
    build_question,
    commit_window,
)
from tests.fakes.gitwriter import HistoryWriter
from tests.history_repo import HistoryRepository, history_repository
from tests.series.made_series import cell, noise, step


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, MainLine]:
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
    return {int(one.commit.subject.split()[1]): one.phase for one in question.later}


def test_the_windows_together_are_asked_and_each_keeps_its_own(line: tuple[Repository, MainLine]) -> None:
    repository, commits = line
    onsets = onset("n1", 0.25, between(commits, 1, 3)), onset("n2", 0.7, between(commits, 3, 5))
    question, good = build_question(repository, commits, onsets, LinePosition(5, 5))
    assert numbers(question) == [2, 3, 4, 5]
    assert (good, question.commits[-1].sha) == (commits.commits[1].id, commits.commits[5].id)
    assert [(p.night, p.p, len(p.commits)) for p in question.places] == [("n1", 0.25, 2), ("n2", 0.7, 2)]
    assert not question.recovered
    assert [file.path for file in question.commits[0].files] == ["src/2.py"]


def test_when_later_commits_came(line: tuple[Repository, MainLine]) -> None:
    """Slow still at 6; good again at 8; 9 no night has run."""
    repository, commits = line
    onsets = [onset("n1", 1.0, between(commits, 1, 4))]
    found, _ = build_question(repository, commits, onsets, LinePosition(6, 6), between(commits, 6, 8))
    assert phases(found) == {5: "slow", 6: "slow", 7: "recovery", 8: "recovery", 9: "after"}
    assert found.recovered
    unrecovered, _ = build_question(repository, commits, onsets, LinePosition(6, 6))
    assert phases(unrecovered) == {5: "slow", 6: "slow", 7: "after", 8: "after", 9: "after"}


def test_a_commit_that_may_be_of_both_is_asked_in_both(line: tuple[Repository, MainLine]) -> None:
    """The slow night's commit is 3, 4 or 5: 4 and 5 may have come with the recovery alone."""
    repository, commits = line
    onsets = [onset("n1", 1.0, between(commits, 2, 5, lead=2))]
    recovery = between(commits, 5, 8, lead=2)
    found, _ = build_question(repository, commits, onsets, LinePosition(3, 5), recovery)
    assert numbers(found) == [1, 2, 3, 4, 5]
    assert phases(found) == {**dict.fromkeys(range(4, 9), "recovery"), 9: "after"}


def at(day: int, hour: int, minute: int) -> datetime:
    return datetime(2026, 4, day, hour, minute, tzinfo=timezone.utc)


NIGHTS = {"6388": at(11, 18, 20), "6433": at(12, 18, 28), "6664": at(14, 18, 46)}
"""When the first result of each build began: before, during and after the break."""


@pytest.fixture(scope="module")
def omni(tmp_path_factory: pytest.TempPathFactory) -> HistoryRepository:
    return history_repository(tmp_path_factory.mktemp("omni") / "repo", newest="2026-04-16")


def test_the_break_of_april_from_the_times_of_its_builds(omni: HistoryRepository) -> None:
    """No build says its commit, so the windows overlap by the lead: the answer is the same."""
    repository, table = Repository.open(omni.path), load_suspect_table()
    commits = MainLine.of(repository, "main")
    before, during, later = ((Build("kanban", "p", name), when) for name, when in NIGHTS.items())
    window, recovery = commit_window(commits, before, during), commit_window(commits, during, later)
    cells = [
        MeasuredCell(name, "chunk" in name or "tts" in name, name, table.traits_of(name))
        for name in ("test_qwen3_omni", "test_qwen3_omni_chunk", "test_qwen3_tts", "test_qwen_image")
    ]
    onsets = [onset("2026-04-12", 0.95, window)]
    question, _ = build_question(
        repository, commits, onsets, window.after, recovery, cells=cells, cause="product"
    )
    shas = [commit.sha for commit in question.commits]
    assert omni.sha("5d58abb1") in shas
    assert len(shas) <= 12
    ranking = rank_suspects(question, table)
    assert ranking.suspects[0].sha == omni.sha("5d58abb1")
    assert ranking.attributed is not None and ranking.suspects[0].p >= 0.95


def test_a_window_without_commits_is_no_question(line: tuple[Repository, MainLine]) -> None:
    repository, commits = line
    with pytest.raises(RevisionError, match="not in this repository"):
        build_question(repository, commits, [onset("n1", 1.0, between(commits, 3, 3))], LinePosition(3, 3))


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
