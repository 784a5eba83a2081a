"""The changes between two ends: commits, releases, git's own bisection, and ranges that are refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from perfbisect.changes import history
from perfbisect.changes.git import Repository
from perfbisect.changes.history import (
    commit_history,
    commit_under_test,
    list_releases,
    release_history,
)
from perfbisect.errors import MachineError, RevisionError, UsageError
from perfbisect.model.change import History
from tests.changes.repositories import commit, git
from tests.cli.test_git_bisect import git as git_at
from tests.fakes.gitwriter import HistoryWriter
from tests.fakes.history import PretendHistory, make_history


def line_of(path: Path, good: str, bad: str) -> History:
    """A line without a branch."""
    found, branch = commit_history(Repository.open(path), good, bad)
    assert branch is None
    return found


def refused(path: Path, good: str, bad: str) -> RevisionError:
    with pytest.raises(RevisionError) as raised:
        commit_history(Repository.open(path), good, bad)
    return raised.value


class TestHistory:
    def test_is_inclusive_and_oldest_first(self, line: tuple[Path, list[str]]) -> None:
        found = line_of(line[0], line[1][1], "main")
        assert [change.id for change in found.changes] == line[1][1:]

    def test_follows_first_parents(self, line: tuple[Path, list[str]]) -> None:
        path, ids = line
        git(path, "checkout", "--quiet", "-b", "side", ids[1])
        commit(path, "on the side")
        git(path, "checkout", "--quiet", "main")
        git(path, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
        merge = git(path, "rev-parse", "HEAD")
        found = line_of(path, ids[0], "main")
        assert [change.id for change in found.changes] == [*ids, merge]

    def test_subjects_that_attack_the_parser(self, tmp_path: Path) -> None:
        subjects = [
            "first",
            "\x1b[2J\x1b]0;owned\x07 tab\tbell\r",
            "%H %x00 \x01\x02\x03",
            "bytes \udcff\udcfe and ünïcode \u202e",
            "",
            "last",
        ]
        writer = HistoryWriter(tmp_path / "repo")
        for number, subject in enumerate(subjects):
            writer.commit(subject, {"file": str(number).encode()})
        ids = writer.finish()
        changes = line_of(tmp_path / "repo", ids[0], ids[-1]).changes
        assert [change.id for change in changes] == list(ids)
        assert [change.author for change in changes] == ["Perf Bisect Demo"] * len(ids)
        assert changes[1].subject.rstrip("\r") == subjects[1].rstrip("\r")
        assert changes[2].subject == subjects[2]
        assert "ünïcode \u202e" in changes[3].subject

    @pytest.mark.processes
    def test_ten_thousand_commits(self, tmp_path: Path) -> None:
        writer = HistoryWriter(tmp_path / "repo")
        for number in range(10_000):
            writer.commit(f"commit {number}", {"file": str(number // 5_000).encode()})
        ids = writer.finish(checkout=False)
        repository = Repository.open(tmp_path / "repo")
        found = line_of(tmp_path / "repo", ids[0], ids[-1])
        assert tuple(change.id for change in found.changes) == ids
        assert found.changes[1234].subject == "commit 1234"
        trees = repository.tree_ids(ids, "file")
        assert len(set(trees.values())) == 2
        found = repository.file_changes([(ids[0], sha) for sha in ids], ("file",))
        assert [len(found[position]) for position in (4_999, 5_000)] == [0, 1]


class TestBrokenRanges:
    @pytest.mark.parametrize(
        ("good", "bad", "message", "next_step"),
        [
            ("HEAD", "main", "same commit", "give two revisions"),
            ("main", "main~2", "ends are swapped", "--good main~2 --bad main"),
            ("other", "main", "unrelated", "log --oneline"),
            ("side", "main", "came into bad", "--good {fork}"),
        ],
    )
    def test_ranges_that_are_none(
        self, line: tuple[Path, list[str]], good: str, bad: str, message: str, next_step: str
    ) -> None:
        path, ids = line
        git(path, "checkout", "--quiet", "--orphan", "other")
        commit(path, "another root")
        git(path, "checkout", "--quiet", "-b", "side", ids[1])
        commit(path, "on the side")
        git(path, "checkout", "--quiet", "main")
        git(path, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
        error = refused(path, good, bad)
        assert message in error.message
        assert next_step.format(fork=ids[1][:12]) in (error.next_step or "")

    def test_shallow_clone(self, line: tuple[Path, list[str]], tmp_path: Path) -> None:
        git(line[0], "tag", "old", line[1][0])
        git(tmp_path, "clone", "--quiet", "--depth=2", f"file://{line[0]}", "shallow")
        shallow = tmp_path / "shallow"
        git(shallow, "fetch", "--quiet", "--depth=1", "origin", "refs/tags/old:refs/tags/old")
        for good in (line[1][0], "old"):
            error = refused(shallow, good, "main")
            assert "shallow clone" in error.message
            assert "fetch --unshallow" in (error.next_step or "")
        assert len(line_of(shallow, "HEAD~1", "HEAD").changes) == 2


class TestBranches:
    """A good end on a release branch."""

    def test_good_comes_first_then_the_fork_then_main(self, line: tuple[Path, list[str]]) -> None:
        path, ids = line
        git(path, "checkout", "--quiet", "-b", "release", ids[1])
        own = commit(path, "only here", release="yes")
        git(path, "checkout", "--quiet", "main")
        fix = commit(path, "a fix", fix="1")
        git(path, "checkout", "--quiet", "release")
        git(path, "cherry-pick", "-x", fix)
        picked = git(path, "rev-parse", "HEAD")
        found, branch = commit_history(Repository.open(path), "release", "main")
        assert [change.id for change in found.changes] == [picked, ids[1], ids[2], ids[3], fix]
        assert branch is not None
        assert branch.fork.id == ids[1]
        assert [change.id for change in branch.own] == [own, picked]
        assert branch.shared == (picked,), "the fix is in main as well"

    def test_a_fork_off_a_branch_that_main_merged(self, line: tuple[Path, list[str]]) -> None:
        """The merge base is not on main's line of first parents: the line begins where main left good."""
        path, ids = line
        git(path, "checkout", "--quiet", "-b", "side", ids[1])
        base = commit(path, "on the side", side="1")
        git(path, "checkout", "--quiet", "-b", "release")
        own = commit(path, "released", release="1")
        git(path, "checkout", "--quiet", "main")
        git(path, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
        merge = git(path, "rev-parse", "HEAD")
        assert Repository.open(path).merge_base(own, merge) == base
        found, branch = commit_history(Repository.open(path), "release", "main")
        assert [change.id for change in found.changes] == [own, ids[1], ids[2], ids[3], merge]
        assert branch is not None
        assert [change.id for change in branch.own] == [own]


@pytest.fixture
def bisected(tmp_path: Path) -> PretendHistory:
    return make_history(tmp_path / "repo", commits=8, slow=4)


def test_the_commit_under_test_is_that_of_git(bisected: PretendHistory) -> None:
    git_at(bisected, "bisect", "start", bisected.bad, bisected.good)
    repository = Repository.open(bisected.path)
    asked = commit_under_test(repository).id
    assert asked in bisected.commits[1:-1]
    git_at(bisected, "bisect", "good")
    assert commit_under_test(repository).id != asked


def test_without_a_checkout_it_is_not_the_head(bisected: PretendHistory) -> None:
    repository = Repository.open(bisected.path)
    head = repository.head().id
    git_at(bisected, "bisect", "start", "--no-checkout", bisected.bad, bisected.good)
    assert repository.head().id == head
    assert commit_under_test(repository).id in bisected.commits[1:-1]


KNOWN = ("0.9.0", "0.10.0", "0.10.1rc1", "0.10.1", "0.11.0", "0.11.0.post1", "0.12.0")


def ids(good: str, bad: str) -> list[str]:
    return [change.id for change in release_history("toy", KNOWN, good, bad).changes]


def test_releases_are_ordered_as_versions_without_trials() -> None:
    assert ids("0.9.0", "0.11.0.post1") == [
        "toy==0.9.0", "toy==0.10.0", "toy==0.10.1", "toy==0.11.0", "toy==0.11.0.post1",
    ]  # fmt: skip
    assert release_history("toy", KNOWN, "toy==0.9.0", "0.10").bad.kind == "release"


def test_trials_are_there_where_an_end_is_one() -> None:
    assert ids("0.10.1rc1", "0.11.0") == ["toy==0.10.1rc1", "toy==0.10.1", "toy==0.11.0"]


@pytest.mark.parametrize(
    ("good", "bad", "told"),
    [
        ("0.8", "0.12.0", "--good 0.8 is no release of toy; there are: 0.9.0, 0.10.0"),
        ("0.9.0", "0.9", "the same release, 0.9.0"),
        ("0.12.0", "0.9.0", "good 0.12.0 is newer than bad 0.9.0"),
        ("main", "0.9.0", "'main' is no version"),
    ],
)
def test_a_range_that_is_none(good: str, bad: str, told: str) -> None:
    with pytest.raises(RevisionError, match=told.replace("(", r"\(")):
        release_history("toy", KNOWN, good, bad)


def answer(monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str) -> None:
    done = subprocess.CompletedProcess((), code, out, err)
    monkeypatch.setattr(history, "capture", lambda *_: done)


def test_what_the_registry_says_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 0, "toy (0.10.0)\nAvailable versions: 0.10.0, 0.9.1, 0.9.0\n", "WARNING: trial")
    assert list_releases("toy") == ("0.9.0", "0.9.1", "0.10.0")


def test_an_unknown_package_is_no_failure_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 1, "", "ERROR: No matching distribution found for toy\n")
    with pytest.raises(RevisionError, match="no package 'toy'"):
        list_releases("toy")
    answer(monkeypatch, 1, "", "ERROR: connection refused\n")
    with pytest.raises(MachineError, match="connection refused"):
        list_releases("toy")
    with pytest.raises(UsageError, match="is no package name"):
        list_releases("--index-url=x")
