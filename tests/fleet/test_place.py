"""An environment comes to a machine whole or not at all, whatever fails on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.environments.base import Environment
from perfbisect.errors import MachineError
from perfbisect.fleet.folders import FolderFleet
from perfbisect.fleet.hosts import FleetHost, HostSettings
from tests.fleet.moved_machine import MovedMachine

KEY = "0123456789abcdef0123"
WHOLE = [f"{KEY}/engine.py", f"{KEY}/stamp.json"]


@pytest.fixture
def machine(tmp_path: Path) -> MovedMachine:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / KEY / "caches").mkdir(parents=True)
    there.mkdir()
    (here / KEY / "stamp.json").write_text("{}")
    (here / KEY / "engine.py").write_bytes(b"x" * 100_000)
    (here / KEY / "caches" / "kernel").write_text("of this machine")
    return MovedMachine(here, there)


def place(machine: MovedMachine) -> list[str]:
    """Bring the environment to the machine; returns the files that are there then."""
    fleet = FolderFleet("one", lambda: [FleetHost("box", machine, HostSettings(folder="/nowhere"))])
    folder = machine.here / KEY
    fleet.place("box", [Environment(KEY, Path("python"), folder, {}, "1", "a" * 40, "", "")])
    return files(machine)


def files(machine: MovedMachine) -> list[str]:
    return sorted(str(path.relative_to(machine.there)) for path in machine.there.rglob("*") if path.is_file())


def test_an_environment_is_copied_once_without_the_drivers_caches(machine: MovedMachine) -> None:
    assert place(machine) == place(machine) == WHOLE
    assert machine.count("mktemp") == 1


@pytest.mark.parametrize(("fault", "value"), [("cut_input", 50_000), ("full", True)])
def test_a_copy_that_fails_leaves_nothing_and_is_made_again(
    machine: MovedMachine, monkeypatch: pytest.MonkeyPatch, fault: str, value: object
) -> None:
    with monkeypatch.context() as failing:
        failing.setattr(machine, fault, value)
        with pytest.raises(MachineError, match=f"{KEY} cannot be copied to box") as raised:
            place(machine)
    assert "free space on box" in str(raised.value.next_step)
    assert files(machine) == []
    assert place(machine) == WHOLE


def test_what_a_killed_copy_left_is_replaced(machine: MovedMachine) -> None:
    """A folder without its stamp is no environment."""
    (machine.there / KEY).mkdir()
    (machine.there / KEY / "half").write_text("a half")
    assert place(machine) == WHOLE
