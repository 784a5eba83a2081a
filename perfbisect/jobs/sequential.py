"""The launch loop of jobs that use one slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Protocol

from perfbisect.errors import PerfbisectError
from perfbisect.jobs.documents import launch_document
from perfbisect.jobs.events import LaunchEnded
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.replay import JournalReplay, LaunchRecord, retry_due
from perfbisect.jobs.retry import Failures
from perfbisect.jobs.runner import JobContext, LaunchRequest, launch_started
from perfbisect.jobs.workers import WorkerPool
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.metric import MetricRef


class LaunchPolicy(Protocol):
    """Decides the launches of a job, one at a time."""

    @property
    def advice(self) -> str:
        """The next step for the user if a change cannot be built or served."""
        ...

    def next(self, seen: Sequence[LaunchRecord]) -> LaunchRequest | str:
        """The next launch; or the reason for an early end, empty after a regular end."""
        ...

    def cell(self, order: LaunchRequest) -> Cell:
        """The cell to serve, with the variant of the side."""
        ...

    def name(self, order: LaunchRequest) -> str:
        """Names the side in error messages."""
        ...

    def admit(self, attempt: Attempt, seen: Sequence[LaunchRecord]) -> None:
        """Raise an error if an attempt is not comparable; the launch is then discarded."""
        ...

    def told(self, ended: LaunchRecord, seen: Sequence[LaunchRecord], order: LaunchRequest) -> LaunchEnded:
        """The event for a launch that has ended."""
        ...


def run_sequentially(
    job: Job, journal: Journal, tools: JobContext, crew: WorkerPool, course: LaunchPolicy
) -> str:
    """Launch until the policy ends; return the reason for an early end, empty after a regular one.

    A change that fails is launched once more, unless it could not be built.

    Raises:
        PerfbisectError: the policy rejected an attempt, which is discarded.
        BuildError, ServerError: a change cannot be built or served.
        ClientError, MachineError: they failed too often; the job can be resumed.
        Interrupted: Ctrl-C or a stop request.
    """
    slot, failures, ledger = tools.slots[0], Failures(job, tools), JournalReplay()
    while True:
        seen = ledger.read(journal.events)
        order = course.next(seen)
        if isinstance(order, str):
            return order
        purpose = order.purpose
        again = retry_due([x for x in seen if x.purpose == purpose], slot.name, (slot.name,))
        if again is not None:
            order = replace(order, why=f"{order.why}, once more: {again.reason}")
        tools.sink(launch_started(len(seen) + 1, order, 0, slot.name))
        crew.start(order, slot, course.cell(order))
        identity = crew.ended()
        seen = ledger.read(journal.events)
        ended = next(launch for launch in seen if launch.attempt_id == identity)
        if ended.attempt is not None and ended.attempt.failure is None:
            try:
                course.admit(ended.attempt, seen)
            except PerfbisectError as error:
                # A resumed job must not count it.
                journal.append("discarded", {"attempt": identity, "reason": error.message})
                raise
        tools.sink(course.told(ended, seen, order))
        if ended.refused and (not ended.built or again is not None):
            raise failures.broken(ended, course.name(order), course.advice)
        failures.after(ended)
        if failures.rest is not None:
            failures.wait()


def fits_budget(seen: Sequence[LaunchRecord], budget: float) -> bool:
    """True if another launch of median length fits into the budget in minutes."""
    each = [launch.minutes for launch in seen if launch.end == "finished"]
    return sum(launch.minutes for launch in seen) + (median(each) if each else 0.0) <= budget


def launch_ended(
    ended: LaunchRecord, seen: Sequence[LaunchRecord], order: LaunchRequest, metric: MetricRef, budget: float
) -> LaunchEnded:
    """The event for a launch of a job without a posterior."""
    document = launch_document(ended, order.change, metric)
    return LaunchEnded(document, metric.metric.unit, sum(x.minutes for x in seen), budget)
