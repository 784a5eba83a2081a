"""Suites of cells of the pretend engine; run as a module, one that can be killed: ``-m ... FOLDER UNTIL``."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from perfbisect.experiments.setup import MeasurementSetup, build_run_plan
from perfbisect.experiments.suite import CellOutcome, suite
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.plans import MeasurementConfig, resolve_metric
from perfbisect.measure.executor import PhaseLimits
from perfbisect.measure.local import LocalExecutor
from perfbisect.model.cell import Cell
from perfbisect.system.processes import stop_leftovers
from tests.jobs.world import Clock, Watch, World
from tests.measure.pretend import CHANGE, OneEnvironment, cell, environment

SETTING = MeasurementConfig(environment="existing:python", typed="perfbisect nightly nightly.yaml")
LIMITS = PhaseLimits(build=30.0, ready=30.0, first_request=20.0, bench=30.0, stop=2.0)


def cells(**middle: Any) -> list[Cell]:
    return [cell(name="a"), cell(name="b", **{"num_prompts": 2, **middle}), cell(name="c", num_prompts=3)]


def jobs_of(folder: Path, measured: list[Cell], launches: int = 2) -> list[Job]:
    """The jobs of these cells in a state folder: those that are there, or new ones."""
    jobs = Jobs(folder / "state")
    for one in measured if not jobs.all() else ():
        job = jobs.new(Clock()(), one.name)
        builder = OneEnvironment(environment(folder))
        setup = MeasurementSetup(one, resolve_metric(one, None), SETTING, builder)
        plan = build_run_plan(setup, change=CHANGE, launches=launches, runs=1)
        with Journal(job.journal, clock=Clock()) as journal:
            journal.append("plan", plan.model_dump(mode="json"))
    return list(jobs.all())


def go_on(
    folder: Path,
    jobs: list[Job],
    *,
    until: int = 2,
    watch: Watch | None = None,
    env: dict[str, str] | None = None,
) -> tuple[CellOutcome, ...]:
    """The suite until each job has so many launches; server starts are counted (:func:`starts`)."""
    made = environment(folder, PRETEND_STATE=str(folder), **(env or {}))
    known = {
        "executor": LocalExecutor(OneEnvironment(made)),
        "limits": LIMITS,
        "stop_leftovers": stop_leftovers,
    }
    with ExitStack() as stack:
        for job in jobs:
            stack.enter_context(job.held())
        return suite(jobs, (watch or Watch()).tools(World((), None), **known), until=until)


def starts(folder: Path) -> int:
    """How often a server was started."""
    return (folder / "launches").stat().st_size


if __name__ == "__main__":
    go_on(Path(sys.argv[1]), jobs_of(Path(sys.argv[1]), cells()), until=int(sys.argv[2]))
