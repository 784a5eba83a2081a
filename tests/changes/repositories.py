"""Small repositories for tests: written by the git command, without the user's configuration."""

from __future__ import annotations

from pathlib import Path

from perfbisect.changes.git import Repository
from tests.fakes.gitwriter import run_git


def git(path: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Tester", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
    return run_git(path, *who, *arguments).strip()


def commit(path: Path, subject: str, **files: str) -> str:
    for name, text in files.items():
        (path / name).write_text(text)
        git(path, "add", name)
    git(path, "commit", "--quiet", "--allow-empty", "-m", subject)
    return git(path, "rev-parse", "HEAD")


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
