"""Real attempts in which every message of ours is replaced: fault, phase and code stay as they are."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.errors import PerfbisectError
from perfbisect.machine.interference import InterferenceLimits as MachineLimits
from perfbisect.measure.attempt import read_attempt
from perfbisect.measure.executor import PhaseLimits
from perfbisect.model.attempt import Attempt, Failure
from perfbisect.system import processes
from tests.measure.pretend import LIMITS, Watch, attempt, environment
from tests.system.stand_ins import listen

NONSENSE = "No space left on device; CUDA out of memory; ended by signal 9; unrecognized arguments"


@pytest.fixture(autouse=True)
def nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors keep their class, code, output and log; their message names causes that are none."""
    real = PerfbisectError.__init__

    def without_message(self: PerfbisectError, _message: str, **fields: object) -> None:
        real(self, NONSENSE, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(PerfbisectError, "__init__", without_message)


def failure(made: Attempt) -> Failure:
    assert made.failure is not None
    assert NONSENSE in made.failure.reason
    return made.failure


def kill(number: signal.Signals) -> Callable[[Watch], None]:
    return lambda watch: os.kill(watch.launched["pid"], number)


@pytest.mark.parametrize(
    "fault, phase, code",
    [
        ("import_error", "launch", "engine_import_failed"),
        ("exit1", "launch", "server_failed"),
        ("never_ready", "launch", "server_failed"),
        ("die_in_bench", "warm", "server_failed"),
        ("stall_in_bench", "warm", "server_hung"),
    ],
)
def test_failure_of_the_server(tmp_path: Path, fault: str, phase: str, code: str) -> None:
    server = environment(tmp_path, "server", PRETEND_FAULT=fault)
    limits = PhaseLimits(
        build=30.0,
        ready=1.5 if fault == "never_ready" else 30.0,
        first_request=20.0,
        bench=2.0 if fault == "stall_in_bench" else 30.0,
        stop=1.0,
    )
    found = failure(attempt(tmp_path, server, environment(tmp_path, "client"), limits=limits))
    assert (found.phase, found.fault, found.code) == (phase, "change", code)


@pytest.mark.parametrize(
    "fault, code", [("hang", "client_hung"), ("client_exit1", "client_failed"), ("no_file", "client_failed")]
)
def test_failure_of_the_client(tmp_path: Path, fault: str, code: str) -> None:
    client = environment(tmp_path, "client", PRETEND_FAULT=fault)
    limits = PhaseLimits(bench=1.5, stop=1.0) if fault == "hang" else LIMITS
    found = failure(attempt(tmp_path, environment(tmp_path, "server"), client, limits=limits))
    assert (found.phase, found.fault, found.code) == ("warm", "client", code)


@pytest.mark.parametrize(
    "number, fault, code",
    [
        (signal.SIGKILL, "machine", "killed"),
        (signal.SIGTERM, "machine", "killed"),
        (signal.SIGSEGV, "change", "crashed"),
    ],
)
def test_server_that_ends_by_a_signal(tmp_path: Path, number: signal.Signals, fault: str, code: str) -> None:
    found = failure(attempt(tmp_path, watch=Watch(at={"launch": kill(number)})))
    assert (found.phase, found.fault, found.code) == ("launch", fault, code)


def test_port_that_comes_to_be_shared(tmp_path: Path) -> None:
    stale: list[processes.OwnedProcess] = []

    def share(watch: Watch) -> None:
        stale.append(listen(tmp_path, watch.launched["port"], name="stale"))

    watch = Watch(at={"bench": share, "stop": lambda _: processes.stop(stale[0], 0.0)})
    made = attempt(tmp_path, watch=watch, runs=2)
    found = failure(made)
    assert (found.phase, found.fault, found.code) == ("bench", "machine", "port_taken")
    assert made.runs == ()


def test_run_over_a_limit(tmp_path: Path) -> None:
    """The code is in the attempt's file, as in the journal."""
    limits = MachineLimits(foreign_cpu=None, steal=None, available=1.0, memory_pressure=None)
    found = failure(attempt(tmp_path, limits_of_machine=limits))
    assert (found.fault, found.code) == ("machine", "load_exceeded")
    kept = read_attempt(tmp_path / "attempt")
    assert kept is not None and kept.failure == found
