"""The executor over a pretend fleet: what it repeats, ends and blames, and that a pair is both or none."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from perfbisect.cells.loading import load_cell
from perfbisect.commands.fleets import FleetJob
from perfbisect.environments.base import Builder, Environment, Refusal
from perfbisect.errors import BuildError, Interrupted, MachineError
from perfbisect.fleet import executor as executor_module
from perfbisect.fleet.bundle import (
    Bundle,
    BundleDocument,
    BundleLaunchDocument,
    BundleState,
    Ticket,
    UnreachableError,
)
from perfbisect.fleet.executor import FleetExecutor, end_bundles
from perfbisect.fleet.folders import FolderFleet
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.jobs.replay import Launch
from perfbisect.machine.slots import Slot
from perfbisect.measure.attempt import read_attempt, write_attempt
from perfbisect.measure.executor import AttemptRequest, PhaseLimits
from perfbisect.model.attempt import Attempt, Failure, Fault, Provenance, RunResult
from perfbisect.model.change import Change
from tests.fleet.driver import CELL as CELL_FILE

CELL = load_cell(str(CELL_FILE))
A, B, C, BROKEN = (Change(letter * 40) for letter in "abcd")
FAILED = BundleState("failed", why="the agent says why")


def token(number: int) -> str:
    return f"{number:032x}"


@dataclass
class PretendFleet(FolderFleet):
    """A fleet whose bundles end at once.

    ``silent``: how many of the next calls fail; ``lost``: launches of a bundle that are not made; ``fault``:
    whose failure ends the last launch of a bundle.
    """

    state_: BundleState = field(default_factory=lambda: BundleState("ended"))
    silent: int = 0
    lost: int = 0
    fault: Fault | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    sent: list[Bundle] = field(default_factory=list)

    def _call(self, what: str, token: str) -> None:
        if self.silent:
            self.silent -= 1
            raise UnreachableError("no route to host")
        self.calls.append((what, token))

    def place(self, machine: str, environments: Sequence[Environment]) -> None: ...

    def submit(self, ticket: Ticket, bundle: Bundle) -> None:
        assert bundle.token == ticket.token
        self._call("submit", ticket.token)
        self.sent.append(bundle)

    def state(self, ticket: Ticket) -> BundleState:
        self._call("state", ticket.token)
        return self.state_

    def fetch(self, ticket: Ticket, into: Path) -> bool:
        self._call("fetch", ticket.token)
        if self.state_.kind != "ended":
            return False
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
        del grace
        self._call("cancel", ticket.token)

    def find(self, token: str) -> Ticket | None:
        self._call("find", token)
        return next((Ticket(token, "fast") for bundle in self.sent if bundle.token == token), None)


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
    """``fleet`` has two machines, "fast" and "slow"; ``executor`` belongs to a job in ``folder``."""

    folder: Path
    fleet: PretendFleet = field(default_factory=PretendFleet)

    def __post_init__(self) -> None:
        self.executor = self.driver()

    def driver(self) -> FleetExecutor:
        setting = MeasurementConfig(environment="nothing:here", cache=str(self.folder))
        return FleetExecutor(self.fleet, FleetJob(_Built(), setting, pause=lambda _: None))

    def attempt_folder(self, number: int) -> Path:
        folder = self.folder / "attempts" / f"{number:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def launch(
        self,
        number: int,
        change: Change = A,
        mate: Change | None = None,
        machine: str = "fast",
        sink: Callable[..., None] = lambda *_: None,
        **changed: Any,
    ) -> Attempt:
        request = AttemptRequest(
            f"job-{number}", CELL, change, 1, "confirm", self.attempt_folder(number), PhaseLimits(),
            token=token(number), slot=Slot(machine, machine=machine), mate=mate,
        )  # fmt: skip
        return self.executor.run(replace(request, **changed), started=lambda **_: None, sink=sink)

    def calls(self, number: int) -> list[str]:
        return [what for what, called in self.fleet.calls if called == token(number)]

    def is_ended_before(self, first: int, second: int) -> bool:
        """Whether a bundle is ended before another is submitted."""
        calls = self.fleet.calls
        return calls.index(("cancel", token(first))) < calls.index(("submit", token(second)))


def record(number: int, change: Change = A, **changed: Any) -> Launch:
    """A launch in the journal, by default as a killed driver leaves it."""
    began, folder = "2026-01-01T00:00:00+00:00", f"attempts/{number:03d}"
    fields: dict[str, Any] = {"token": token(number), "slot": "fast", "machine": "fast"} | changed
    return Launch(number, f"job-{number}", 0, change, "confirm", 1, "", folder, began, **fields)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """``SUBMITTED_WITHIN_S`` and ``LOST_AFTER_S`` pass with each pause."""
    times = iter(range(300, 1_000_000, 300))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(times)))
    return World(tmp_path)


@pytest.mark.parametrize("kind", ["failed", "gone"])
def test_what_ended_without_a_result_is_ended_there_before_it_is_the_machines_fault(
    world: World, kind: Literal["failed", "gone"]
) -> None:
    world.fleet.state_ = BundleState(kind, why="the agent says why")
    attempt = world.launch(1)
    assert attempt.failure is not None
    assert (attempt.failure.fault, attempt.failure.reason) == ("machine", "the agent says why")
    assert world.calls(1)[:4] == ["submit", "state", "cancel", "fetch"]


def test_a_short_silence_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "SUBMITTED_WITHIN_S", 5000.0)
    world.fleet.silent = 3
    world.launch(1)
    assert world.calls(1)[:2] == ["submit", "state"]


def test_a_bundle_that_a_lost_machine_may_have_is_ended_before_the_next_there(world: World) -> None:
    silent = 100
    world.fleet.silent = silent
    attempt = world.launch(1)
    assert attempt.failure is not None and attempt.failure.fault == "machine"
    assert world.fleet.silent < silent
    assert world.calls(1) == []
    world.fleet.silent = 0
    world.launch(2, machine="slow")
    assert world.calls(1) == []
    world.launch(3)
    assert world.is_ended_before(1, 3)


def test_nothing_is_submitted_while_an_earlier_bundle_cannot_be_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise MachineError("the agent cannot be ended")

    monkeypatch.setattr(world.fleet, "cancel", refuse)
    world.fleet.state_ = FAILED
    world.launch(1)
    attempt = world.launch(2)
    assert attempt.failure is not None and "cannot be ended" in attempt.failure.reason
    assert world.calls(2) == []


def test_a_bundle_that_cannot_be_ended_at_a_stop_is_ended_before_the_next_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise UnreachableError("no route to host")

    world.fleet.state_ = BundleState("running", "bench")
    with monkeypatch.context() as unreachable:
        unreachable.setattr(world.fleet, "cancel", silent)
        stopped = replace(world.executor.job, stop_requested=lambda: bool(world.calls(1)))
        unreachable.setattr(world.executor, "job", stopped)
        with pytest.raises(Interrupted):
            world.launch(1)
    assert world.calls(1) == ["submit", "state"]
    world.fleet.state_ = FAILED
    world.launch(2)
    assert world.is_ended_before(1, 2)


def test_each_run_on_a_machine_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = BundleState("running", "bench", detail={"run": 1, "of": 2})
    second = BundleState("running", "bench", detail={"run": 2, "of": 2})
    states = iter([BundleState("waiting"), first, first, second, world.fleet.state_])
    monkeypatch.setattr(world.fleet, "state", lambda _: next(states))
    told: list[tuple[str, Mapping[str, object]]] = []
    world.launch(1, sink=lambda phase, detail: told.append((phase, detail)))
    assert [phase for phase, _ in told] == ["build", "bench", "bench"]
    assert [detail.get("run") for _, detail in told[1:]] == [1, 2]
    assert told[-1][1]["machine"] == "fast"


def test_what_an_earlier_process_gave_up_is_ended_before_the_next_launch_there(world: World) -> None:
    world.executor.lost = {Ticket(token(8), "slow"), Ticket(token(9), "fast")}
    world.launch(1)
    assert world.calls(8) == []
    assert world.is_ended_before(9, 1)
    world.launch(2)
    assert world.calls(9) == ["cancel"]


def test_a_job_that_is_stopped_while_it_builds_submits_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    builder = world.executor.job.builder
    build = builder.ensure

    def ensure(change: Change, *, log: Path, timeout: float) -> Environment:
        stopped.append(change.id)
        return build(change, log=log, timeout=timeout)

    monkeypatch.setattr(builder, "ensure", ensure)
    world.executor.job = replace(world.executor.job, stop_requested=lambda: bool(stopped))
    with pytest.raises(Interrupted):
        world.launch(1)
    assert world.fleet.calls == []


def test_a_bundle_that_cannot_be_ended_keeps_no_other_alive(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = world.fleet
    ended: list[str] = []

    def cancel(ticket: Ticket, grace: float) -> None:
        del grace
        if ticket.token == token(1):
            raise MachineError("no space left on fast")
        ended.append(ticket.token)

    fleet.state_ = BundleState("running", "bench")
    monkeypatch.setattr(fleet, "cancel", cancel)
    monkeypatch.setattr(fleet, "find", lambda token: Ticket(token, "fast"))
    with pytest.raises(MachineError, match="no space left on fast"):
        end_bundles(fleet, [token(1), token(2)], 1.0)
    assert ended == [token(2)]


def test_a_launch_may_go_on_unless_its_machine_said_how_it_ended(world: World) -> None:
    world.fleet.state_ = FAILED
    lost = world.launch(1)
    refused = replace(lost, failure=Failure("launch", "change", "it does not start", ""))
    unbuilt = replace(lost, failure=Failure("build", "machine", "no room", ""))
    open_, abandoned, failed = (
        record(1),
        record(2, outcome="abandoned"),
        record(3, outcome="failed", attempt=lost),
    )
    assert [launch.is_unresolved for launch in (open_, abandoned, failed)] == [True] * 3
    resolved = (
        record(4, outcome="measured", attempt=replace(lost, failure=None)),
        record(5, outcome="failed", attempt=refused),
        record(6, outcome="failed", attempt=unbuilt),
        record(7, machine=""),
    )
    assert [launch.is_unresolved for launch in resolved] == [False] * 4


def test_both_launches_of_a_pair_are_one_bundle(world: World) -> None:
    first, second = world.launch(1, A, B), world.launch(2, B)
    (bundle,) = world.fleet.sent
    assert [launch.change for launch in bundle.launches] == [A, B]
    assert bundle.environments == {A.id: A.id[:8], B.id: B.id[:8]}
    assert [(one.id, one.change_id, one.failure) for one in (first, second)] == [
        ("job-1", A.id, None), ("job-2", B.id, None),
    ]  # fmt: skip
    for attempt in (first, second):
        assert read_attempt(Path(attempt.folder)) == attempt
        assert (Path(attempt.folder) / "server.log").read_text() == attempt.change_id


@pytest.mark.parametrize(("slot", "there"), [("fast/GPU0", "GPU0"), ("fast", "")])
def test_a_machine_is_sent_the_slot_by_its_name_there(world: World, slot: str, there: str) -> None:
    world.launch(1, slot=Slot(slot, devices=("GPU-a",), machine="fast"))
    assert world.fleet.sent[0].slot == Slot(there, devices=("GPU-a",))


def test_another_launch_than_the_announced_one_is_a_bundle_of_its_own(world: World) -> None:
    world.launch(1, A, B)
    assert world.launch(2, C).change_id == C.id
    assert world.launch(3, B).change_id == B.id  # the pair is over
    assert [len(bundle.launches) for bundle in world.fleet.sent] == [2, 1, 1]


@pytest.mark.parametrize("changed", [{"runs": 2}, {"purpose": "search"}])
def test_the_second_launch_must_be_as_it_was_announced(world: World, changed: dict[str, Any]) -> None:
    world.launch(1, A, B)
    world.launch(2, B, **changed)
    assert len(world.fleet.sent) == 2


def test_a_pair_of_which_one_is_lost_is_void(world: World) -> None:
    world.fleet.lost = 1
    attempt = world.launch(1, A, B)
    assert attempt.failure is not None
    assert (attempt.failure.fault, attempt.runs) == ("machine", ())


def test_a_pair_of_which_one_is_disturbed_is_void(world: World) -> None:
    world.fleet.fault = "machine"
    attempt = world.launch(1, A, B)
    assert attempt.failure is not None and attempt.failure.fault == "machine"
    world.fleet.fault = None
    assert world.launch(2, A, B).failure is None
    assert world.launch(3, B).failure is None


def test_a_failure_of_the_second_change_is_its_own(world: World) -> None:
    world.fleet.fault = "change"
    assert world.launch(1, A, B).failure is None
    second = world.launch(2, B)
    assert second.failure is not None and second.failure.fault == "change"
    assert len(world.fleet.sent) == 1


def test_a_mate_that_cannot_be_built_fails_by_itself(world: World) -> None:
    assert world.launch(1, A, BROKEN).failure is None
    failed = world.launch(2, BROKEN)
    assert failed.failure is not None
    assert (failed.failure.fault, failed.failure.phase) == ("change", "build")
    assert [len(bundle.launches) for bundle in world.fleet.sent] == [1]


def test_a_later_driver_finds_the_second_launch_with_the_first(world: World) -> None:
    world.launch(1, A, B)
    folder, launch = world.attempt_folder(2), record(2, B)
    found = world.driver().reclaim(launch, folder, lambda *_: None)
    assert found is not None
    assert (found.id, found.change_id) == ("job-2", B.id)
    assert len(world.fleet.sent) == 1
    other = replace(launch, change=C)
    assert world.driver().reclaim(other, folder, lambda *_: None) is None
    assert json.loads((folder / "attempt.json").read_text())["attempt"]["id"] == "job-2"


def test_what_goes_on_on_a_silent_machine_is_ended_before_the_next_launch_there(world: World) -> None:
    world.fleet.silent = 1
    assert world.executor.reclaim(record(1), world.attempt_folder(1), lambda *_: None) is None
    assert world.calls(1) == []
    assert world.launch(2).failure is None
    assert world.is_ended_before(1, 2)
