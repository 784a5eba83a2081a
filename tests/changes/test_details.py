"""What a ranking reads of commits, from a repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.changes.history import commits_between
from perfbisect.changes.pins import DOCKERFILE
from perfbisect.errors import RevisionError
from perfbisect.model.commit_details import ChangedFile
from tests.changes.repositories import commit, git
from tests.fakes.gitwriter import HistoryWriter


def written(path: Path, *commits: tuple[str, dict[str, bytes | None]]) -> tuple[Repository, tuple[str, ...]]:
    writer = HistoryWriter(path)
    for message, changes in commits:
        writer.commit(message, changes)
    ids = writer.finish(checkout=False)
    return Repository.open(path), ids


def test_subjects_bodies_files_and_lines(tmp_path: Path) -> None:
    repository, ids = written(
        tmp_path / "repo",
        ("first", {"a.py": b"1\n2\n3\n", "gone": b"x\n"}),
        (
            "Second (#12)\n\nThis reverts commit abc.\n\nSigned-off-by: A\n",
            {"a.py": b"1\n3\n4\n5\n", "gone": None, "tab\tand ünï.bin": b"\0\1"},
        ),
        ("third", {"b.py": b"y\n"}),
    )
    second, third = commits_between(repository, ids[0], "main")
    assert (second.sha, second.subject, second.pull) == (ids[1], "Second (#12)", 12)
    assert second.body == "This reverts commit abc.\n\nSigned-off-by: A"
    assert second.date == "2025-01-01T01:00:00Z"
    assert sorted(second.files, key=lambda file: file.path) == [
        ChangedFile("a.py", 2, 1),
        ChangedFile("gone", 0, 1),
        ChangedFile("tab\tand ünï.bin"),
    ]
    assert (third.sha, third.body, third.files) == (ids[2], "", (ChangedFile("b.py", 1, 0),))


def test_a_merge_is_all_that_it_brings_and_nothing_of_its_branch(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "repo")
    path = tmp_path / "repo"
    base = commit(path, "base", file="0")
    git(path, "checkout", "--quiet", "-b", "side")
    commit(path, "on the side", side="1")
    commit(path, "again", other="2")
    git(path, "checkout", "--quiet", "main")
    own = commit(path, "own", file="1")
    git(path, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
    found = commits_between(Repository.open(path), base, "main")
    assert [c.sha for c in found] == [own, git(path, "rev-parse", "HEAD")]
    assert {file.path for file in found[1].files} == {"side", "other"}


def image(tag: str, note: str = "") -> bytes:
    return f"# {note}\nARG VLLM_BASE_TAG={tag}\nFROM vllm/vllm-openai:${{VLLM_BASE_TAG}}\n".encode()


def test_a_commit_that_moves_the_engine_says_from_what_to_what(tmp_path: Path) -> None:
    repository, ids = written(
        tmp_path / "repo",
        ("first", {"a": b"1"}),
        ("born", {DOCKERFILE: image("v0.18.0")}),
        ("a note", {DOCKERFILE: image("v0.18.0", "changed")}),
        ("moved", {DOCKERFILE: image("v0.19.0")}),
        ("gone", {DOCKERFILE: None}),
    )
    found = commits_between(repository, ids[0], ids[-1])
    assert [c.pins for c in found] == [None, None, ("vLLM v0.18.0", "vLLM v0.19.0"), None]


def test_an_empty_range_and_a_commit_that_says_nothing(tmp_path: Path) -> None:
    repository, ids = written(tmp_path / "repo", ("first", {"a": b"1"}), ("", {"a": b"2"}), ("x\n\n\n", {}))
    assert commits_between(repository, "main", "main") == ()
    silent, empty = commits_between(repository, ids[0], "main")
    assert (silent.subject, silent.body, len(silent.files)) == ("", "", 1)
    assert (empty.subject, empty.files) == ("x", ())


def test_a_shallow_clone_is_refused_where_it_ends_too_early(
    line: tuple[Path, list[str]], tmp_path: Path
) -> None:
    git(line[0], "tag", "old", line[1][0])
    git(tmp_path, "clone", "--quiet", "--depth=2", f"file://{line[0]}", "shallow")
    shallow = tmp_path / "shallow"
    git(shallow, "fetch", "--quiet", "--depth=1", "origin", "refs/tags/old:refs/tags/old")
    with pytest.raises(RevisionError, match="shallow clone"):
        commits_between(Repository.open(shallow), "old", "main")
    assert len(commits_between(Repository.open(shallow), "main~1", "main")) == 1


def test_a_file_that_the_clone_lacks_costs_the_lines_of_its_commit_alone(tmp_path: Path) -> None:
    """A partial clone that is offline: git log stops at the first file that it cannot read."""
    path = tmp_path / "repo"
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "repo")
    base = commit(path, "base", file="0")
    for number in range(1, 6):
        commit(path, f"commit {number}", file="x" * number, **{f"other{number}": str(number)})
    blob = git(path, "rev-parse", "HEAD~2:other3")
    (path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    found = commits_between(Repository.open(path), base, "main")
    assert [len(c.files) for c in found] == [2] * 5
    assert [all(file.lines is not None for file in c.files) for c in found] == [True, True, False, True, True]
    assert {file.path for file in found[2].files} == {"file", "other3"}
