"""A repository of four commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.repositories import commit, git


@pytest.fixture
def line(tmp_path: Path) -> tuple[Path, list[str]]:
    """Four commits on main."""
    path = tmp_path / "repo"
    path.mkdir()
    git(path, "init", "--quiet", "--initial-branch=main")
    return path, [commit(path, f"commit {number}", file=str(number)) for number in range(4)]
