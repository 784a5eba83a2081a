"""What a remote has comes in, and nothing else is written."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest

from perfbisect.changes.fetch import fetch, remote_of
from perfbisect.changes.git import Repository
from perfbisect.errors import MachineError
from tests.fakes.gitwriter import run_git
from tests.fakes.remote import Cloned, cloned


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
    fetch(repository, "origin", tmp_path / "logs" / "fetch.log")
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
    assert remote_of(Repository.open(there.clone), revision) == remote


def test_a_remote_that_is_gone_is_told_without_its_password(
    there: Cloned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(there.origin)
    log, repository = tmp_path / "fetch.log", Repository.open(there.clone)
    log.write_text("of the night before")
    with pytest.raises(MachineError, match=f"fetch origin failed: .*{there.origin}") as caught:
        fetch(repository, "origin", log)
    assert "of the night before" not in caught.value.message
    assert caught.value.where == str(log)
    assert caught.value.next_step == f"git -C {there.clone} fetch origin"
    assert repository.resolve("origin/main").id == there.commits[0]
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    run_git(there.clone, "remote", "set-url", "origin", "https://me:secret@127.0.0.1:9/x")
    with pytest.raises(MachineError, match="fetch origin failed") as caught:
        fetch(repository, "origin", log)
    assert "secret" not in f"{caught.value} {log.read_text()}"


def test_a_remote_that_does_not_answer_is_given_up_and_nothing_of_it_lives(
    there: Cloned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_git(there.clone, "remote", "set-url", "origin", "ssh://nowhere.invalid/x")
    monkeypatch.setenv("GIT_SSH_COMMAND", "sh -c 'exec sleep 6113'")
    with pytest.raises(MachineError, match=r"fetch origin took more than 1 s"):
        fetch(Repository.open(there.clone), "origin", tmp_path / "fetch.log", timeout_s=1.0)
    assert not [one for one in psutil.process_iter(["cmdline"]) if "6113" in (one.info["cmdline"] or ())]
