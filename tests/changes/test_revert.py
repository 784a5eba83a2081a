"""A commit less another: what is taken back, what conflicts; the user's repository stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.changes import revert as changes_revert
from perfbisect.changes.git import Repository
from perfbisect.changes.revert import ConflictError, apply_patch, revert_commit
from perfbisect.model.change import Change
from tests.changes.repositories import blobs, commit, everything, git

TEXT = "".join(f"line {i}\n" for i in range(30))


@pytest.fixture(params=["merge-tree", "an older git"])
def repository(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A culprit at HEAD~2 that changes one line and adds a file, with work above it."""
    if request.param == "an older git":
        monkeypatch.setattr(changes_revert, "_MERGES_TREES", (99, 0))
    path = tmp_path / "repo"
    path.mkdir()
    git(path, "init", "--quiet", "--initial-branch=main")
    commit(path, "start", code=TEXT)
    commit(path, 'the "culprit"', code=TEXT.replace("line 3\n", "slow 3\n"), added="slow\n")
    commit(path, "elsewhere", other="1\n")
    commit(path, "the end of the file", code=TEXT.replace("line 3\n", "slow 3\n") + "line 30\n")
    (path / "code").write_text("changed and not committed\n")
    return Repository(path, tmp_path / "cache" / "objects")


def revert(repository: Repository, head: str = "main", culprit: str = "main~2") -> Change:
    return revert_commit(repository, repository.resolve(head), repository.resolve(culprit))


def test_the_culprit_is_taken_back_and_the_rest_stays(repository: Repository) -> None:
    before = everything(repository.path)
    made = revert(repository)
    assert repository.read(made.id, "code").decode() == TEXT + "line 30\n"
    assert repository.read(made.id, "other") == b"1\n"
    found = blobs(repository, made.id)
    assert set(found) == {"code", "other"}
    assert dict(repository.contents(found.values())).keys() == set(found.values())
    assert repository.resolve(made.id).subject == made.subject == 'Revert "the "culprit""'
    assert revert(repository) == made
    assert everything(repository.path) == before, "work tree, index and objects are the user's"
    alone = Repository(repository.path)
    assert alone.run("cat-file", "-e", made.id).returncode != 0


def test_a_conflict_names_its_files(repository: Repository) -> None:
    git(repository.path, "checkout", "--quiet", "--force", "main")
    commit(repository.path, "the same line", code=TEXT.replace("line 3\n", "slower 3\n"))
    with pytest.raises(ConflictError, match="it does not revert cleanly: code"):
        revert(repository, culprit="main~3")


def test_what_was_taken_back_before_leaves_nothing(repository: Repository) -> None:
    git(repository.path, "checkout", "--quiet", "--force", "main")
    git(repository.path, "revert", "--no-edit", "main~2")
    with pytest.raises(ConflictError):
        revert(repository, culprit="main~3")


def test_the_first_commit_has_nothing_before_it(repository: Repository) -> None:
    with pytest.raises(ConflictError, match="first commit"):
        revert(repository, culprit="main~3")


def test_a_merge_is_taken_back_to_its_first_parent(repository: Repository) -> None:
    path = repository.path
    git(path, "checkout", "--quiet", "--force", "-b", "side", "main~1")
    commit(path, "slow on the side", side="slow\n")
    git(path, "checkout", "--quiet", "main")
    git(path, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
    made = revert(repository, culprit="main")
    assert set(blobs(repository, made.id)) == {"code", "other", "added"}


def test_a_patch_is_applied_and_the_rest_stays(repository: Repository) -> None:
    before = everything(repository.path)
    head = repository.resolve("main")
    patch = b"--- a/code\n+++ b/code\n@@ -7,3 +7,3 @@\n line 6\n-line 7\n+fast 7\n line 8\n"
    made = apply_patch(repository, head, patch, "fix.diff")
    assert "fast 7\nline 8" in repository.read(made.id, "code").decode()
    assert repository.read(made.id, "other") == b"1\n"
    assert made.subject == "the end of the file + fix.diff"
    assert apply_patch(repository, head, patch, "fix.diff") == made
    assert everything(repository.path) == before


def test_a_patch_that_does_not_apply(repository: Repository) -> None:
    patch = repository.run("diff", "main", "main~2", "--", "code").stdout
    with pytest.raises(ConflictError, match="it does not apply: code"):
        apply_patch(repository, repository.resolve("main~2"), patch, "fix.diff")
    with pytest.raises(ConflictError, match="it does not apply"):
        apply_patch(repository, repository.resolve("main"), b"this is no patch\n", "x")
