"""Shared memory that killed engines leave: theirs is removed, nobody else's."""

from __future__ import annotations

import mmap
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfbisect.system import held_files, processes
from perfbisect.system.processes import OwnedProcess
from tests.system.stand_ins import start, told

MAPS = """
import mmap, os, sys, time
for path in sys.argv[1:]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, 4096)
    memory = mmap.mmap(descriptor, 4096)
    globals()[path] = memory
    os.close(descriptor)
print("mapped", flush=True)
time.sleep(60)
"""

READS = """
import mmap, os, sys, time
memory = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 4096, prot=mmap.PROT_READ)
print("mapped", flush=True)
time.sleep(60)
"""

pytestmark = pytest.mark.skipif(not held_files.SHARED_MEMORY.is_dir(), reason="no /dev/shm here")


@pytest.fixture
def path() -> Iterator[Path]:
    """A segment of this test's own, which is not there yet."""
    path = held_files.SHARED_MEMORY / f"perfbisect-test-{secrets.token_hex(6)}"
    yield path
    for left in held_files.SHARED_MEMORY.glob(f"{path.name}*"):
        left.unlink()


def mapping(folder: Path, path: Path, script: str = MAPS) -> OwnedProcess:
    """A process that has mapped a segment."""
    owned = start(folder, script, str(path))
    told(folder / "out.log", "mapped")
    return owned


def test_what_was_seen_before_the_engine_died_is_removed(tmp_path: Path, path: Path) -> None:
    owned = mapping(tmp_path, path)
    owned.observe()
    os.kill(owned.pid, signal.SIGKILL)
    owned.wait(10)
    assert path.exists()
    assert processes.stop(owned) == (str(path),)


def test_what_was_there_before_stays(tmp_path: Path, path: Path) -> None:
    path.write_bytes(bytes(4096))
    owned = mapping(tmp_path, path)
    assert processes.stop(owned, 0.0) == ()
    assert path.exists()


def test_what_another_process_holds_stays(tmp_path: Path, path: Path) -> None:
    owned = mapping(tmp_path, path)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert processes.stop(owned, 0.0) == ()
    assert path.exists()


def test_what_nobody_was_seen_to_hold_stays(tmp_path: Path, path: Path) -> None:
    """Somebody else's segment that appears meanwhile is not ours, though nobody holds it."""
    other = path.with_name(f"{path.name}-other")
    owned = mapping(tmp_path, path)
    other.write_bytes(b"kept")
    processes.stop(owned, 0.0)
    assert other.read_bytes() == b"kept"


def test_name_that_was_used_again_stays(path: Path) -> None:
    path.write_bytes(b"new")
    assert held_files.remove_segments([(str(path), path.stat().st_ino + 1)]) == ()
    assert path.exists()
    assert held_files.remove_segments([(str(path), path.stat().st_ino)]) == (str(path),)


def test_leftovers_of_a_dead_owner_lose_theirs_too(tmp_path: Path, path: Path) -> None:
    owned = mapping(tmp_path, path)
    processes.stop_leftovers(owned.token, owned.pid, owned.created, grace=0.0)
    processes.stop(owned)
    assert not path.exists()


def test_leftovers_of_a_dead_owner_keep_what_is_older_than_they_are(tmp_path: Path, path: Path) -> None:
    """A model's weights, copied there by the user and read by the engine."""
    path.write_bytes(bytes(4096))
    os.utime(path, (1e9, 1e9))
    owned = mapping(tmp_path, path, READS)
    assert processes.stop_leftovers(owned.token, owned.pid, owned.created, grace=0.0)
    processes.stop(owned)
    assert path.exists()
