"""One repository of all nights, and places on which they run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.nightly.nights import SLOW, Place, make_place, make_repository, slow


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills are exceptions here, which lose nothing that is written: waiting for the disk shows nothing."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


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


@pytest.fixture(scope="session")
def quiet(
    tmp_path_factory: pytest.TempPathFactory, repository: tuple[Path, tuple[str, ...]]
) -> Callable[[type[Place]], Path]:
    """By kind of place, a folder whose nights before the slow one are over."""

    @cache
    def folder_of(kind: type[Place]) -> Path:
        path, commits = repository
        folder = tmp_path_factory.mktemp(kind.__name__)
        place = make_place(folder, commits, path, kind, cell_names=("a", "b"))
        for day in range(SLOW):
            place.night(day)
        return folder

    return folder_of


@pytest.fixture
def kind() -> type[Place]:
    return Place


@pytest.fixture
def eve(
    tmp_path: Path,
    quiet: Callable[[type[Place]], Path],
    repository: tuple[Path, tuple[str, ...]],
    kind: type[Place],
) -> Place:
    """A place of the cells a and b on the eve of the slow night."""
    path, commits = repository
    shutil.copytree(quiet(kind), tmp_path / "place")
    place = make_place(tmp_path / "place", commits, path, kind, cell_names=("a", "b"))
    slow(place)
    return place
