"""What is in the cache, and how much of it is its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.core.change import Change
from perfbisect.environments import Environment
from perfbisect.environments.listing import list_environments, own_bytes
from perfbisect.system.git import Repository
from tests.environments.conftest import overlay
from tests.environments.tiny import TinyHistory


def test_nothing_there(tmp_path: Path) -> None:
    assert list_environments(tmp_path / "none") == ()


def test_newest_first_and_unfinished_last(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path, log: Path
) -> None:
    builder = overlay(tmp_path, installed.interpreter, repository, history.base)
    older, newer = (builder.ensure(Change(sha), log=log, timeout=60) for sha in (history.slow, history.base))
    (tmp_path / "environments" / "dead").mkdir()
    found = list_environments(tmp_path)
    assert [one.key for one in found] == [newer.key, older.key, "dead"]
    assert [one.complete for one in found] == [True, True, False]
    assert (found[1].change, found[1].spec, found[1].builder) == (history.slow, builder.spec, "overlay")
    assert found[1].seconds == pytest.approx(older.seconds, abs=0.001)


def test_linked_files_are_not_its_own(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "outside").write_bytes(b"x" * 100_000)
    (inside / "linked").hardlink_to(tmp_path / "outside")
    (inside / "own").write_bytes(b"x" * 8192)
    (inside / "own twice").hardlink_to(inside / "own")
    assert 8192 <= own_bytes(inside) < 100_000
