"""One repository of all nights, and a place on which they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nightly.nights import Place, make_place, make_repository


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    path = tmp_path_factory.mktemp("nights") / "repo"
    return path, make_repository(path)


@pytest.fixture
def cell_names() -> tuple[str, ...]:
    return ("a", "b", "c")


@pytest.fixture
def place(tmp_path: Path, repository: tuple[Path, tuple[str, ...]], cell_names: tuple[str, ...]) -> Place:
    path, commits = repository
    return make_place(tmp_path, commits, path, cell_names=cell_names)
