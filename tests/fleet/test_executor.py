"""The executor over a pretend engine: what it repeats, what it ends, and whom it blames."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from perfbisect.cells.loading import load_cell
from perfbisect.environments.base import Environment
from perfbisect.errors import Interrupted, MachineError
from perfbisect.fleet import executor as executor_module
from perfbisect.fleet.base import BundleState, Ticket, UnreachableError
from perfbisect.fleet.bundle import Bundle, MachineDocument
from perfbisect.fleet.executor import FleetExecutor, end_bundles
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.jobs.replay import LaunchRecord
from perfbisect.machine.slots import Slot
from perfbisect.measure.executor import AttemptRequest, PhaseLimits
from perfbisect.model.attempt import Attempt, Failure
from perfbisect.model.change import Change
from tests.fleet.driver import CELL, Killer, OneEnvironment


@dataclass
class PretendFleet:
    """Implements :class:`perfbisect.fleet.base.Fleet`; ``silent``: how many of the next calls fail."""

    state_: BundleState = field(default_factory=lambda: BundleState("failed", why="the agent says why"))
    silent: int = 0
    calls: list[tuple[str, str]] = field(default_factory=list)
    name: str = "pretend"

    def _call(self, what: str, token: str) -> None:
        if self.silent:
            self.silent -= 1
            raise UnreachableError("no route to host")
        self.calls.append((what, token))

    def machines(self) -> Sequence[MachineDocument]:
        return ()

    def place(self, machine: str, environments: Sequence[Environment]) -> None:
        del machine, environments

    def submit(self, ticket: Ticket, bundle: Bundle) -> None:
        assert bundle.token == ticket.token
        self._call("submit", ticket.token)

    def state(self, ticket: Ticket) -> BundleState:
        self._call("state", ticket.token)
        return self.state_

    def fetch(self, ticket: Ticket, into: Path) -> bool:
        del into
        self._call("fetch", ticket.token)
        return False

    def cancel(self, ticket: Ticket, grace: float) -> None:
        del grace
        self._call("cancel", ticket.token)

    def find(self, token: str) -> Ticket | None:
        return Ticket(token, "fast")


@dataclass
class Launcher:
    fleet: PretendFleet
    executor: FleetExecutor
    folder: Path

    def launch(
        self, number: int, machine: str = "fast", sink: Callable[..., None] = lambda *_: None
    ) -> Attempt:
        request = AttemptRequest(
            f"job-{number}", load_cell(str(CELL)), Change("a" * 40), 1, "run", self.folder / str(number),
            PhaseLimits(), token=f"{number}" * 32, slot=Slot(machine, machine=machine),
        )  # fmt: skip
        return self.executor.run(request, started=lambda **_: None, sink=sink)

    def calls(self, number: int) -> list[str]:
        return [what for what, token in self.fleet.calls if token == f"{number}" * 32]


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    """``SUBMITTED_WITHIN_S`` and ``LOST_AFTER_S`` pass with each pause."""
    times = iter(range(0, 100_000, 300))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(times)))
    fleet = PretendFleet()
    builder = OneEnvironment(tmp_path / "cache" / "environment", Killer(""))
    executor = FleetExecutor(
        fleet, builder, MeasurementConfig(environment="existing:nowhere"), pause=lambda _: None
    )
    return Launcher(fleet, executor, tmp_path)


@pytest.mark.parametrize("kind", ["failed", "gone"])
def test_what_ended_without_a_result_is_ended_there_before_it_is_the_machines_fault(
    launcher: Launcher, kind: Literal["failed", "gone"]
) -> None:
    launcher.fleet.state_ = BundleState(kind, why="the agent says why")
    attempt = launcher.launch(1)
    assert attempt.failure is not None
    assert (attempt.failure.fault, attempt.failure.reason) == ("machine", "the agent says why")
    assert launcher.calls(1)[:4] == ["submit", "state", "cancel", "fetch"]


def test_a_short_silence_changes_nothing(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "SUBMITTED_WITHIN_S", 5000.0)
    launcher.fleet.silent = 3
    launcher.launch(1)
    assert launcher.calls(1)[:2] == ["submit", "state"]


def test_a_bundle_that_a_lost_machine_may_have_is_ended_before_the_next_there(launcher: Launcher) -> None:
    silent = 100
    launcher.fleet.silent = silent
    attempt = launcher.launch(1)
    assert attempt.failure is not None and attempt.failure.fault == "machine"
    assert launcher.fleet.silent < silent
    assert launcher.calls(1) == []
    launcher.fleet.silent = 0
    launcher.launch(2, "slow")
    assert launcher.calls(1) == []
    launcher.launch(3)
    assert launcher.fleet.calls.index(("cancel", "1" * 32)) < launcher.fleet.calls.index(("submit", "3" * 32))


def test_nothing_is_submitted_while_an_earlier_bundle_cannot_be_ended(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise MachineError("the agent cannot be ended")

    monkeypatch.setattr(launcher.fleet, "cancel", refuse)
    launcher.launch(1)
    attempt = launcher.launch(2)
    assert attempt.failure is not None and "cannot be ended" in attempt.failure.reason
    assert launcher.calls(2) == []


def test_a_bundle_that_cannot_be_ended_at_a_stop_is_ended_before_the_next_there(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise UnreachableError("no route to host")

    launcher.fleet.state_ = BundleState("running", "bench")
    with monkeypatch.context() as unreachable:
        unreachable.setattr(launcher.fleet, "cancel", silent)
        unreachable.setattr(launcher.executor, "stop_requested", lambda: bool(launcher.calls(1)))
        with pytest.raises(Interrupted):
            launcher.launch(1)
    assert launcher.calls(1) == ["submit", "state"]
    launcher.fleet.state_ = BundleState("failed", why="the agent says why")
    launcher.launch(2)
    assert launcher.fleet.calls.index(("cancel", "1" * 32)) < launcher.fleet.calls.index(("submit", "2" * 32))


def test_each_run_on_a_machine_is_told(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    first = BundleState("running", "bench", detail={"run": 1, "of": 2})
    second = BundleState("running", "bench", detail={"run": 2, "of": 2})
    states = iter([BundleState("waiting"), first, first, second, launcher.fleet.state_])
    monkeypatch.setattr(launcher.fleet, "state", lambda _: next(states))
    told: list[tuple[str, Mapping[str, object]]] = []
    launcher.launch(1, sink=lambda phase, detail: told.append((phase, detail)))
    assert [phase for phase, _ in told] == ["build", "bench", "bench"]
    assert [detail.get("run") for _, detail in told[1:]] == [1, 2]
    assert told[-1][1]["machine"] == "fast"


def test_what_an_earlier_process_gave_up_is_ended_before_the_next_launch_there(launcher: Launcher) -> None:
    launcher.executor.lost = {Ticket("8" * 32, "slow"), Ticket("9" * 32, "fast")}
    launcher.launch(1)
    assert launcher.calls(8) == []
    assert launcher.fleet.calls.index(("cancel", "9" * 32)) < launcher.fleet.calls.index(("submit", "1" * 32))
    launcher.launch(2)
    assert launcher.calls(9) == ["cancel"]


def test_a_job_that_is_stopped_while_it_builds_submits_nothing(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    builder = launcher.executor.builder
    build = builder.ensure

    def ensure(change: Change, *, log: Path, timeout: float) -> Environment:
        stopped.append(change.id)
        return build(change, log=log, timeout=timeout)

    monkeypatch.setattr(builder, "ensure", ensure)
    monkeypatch.setattr(launcher.executor, "stop_requested", lambda: bool(stopped))
    with pytest.raises(Interrupted):
        launcher.launch(1)
    assert launcher.fleet.calls == []


def record(number: int, **changed: Any) -> LaunchRecord:
    fields: dict[str, Any] = {"slot": "fast", "machine": "fast"} | changed
    began, token = "2026-01-01T00:00:00+00:00", f"{number}" * 32
    return LaunchRecord(
        number, f"job-{number}", 0, "a" * 40, "run", 1, "", "attempts", token, began, **fields
    )


def test_a_bundle_that_cannot_be_ended_keeps_no_other_alive(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = launcher.fleet
    ended: list[str] = []

    def cancel(ticket: Ticket, grace: float) -> None:
        del grace
        if ticket.token == "1" * 32:
            raise MachineError("no space left on fast")
        ended.append(ticket.token)

    fleet.state_ = BundleState("running", "bench")
    monkeypatch.setattr(fleet, "cancel", cancel)
    with pytest.raises(MachineError, match="no space left on fast"):
        end_bundles(fleet, ["1" * 32, "2" * 32], 1.0)
    assert ended == ["2" * 32]


def test_a_launch_may_go_on_unless_its_machine_said_how_it_ended(launcher: Launcher) -> None:
    lost = launcher.launch(1)
    refused = replace(lost, failure=Failure("launch", "change", "it does not start", ""))
    unbuilt = replace(lost, failure=Failure("build", "machine", "no room", ""))
    open_, abandoned, failed = record(1), record(2, end="abandoned"), record(3, end="failed", attempt=lost)
    assert [launch.is_unresolved for launch in (open_, abandoned, failed)] == [True] * 3
    resolved = (
        record(4, end="finished", attempt=replace(lost, failure=None)),
        record(5, end="failed", attempt=refused),
        record(6, end="failed", attempt=unbuilt),
        record(7, machine=""),
    )
    assert [launch.is_unresolved for launch in resolved] == [False] * 4
