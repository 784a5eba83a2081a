"""Write a git history in one go, the same bytes every time: for tests and for the demo."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from perfbisect.setup.demo import FIRST_SECOND, Commit, write_commits


class HistoryWriter:
    """Collects commits of one branch, then writes them with ``git fast-import``.

    A commit is a mapping of what changes in it: path -> content, or None where a file goes away.
    """

    def __init__(self, path: Path, *, first: int = FIRST_SECOND) -> None:
        self.path = path
        self.first = first
        self._commits: list[Commit] = []

    def commit(self, message: str, changes: Mapping[str, bytes | None], *, date: str = "") -> int:
        """Add a commit on top; returns its position, from 0. ``date``: seconds and zone, as git has them."""
        position = len(self._commits)
        self._commits.append((message, date or f"{self.first + 3600 * position} +0000", dict(changes)))
        return position

    def finish(self, *, checkout: bool = True) -> tuple[str, ...]:
        """Write the repository; returns the full commit ids, oldest first."""
        return write_commits(self.path, self._commits, checkout=checkout)


def run_git(path: Path, *arguments: str, data: bytes | None = None) -> str:
    """Run git in ``path`` without the user's configuration; returns its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        ["git", *arguments], cwd=path, input=data, capture_output=True, env=environment, check=False
    )
    if done.returncode:
        raise RuntimeError(f"git {' '.join(arguments)} in {path}: {done.returncode}\n{done.stderr.decode()}")
    return done.stdout.decode(errors="surrogateescape")
