"""An environment comes to a machine whole or not at all, whatever fails on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from perfbisect.environments.base import Environment
from perfbisect.errors import MachineError
from perfbisect.fleet.connection import Answer, LocalConnection
from perfbisect.fleet.folders import FleetHost
from perfbisect.fleet.hosts import HostFleet

KEY = "0123456789abcdef0123"


@dataclass
class Machine:
    """Implements :class:`perfbisect.fleet.connection.Connection`; the paths of ``here`` are below ``there``.

    ``full``: no file can be written; ``cut``: input ends after so many bytes, as of a driver that is killed.
    """

    here: Path
    there: Path
    full: bool = False
    cut: int | None = None
    copied: int = 0

    def run(
        self,
        argv: Sequence[str],
        given: bytes | IO[bytes] = b"",
        *,
        into: IO[bytes] | None = None,
        timeout: float = 60.0,
    ) -> Answer:
        given = given if isinstance(given, bytes) else given.read()
        self.copied += bool(given)
        words = [word.replace(str(self.here), str(self.there)) for word in argv]
        limit = "ulimit -f 0; " if self.full else ""
        return LocalConnection().run(
            ["sh", "-c", f'{limit}exec "$@"', "sh", *words], given[: self.cut], into=into, timeout=timeout
        )

    @property
    def files(self) -> list[str]:
        """Paths of the files that are there."""
        return sorted(str(path.relative_to(self.there)) for path in self.there.rglob("*") if path.is_file())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / KEY / "caches").mkdir(parents=True)
    there.mkdir()
    (here / KEY / "stamp.json").write_text("{}")
    (here / KEY / "engine.py").write_bytes(b"x" * 100_000)
    (here / KEY / "caches" / "kernel").write_text("of this machine")
    return Machine(here, there)


def place(machine: Machine) -> None:
    fleet = HostFleet("one", [FleetHost("box", machine, "/nowhere")])
    folder = machine.here / KEY
    fleet.place("box", [Environment(KEY, Path("python"), folder, {}, "1", "a" * 40, "", "")])


def test_an_environment_is_copied_once_without_the_drivers_caches(machine: Machine) -> None:
    place(machine)
    assert machine.files == [f"{KEY}/engine.py", f"{KEY}/stamp.json"]
    place(machine)
    assert machine.copied == 1


def test_a_copy_that_is_cut_short_leaves_nothing_and_is_made_again(machine: Machine) -> None:
    machine.cut = 50_000
    with pytest.raises(MachineError, match=f"{KEY} cannot be copied to box"):
        place(machine)
    assert machine.files == []
    machine.cut = None
    place(machine)
    assert machine.files == [f"{KEY}/engine.py", f"{KEY}/stamp.json"]


def test_a_full_disk_fails_the_copy_until_there_is_room(machine: Machine) -> None:
    machine.full = True
    with pytest.raises(MachineError, match=f"{KEY} cannot be copied to box") as raised:
        place(machine)
    assert "free space on box" in str(raised.value.next_step)
    assert machine.files == []
    machine.full = False
    place(machine)
    assert machine.files == [f"{KEY}/engine.py", f"{KEY}/stamp.json"]


def test_what_a_killed_copy_left_is_replaced(machine: Machine) -> None:
    """A folder without its stamp is no environment."""
    (machine.there / KEY).mkdir()
    (machine.there / KEY / "half").write_text("a half")
    place(machine)
    assert machine.files == [f"{KEY}/engine.py", f"{KEY}/stamp.json"]
