"""The repository under test: what it answers, what it refuses, and that it is never written."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import psutil
import pytest

from perfbisect.changes.git import FileChange, Repository, fetch_remote, git_environment
from perfbisect.changes.history import commit_history
from perfbisect.common.digests import blob_id
from perfbisect.errors import MachineError, RevisionError
from tests.changes.repositories import blobs, everything, git, write_commits
from tests.fakes.gitwriter import HistoryWriter, run_git
from tests.fakes.remote import Cloned, cloned


class TestOpen:
    def test_finds_the_root_from_a_subfolder(self, line: tuple[Path, list[str]]) -> None:
        (line[0] / "inner").mkdir()
        assert Repository.open(line[0] / "inner").path.samefile(line[0])

    def test_reads_a_bare_repository(self, line: tuple[Path, list[str]], tmp_path: Path) -> None:
        git(tmp_path, "clone", "--quiet", "--bare", str(line[0]), "bare")
        found, _ = commit_history(Repository.open(tmp_path / "bare"), line[1][0], "main")
        assert [change.id for change in found.changes] == line[1]
        assert not Repository.open(tmp_path / "bare").is_dirty()

    def test_no_repository(self, tmp_path: Path) -> None:
        (tmp_path / "plain").mkdir()
        with pytest.raises(RevisionError, match=r"no git repository at .*plain") as raised:
            Repository.open(tmp_path / "plain")
        assert "--repo" in (raised.value.next_step or "")

    def test_without_git(self, line: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nonexistent")
        with pytest.raises(MachineError, match="git command is not on PATH"):
            Repository.open(line[0])

    def test_a_killed_git_says_nothing_of_the_repository(
        self, line: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It does not mean that a commit has no ancestor or a file is missing."""
        repository, first = Repository.open(line[0]), line[1][0]
        (tmp_path / "git").write_text("#!/bin/sh\nkill -9 $$\n")
        (tmp_path / "git").chmod(0o700)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        for ask in (
            lambda: Repository.open(line[0]),
            lambda: repository.resolve(first),
            lambda: repository.merge_base(first, first),
            lambda: repository.is_ancestor(first, first),
            lambda: repository.read_text(first, "a"),
        ):
            with pytest.raises(MachineError, match="was ended by signal 9"):
                ask()

    def test_a_hook_of_another_repository_does_not_mislead(
        self, line: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = tmp_path / "other"
        other.mkdir()
        git(other, "init", "--quiet")
        monkeypatch.setenv("GIT_DIR", str(other / ".git"))
        monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
        assert Repository.open(line[0]).head().id == line[1][-1]


class TestResolve:
    def test_names(self, line: tuple[Path, list[str]]) -> None:
        path, ids = line
        git(path, "tag", "-a", "v1", "-m", "annotated", ids[1])
        repository = Repository.open(path)
        found = [repository.resolve(name).id for name in ("main", "HEAD~1", "v1", ids[0][:10], f" {ids[0]} ")]
        assert found == [ids[3], ids[2], ids[1], ids[0], ids[0]]

    def test_a_change_in_its_parts(self, tmp_path: Path) -> None:
        writer = HistoryWriter(tmp_path / "repo")
        writer.commit("First\n\nBody", {"a": b"1"})
        (only,) = writer.finish()
        change = Repository.open(tmp_path / "repo").resolve("main")
        assert (change.id, change.kind, change.subject) == (only, "commit", "First")
        assert (change.date, change.author) == ("2025-01-01T00:00:00Z", "Perf Bisect Demo")

    @pytest.mark.parametrize("name", ["", " ", "-x", "--all", "a\nb", "a\0b"])
    def test_what_is_no_revision(self, line: tuple[Path, list[str]], name: str) -> None:
        with pytest.raises(RevisionError, match="is not a revision"):
            Repository.open(line[0]).resolve(name)

    def test_unknown_names_the_nearest(self, line: tuple[Path, list[str]]) -> None:
        git(line[0], "tag", "v0.32.0")
        with pytest.raises(RevisionError, match=r"'v0\.32\.1' does not exist .*nearest: v0\.32\.0") as raised:
            Repository.open(line[0]).resolve("v0.32.1")
        assert "fetch" in (raised.value.next_step or "")
        with pytest.raises(RevisionError, match="does not exist"):
            Repository.open(line[0]).resolve("0123456789" * 4)

    def test_a_tree_is_no_commit(self, line: tuple[Path, list[str]]) -> None:
        tree = git(line[0], "rev-parse", "HEAD^{tree}")
        with pytest.raises(RevisionError, match="is a tree, not a commit"):
            Repository.open(line[0]).resolve(tree)


class TestObjects:
    def test_trees_and_blobs(self, tmp_path: Path) -> None:
        repository, (one, docs, code) = write_commits(
            tmp_path / "repo",
            {"pkg/a.py": b"a", "pkg/sub/b.py": b"b", "docs/x": b"x"},
            {"docs/x": b"y"},
            {"pkg/a.py": b"aa"},
        )
        trees = [repository.tree_id(one, "pkg"), repository.tree_id(docs, "pkg/")]
        assert trees[0] == trees[1] != repository.tree_id(code, "pkg")
        assert repository.tree_id(one, "nothing") is None
        # Git's own definition of an object name, computed here.
        a, b = (hashlib.sha1(b"blob 1\0" + text).hexdigest() for text in (b"a", b"b"))
        named = {"pkg/a.py": a, "pkg/sub/b.py": b}
        assert blobs(repository, one, "pkg") == named
        assert blobs(repository, one, "pk") == {}
        assert sorted(blobs(repository, one)) == ["docs/x", "pkg/a.py", "pkg/sub/b.py"]
        assert repository.read(code, "pkg/a.py") == b"aa"
        with pytest.raises(RevisionError, match="no file pkg/none"):
            repository.read(code, "pkg/none")
        assert dict(repository.contents(named.values())) == {
            named["pkg/a.py"]: b"a",
            named["pkg/sub/b.py"]: b"b",
        }
        assert repository.files_of((code, one)) == {
            code: ("pkg/a.py",),
            one: ("docs/x", "pkg/a.py", "pkg/sub/b.py"),
        }

    def test_a_missing_object_is_the_machines_fault(self, line: tuple[Path, list[str]]) -> None:
        with pytest.raises(MachineError, match="cannot read object"):
            list(Repository.open(line[0]).contents(["1" * 40]))

    def test_file_changes_are_those_of_the_pathspecs(self, tmp_path: Path) -> None:
        repository, (base, python, kernel, back) = write_commits(
            tmp_path / "repo",
            {"csrc/a.cu": b"1", "pkg/a.py": b"1", "setup.py": b"1"},
            {"pkg/a.py": b"2"},
            {"csrc/a.cu": b"2", "csrc/deep/b.cu": b"2"},
            {"csrc/a.cu": b"1", "csrc/deep/b.cu": None},
        )
        pathspecs = (":(glob)csrc/**", ":(glob)setup.py")
        found = repository.file_changes([(base, sha) for sha in (base, python, kernel, back)], pathspecs)
        edited = FileChange("csrc/a.cu", blob_id(b"1", base), blob_id(b"2", base))
        added = FileChange("csrc/deep/b.cu", "0" * 40, blob_id(b"2", base))
        assert found == [(), (), (edited, added), ()]
        assert repository.file_changes([], pathspecs) == []

    def test_files_of_many_commits_against_their_first_parents(self, tmp_path: Path) -> None:
        writer = HistoryWriter(tmp_path / "repo")
        writer.commit("root", {"a": b"1", "deep/b": b"1"})
        writer.commit("edit\nfoot: \x01", {"deep/b": b"2"})
        writer.commit("nothing", {})
        writer.commit("remove and add", {"a": None, "with space": b"1"})
        root, edit, nothing, both = writer.finish()
        path = tmp_path / "repo"
        git(path, "checkout", "--quiet", "-b", "side", edit)
        (path / "side").write_text("1")
        git(path, "add", "side")
        git(path, "commit", "--quiet", "-m", "on the side")
        git(path, "checkout", "--quiet", "main")
        git(path, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
        merge = git(path, "rev-parse", "HEAD")
        found = Repository.open(path).files_of((both, root, edit, nothing, merge))
        assert {sha: set(files) for sha, files in found.items()} == {
            root: {"a", "deep/b"},
            edit: {"deep/b"},
            nothing: set(),
            both: {"a", "with space"},
            merge: {"side"},
        }
        assert Repository.open(path).files_of(()) == {}


class TestNothingIsWritten:
    def test_a_dirty_work_tree_stays_as_it_is(self, line: tuple[Path, list[str]]) -> None:
        path, ids = line
        (path / "file").write_text("changed and not committed")
        (path / "new").write_text("not added")
        os.utime(path / ".git" / "index", (1, 1))  # a stale index is what a careless status refreshes
        before = everything(path)
        repository = Repository.open(path)
        assert repository.is_dirty()
        assert not repository.is_dirty("elsewhere")
        commit_history(repository, ids[0], "main")
        blobs(repository, ids[0])
        list(repository.contents(blobs(repository, ids[0]).values()))
        assert repository.read(ids[3], "file") == b"3"
        repository.files_of(ids[1:2])
        assert everything(path) == before

    def test_git_asks_nothing(self) -> None:
        made = git_environment(
            {"PATH": "/bin", "GIT_DIR": "/x", "GIT_WORK_TREE": "/y", "GIT_SSH_COMMAND": "ssh"}
        )
        assert "GIT_DIR" not in made
        assert "GIT_WORK_TREE" not in made
        assert made["GIT_TERMINAL_PROMPT"] == "0"
        assert made["GIT_OPTIONAL_LOCKS"] == "0"
        assert made["GIT_SSH_COMMAND"] == "ssh"

    def test_a_remotes_password_is_not_told(self, line: tuple[Path, list[str]]) -> None:
        repository = Repository.open(line[0])
        assert repository.remote() == ""
        git(line[0], "remote", "add", "origin", "https://user:hunter2@example.invalid/x.git")
        assert repository.remote() == "https://example.invalid/x.git"


@pytest.fixture
def there(tmp_path: Path) -> Cloned:
    return cloned(tmp_path)


def test_the_remotes_branch_moves_and_what_is_ours_stays(
    there: Cloned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed, repository = there.push(2), Repository.open(there.clone)
    seen, real = tmp_path / "trace", Repository.environment
    monkeypatch.setattr(Repository, "environment", lambda self: real(self) | {"GIT_TRACE": str(seen)})
    (there.clone / "mine.txt").write_text("mine")
    before = {p: p.read_bytes() for p in there.clone.rglob("*") if p.is_file() and ".git" not in p.parts}
    fetch_remote(repository, "origin", tmp_path / "logs" / "fetch.log")
    assert repository.resolve("origin/main").id == pushed
    assert "maintenance run" not in seen.read_text(), "it would run beside the measurements"
    assert repository.resolve("main").id == repository.resolve("HEAD").id == there.commits[0]
    after = {p: p.read_bytes() for p in there.clone.rglob("*") if p.is_file() and ".git" not in p.parts}
    assert after == before


@pytest.mark.parametrize(
    ("revision", "remote"),
    [
        ("origin/main", "origin"),
        ("refs/remotes/origin/main", "origin"),
        ("origin/HEAD", "origin"),
        ("team/fork/main", "team/fork"),
        ("team/other", "team"),
        ("main", ""),
        ("HEAD", ""),
        ("originals/main", ""),
    ],
)
def test_the_remote_of_a_revision(there: Cloned, revision: str, remote: str) -> None:
    for name in ("team", "team/fork"):
        run_git(there.clone, "config", f"remote.{name}.url", "nowhere")
    assert Repository.open(there.clone).remote_of(revision) == remote


def test_a_remote_that_is_gone_is_told_without_its_password(
    there: Cloned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(there.origin)
    log, repository = tmp_path / "fetch.log", Repository.open(there.clone)
    log.write_text("of the night before")
    with pytest.raises(MachineError, match=f"fetch origin failed: .*{there.origin}") as caught:
        fetch_remote(repository, "origin", log)
    assert "of the night before" not in caught.value.message
    assert caught.value.where == str(log)
    assert caught.value.next_step == f"git -C {there.clone} fetch origin"
    assert repository.resolve("origin/main").id == there.commits[0]
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    run_git(there.clone, "remote", "set-url", "origin", "https://me:secret@127.0.0.1:9/x")
    with pytest.raises(MachineError, match="fetch origin failed") as caught:
        fetch_remote(repository, "origin", log)
    assert "secret" not in f"{caught.value} {log.read_text()}"


def test_a_remote_that_does_not_answer_is_given_up_and_nothing_of_it_lives(
    there: Cloned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_git(there.clone, "remote", "set-url", "origin", "ssh://nowhere.invalid/x")
    monkeypatch.setenv("GIT_SSH_COMMAND", "sh -c 'exec sleep 6113'")
    with pytest.raises(MachineError, match=r"fetch origin took more than 1 s"):
        fetch_remote(Repository.open(there.clone), "origin", tmp_path / "fetch.log", timeout_s=1.0)
    assert not [one for one in psutil.process_iter(["cmdline"]) if "6113" in (one.info["cmdline"] or ())]
