"""What a connection by ssh leaves behind: nothing, also of a driver that was killed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfbisect.fleet.bundle import UnreachableError
from perfbisect.fleet.connection import SshConnection
from perfbisect.fleet.folders import error_in
from tests.fakes.ssh import PretendMachines


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files; "alpha" is a machine that a pretend ssh reaches."""
    machines = PretendMachines(tmp_path / "machines")
    machines.add("alpha")
    monkeypatch.setenv("PATH", machines.path(os.environ["PATH"]))
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    gc.collect()
    assert list(folder.iterdir()) == []


def test_the_folder_of_the_sockets_goes_with_the_connection(temporary: Path) -> None:
    connection = SshConnection("alpha")
    assert connection.run(["echo", "a b"]).text == "a b"
    assert len(list(temporary.iterdir())) == 1
    assert connection.run(["false"]).code == 1


@pytest.mark.parametrize("text", ["", "[]", '{"error": 1}', "[" * 100_000])
def test_what_an_agent_printed_before_it_failed_may_be_anything(text: str) -> None:
    assert error_in(text)


def test_it_goes_also_where_the_machine_does_not_answer(temporary: Path) -> None:
    with pytest.raises(UnreachableError):
        SshConnection("nobody").run(["true"])
    assert temporary.exists()


def test_what_a_killed_process_left_goes_with_the_next_connection(temporary: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, in_use = temporary / f"pb-ssh-{ended.pid}-a", temporary / f"pb-ssh-{ended.pid}-b"
    ours = temporary / f"pb-ssh-{os.getpid()}-c"
    for folder in (left, in_use, ours):
        folder.mkdir()
    (in_use / "socket").touch()
    connection = SshConnection("alpha")
    connection.run(["true"])
    assert [folder.exists() for folder in (left, in_use, ours)] == [False, True, True]
    (in_use / "socket").unlink()
    for folder in (in_use, ours):
        folder.rmdir()
