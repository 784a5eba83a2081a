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
from perfbisect.commands.fleets import FleetJob
from perfbisect.environments.base import Builder, Environment, Refusal
from perfbisect.fleet import executor as executor_module
from perfbisect.fleet import folders as folders_module
from perfbisect.fleet.bundle import BundleState, Ticket
from perfbisect.fleet.executor import FleetExecutor
from perfbisect.fleet.folders import FolderFleet
from perfbisect.fleet.hosts import FleetHost
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.jobs.replay import Launch, LaunchRequest, launches
from perfbisect.jobs.runner import JobContext, recover_interrupted
from perfbisect.jobs.workers import WorkerPool
from perfbisect.machine.slots import Slot
from perfbisect.model.attempt import Attempt
from perfbisect.model.change import Change
from perfbisect.system.clock import now
from perfbisect.system.processes import stop_leftovers
from tests.fleet.sites import SITES

CELL = Path(__file__).parents[2] / "pretend" / "cells" / "pretend.yaml"

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

    def __init__(self, folder: Path) -> None:
        self._folder = folder

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
        return Environment(self._folder.name, Path(sys.executable), self._folder, {}, "1", "a" * 40, "", "")


class Killer:
    """Kills this process at a point, as a power cut would."""

    def __init__(self, point: str = "") -> None:
        self._point = point

    def reach(self, point: str) -> None:
        if point and point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, owner: Any, name: str, *, before: str = "", after: str = "") -> None:
        """Reach points whenever a function of a class or a module is called."""
        function = getattr(owner, name)

        def watched(*given: Any, **named: Any) -> Any:
            self.reach(before)
            answer = function(*given, **named)
            self.reach(after)
            return answer

        patch.object(owner, name, watched).start()

    def watch_all(self) -> None:
        """Reach the points inside the fleet and the executor."""
        self.watch(FleetExecutor, "run", before="started")
        self.watch(OneEnvironment, "ensure", after="building")
        self.watch(FolderFleet, "place", after="placed")
        self.watch(FolderFleet, "submit", before="before submit", after="submitted")
        self.watch(FleetHost, "put_request", after="half submitted")
        self.watch(executor_module, "write_attempt", before="before attempt.json")
        state, unpack = FolderFleet.state, folders_module._unpack

        def state_with_phase(fleet: FolderFleet, ticket: Ticket) -> BundleState:
            found = state(fleet, ticket)
            self.reach(found.kind if found.phase else "")
            return found

        def unpack_half(packed: bytes, into: Path, names: set[str]) -> None:
            unpack(packed, into, set(sorted(names)[::2]))
            self.reach("half fetched")
            unpack(packed, into, names)

        patch.object(FolderFleet, "state", state_with_phase).start()
        patch.object(folders_module, "_unpack", unpack_half).start()


def drive(
    fleet: FolderFleet, job: Job, changes: Sequence[str] = ONE, killer: Killer | None = None
) -> tuple[Launch, ...]:
    """Run or resume the job until its launch, or the two of a pair, have results; returns its launches."""
    cell, killer = load_cell(str(CELL)), killer or Killer()
    builder = OneEnvironment(job.path / "cache" / "environment")
    setting = MeasurementConfig(environment="existing:nowhere")
    remote = FleetJob(builder, setting, pause=lambda seconds: time.sleep(min(seconds, 0.1)))
    executor = FleetExecutor(fleet, remote)

    def reclaim(launch: Launch, folder: Path) -> Attempt | None:
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
    killer = Killer(point)
    killer.watch_all()
    Path(job).mkdir(parents=True)
    drive(SITES[site](Path(folder)).fleet(), Job(Path(job)), changes or ONE, killer)


if __name__ == "__main__":
    main(*sys.argv[1:])
