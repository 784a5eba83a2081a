"""A job of one launch on a site's machine "fast", whose process can be killed at a named point.

``python -m tests.fleet.driver SITE FOLDER JOB POINT [CHANGE ...]``. :func:`drive` resumes it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from perfbisect.cells.loading import load_cell
from perfbisect.environments.base import Builder, Environment, Refusal
from perfbisect.fleet import executor as executor_module
from perfbisect.fleet import folders as folders_module
from perfbisect.fleet.base import BundleState, Fleet, Ticket
from perfbisect.fleet.bundle import Bundle
from perfbisect.fleet.executor import FleetExecutor
from perfbisect.fleet.hosts import FleetHost
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.jobs.replay import LaunchRecord, launches
from perfbisect.jobs.runner import JobContext, LaunchRequest, recover_interrupted
from perfbisect.jobs.workers import WorkerPool
from perfbisect.machine.slots import Slot
from perfbisect.measure.attempt import write_attempt
from perfbisect.model.attempt import Attempt
from perfbisect.model.change import Change
from perfbisect.system.clock import now
from perfbisect.system.processes import stop_leftovers
from tests.fleet.sites import SITES

CELL = Path(__file__).parent.parent / "fakes" / "cells" / "pretend.yaml"

ONE = ("a" * 40,)
PAIR = ("a" * 40, "b" * 40)
"""Changes of a job's launches."""

NOT_SUBMITTED = ("before the start", "started", "building", "placed", "before submit", "half submitted")
SUBMITTED = ("submitted", "running", "ended", "half fetched", "before attempt.json")
POINTS = (*NOT_SUBMITTED, *SUBMITTED)
"""Where the process can be killed, in their order. The agent has been started at those of SUBMITTED."""


PAIR_POINTS = ("running", "half fetched", "before attempt.json", "between the two")


class OneEnvironment(Builder):
    """Builds nothing: a folder with one file."""

    name = spec = "one"

    def __init__(self, folder: Path, killer: Killer) -> None:
        self._folder, self._killer = folder, killer

    def refuses(self, change: Change) -> Refusal | None:
        del change
        return None

    def key(self, change: Change) -> str:
        del change
        return self._folder.name

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        del change, log, timeout
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "file").write_text("of the environment")
        self._killer.reach("building")
        return Environment(self._folder.name, Path(sys.executable), self._folder, {}, "1", "a" * 40, "", "")


class Killer:
    """Kills this process at a point, as a power cut would."""

    def __init__(self, point: str) -> None:
        self._point = point

    def reach(self, point: str) -> None:
        if point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)


class WatchedFleet:
    """Implements :class:`perfbisect.fleet.base.Fleet` by another, and reaches points."""

    def __init__(self, fleet: Fleet, killer: Killer) -> None:
        self._fleet, self._killer = fleet, killer

    def place(self, machine: str, environments: Sequence[Environment]) -> None:
        self._fleet.place(machine, environments)
        self._killer.reach("placed")

    def submit(self, ticket: Ticket, bundle: Bundle) -> None:
        self._killer.reach("before submit")
        self._fleet.submit(ticket, bundle)
        self._killer.reach("submitted")

    def state(self, ticket: Ticket) -> BundleState:
        state = self._fleet.state(ticket)
        if state.phase:
            self._killer.reach(state.kind)
        return state

    def fetch(self, ticket: Ticket, into: Path) -> bool:
        return self._fleet.fetch(ticket, into)

    def cancel(self, ticket: Ticket, grace: float) -> None:
        self._fleet.cancel(ticket, grace)

    def find(self, token: str) -> Ticket | None:
        return self._fleet.find(token)


class WatchedExecutor(FleetExecutor):
    """Reaches a point as soon as a launch is in the journal."""

    killer: Killer

    def run(self, request: Any, **calls: Any) -> Attempt:
        self.killer.reach("started")
        return super().run(request, **calls)


def _watch_modules(killer: Killer) -> None:
    """Reach the points inside the fleet and the executor."""
    put_request, unpack = FleetHost.put_request, folders_module._unpack

    def put_and_reach(*given: Any) -> None:
        put_request(*given)
        killer.reach("half submitted")

    def unpack_half(packed: bytes, into: Path, names: set[str]) -> None:
        unpack(packed, into, set(sorted(names)[::2]))
        killer.reach("half fetched")
        unpack(packed, into, names)

    def write_result(folder: Path, attempt: Attempt) -> Path:
        killer.reach("before attempt.json")
        return write_attempt(folder, attempt)

    patch.object(FleetHost, "put_request", put_and_reach).start()
    patch.object(folders_module, "_unpack", unpack_half).start()
    patch.object(executor_module, "write_attempt", write_result).start()


def drive(fleet: Fleet, job: Job, killer: Killer, changes: Sequence[str] = ONE) -> tuple[LaunchRecord, ...]:
    """Run or resume the job until its launch, or the two of a pair, have results; returns its launches."""
    cell = load_cell(str(CELL))
    builder = OneEnvironment(job.path / "cache" / "environment", killer)
    setting = MeasurementConfig(environment="existing:nowhere")
    executor = WatchedExecutor(
        WatchedFleet(fleet, killer), builder, setting, pause=lambda seconds: time.sleep(min(seconds, 0.1))
    )
    executor.killer = killer

    def reclaim(launch: LaunchRecord, folder: Path) -> Attempt | None:
        return executor.reclaim(launch, folder, lambda *_: None)

    tools = JobContext(
        executor=executor,
        clock=now,
        wait=time.sleep,
        sink=lambda _: None,
        stop_leftovers=stop_leftovers,
        slots=(Slot("fast", machine="fast"),),
    )
    with job.held(), Journal(job.journal, clock=now) as journal:
        recover_interrupted(job, journal, lambda _: None, stop_leftovers, reclaim)
        killer.reach("before the start")
        with WorkerPool(job, journal, tools, cell) as pool:
            while (made := sum(event.kind == "finished" for event in journal.events)) < len(changes):
                mate = Change(changes[1]) if made == 0 and len(changes) > 1 else None
                change = Change(changes[made])
                pool.start(LaunchRequest(made, change, "run", 1, "a launch", mate=mate), tools.slots[0])
                pool.ended()
                assert journal.events[-1].kind == "finished", journal.events[-1]
                killer.reach("between the two")
        return launches(journal.events)


def main(site: str, folder: str, job: str, point: str, *changes: str) -> None:
    fleet, killer = SITES[site](Path(folder)).fleet(), Killer(point)
    _watch_modules(killer)
    Path(job).mkdir(parents=True)
    drive(fleet, Job(Path(job)), killer, changes or ONE)


if __name__ == "__main__":
    main(*sys.argv[1:])
