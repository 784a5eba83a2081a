"""A repository's own configuration names programs: reading runs none of them; and a repository that goes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.changes.history import commit_history, commits_between
from perfbisect.changes.revert import revert_commit
from perfbisect.errors import MachineError, RevisionError
from tests.changes.repositories import blobs, commit, git

ATTRIBUTES = "* filter=evil diff=evil merge=evil\n"


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[Path, list[str], Path]:
    """A repository whose every setting that names a program writes a marker; its commits; the markers."""
    path, markers = tmp_path / "repo", tmp_path / "markers"
    markers.mkdir()
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "repo")
    lines = [f"{n}\n" for n in range(30)]
    ids = [commit(path, "base", file="".join(lines), **{".gitattributes": ATTRIBUTES})]
    for number in (3, 15, 27):
        lines[number] = f"changed {number}\n"
        ids.append(commit(path, f"commit {number}", file="".join(lines)))
    hooks = path / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)

    def program(name: str) -> str:
        script = tmp_path / f"{name}.sh"
        script.write_text(f"#!/bin/sh\ntouch {markers / name}\n[ -t 0 ] || cat\n")
        script.chmod(0o755)
        return str(script)

    for hook in ("post-index-change", "reference-transaction", "post-checkout"):
        shutil.copy(program(hook), hooks / hook)
    for key in (
        "filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.textconv",
        "diff.evil.command", "diff.external", "core.fsmonitor", "core.sshCommand", "core.pager",
        "core.editor", "gpg.program", "credential.helper", "core.askPass", "pager.log", "pager.status",
    ):  # fmt: skip
        git(path, "config", key, program(key))
    git(path, "config", "filter.evil.required", "true")
    git(path, "config", "merge.evil.driver", program("merge.evil.driver") + " %O %A %B")
    git(path, "config", "core.hooksPath", str(hooks))
    git(path, "config", "log.showSignature", "true")
    return path, ids, markers


def test_reading_runs_no_program_of_the_configuration(hostile: tuple[Path, list[str], Path]) -> None:
    path, ids, markers = hostile
    (path / "file").write_text("changed and not committed\n")
    repository = Repository.open(path)
    assert repository.is_dirty()
    history, _ = commit_history(repository, ids[0], "main")
    assert [change.id for change in history.changes] == ids
    assert [commit.files[0].path for commit in commits_between(repository, ids[0], "main")] == ["file"] * 3
    assert len(list(repository.contents(blobs(repository, ids[0]).values()))) == 2
    repository.files_of(ids)
    repository.file_changes([(ids[0], ids[1])], ["."])
    repository.text("log", "-p", "-1", "main")
    repository.text("diff", ids[0], ids[1])
    repository.text("show", "main")
    repository.text("grep", "changed", "main")
    assert [marker.name for marker in markers.iterdir()] == []


def test_a_revert_runs_no_merge_driver(hostile: tuple[Path, list[str], Path], tmp_path: Path) -> None:
    path, ids, markers = hostile
    repository = replace(Repository.open(path), objects=tmp_path / "objects")
    made = revert_commit(repository, repository.head(), repository.resolve(ids[1]))
    text = repository.read(made.id, "file").decode().splitlines()
    assert (text[3], text[15], text[27]) == ("3", "changed 15", "changed 27"), "as git merges by itself"
    assert [marker.name for marker in markers.iterdir()] == []


def test_a_missing_object_of_a_partial_clone_is_not_fetched(
    hostile: tuple[Path, list[str], Path], tmp_path: Path
) -> None:
    path, ids, markers = hostile
    git(path, "config", "uploadpack.allowFilter", "true")
    partial = tmp_path / "partial"
    git(tmp_path, "clone", "--quiet", "--bare", "--filter=blob:none", f"file://{path}", "partial")
    git(partial, "config", "remote.origin.url", "ssh://example.invalid/repo")
    git(partial, "config", "core.sshCommand", f"touch {markers / 'ssh'}; false")
    before = {marker.name for marker in markers.iterdir()}
    with pytest.raises(MachineError, match="a part of it, cannot be read") as caught:
        Repository.open(partial).read(ids[0], "file")
    assert "a partial clone needs all its files" in caught.value.next
    assert {marker.name for marker in markers.iterdir()} == before


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[tuple[Repository, str]]:
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "repo")
    commit(tmp_path / "repo", "base", file="0")
    sha = commit(tmp_path / "repo", "next", file="1")
    yield Repository.open(tmp_path / "repo"), sha


@pytest.mark.parametrize("gone", ["", ".git", ".git/objects"])
def test_a_repository_that_goes_in_the_middle_is_a_failure_of_the_machine(
    plain: tuple[Repository, str], gone: str
) -> None:
    repository, sha = plain
    shutil.rmtree(repository.path / gone)
    calls = (
        lambda: repository.read(sha, "file"),
        lambda: repository.read_text(sha, "file"),
        lambda: repository.entries(sha),
        lambda: repository.records("-1", sha),
        lambda: repository.files_of([sha]),
    )
    for call in calls:
        with pytest.raises(MachineError) as caught:
            call()
        assert caught.value.exit_code == 5


def test_what_a_commit_does_not_have_is_no_failure_of_the_machine(plain: tuple[Repository, str]) -> None:
    repository, sha = plain
    assert repository.read_text(sha, "absent") is None
    with pytest.raises(RevisionError, match="has no file absent"):
        repository.read(sha, "absent")
    with pytest.raises(RevisionError):
        repository.resolve("absent")
