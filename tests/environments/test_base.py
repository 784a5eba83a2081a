"""Environments are built once, safely: dead builds, two builders at once, full disks, torn stamps."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.common.digests import text_digest
from perfbisect.environments.base import Environment
from perfbisect.environments.cache import STAMP, EnvironmentCache, read_stamp
from perfbisect.environments.factory import make_builder
from perfbisect.errors import MachineError
from perfbisect.model.change import Change
from tests.changes.repositories import write_commits
from tests.environments.conftest import World, overlay
from tests.long import mostly_long

ENSURE = """
import os, signal, sys
from pathlib import Path
from perfbisect.model.change import Change
from perfbisect.environments import source_tree
from perfbisect.environments.factory import make_builder
from perfbisect.changes.git import Repository
from tests.long import mostly_long

spec, repo, cache, sha, log, die = sys.argv[1:7]
if die == "writing":
    def die_in_the_middle(target, *_):
        (target / "half").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
    source_tree.write_files = die_in_the_middle
builder = make_builder(spec, repository=Repository.open(repo), cache=Path(cache))
Path(log + ".started").touch()
print(builder.ensure(Change(sha), log=Path(log), timeout=60).seconds > 0)
"""

WAITS = b"""
import os, time
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
with open(os.path.join(root, "imports"), "a") as stream:
    stream.write("x")
while not os.path.exists(%r):
    time.sleep(0.02)
