"""--machine, and the same in perfbisect.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.cli.app import run
from perfbisect.cli.desk import slots_for
from perfbisect.cli.place import place
from perfbisect.cli.wiring import profile_named, the_machine
from perfbisect.core.cell import Cell
from perfbisect.errors import MachineError, UsageError
from tests.environments.tiny import write_history

CELL = Cell(name="x", family="text", model="m", num_prompts=1, max_concurrency=1)
FILE = "name: here\ndevices: none\nlease:\n  command: [{command}]\n"


def test_typed_goes_before_the_file(tmp_path: Path) -> None:
    history = write_history(tmp_path / "repo")
    (history.path / "here.yaml").write_text(FILE.format(command="env"))
    (history.path / "perfbisect.yaml").write_text("machine: here.yaml\n")
    configured = place(repo=history.path, state=tmp_path)
    assert the_machine(configured) == str(history.path / "here.yaml")
    assert profile_named(the_machine(configured)).lease.command == ("env",)
    assert the_machine(place(repo=history.path, state=tmp_path, machine="cpu")) == "cpu"


def test_nothing_said_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = write_history(tmp_path / "repo")
    assert the_machine(place(repo=history.path, state=tmp_path)) == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert profile_named("").name == "cpu"
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert profile_named("").name == "cuda"


def test_what_is_missing_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(FILE.format(command="no-such-queue"))
    with pytest.raises(MachineError, match="lease command 'no-such-queue' of machine 'here'"):
        slots_for(CELL, 1, str(tmp_path / "m.yaml"))
    with pytest.raises(UsageError, match="no machine 'asend'"):
        the_machine(place(state=tmp_path, machine="asend"))


def test_doctor_looks_at_the_machine_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.yaml").write_text(FILE.format(command="no-such-queue"))
    typed = ["doctor", "--machine", str(tmp_path / "m.yaml"), "--state", str(tmp_path)]
    assert run(typed) == 5
    told = capsys.readouterr().out
    assert "good     machine        here: no devices, cells with `gpus: 0` only\n" in told
    assert (
        "bad      lease command  the lease command 'no-such-queue' of machine 'here' is not there\n"
        "                        install it, or mend lease.command in the machine's file\n"
    ) in told
    (tmp_path / "m.yaml").write_text(FILE.format(command="[env, x]"))
    assert run([*typed, "--json"]) == 2
    assert "m.yaml:4" in capsys.readouterr().out
