"""What a fleet's executor makes of a pair: one bundle, both or none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from perfbisect.cells.loading import load_cell
from perfbisect.environments.base import Builder, Environment, Refusal
from perfbisect.errors import BuildError
from perfbisect.fleet.base import BundleState, Ticket, UnreachableError
from perfbisect.fleet.bundle import Bundle, BundleDocument, BundleLaunchDocument, MachineDocument
from perfbisect.fleet.executor import FleetExecutor
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.jobs.replay import LaunchRecord
from perfbisect.machine.slots import Slot
from perfbisect.measure.attempt import read_attempt, write_attempt
from perfbisect.measure.executor import AttemptRequest, PhaseLimits
from perfbisect.model.attempt import Attempt, Failure, Fault, Provenance, RunResult
from perfbisect.model.change import Change

CELL = load_cell(str(Path(__file__).parent.parent / "fakes" / "cells" / "pretend.yaml"))
A, B, C, BROKEN = (Change(letter * 40) for letter in "abcd")


@dataclass
class _Bundles:
    """A fleet of one machine that ends each bundle at once; ``lost``: launches of it that are not made."""

    name: str = "pretend"
    lost: int = 0
    fault: Fault | None = None
    """Whose failure ends the last launch of a bundle."""
    silent: bool = False
    ended: list[str] = field(default_factory=list)
    sent: list[Bundle] = field(default_factory=list)

    def machines(self) -> Sequence[MachineDocument]:
        return ()

    def place(self, machine: str, environments: Sequence[Environment]) -> None: ...

    def submit(self, ticket: Ticket, bundle: Bundle) -> None:
        del ticket
        self.sent.append(bundle)

    def state(self, ticket: Ticket) -> BundleState:
        assert ticket.token == self.sent[-1].token
        return BundleState("ended")

    def fetch(self, ticket: Ticket, into: Path) -> bool:
        bundle = next(bundle for bundle in self.sent if bundle.token == ticket.token)
        made, files = len(bundle.launches) - self.lost, {}
        for place, launch in enumerate(bundle.launches[:made], 1):
            folder = into / "attempts" / f"{place:03d}"
            folder.mkdir(parents=True)
            (folder / "server.log").write_text(launch.change.id)
            provenance = Provenance(bundle.digest, "H200", "client")
            runs = tuple(RunResult(k, k, {"tpot:median": 10.0}) for k in range(launch.runs))
            failure = Failure("bench", self.fault, "it failed") if self.fault and place == made else None
            attempt = Attempt(f"run-{place}", launch.change.id, launch.purpose, provenance, runs, failure)
            write_attempt(folder, attempt)
        for path in sorted(into.rglob("*")):
            if path.is_file():
                files[str(path.relative_to(into))] = hashlib.sha256(path.read_bytes()).hexdigest()
        document = BundleDocument(
            token=bundle.token,
            state="ended",
            machine="box",
            leased=("a", "b") if not self.lost else None,
            launches=tuple(
                BundleLaunchDocument(
                    change=launch.change.id,
                    outcome="measured" if place < made else "lost",
                    folder=f"attempts/{place + 1:03d}",
                )
                for place, launch in enumerate(bundle.launches)
            ),
            files=files,
        )
        (into / "manifest.json").write_text(document.text())
        return True

    def cancel(self, ticket: Ticket, grace: float) -> None:
        assert grace == 0.0  # nobody waits for its result
        self.ended.append(ticket.token)

    def find(self, token: str) -> Ticket | None:
        if self.silent:
            raise UnreachableError("box does not answer")
        return next((Ticket(token, "box") for bundle in self.sent if bundle.token == token), None)


class _Built(Builder):
    name = spec = "built"

    def refuses(self, change: Change) -> Refusal | None:
        del change
        return None

    def key(self, change: Change) -> str:
        return change.id[:8]

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        del log, timeout
        if change == BROKEN:
            raise BuildError("it does not compile")
        return Environment(self.key(change), Path("python"), Path(self.key(change)), {}, "", "", "", "")


@dataclass
class World:
    folder: Path
    fleet: _Bundles = field(default_factory=_Bundles)

    def __post_init__(self) -> None:
        self.executor = self.driver()

    def driver(self) -> FleetExecutor:
        setting = MeasurementConfig(environment="nothing:here", cache=str(self.folder))
        return FleetExecutor(self.fleet, _Built(), setting)

    def run(self, number: int, change: Change, mate: Change | None = None, **changed: Any) -> Attempt:
        folder = self.folder / "attempts" / f"{number:03d}"
        request = AttemptRequest(
            f"job-{number}", CELL, change, 1, "confirm", folder, PhaseLimits(), token=f"{number:032x}",
            slot=Slot("box", machine="box"), mate=mate,
        )  # fmt: skip
        return self.executor.run(replace(request, **changed), started=_started, sink=lambda *_: None)


def _started(*, token: str, pid: int, created: float, port: int) -> None: ...


def _open_launch(number: int, change: Change) -> LaunchRecord:
    """As a killed driver leaves it in the journal."""
    began, folder = "2026-01-01T00:00:00+00:00", f"attempts/{number:03d}"
    return LaunchRecord(
        number, f"job-{number}", 0, change.id, "confirm", 1, "", folder, f"{number:032x}", began, "box", "box"
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_both_launches_of_a_pair_are_one_bundle(world: World) -> None:
    first, second = world.run(1, A, B), world.run(2, B)
    (bundle,) = world.fleet.sent
    assert [launch.change for launch in bundle.launches] == [A, B]
    assert bundle.environments == {A.id: A.id[:8], B.id: B.id[:8]}
    assert [(one.id, one.change_id, one.failure) for one in (first, second)] == [
        ("job-1", A.id, None), ("job-2", B.id, None),
    ]  # fmt: skip
    for attempt in (first, second):
        assert read_attempt(Path(attempt.folder)) == attempt
        assert (Path(attempt.folder) / "server.log").read_text() == attempt.change_id


def test_another_launch_than_the_announced_one_is_a_bundle_of_its_own(world: World) -> None:
    world.run(1, A, B)
    assert world.run(2, C).change_id == C.id
    assert world.run(3, B).change_id == B.id  # the pair is over
    assert [len(bundle.launches) for bundle in world.fleet.sent] == [2, 1, 1]


@pytest.mark.parametrize("changed", [{"runs": 2}, {"purpose": "search"}])
def test_the_second_launch_must_be_as_it_was_announced(world: World, changed: dict[str, Any]) -> None:
    world.run(1, A, B)
    world.run(2, B, **changed)
    assert len(world.fleet.sent) == 2


def test_a_pair_of_which_one_is_lost_is_void(world: World) -> None:
    world.fleet.lost = 1
    attempt = world.run(1, A, B)
    assert attempt.failure is not None
    assert (attempt.failure.fault, attempt.runs) == ("machine", ())


def test_a_pair_of_which_one_is_disturbed_is_void(world: World) -> None:
    world.fleet.fault = "machine"
    attempt = world.run(1, A, B)
    assert attempt.failure is not None and attempt.failure.fault == "machine"
    world.fleet.fault = None
    assert world.run(2, A, B).failure is None
    assert world.run(3, B).failure is None


def test_a_failure_of_the_second_change_is_its_own(world: World) -> None:
    world.fleet.fault = "change"
    assert world.run(1, A, B).failure is None
    second = world.run(2, B)
    assert second.failure is not None and second.failure.fault == "change"
    assert len(world.fleet.sent) == 1


def test_a_mate_that_cannot_be_built_fails_by_itself(world: World) -> None:
    assert world.run(1, A, BROKEN).failure is None
    failed = world.run(2, BROKEN)
    assert failed.failure is not None
    assert (failed.failure.fault, failed.failure.phase) == ("change", "build")
    assert [len(bundle.launches) for bundle in world.fleet.sent] == [1]


def test_a_later_driver_finds_the_second_launch_with_the_first(world: World) -> None:
    world.run(1, A, B)
    folder = world.folder / "attempts" / "002"
    folder.mkdir()
    record = _open_launch(2, B)
    found = world.driver().reclaim(record, folder, lambda *_: None)
    assert found is not None
    assert (found.id, found.change_id) == ("job-2", B.id)
    assert len(world.fleet.sent) == 1
    other = replace(record, change_id=C.id)
    assert world.driver().reclaim(other, folder, lambda *_: None) is None
    assert json.loads((folder / "attempt.json").read_text())["attempt"]["id"] == "job-2"


def test_what_goes_on_on_a_silent_machine_is_ended_before_the_next_launch_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfbisect.fleet.executor.SUBMITTED_WITHIN_S", -1.0)
    world.fleet.silent = True
    folder = world.folder / "attempts" / "001"
    folder.mkdir(parents=True)
    launch = _open_launch(1, A)
    assert world.executor.reclaim(launch, folder, lambda *_: None) is None
    assert world.fleet.ended == []
    assert world.run(2, A).failure is None
    assert world.fleet.ended == [launch.token]
