"""Leases of devices and cores: real processes that contend, die and belong to other users."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perfbisect.errors import Interrupted, MachineError
from perfbisect.machine import leases
from perfbisect.machine.leases import LeaseHolder, SharedLease, lease
from perfbisect.machine.slots import Slot

A = Slot("a", ("GPU-a",), (0, 1), (2,))
B = Slot("b", ("GPU-b",), (3, 4), (5,))
BOTH = Slot("both", ("GPU-b", "GPU-a"), (6,), (7,))
CORES = Slot("cores", (), (1,), (9,))
WHOLE = Slot("")
NOBODY = "65534"

HOLDS = """
import os, sys
from pathlib import Path
from perfbisect.machine.leases import LeaseHolder, lease
from perfbisect.machine.slots import Slot
if len(sys.argv) > 3:
    os.setgroups([])
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[3]))
slot = Slot("a", ("GPU-a",), (0, 1), (2,))
with lease(slot, folder=Path(sys.argv[1]), holder=LeaseHolder(job=sys.argv[2]), wait=20):
    print("has it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "locks"


@contextmanager
def process(folder: Path, job: str, *user: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that leases slot A, until its input ends."""
    argv = [sys.executable, "-c", HOLDS, str(folder), job, *user]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as popen:
        try:
            yield popen
        finally:
            popen.kill()


def has_it(popen: subprocess.Popen[str]) -> bool:
    assert popen.stdout is not None
    return popen.stdout.readline() == "has it\n"


def refused(folder: Path, *slots: Slot) -> str:
    with pytest.raises(MachineError) as raised, lease(*slots, folder=folder, holder=LeaseHolder("mine")):
        pass
    return str(raised.value)


def test_disjoint_slots_run_beside_each_other(folder: Path) -> None:
    with (
        lease(A, folder=folder, holder=LeaseHolder("one")),
        lease(B, folder=folder, holder=LeaseHolder("two")),
    ):
        held = leases.holders(folder)
        assert {lock.name for lock in held if lock.kind == "device"} == {"GPU-a", "GPU-b"}
        assert {lock.holder.job for lock in held} == {"one", "two"}
    assert leases.holders(folder) == ()


@pytest.mark.parametrize(
    "left, right",
    [(A, A), (A, BOTH), (BOTH, B), (A, CORES), (A, WHOLE), (WHOLE, A), (WHOLE, WHOLE), (CORES, WHOLE)],
)
def test_what_overlaps_excludes(folder: Path, left: Slot, right: Slot) -> None:
    with lease(left, folder=folder, holder=LeaseHolder("one")):
        said = refused(folder, right)
    assert "job one" in said and f"pid {os.getpid()}" in said and str(folder) in said
    with lease(right, folder=folder, holder=LeaseHolder("two")):
        pass


def test_device_without_cores_has_the_machine(folder: Path) -> None:
    """Nothing is pinned: its server may run on everybody's cores."""
    with lease(Slot("gpu", ("GPU-c",)), folder=folder, holder=LeaseHolder("one")):
        assert "the whole machine" in refused(folder, A)


@pytest.mark.parametrize("text", ["[" * 4000, '{"pid": "x"}', "\xff"])
def test_a_lock_file_of_something_else_is_held_by_an_unknown_owner(folder: Path, text: str) -> None:
    with lease(A, folder=folder, holder=LeaseHolder("one")):
        for held in folder.iterdir():
            held.write_text(text)
        assert "GPU-a" in refused(folder, A)


def test_all_or_none(folder: Path) -> None:
    with lease(B, folder=folder, holder=LeaseHolder("one")):
        assert "GPU-b" in refused(folder, A, B)
        with lease(A, folder=folder, holder=LeaseHolder("two")):
            pass


def test_wait_is_told_and_ends_when_it_is_free(folder: Path) -> None:
    heard: list[str] = []
    waits = threading.Event()

    def told(text: str) -> None:
        heard.append(text)
        waits.set()

    with process(folder, "first") as other:
        assert has_it(other)
        threading.Thread(target=lambda: waits.wait(10) and other.stdin and other.stdin.close()).start()
        with lease(A, folder=folder, holder=LeaseHolder("second"), wait=30, on_wait=told) as mine:
            assert mine.died == (), "it gave the slot back"
    assert len(heard) == 1
    assert heard[0].startswith("waits: ") and f"pid {other.pid}, job first, since 20" in heard[0]
    assert "GPU-a, 3 of the cores" in heard[0]


def test_killed_holder_is_no_obstacle(folder: Path) -> None:
    with process(folder, "dead") as other:
        assert has_it(other)
        assert "job dead" in refused(folder, A)
        other.send_signal(signal.SIGKILL)
        other.wait(10)
        with lease(A, folder=folder, holder=LeaseHolder("mine")) as mine:
            (died,) = mine.died
    assert (died.job, died.pid) == ("dead", other.pid)
    with lease(A, folder=folder, holder=LeaseHolder("again")) as again:
        assert again.died == ()


def test_files_are_for_every_user(folder: Path) -> None:
    old = os.umask(0o077)
    try:
        with lease(A, folder=folder, holder=LeaseHolder("one")):
            pass
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o666}


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    private, folder = tmp_path / "private", tmp_path / "locks"
    private.mkdir(mode=0o700)
    folder.symlink_to(private)
    with (
        pytest.raises(MachineError, match="link") as caught,
        lease(A, folder=folder, holder=LeaseHolder("one")),
    ):
        pass
    assert leases.FOLDER_VARIABLE in str(caught.value.next_step)
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert not list(private.iterdir())


def test_a_folder_that_exists_keeps_its_mode(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with lease(A, folder=folder, holder=LeaseHolder("one")):
        pass
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of another user")
def test_a_folder_whose_owner_can_remove_locks_unseen(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    os.chown(folder, int(NOBODY), int(NOBODY))
    with pytest.raises(MachineError, match="sticky"), lease(A, folder=folder, holder=LeaseHolder("one")):
        pass
    folder.chmod(0o1777)
    with lease(A, folder=folder, holder=LeaseHolder("one")):
        assert leases.holders(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_two_users_of_one_host() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "locks"
        mine = lease(A, folder=folder, holder=LeaseHolder("root's"))
        with mine, process(folder, "theirs", NOBODY) as other, pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
        with process(folder, "theirs", NOBODY) as other:
            assert has_it(other), "files that root made serve another user"
            said = refused(folder, A)
            assert "job theirs" in said and f"pid {other.pid}" in said
        with lease(A, folder=folder, holder=LeaseHolder("root's")) as mine:
            assert [holder.job for holder in mine.died] == ["theirs"]


def test_text_of_another_user_does_nothing_to_a_terminal(folder: Path) -> None:
    with lease(A, folder=folder, holder=LeaseHolder(job="\x1b[2Jgone\n", user="\x07x" * 100)):
        said = refused(folder, A)
    assert "\x1b" not in said and "\x07" not in said and "gone" in said


@pytest.mark.parametrize("text", ["", "no json", "[1]", json.dumps({"pid": "x", "job": 3}), "\0" * 10])
def test_file_that_says_nothing_holds_all_the_same(folder: Path, text: str) -> None:
    with lease(A, folder=folder, holder=LeaseHolder("one")):
        for path in folder.iterdir():
            path.write_text(text)
        assert "the slot is leased: " in refused(folder, A)
    with lease(A, folder=folder, holder=LeaseHolder("two")):
        pass


def test_removed_lock_file_is_a_lost_lease(folder: Path) -> None:
    with lease(A, folder=folder, holder=LeaseHolder("one")) as mine:
        mine.check()
        (folder / "device-GPU-a.lock").unlink()
        with pytest.raises(MachineError, match="lease is lost"):
            mine.check()


def test_link_in_place_of_a_lock_is_not_followed(folder: Path, tmp_path: Path) -> None:
    """In a folder for everybody somebody may put a link to a file of ours."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    folder.mkdir()
    (folder / "device-GPU-a.lock").symlink_to(precious)
    assert "cannot be opened: Too many levels of symbolic links" in refused(folder, A)
    assert precious.read_text() == "kept"


@pytest.mark.parametrize("plant", ["pipe", "second name"])
def test_what_is_no_file_of_its_own_is_no_lock(folder: Path, tmp_path: Path, plant: str) -> None:
    """Opening a pipe would wait for a writer; writing the owner would overwrite the other name's file."""
    path, precious = folder / "device-GPU-a.lock", tmp_path / "precious"
    precious.write_text("kept")
    folder.mkdir()
    if plant == "pipe":
        os.mkfifo(path)
    else:
        path.hardlink_to(precious)
    leases.holders(folder)
    assert "is no file of its own" in refused(folder, A)
    assert precious.read_text() == "kept"


def test_stop_while_waiting(folder: Path) -> None:
    mine = lease(A, folder=folder, holder=LeaseHolder("two"), wait=60, stop_requested=lambda: True)
    with (
        lease(A, folder=folder, holder=LeaseHolder("one")),
        pytest.raises(Interrupted, match="job one"),
        mine,
    ):
        pass


def test_a_shared_lease_is_held_from_the_first_to_the_last(folder: Path) -> None:
    shared = SharedLease(lambda: lease(A, folder=folder, holder=LeaseHolder("one")))
    for _ in range(2):
        with shared.shared():
            with shared.shared():
                assert "job one" in refused(folder, A)
            assert "job one" in refused(folder, A), "one still holds it"
        with lease(A, folder=folder, holder=LeaseHolder("two")), pytest.raises(MachineError):
            shared.shared().__enter__()
