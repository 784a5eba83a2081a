"""A stand-in for the machine: launches of a seeded, noisy history, with the faults that a test asks for."""

from __future__ import annotations

import math
import resource
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np

from perfbisect.bisect.job import BISECT
from perfbisect.bisect.result import BisectResult
from perfbisect.engine.experiment import run_experiment
from perfbisect.environments.base import Builder, Environment, Refusal
from perfbisect.jobs.events import JobEvent
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read
from perfbisect.jobs.runner import JobContext
from perfbisect.measure.attempt import write_attempt
from perfbisect.measure.executor import AttemptRequest, Sink, Started
from perfbisect.model.attempt import Attempt, Failure, Provenance, RunResult
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change, History

SECONDS = {"build": 6.0, "launch": 30.0, "first_request": 1.0, "warm": 9.0, "bench": 20.0, "stop": 2.0}


def cell(**changed: object) -> Cell:
    fields: dict[str, object] = {
        "name": "tiny",
        "family": "text",
        "model": "acme/tiny",
        "num_prompts": 10,
        "max_concurrency": 1,
        "guards": ("failed", "output_tokens"),
    }
    return Cell.model_validate(fields | changed)


def history(count: int) -> History:
    return History(
        tuple(
            Change(f"{i:02x}" * 20, "commit", f"Change {i}", f"2026-01-01T00:{i:02d}:00+00:00", "A. Author")
            for i in range(count)
        )
    )


class StubBuilder(Builder):
    """A builder that refuses nothing, has nothing cached and knows no prices."""

    name = "fake"
    spec = "fake:it"

    def refuses(self, _change: Change) -> Refusal | None:
        return None

    def key(self, change: Change) -> str:
        return change.id

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        raise NotImplementedError


@dataclass
class FakeBuilder(StubBuilder):
    """Every change has an environment of its own, but for those merged with their neighbour or refused."""

    merged: frozenset[str] = frozenset()
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    _last: str = ""

    def refuses(self, change: Change) -> Refusal | None:
        return self.refused.get(change.id)

    def key(self, change: Change) -> str:
        self._last = self._last if change.id in self.merged else change.id
        return self._last


Fault = Callable[[int, AttemptRequest], Failure | BaseException | None]


@dataclass
class World:
    """An executor whose launches take ``factor`` times as long from position ``slow`` on.

    ``fault(n, request)`` may fail the n-th launch (from 1) or raise out of it.
    """

    changes: tuple[Change, ...]
    slow: int | None
    factor: float = 1.5
    sigma: float = 0.01
    tau: float = 0.02
    seed: int = 0
    base: float = 14.0
    fault: Fault = lambda *_: None
    requests: list[AttemptRequest] = field(default_factory=list)
    machine_class: str = "toy"
    client_digest: str = "toy client"
    reported: tuple[str, ...] = ("tpot:median", "tpot:p99", "output_throughput", "failed", "output_tokens")
    tokens: Callable[[int], float] = lambda _: 32.0
    now: float = 0.0
    """Seconds of its clock: launches take as long as they say."""

    pace: Callable[[AttemptRequest], float] = lambda _: 1.0
    """A factor of one launch's values: of its slot, of the time."""
    hold: Callable[[AttemptRequest], None] = lambda _: None
    """Called within each launch, for as long as it is to take."""
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def run(self, request: AttemptRequest, *, started: Started, sink: Sink) -> Attempt:
        with self._turn:
            self.requests.append(request)
            n = len(self.requests)
        self.hold(request)
        position = next(i for i, c in enumerate(self.changes) if c.id == request.change.id)
        sink("build", {})
        failure = self.fault(n, request)
        if isinstance(failure, BaseException):
            raise failure
        if failure is None or failure.phase != "build":
            started(token=request.token, pid=1, created=1.0, port=8000)
        # The noise belongs to the attempt: a resumed bisection sees what an undisturbed one would have seen.
        number = int(request.id.rpartition("-")[2])
        runs = () if failure else self._runs(request, position, np.random.default_rng([self.seed, number]))
        attempt = Attempt(
            id=request.id,
            change_id=request.change.id,
            purpose=request.purpose,
            provenance=self.provenance(request),
            runs=runs,
            failure=failure,
            seconds={"build": 6.0} if failure and failure.phase == "build" else SECONDS,
            folder=str(request.folder),
            started_at="2026-01-01T00:00:00+00:00",
        )
        write_attempt(request.folder, attempt)
        with self._turn:
            self.now += sum(attempt.seconds.values())
        return attempt

    def provenance(self, request: AttemptRequest) -> Provenance:
        return Provenance(request.cell.digest, self.machine_class, self.client_digest, "1.0")

    def _runs(
        self, request: AttemptRequest, position: int, rng: np.random.Generator
    ) -> tuple[RunResult, ...]:
        level = math.log(self.base) + (
            math.log(self.factor) if self.slow is not None and position >= self.slow else 0.0
        )
        launch = level + rng.normal(0, self.tau) + math.log(self.pace(request))
        runs = []
        for k in range(request.runs):
            value = math.exp(launch + rng.normal(0, self.sigma))
            everything = {
                "tpot:median": value,
                "tpot:p99": value * 1.4,
                "output_throughput": 1000.0 / value,
                "failed": 0.0,
                "output_tokens": self.tokens(position),
            }
            values = {name: everything[name] for name in self.reported}
            runs.append(RunResult(k + 1, k + 1, values, {"tpot": 0.05}, (), 10.0))
        return tuple(runs)


@dataclass
class Clock:
    """A clock that goes on by a second whenever it is read."""

    now: datetime = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


@dataclass
class Watch:
    """What a job told, and what it waited."""

    notices: list[JobEvent] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    stopped: list[tuple[str, int, float]] = field(default_factory=list)

    def stop_leftovers(
        self, token: str, pid: int, created: float, *, log: Path | None = None, grace: float = 15.0
    ) -> tuple[object, ...]:
        del log, grace
        self.stopped.append((token, pid, created))
        return ()

    def tools(self, world: World, **changed: Any) -> JobContext:
        def wait(seconds: float) -> None:
            self.waits.append(seconds)
            world.now += seconds

        known: dict[str, Any] = {
            "executor": world,
            "clock": Clock(),
            "wait": wait,
            "sink": self.notices.append,
            "stop_leftovers": self.stop_leftovers,
            "backoff": (30.0, 120.0),
            "seconds": lambda: world.now,
        }
        return JobContext(**known | changed)


class PowerCut(BaseException):
    """The process ends here, as with kill -9: nothing of ours runs after it."""


def verdict(job: Job, watch: Watch, world: World, **tools: Any) -> BisectResult:
    with job.held():
        return run_experiment(BISECT, job, watch.tools(world, **tools))


def kinds(job: Job) -> list[str]:
    return [event.kind for event in read(job.journal).events]


def named(report: BisectResult) -> str | None:
    """The id of the one change that a bisection names."""
    return report.culprit.id if report.culprit else None


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """No file of this process may grow above so many bytes: what the kernel does on a full disk, in small."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
