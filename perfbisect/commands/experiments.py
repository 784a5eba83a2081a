"""The table of experiments, by their names in journals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from perfbisect.bisect.failure.job import FAILURE
from perfbisect.bisect.failure.result import FailureResult
from perfbisect.bisect.job import BISECT
from perfbisect.bisect.result import BisectResult
from perfbisect.commands.wings import load, wings
from perfbisect.engine.experiment import AnyExperiment
from perfbisect.errors import LocatedError, PerfbisectError
from perfbisect.experiments.check import CHECK, CheckResult
from perfbisect.experiments.compare import COMPARE, CompareResult
from perfbisect.experiments.run import RUN, ChangeResult
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.plans import plan_cell, plan_event, require_plan

EXPERIMENTS: Final[Mapping[str, AnyExperiment]] = {
    "run": RUN,
    "compare": COMPARE,
    "check": CHECK,
    "bisect": BISECT,
    "failure": FAILURE,
}
"""Those of the core."""

JOB_DOCUMENTS: Final = (
    BisectResult,
    FailureResult,
    ChangeResult,
    CompareResult,
    CheckResult,
)
"""What these report."""


def is_readable(job: Job) -> bool:
    """Whether this version can read the plan of a job."""
    try:
        events = job.events()
        plan_cell(require_plan(job, events, experiment_of(events).plan))
    except PerfbisectError:
        return False
    return True


def experiment_of(events: Sequence[JournalEvent]) -> AnyExperiment:
    """The experiment of a job."""
    event = plan_event(events)
    verb = event.data.get("verb")
    kind = EXPERIMENTS.get(str(verb))
    places = {name: place for wing in wings() for name, place in wing.experiments.items()}
    if kind is None and verb in places:
        found: AnyExperiment = load(places[verb])
        return found
    if kind is None:
        known = ", ".join((*EXPERIMENTS, *places))
        raise LocatedError(
            f"the job's plan cannot be read: no kind of job is called {verb!r}",
            file=event.file,
            line=event.seq + 1,
            next_step=f"use the version of perfbisect that began it; this one has {known}",
        )
    return kind
