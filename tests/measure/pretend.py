"""Attempts with the pretend engine: environments by hand, a cell, and a look at what is left afterwards."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfbisect.environments.base import Environment
from perfbisect.machine.interference import UNJUDGED
from perfbisect.machine.interference import InterferenceLimits as MachineLimits
from perfbisect.machine.slots import Slot
from perfbisect.measure.executor import AttemptRequest, PhaseLimits
from perfbisect.measure.local import LocalExecutor
from perfbisect.model.attempt import Attempt, Failure, Purpose
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.system import ports, processes
from tests.jobs.world import StubBuilder

ENGINE = Path(__file__).parents[2] / "pretend" / "engine"
CHANGE = Change("c0ffee" + "0" * 34)
LIMITS = PhaseLimits(build=30.0, ready=30.0, first_request=20.0, bench=30.0, stop=2.0)


def environment(
    folder: Path, key: str = "engine", interpreter: Path | None = None, **env: str
) -> Environment:
    """An interpreter that imports the pretend engine."""
    (folder / key / "caches").mkdir(parents=True, exist_ok=True)
    return Environment(
        key=key,
        interpreter=interpreter or Path(sys.executable),
        folder=folder / key,
        env={"PYTHONPATH": str(ENGINE), "PRETEND_SEED": "7", **env},
        engine_version="0.0.1",
        engine_commit=CHANGE.id,
        engine_file=str(ENGINE / "vllm" / "__init__.py"),
        packages_digest="none",
    )


@dataclass
class OneEnvironment(StubBuilder):
    """A builder whose changes all run in one environment, or fail in one way."""

    made: Environment | BaseException

    def key(self, _change: Change) -> str:
        return "engine"

    def cached(self, _change: Change) -> bool:
        return True

    def ensure(self, _change: Change, *, log: Path, timeout: float) -> Environment:
        assert log.parent.is_dir() and timeout > 0
        if isinstance(self.made, BaseException):
            raise self.made
        return self.made


def cell(**fields: Any) -> Cell:
    workload: dict[str, Any] = {
        "name": "pretend",
        "family": "text",
        "model": "/no/such/model",
        "num_prompts": 4,
        "max_concurrency": 2,
        "dataset_args": {"random-input-len": 8, "random-output-len": 6},
        "ignore_eos": True,
        "seed": 40,
    }
    return Cell(**{**workload, **fields})


@dataclass
class Watch:
    """Told what happens; ``at`` calls something when a phase is told."""

    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    launched: dict[str, Any] = field(default_factory=dict)
    at: Mapping[str, Any] = field(default_factory=dict)

    def started(self, *, token: str, pid: int, created: float, port: int) -> None:
        row = processes.process(pid)
        assert row is None or row.created == created  # None: it has ended already
        self.launched.update(token=token, pid=pid, created=created, port=port)

    def sink(self, phase: str, detail: Mapping[str, object]) -> None:
        self.events.append((phase, dict(detail)))
        if phase in self.at:
            self.at[phase](self)

    @property
    def phases(self) -> list[str]:
        return [phase for phase, _ in self.events]

    def left(self) -> list[str]:
        """What still lives or listens of the attempt."""
        if not self.launched:
            return []
        found = processes.tree(self.launched["token"], self.launched["pid"], self.launched["created"])
        return [*map(str, found), *map(str, ports.listeners(self.launched["port"]))]


def attempt(
    folder: Path,
    server: Environment | BaseException | None = None,
    client: Environment | None = None,
    *,
    watch: Watch | None = None,
    runs: int = 1,
    limits: PhaseLimits = LIMITS,
    workload: Cell | None = None,
    token: str = "",
    slot: Slot | None = None,
    purpose: Purpose = "search",
    limits_of_machine: MachineLimits = UNJUDGED,
    **options: Any,
) -> Attempt:
    """One attempt; nothing of it lives afterwards, or the test has failed."""
    watch = watch or Watch()
    options["limits"] = limits_of_machine
    executor = LocalExecutor(OneEnvironment(server or environment(folder)), client, **options)
    request = AttemptRequest(
        "a-1", workload or cell(), CHANGE, runs, purpose, folder / "attempt", limits, token, slot
    )
    try:
        return executor.run(request, started=watch.started, sink=watch.sink)
    finally:
        assert watch.left() == []


def failure(made: Attempt) -> Failure:
    assert made.failure is not None
    return made.failure
