"""--machine, and the same in perfbisect.yaml."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perfbisect.cli.app import run
from perfbisect.commands.options import BuildOptions
from perfbisect.commands.settings import resolve
from perfbisect.commands.slots import require_same_machine, slots_here
from perfbisect.commands.workspace import open_workspace
from perfbisect.errors import MachineError, UsageError
from perfbisect.jobs.replay import Launch
from perfbisect.machine import devices
from perfbisect.machine.leases import LeaseHolder, lease
from perfbisect.machine.profile import Profile, load_profile, machine, machine_name
from perfbisect.machine.slots import Slot, machine_of
from perfbisect.model.attempt import Attempt, Provenance
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from tests.environments.tiny import write_history
from tests.machine import fake_smi

CELL = Cell(name="x", family="text", model="m", num_prompts=1, max_concurrency=1)
FILE = "name: here\ndevices: none\nlease:\n  command: [{command}]\n"


def test_typed_goes_before_the_file(tmp_path: Path) -> None:
    history = write_history(tmp_path / "repo")
    (history.path / "here.yaml").write_text(FILE.format(command="env"))
    (history.path / "perfbisect.yaml").write_text("machine: here.yaml\n")
    settings = open_workspace(repo=history.path, state=tmp_path).settings
    configured = resolve(BuildOptions, {}, settings).machine
    assert configured == machine_name(configured) == str(history.path / "here.yaml")
    assert load_profile(configured).lease.command == ("env",)
    assert resolve(BuildOptions, {"machine": "cpu"}, settings).machine == machine_name("cpu") == "cpu"


def test_nothing_said_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_name("") == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert load_profile("").name == "cpu"
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert load_profile("").name == "cuda"


def test_what_is_missing_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(FILE.format(command="no-such-queue"))
    with pytest.raises(MachineError, match="lease command 'no-such-queue' of machine 'here'"):
        slots_here(CELL, 1, str(tmp_path / "m.yaml"))
    with pytest.raises(UsageError, match="no machine 'asend'"):
        machine_name("asend")


def test_doctor_says_which_settings_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kind of machine may be from the settings of a repository that we do not stand in."""
    write_history(tmp_path / "repo")
    (tmp_path / "m.yaml").write_text(FILE.format(command="no-such-queue"))
    settings = tmp_path / "repo" / "perfbisect.yaml"
    monkeypatch.chdir(tmp_path)

    def told(*typed: str) -> str:
        run(["doctor", "--state", str(tmp_path), *typed])
        return capsys.readouterr().out

    assert f"no perfbisect.yaml: {tmp_path} is in no repository" in told()
    assert f"none: there is no {settings}" in told("--repo", "repo")
    settings.write_text(f"machine: {tmp_path / 'm.yaml'}\nenv: wheel:http://127.0.0.1:9/{{sha}}\n")
    found = told("--repo", "repo")
    assert "127.0.0.1:9/" not in found, "the indices of an environment are queried where it is typed"
    assert f"good     settings       {settings}, machine {tmp_path / 'm.yaml'}\n" in found
    assert "machine        here: no devices" in found


def test_a_job_goes_on_with_as_many_workers_as_it_has_measured_with() -> None:
    here = machine({}, Profile(name="cuda", devices="none"))
    whole, half = Slot(""), Slot("cores0-1", server_cores=(0,), client_cores=(1,))

    def measured(on: str) -> list[Launch]:
        made = Attempt("a", "c", "run", Provenance("d", on, "x"))
        return [Launch(1, "a", 0, Change("c"), "run", 1, "", "", "", "", outcome="measured", attempt=made)]

    all_of_it, half_of_it = (machine_of(slot, {}, load_profile("cpu")).kind for slot in (whole, half))
    require_same_machine("j", [], half_of_it)
    require_same_machine("j", measured(here.kind), all_of_it)
    require_same_machine("j", measured(f"{here.cpu} x 2 of {here.cores}"), half_of_it)
    with pytest.raises(UsageError, match=f"job j has measured on .*, this would be .* x 2 of {here.cores}: "):
        require_same_machine("j", measured(here.kind), half_of_it)


def test_stages_beyond_what_a_cell_reserves_are_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the machine has devices: an engine that is given none would take them for numbers of its own."""
    staged = CELL.model_copy(update={"family": "tts", "stage_overrides": {"1": {"devices": "1"}}})
    assert slots_here(staged, 1, "cpu") == (Slot(""),)
    with eight_devices(tmp_path, monkeypatch):
        with pytest.raises(UsageError, match=r"cell x: stage_overrides\.1\.devices: stage 1: devices '1'"):
            slots_here(staged, 1, "cuda")
        assert len(slots_here(staged.model_copy(update={"gpus": 2}), 1, "cuda")[0].devices) == 2


def test_leased_devices_are_taken_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = CELL.model_copy(update={"gpus": 1})
    with eight_devices(tmp_path, monkeypatch):
        (first,) = slots_here(cell, 1, "cuda")
        with lease(first, folder=tmp_path / "locks", holder=LeaseHolder("other")):
            (second,) = slots_here(cell, 1, "cuda")
    assert first.devices != second.devices


@contextmanager
def eight_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fake_smi.install(tmp_path, fake_smi.MACHINES / "eight")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PERFBISECT_LOCKS", str(tmp_path / "locks"))
    devices.gpus.cache_clear()
    try:
        yield
    finally:
        devices.gpus.cache_clear()