"""


def start(
    base_spec: object, repository: Repository, cache: Path, sha: str, log: Path, die: str = ""
) -> subprocess.Popen[str]:
    """Another perfbisect that builds."""
    spec = f"overlay:{base_spec},package=tiny_engine,base=any"
    argv = [sys.executable, "-c", ENSURE, spec, str(repository.path), str(cache), sha, str(log), die]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(log.parent)}
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


@pytest.fixture
def waiting(tmp_path: Path) -> tuple[Repository, str, Path]:
    """A history whose engine counts its imports and waits for a file."""
    go = tmp_path / "go"
    waits = WAITS % str(go).encode()
    repository, (sha,) = write_commits(tmp_path / "repo", {"tiny_engine/__init__.py": waits})
    return repository, sha, go


@pytest.mark.processes
def test_two_processes_build_a_key_once(
    waiting: tuple[Repository, str, Path], installed: Environment, tmp_path: Path
) -> None:
    repository, sha, go = waiting
    cache = tmp_path / "cache"
    first = start(installed.interpreter, repository, cache, sha, tmp_path / "first.log")
    key = overlay(cache, installed.interpreter, repository, "any").key(Change(sha))
    wait_for(cache / "environments" / key / "imports")
    second = start(installed.interpreter, repository, cache, sha, tmp_path / "second.log")
    wait_for(tmp_path / "second.log.started")
    time.sleep(0.3)
    assert second.poll() is None
    go.touch()
    assert [process.communicate(timeout=60)[0].strip() for process in (first, second)] == ["True", "False"]
    assert (cache / "environments" / key / "imports").read_text() == "x"


@pytest.mark.processes
def test_killed_while_writing_then_built_again(world: World) -> None:
    process = start(
        world.installed.interpreter, world.repository, world.cache, world.history.slow, world.log, "writing"
    )
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    stagings = world.cache / "environments" / ".staging"
    assert len(list(stagings.iterdir())) == 1
    assert not list((world.cache / "environments").glob("[!.]*"))
    builder = world.overlay("any")
    assert not builder.cached(Change(world.history.slow))
    built = world.ensure(builder, world.history.slow)
    assert not list(stagings.iterdir())
    assert not list(built.folder.rglob("half"))


def test_killed_before_the_stamp_then_built_again(
    waiting: tuple[Repository, str, Path], installed: Environment, tmp_path: Path, log: Path
) -> None:
    repository, sha, go = waiting
    process = start(installed.interpreter, repository, tmp_path, sha, log)
    builder = overlay(tmp_path, installed.interpreter, repository, "any")
    folder = tmp_path / "environments" / builder.key(Change(sha))
    wait_for(folder / "imports")
    process.kill()
    process.communicate(timeout=60)
    go.touch()  # lets the orphaned import end
    assert folder.exists()
    assert not builder.cached(Change(sha))
    built = builder.ensure(Change(sha), log=log, timeout=60)
    assert (built.folder, built.seconds > 0) == (folder, True)
    assert (folder / "imports").read_text() == "x"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_is_full_when_the_stamp_is_written(call: str, world: World) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(world.cache))

    builder = world.overlay()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(MachineError, match="No space left on device") as raised:
            world.ensure(builder, world.history.slow)
    assert "PERFBISECT_CACHE" in (raised.value.next_step or "")
    assert not builder.cached(Change(world.history.slow))
    assert world.ensure(builder, world.history.slow).seconds > 0


@pytest.mark.parametrize(
    "damage",
    mostly_long(
        ["torn", "no engine", "gone", {"schema": "perfbisect.environment/0"}, {"key": "0"}, {"extra": 1}],
        short=["torn", {"key": "0"}],
    ),
)
def test_a_stamp_that_may_not_be_believed(damage: str | dict[str, object], world: World) -> None:
    builder = world.overlay()
    built = world.ensure(builder, world.history.slow)
    stamp = built.folder / STAMP
    if isinstance(damage, dict):
        stamp.write_text(json.dumps(json.loads(stamp.read_text()) | damage))
    elif damage == "torn":
        stamp.write_text(stamp.read_text()[:-20])
    else:
        (Path(built.engine_file) if damage == "no engine" else stamp).unlink()
    assert not builder.cached(Change(world.history.slow))
    again = world.ensure(builder, world.history.slow)
    assert again.seconds > 0
    assert Path(again.engine_file).exists()
    assert builder.cached(Change(world.history.slow))


HOLD = """
import pathlib, sys
import filelock
folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True)
lock = filelock.FileLock(folder / "k.lock")
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_that_is_held_too_long(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLD, str(tmp_path / "environments" / ".locks")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(MachineError, match="another perfbisect has been building"):
            EnvironmentCache(tmp_path).ensure(
                "k", builder="b", spec="s", change="c", make=_never, check=_never, timeout=0.1
            )
        holder.communicate("")


def _never(folder: Path) -> Environment:
    raise AssertionError(folder)


def test_the_stamp_says_what_was_built(world: World) -> None:
    builder = world.overlay()
    built = world.ensure(builder, world.history.slow)
    document = json.loads((built.folder / STAMP).read_text())
    assert document["schema"] == "perfbisect.environment/2"
    assert (document["key"], document["change"]) == (built.key, world.history.slow)
    assert document["engine_file"] == "layer/tiny_engine/__init__.py"
    assert document["facts"]["packages"] == ["tiny-engine==1.0", "tiny-helper==5.1"]
    found = read_stamp(built.folder)
    assert found is not None
    assert found.seconds == built.seconds


def test_no_build_writes_to_the_files_of_the_installers_cache(world: World, shared_cache: Path) -> None:
    """uv links them into environments: written there, each environment to come would have them so."""

    def digests() -> dict[Path, str]:
        kept = (shared_cache / "uv").rglob("*.*")
        return {path: text_digest(path.read_bytes()) for path in kept if path.is_file()}

    before = digests()
    linked = [path for path in before if path.stat().st_nlink > 1]
    assert any(path.name == "core.py" for path in linked)
    for sha in (world.history.slow, world.history.removed):
        world.ensure(world.overlay(), sha)
    made = make_builder("release:tiny-engine", repository=None, cache=world.cache)
    pip = Change("tiny-engine==1.0", "release").swapped(("tiny-helper==5.0",))
    made.ensure(pip, log=world.log, timeout=60)
    after = digests()
    assert {path: after[path] for path in linked} == {path: before[path] for path in linked}
