"""The line of changes between two revisions, and what is refused as none."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.changes.history import history
from perfbisect.errors import RevisionError
from perfbisect.model.change import History
from tests.changes.repositories import commit, git
from tests.fakes.gitwriter import HistoryWriter


def line_of(path: Path, good: str, bad: str) -> History:
    """A line without a branch."""
    found, branch = history(Repository.open(path), good, bad)
    assert branch is None
    return found


def refused(path: Path, good: str, bad: str) -> RevisionError:
    with pytest.raises(RevisionError) as raised:
        history(Repository.open(path), good, bad)
    return raised.value


class TestHistory:
    def test_is_inclusive_and_oldest_first(self, line: tuple[Path, list[str]]) -> None:
        history = line_of(line[0], line[1][1], "main")
        assert [change.id for change in history.changes] == line[1][1:]

    def test_neighbours(self, line: tuple[Path, list[str]]) -> None:
        assert len(line_of(line[0], "HEAD~1", "HEAD").changes) == 2

    def test_follows_first_parents(self, line: tuple[Path, list[str]]) -> None:
        path, ids = line
        git(path, "checkout", "--quiet", "-b", "side", ids[1])
        commit(path, "on the side")
        git(path, "checkout", "--quiet", "main")
        git(path, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
        merge = git(path, "rev-parse", "HEAD")
        history = line_of(path, ids[0], "main")
        assert [change.id for change in history.changes] == [*ids, merge]

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

    def test_ten_thousand_commits(self, tmp_path: Path) -> None:
        writer = HistoryWriter(tmp_path / "repo")
        for number in range(10_000):
            writer.commit(f"commit {number}", {"file": str(number // 5_000).encode()})
        ids = writer.finish(checkout=False)
        repository = Repository.open(tmp_path / "repo")
        history = line_of(tmp_path / "repo", ids[0], ids[-1])
        assert tuple(change.id for change in history.changes) == ids
        assert history.changes[1234].subject == "commit 1234"
        trees = repository.tree_ids(ids, "file")
        assert len(set(trees.values())) == 2
        files = repository.differing(ids[0], ids, ("file",))
        assert [files[sha] for sha in (ids[4_999], ids[5_000])] == [(), ("file",)]


class TestBrokenRanges:
    def test_good_is_bad(self, line: tuple[Path, list[str]]) -> None:
        error = refused(line[0], "HEAD", "main")
        assert "same commit" in error.message
        assert line[1][-1][:12] in error.message

    def test_swapped_ends(self, line: tuple[Path, list[str]]) -> None:
        error = refused(line[0], "main", "main~2")
        assert "ends are swapped" in error.message
        assert error.next_step == "--good main~2 --bad main"

    def test_unrelated_histories(self, line: tuple[Path, list[str]]) -> None:
        path, _ = line
        git(path, "checkout", "--quiet", "--orphan", "other")
        commit(path, "another root")
        assert "unrelated" in refused(path, "other", "main").message

    def test_good_that_was_merged_in(self, line: tuple[Path, list[str]]) -> None:
        path, ids = line
        git(path, "checkout", "--quiet", "-b", "side", ids[1])
        commit(path, "on the side")
        git(path, "checkout", "--quiet", "main")
        git(path, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
        error = refused(path, "side", "main")
        assert "came into bad" in error.message
        assert error.next_step == f"--good {ids[1][:12]}"
        line_of(path, ids[1][:12], "main")

    def test_shallow_clone(self, line: tuple[Path, list[str]], tmp_path: Path) -> None:
        git(tmp_path, "clone", "--quiet", "--depth=2", f"file://{line[0]}", "shallow")
        shallow = tmp_path / "shallow"
        error = refused(shallow, line[1][0], "main")
        assert "shallow clone" in error.message
        assert "fetch --unshallow" in (error.next_step or "")
        assert len(line_of(shallow, "HEAD~1", "HEAD").changes) == 2

    def test_shallow_clone_that_has_both_ends(self, line: tuple[Path, list[str]], tmp_path: Path) -> None:
        git(line[0], "tag", "old", line[1][0])
        git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{line[0]}", "shallow")
        shallow = tmp_path / "shallow"
        git(shallow, "fetch", "--quiet", "--depth=1", "origin", "refs/tags/old:refs/tags/old")
        error = refused(shallow, "old", "main")
        assert "shallow clone" in error.message
        assert "fetch --unshallow" in (error.next_step or "")


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
        found, branch = history(Repository.open(path), "release", "main")
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
        found, branch = history(Repository.open(path), "release", "main")
        assert [change.id for change in found.changes] == [own, ids[1], ids[2], ids[3], merge]
        assert branch is not None
        assert [change.id for change in branch.own] == [own]
