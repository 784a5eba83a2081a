"""Small repositories for tests: written by the git command, without the user's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.changes.hunks import CommitDiff, read_diff
from perfbisect.model.change import Change
from tests.fakes.gitwriter import HistoryWriter, run_git


def git(path: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Tester", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
    return run_git(path, *who, *arguments).strip()


def commit(path: Path, subject: str, **files: str) -> str:
    for name, text in files.items():
        (path / name).write_text(text)
        git(path, "add", name)
    git(path, "commit", "--quiet", "--allow-empty", "-m", subject)
    return git(path, "rev-parse", "HEAD")


def write_commits(path: Path, *commits: Mapping[str, bytes | None]) -> tuple[Repository, tuple[str, ...]]:
    """A repository of commits, each by the files that it changes, in one process; and their names."""
    writer = HistoryWriter(path)
    for number, files in enumerate(commits):
        writer.commit(str(number), files)
    shas = writer.finish(checkout=False)
    return Repository.open(path), shas


def everything(path: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a folder with its time and content."""
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def blobs(repository: Repository, sha: str, path: str = "") -> dict[str, str]:
    """File path -> object name, of a commit's files below ``path``."""
    return {entry.path: entry.blob for entry in repository.entries(sha, path)}


Files = dict[str, str | bytes | None]


def commit_files(path: Path, files: Files) -> str:
    """A commit of these files; None: deleted."""
    for name, content in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            file.unlink()
        elif isinstance(content, bytes):
            file.write_bytes(content)
        else:
            file.write_text(content)
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "--allow-empty", "-m", "a change")
    return git(path, "rev-parse", "HEAD")


def repository_of(tmp_path: Path, before: Files, after: Files) -> tuple[Repository, Change, CommitDiff]:
    """A repository with two commits: the later one, and what it changed."""
    path = tmp_path / "repo"
    path.mkdir()
    git(path, "init", "--quiet", "--initial-branch=main")
    commit_files(path, before)
    commit_files(path, after)
    repository = Repository(path, tmp_path / "objects")
    head = repository.head()
    return repository, head, read_diff(repository, head)
