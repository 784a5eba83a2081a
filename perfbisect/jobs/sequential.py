"""Launch after launch on one slot: the loop of every job that is not a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Protocol

from perfbisect.errors import PerfbisectError
from perfbisect.jobs.documents import launch_document
from perfbisect.jobs.events import Launched
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.replay import Launch, Ledger, owed
from perfbisect.jobs.retry import Failures
from perfbisect.jobs.runner import Order, Tools, launching
from perfbisect.jobs.workers import Crew
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.metric import MetricRef


class Course(Protocol):
    """What a job asks for, one launch at a time."""

    @property
    def advice(self) -> str:
        """What comes next where a change cannot be built or served."""
        ...

    def next(self, seen: Sequence[Launch]) -> Order | str:
        """What to launch after these; or that it is over: why it was ended early, empty where it was not."""
        ...

    def cell(self, order: Order) -> Cell:
        """The cell as it is served."""
        ...

    def name(self, order: Order) -> str:
        """What is launched, in an error's words."""
        ...

    def admit(self, attempt: Attempt, seen: Sequence[Launch]) -> None:
        """Refuses an attempt that measured and is no measurement of this job. Raises the error."""
        ...

    def told(self, ended: Launch, seen: Sequence[Launch], order: Order) -> Launched:
        """What whoever watches is told of a launch that has ended."""
        ...


def one_by_one(job: Job, journal: Journal, tools: Tools, crew: Crew, course: Course) -> str:
    """Launches until the course is over; why it was ended early, empty where it was not.

    A change that fails is tried once more, unless it could not even be built.

    :raises PerfbisectError: what the course refuses with; the launch is void.
    :raises BuildError, ServerError: a change cannot be built or served.
    :raises ClientError, MachineError: they failed too often; the job can be resumed.
    :raises Interrupted: Ctrl-C or a stop.
    """
    slot, failures, ledger = tools.slots[0], Failures(job, tools), Ledger()
    while True:
        seen = ledger.read(journal.events)
        order = course.next(seen)
        if isinstance(order, str):
            return order
        purpose = order.purpose
        again = owed([x for x in seen if x.purpose == purpose], slot.name, (slot.name,))
        if again is not None:
            order = replace(order, why=f"{order.why}, once more: {again.reason}")
        tools.sink(launching(len(seen) + 1, order, 0, slot.name))
        crew.start(order, slot, course.cell(order))
        identity = crew.ended()
        seen = ledger.read(journal.events)
        ended = next(launch for launch in seen if launch.attempt_id == identity)
        if ended.attempt is not None and ended.attempt.failure is None:
            try:
                course.admit(ended.attempt, seen)
            except PerfbisectError as error:
                # A job that is resumed later must not take it for one of its measurements.
                journal.append("voided", {"attempt": identity, "reason": error.message})
                raise
        tools.sink(course.told(ended, seen, order))
        if ended.refused and (not ended.built or again is not None):
            raise failures.broken(ended, course.name(order), course.advice)
        failures.after(ended)
        if failures.rest is not None:
            failures.wait()


def affordable(seen: Sequence[Launch], budget: float) -> bool:
    """True if another launch will probably end within so many minutes in all."""
    each = [launch.minutes for launch in seen if launch.end == "finished"]
    return sum(launch.minutes for launch in seen) + (median(each) if each else 0.0) <= budget


def plainly_told(
    ended: Launch, seen: Sequence[Launch], order: Order, metric: MetricRef, budget: float
) -> Launched:
    """A launch that has ended, of a job that believes nothing before all its launches are there."""
    document = launch_document(ended, order.change, metric)
    return Launched(document, metric.metric.unit, (), None, sum(x.minutes for x in seen), budget)
