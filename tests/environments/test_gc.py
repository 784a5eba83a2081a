"""What is removed from the cache, what it frees, and what must never be removed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import filelock
import pytest

from perfbisect.environments.base import Environment
from perfbisect.environments.cache import USED, EnvironmentCache, file_stats
from perfbisect.environments.gc import CacheEntry, collect, list_environments
from perfbisect.errors import MachineError
from tests.environments.conftest import World

NOW = 2_000_000_000.0
DAY = 86400.0
DAYS_30 = timedelta(days=30)


def built(cache: Path, key: str, *, kilobytes: int = 8, days: float = 0.0) -> Path:
    """A finished environment, last used so many days ago, of which nobody holds the lock."""

    def make(staging: Path) -> dict[str, object]:
        (staging / "engine").write_bytes(b"x" * kilobytes * 1024)
        return {}

    cache = EnvironmentCache(cache)
    cache.ensure(
        key, builder="test", spec="test:", change=f"change {key}", make=make, timeout=5.0,
        check=lambda folder: Environment("", folder / "engine", engine_file=str(folder / "engine")),
    )  # fmt: skip
    folder = cache.folder(key)
    del cache  # lets go of it
    os.utime(folder / USED, (NOW - days * DAY,) * 2)
    return folder


def own_bytes(folder: Path) -> int:
    return sum(status.st_blocks * 512 for status in file_stats(folder) if status.st_nlink == 1)


def size(items: Sequence[CacheEntry]) -> int:
    return sum(item.bytes for item in items)


def names(cache: Path) -> set[str]:
    return {path.name for path in (cache / "environments").glob("[!.]*")}


def test_by_age(tmp_path: Path) -> None:
    for key, days in (("a", 40.0), ("b", 29.9), ("c", 30.1)):
        built(tmp_path, key, days=days)
    found = collect(tmp_path, older_than=DAYS_30, now=NOW)
    assert [(item.key, item.change, item.reason) for item in found.removed] == [
        ("a", "change a", "not used for 40.0 days"),
        ("c", "change c", "not used for 30.1 days"),
    ]
    assert names(tmp_path) == {"b"}
    assert [item.key for item in found.kept] == ["b"]
    assert size(found.kept) == own_bytes(tmp_path / "environments" / "b")


def test_by_size_the_longest_unused_first(tmp_path: Path) -> None:
    for key, days in (("old", 3.0), ("middle", 2.0), ("young", 1.0)):
        built(tmp_path, key, kilobytes=100, days=days)
    each = own_bytes(tmp_path / "environments" / "old")
    found = collect(tmp_path, keep_bytes=2 * each, now=NOW)
    assert [item.key for item in found.removed] == ["old"]
    assert size(found.removed) == each
    assert collect(tmp_path, keep_bytes=2 * each, now=NOW).removed == ()
    assert [item.key for item in collect(tmp_path, keep_bytes=0, now=NOW).removed] == ["middle", "young"]


def test_a_dry_run_says_the_same_and_removes_nothing(tmp_path: Path) -> None:
    for key, days in (("a", 40.0), ("b", 1.0)):
        built(tmp_path, key, days=days)
    (tmp_path / "environments" / "dead").mkdir()
    dry = collect(tmp_path, older_than=DAYS_30, dry_run=True, now=NOW)
    assert names(tmp_path) == {"a", "b", "dead"}
    wet = collect(tmp_path, older_than=DAYS_30, now=NOW)
    assert names(tmp_path) == {"b"}
    assert (dry.removed, dry.kept) == (wet.removed, wet.kept)


def test_without_limits_only_what_dead_builds_left(tmp_path: Path) -> None:
    built(tmp_path, "a", days=4000.0)
    root = tmp_path / "environments"
    (root / "dead").mkdir()
    (root / ".staging" / "k.12ab").mkdir()
    found = collect(tmp_path, now=NOW)
    assert {(item.key, item.kind) for item in found.removed} == {("dead", "unfinished"), ("k", "unfinished")}
    assert not list((root / ".staging").iterdir())
    assert names(tmp_path) == {"a"}


def test_a_removal_that_dies_is_ended_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(tmp_path, "a", days=40.0)

    def die(folder: Path) -> None:
        raise OSError(f"cannot remove {folder}")

    with monkeypatch.context() as patch, pytest.raises(MachineError):
        patch.setattr("perfbisect.environments.gc.shutil.rmtree", die)
        collect(tmp_path, older_than=DAYS_30, now=NOW)
    assert names(tmp_path) == set()
    assert [(item.key, item.kind) for item in collect(tmp_path, now=NOW).removed] == [("a", "unfinished")]
    assert not list((tmp_path / "environments" / ".staging").iterdir())


def test_what_is_in_use_is_kept_until_its_user_ends(world: World) -> None:
    builder = world.overlay()
    made = world.ensure(builder, world.history.slow)
    later = time.time() + 400 * DAY
    found = collect(world.cache, older_than=DAYS_30, keep_bytes=0, now=later)
    assert ([item.key for item in found.in_use], found.removed) == ([made.key], ())
    assert world.ensure(builder, world.history.slow).seconds == 0.0
    del builder
    assert [item.key for item in collect(world.cache, older_than=DAYS_30, now=later).removed] == [made.key]
    assert world.ensure(world.overlay(), world.history.slow).seconds > 0


HOLD = """
import sys
from pathlib import Path
from perfbisect.environments.cache import EnvironmentCache
folder = Path(sys.argv[1])
cache = EnvironmentCache(folder.parents[1])
print(cache.use(folder), flush=True)
sys.stdin.read()
"""


def test_another_process_uses_it_and_is_killed(tmp_path: Path) -> None:
    folder = built(tmp_path, "a", days=100.0)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "True\n"
        found = collect(tmp_path, keep_bytes=0, now=NOW)
        assert ([item.key for item in found.in_use], names(tmp_path)) == (["a"], {"a"})
        user.kill()
        user.communicate()
    assert [item.key for item in collect(tmp_path, keep_bytes=0, now=NOW).removed] == ["a"]


def test_what_is_being_built_is_kept(tmp_path: Path) -> None:
    root = tmp_path / "environments"
    (root / ".staging" / "k.12ab").mkdir(parents=True)
    (root / ".locks").mkdir()
    with filelock.FileLock(root / ".locks" / "k.lock"):
        assert [item.key for item in collect(tmp_path, now=NOW).in_use] == ["k"]
    assert [item.key for item in collect(tmp_path, now=NOW).removed] == ["k"]


def test_build_folders_go_too(tmp_path: Path) -> None:
    folder = tmp_path / "builds" / "abc"
    folder.mkdir(parents=True)
    (folder / "built").write_text("")
    os.utime(folder / "built", (NOW - 40 * DAY,) * 2)
    with filelock.FileLock(tmp_path / "builds" / ".locks" / "abc.lock"):
        assert [item.kind for item in collect(tmp_path, older_than=DAYS_30, now=NOW).in_use] == [
            "build folder"
        ]
    assert [item.key for item in collect(tmp_path, older_than=DAYS_30, now=NOW).removed] == ["abc"]
    assert not folder.exists()


def test_old_notes_of_failures_are_forgotten(tmp_path: Path) -> None:
    """Also where there is nothing else."""
    assert list_environments(tmp_path) == ((), 0)
    cache = EnvironmentCache(tmp_path)
    cache.note_failure("k", "why")
    collect(tmp_path, older_than=DAYS_30, now=time.time())
    assert cache.failure("k") == "why"
    collect(tmp_path, older_than=DAYS_30, now=time.time() + 31 * DAY)
    assert cache.failure("k") is None


def test_newest_first_and_unfinished_last(world: World) -> None:
    builder = world.overlay()
    older, newer = (world.ensure(builder, sha) for sha in (world.history.slow, world.history.base))
    (world.cache / "environments" / "dead").mkdir()
    found, _ = list_environments(world.cache)
    assert [entry.folder.name for entry in found] == [newer.key, older.key, "dead"]
    (first, second, third) = (entry.stamp for entry in found)
    assert first is not None and second is not None and third is None
    assert (second.change, second.spec, second.builder) == (world.history.slow, builder.spec, "overlay")


def test_what_environments_share_is_freed_with_the_last_of_them(tmp_path: Path) -> None:
    for key, days in (("old", 3.0), ("young", 1.0)):
        folder = built(tmp_path, key, kilobytes=100, days=days)
        if key == "old":
            (tmp_path / "uv").hardlink_to(folder / "engine")
        else:
            (folder / "engine").unlink()
            (folder / "engine").hardlink_to(tmp_path / "uv")
    listed, together = list_environments(tmp_path)
    assert all(own_bytes(entry.folder) < 50_000 for entry in listed), "without links"
    assert all(entry.bytes >= 102_400 for entry in listed), "an environment's own size"
    assert 102_400 <= together < 150_000
    found = collect(tmp_path, older_than=timedelta(0), dry_run=True, now=NOW)
    old, young = found.removed
    assert (old.key, young.key) == ("old", "young")
    assert old.bytes < 50_000 < 102_400 <= young.bytes
    assert size(found.removed) == together
