"""Real attempts in which every message of ours is replaced: fault, phase and code stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.errors import PerfbisectError
from perfbisect.machine.interference import InterferenceLimits as MachineLimits
from perfbisect.measure.attempt import read_attempt
from perfbisect.measure.executor import PhaseLimits
from perfbisect.model.attempt import Attempt, Failure
from perfbisect.system import processes
from tests.measure.pretend import Watch, attempt, environment
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


@pytest.mark.parametrize(
    "side, fault, expected",
    [
        ("server", "import_error", ("launch", "change", "engine_import_failed")),
        ("server", "never_ready", ("launch", "change", "server_failed")),
        ("server", "die_in_bench", ("warm", "change", "server_failed")),
        ("server", "stall_in_bench", ("warm", "change", "server_hung")),
        ("server", "mute_in_bench", ("bench", "change", "no_output")),
        ("client", "hang", ("warm", "client", "client_hung")),
        ("client", "no_file", ("warm", "client", "client_failed")),
    ],
)
def test_failure_of_a_side(tmp_path: Path, side: str, fault: str, expected: tuple[str, str, str]) -> None:
    made = {name: environment(tmp_path, name) for name in ("server", "client")}
    made[side] = environment(tmp_path, side, PRETEND_FAULT=fault)
    limits = PhaseLimits(
        build=30.0,
        ready=1.5 if fault == "never_ready" else 30.0,
        first_request=20.0,
        bench=2.0 if fault in ("stall_in_bench", "hang") else 30.0,
        stop=1.0,
    )
    found = failure(attempt(tmp_path, made["server"], made["client"], limits=limits))
    assert (found.phase, found.fault, found.code) == expected


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
