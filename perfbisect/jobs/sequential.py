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

    def next(self, records: Sequence[LaunchRecord]) -> LaunchRequest | str:
        """The next launch; or the reason for an early end, empty after a regular end."""
        ...

    def cell(self, order: LaunchRequest) -> Cell:
        """The cell to serve, with the variant of the side."""
        ...

    def name(self, order: LaunchRequest) -> str:
        """Names the side in error messages."""
        ...

    def admit(self, attempt: Attempt, records: Sequence[LaunchRecord]) -> None:
        """Raise an error if an attempt is not comparable; the launch is then discarded."""
        ...

    def event(
        self, ended: LaunchRecord, records: Sequence[LaunchRecord], order: LaunchRequest
    ) -> LaunchEnded:
        """The event for a launch that has ended."""
        ...


class PolicyLaunches:
    """The launches of a job on its first slot: what the policy decides, and what each that ended means."""

    def __init__(self, job: Job, journal: Journal, tools: JobContext, policy: LaunchPolicy) -> None:
        self._journal, self._tools, self._policy = journal, tools, policy
        self._failures, self._replay = Failures(job, tools), JournalReplay()
        self._order: LaunchRequest | None = None
        self._retried: LaunchRecord | None = None

    @property
    def records(self) -> tuple[LaunchRecord, ...]:
        return self._replay.read(self._journal.events)

    def announce(self, place: str = "") -> LaunchRequest | str:
        """The next launch, which is announced; or why there is none. ``place``: more of why it is made."""
        records, slot = self.records, self._tools.slots[0].name
        order = self._policy.next(records)
        if isinstance(order, str):
            return order
        why, alike = order.why + place, [launch for launch in records if launch.purpose == order.purpose]
        self._retried = retry_due(alike, slot, (slot,))
        if self._retried is not None:
            why += f", once more: {self._retried.reason}"
        self._order = replace(order, why=why)
        self._tools.sink(launch_started(len(records) + 1, self._order, 0, slot))
        return self._order

    def finish(self, attempt_id: str | None) -> None:
        """Admit and report the announced launch, which has ended and is recorded.

        A change that fails is launched once more, unless it could not be built.

        Raises:
            PerfbisectError: the policy rejected the attempt, which is discarded.
            BuildError, ServerError: a change cannot be built or served.
            ClientError, MachineError: they failed too often; the job can be resumed.
        """
        order, policy, records = self._order, self._policy, self.records
        assert order is not None
        ended = next(launch for launch in records if launch.attempt_id == attempt_id)
        if ended.attempt is not None and ended.attempt.failure is None:
            try:
                policy.admit(ended.attempt, records)
            except PerfbisectError as error:
                # A resumed job must not count it.
                self._journal.append("discarded", {"attempt": attempt_id, "reason": error.message})
                raise
        self._tools.sink(policy.event(ended, records, order))
        if ended.refused and (not ended.built or self._retried is not None):
            raise self._failures.broken(ended, policy.name(order), policy.advice)
        self._failures.after(ended)

    def wait_for_machine(self) -> None:
        """Wait until the slot can be used again, after a failure of the machine."""
        if self._failures.rest is not None:
            self._failures.wait()


def run_sequentially(
    job: Job, journal: Journal, tools: JobContext, crew: WorkerPool, policy: LaunchPolicy
) -> str:
    """Launch until the policy ends; return the reason for an early end, empty after a regular one.

    Raises what :meth:`PolicyLaunches.finish` raises, and Interrupted after Ctrl-C or a stop request.
    """
    launches = PolicyLaunches(job, journal, tools, policy)
    while isinstance(order := launches.announce(), LaunchRequest):
        crew.start(order, tools.slots[0], policy.cell(order))
        launches.finish(crew.ended())
        launches.wait_for_machine()
    return order


def fits_budget(records: Sequence[LaunchRecord], budget: float) -> bool:
    """True if another launch of median length fits into the budget in minutes."""
    each = [launch.minutes for launch in records if launch.end == "finished"]
    return sum(launch.minutes for launch in records) + (median(each) if each else 0.0) <= budget


def launch_ended(
    ended: LaunchRecord,
    records: Sequence[LaunchRecord],
    order: LaunchRequest,
    metric: MetricRef,
    budget: float,
) -> LaunchEnded:
    """The event for a launch of a job without a posterior."""
    document = launch_document(ended, order.change, metric)
    return LaunchEnded(document, metric.metric.unit, sum(x.minutes for x in records), budget)
