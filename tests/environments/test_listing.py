"""What is in the cache, and how much of it is its own."""

from __future__ import annotations

from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Environment
from perfbisect.environments.cache import own_bytes
from perfbisect.environments.gc import disk_bytes, list_environments
from perfbisect.model.change import Change
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
    assert [one.folder.name for one in found] == [newer.key, older.key, "dead"]
    (first, second, third) = (one.stamp for one in found)
    assert first is not None and second is not None and third is None
    assert (second.change, second.spec, second.builder) == (history.slow, builder.spec, "overlay")


def test_linked_files_are_not_its_own_and_count_in_equal_parts(tmp_path: Path) -> None:
    inside, beside = tmp_path / "inside", tmp_path / "beside"
    inside.mkdir()
    beside.mkdir()
    (beside / "linked").write_bytes(b"x" * 100_000)
    (inside / "linked").hardlink_to(beside / "linked")
    (inside / "own").write_bytes(b"x" * 8192)
    assert 8192 <= own_bytes(inside) < 100_000
    assert own_bytes(beside) == 0
    assert disk_bytes(inside) + disk_bytes(beside) >= 108_192
    assert disk_bytes(beside) < 100_000
