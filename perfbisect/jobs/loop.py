"""The launch loop of jobs that launch one after the other, and what follows a failure in any job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeVar

from perfbisect.errors import BuildError, ClientError, MachineError, PerfbisectError, ServerError
from perfbisect.jobs.documents import launch_document
from perfbisect.jobs.events import JobNote, LaunchEnded, MachineBackoff
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.replay import JournalReplay, LaunchRecord, lost_minutes, retry_due
from perfbisect.jobs.runner import JobContext, LaunchRequest, launch_started
from perfbisect.jobs.workers import WorkerPool
from perfbisect.machine.slots import Slot
from perfbisect.model.attempt import Attempt
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef

_Result = TypeVar("_Result")

MAX_CLIENT_FAILURES = 2

_MANY_FAILURES = 20
_FAILING_SHARE = 0.75
"""A slot is given up after so many failures of the machine that are at least this share of its launches, also
if they never come in a row. Where half of the launches are killed, one in 200 jobs gets there by chance."""


@dataclass
class Failures:
    """Failures in this process, in a row and altogether; a resumed job starts from zero."""

    job: Job
    tools: JobContext
    _client: int = field(default=0, init=False)
    _machine: dict[str, int] = field(default_factory=dict, init=False)
    """Consecutive machine failures by slot ..."""
    _failed: Counter[str] = field(default_factory=Counter, init=False)
    """... all of them, and all launches that ended."""
    _ended: Counter[str] = field(default_factory=Counter, init=False)
    _until: dict[str, float] = field(default_factory=dict, init=False)
    """End of a slot's back-off, in seconds of the monotonic clock."""
    _given_up: set[str] = field(default_factory=set, init=False)

    def ready(self, busy: frozenset[str]) -> tuple[Slot, ...]:
        """Slots that can take a launch now."""
        now = self.tools.seconds()
        self._until = {name: until for name, until in self._until.items() if until > now}
        unavailable = busy | self._given_up | set(self._until)
        return tuple(slot for slot in self.tools.slots if slot.name not in unavailable)

    @property
    def in_use(self) -> tuple[Slot, ...]:
        """The slots that are not given up."""
        return tuple(slot for slot in self.tools.slots if slot.name not in self._given_up)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the slots still in use."""
        return tuple(slot.name for slot in self.in_use)

    @property
    def rest(self) -> float | None:
        """Seconds until the first back-off ends; None if no slot backs off."""
        if not self._until:
            return None
        return max(0.0, min(self._until.values()) - self.tools.seconds())

    def wait(self) -> None:
        """Wait until the first back-off ends, if a slot backs off."""
        if self._until:
            first = min(self._until, key=lambda name: self._until[name])
            self.tools.wait(max(0.0, self._until.pop(first) - self.tools.seconds()))

    def after(self, launch: LaunchRecord) -> None:
        """Account for an ended launch; a slot backs off after a failure of the machine.

        Raises:
            MachineError: every slot has used up its back-offs, or fails too often.
            ClientError: the client failed twice in a row.
        """
        failure = launch.failure
        self._ended[launch.slot] += 1
        if launch.discarded:
            self._machine_failed(launch, launch.reason)
            return
        if failure is None:
            self._machine.pop(launch.slot, None)
            self._client = 0
            return
        reason = f"{failure.phase}: {failure.reason}"
        if failure.fault == "machine":
            self._machine_failed(launch, reason)
        elif failure.fault == "client":
            self._client += 1
            if self._client >= MAX_CLIENT_FAILURES:
                raise ClientError(
                    f"the client failed {self._client} times in a row, in {reason}",
                    where=self._log(launch),
                    next_step=f"fix the cell or --client; or: perfbisect resume {self.job.id}",
                )

    def give_up(self, machine: str, reason: str) -> None:
        """Make no more launches on a machine of the fleet, whose slots are given up."""
        given_up = {slot.name for slot in self.tools.slots if slot.machine == machine}
        self._given_up |= given_up
        self._until = {name: until for name, until in self._until.items() if name not in given_up}
        self.tools.sink(JobNote(f"machine {machine} is out of use: {reason}"))

    def broken(self, launch: LaunchRecord, what: str, advice: str) -> PerfbisectError:
        """The error for a change that must work and fails; ``advice`` is the next step."""
        kind, problem = (ServerError, "does not serve") if launch.built else (BuildError, "cannot be built")
        phase = launch.failure.phase if launch.failure else "launch"
        return kind(f"{what} {problem}: {phase}: {launch.reason}", where=self._log(launch), next_step=advice)

    def _machine_failed(self, launch: LaunchRecord, reason: str) -> None:
        count = self._machine[launch.slot] = self._machine.get(launch.slot, 0) + 1
        self._failed[launch.slot] += 1
        failed, ended, most = self._failed[launch.slot], self._ended[launch.slot], len(self.tools.backoff)
        is_often = failed >= _MANY_FAILURES and failed >= _FAILING_SHARE * ended
        if count <= most and not is_often:
            seconds = self.tools.backoff[count - 1]
            self._until[launch.slot] = self.tools.seconds() + seconds
            self.tools.sink(MachineBackoff(seconds, reason, launch.slot))
            return
        self._given_up.add(launch.slot)
        on = f" on slot {launch.slot}" if launch.slot else ""
        times = f"{count} times in a row" if count > most else f"in {failed} of {ended} launches"
        if self.slots:
            self.tools.sink(JobNote(f"the machine failed {times}{on}: continuing without it"))
            return
        raise MachineError(
            f"the machine failed {times}{on}, in {reason}",
            where=self._log(launch),
            next_step=f"perfbisect doctor; then: perfbisect resume {self.job.id}",
        )

    def _log(self, launch: LaunchRecord) -> str:
        failure = launch.failure
        return failure.log if failure and failure.log else str(self.job.path / launch.folder)


def launch_ended(
    ended: LaunchRecord,
    change: Change,
    metric: MetricRef,
    records: Sequence[LaunchRecord],
    budget: float,
) -> LaunchEnded:
    """The event for an ended launch, with the minutes of all of them."""
    used, unit = sum(launch.minutes for launch in records), metric.metric.unit
    return LaunchEnded(launch_document(ended, change, metric), unit, used, budget, lost_minutes(records))


@dataclass(frozen=True)
class LaunchPolicy:
    """Decides the launches of a job, one at a time."""

    next: Callable[[Sequence[LaunchRecord]], LaunchRequest | str]
    """The next launch; or the reason for an early end, empty after a regular end."""
    admit: Callable[[Attempt, Sequence[LaunchRecord]], None]
    """Raises an error if an attempt is not comparable; the launch is then discarded."""
    metric: MetricRef
    budget: float = 0.0
    """In minutes; 0: unlimited."""
    advice: str = ""
    """The next step for the user if a change cannot be built or served."""
    block: int = 0
    """Launches that belong on one machine, after which the next machine has its turn; 0: all on one."""


class PolicyLaunches:
    """The launches of a job, one at a time: what the policy decides, and what each that ended means.

    They are made on the first slot, or on a fleet block by block on the machines in turn: a block is compared
    within itself. Launches of a block whose machine is given up do not count.
    """

    def __init__(self, job: Job, journal: Journal, tools: JobContext, policy: LaunchPolicy) -> None:
        self._journal, self._tools, self._policy = journal, tools, policy
        self.failures, self._replay = Failures(job, tools), JournalReplay()
        self._order: LaunchRequest | None = None
        self._retried: LaunchRecord | None = None
        self.slot = tools.slots[0]
        """Of the announced launch."""

    def _choose_slot(self) -> Slot:
        """The slot of the next launch; launches of a block that cannot go on are discarded."""
        slots = self.failures.in_use
        machines = list({slot.machine: slot for slot in reversed(slots)}.values())[::-1]
        block = self._policy.block
        if not block or len(self._tools.slots) == 1:
            return slots[0]
        measured = [launch for launch in self.records if launch.end == "finished"]
        begun = measured[len(measured) - len(measured) % block :]
        for slot in machines:
            if begun and slot.name == begun[-1].slot:
                return slot
        for launch in begun:
            reason = f"its block cannot be continued: {launch.machine} is not used any more"
            self._journal.append("discarded", {"attempt": launch.attempt_id, "reason": reason})
        return machines[len(measured) // block % len(machines)]

    @property
    def records(self) -> tuple[LaunchRecord, ...]:
        return self._replay.read(self._journal.events)

    def announce(self, place: str = "") -> LaunchRequest | str:
        """The next launch, which is announced; or why there is none. ``place``: more of why it is made."""
        self.slot = self._choose_slot()
        records, slot = self.records, self.slot.name
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
        self._tools.sink(launch_ended(ended, order.change, policy.metric, records, policy.budget))
        if ended.refused and (not ended.built or self._retried is not None):
            raise self.failures.broken(ended, order.side or order.change.short, policy.advice)
        self.failures.after(ended)


def run_sequentially(
    job: Job, journal: Journal, tools: JobContext, pool: WorkerPool, policy: LaunchPolicy
) -> str:
    """Launch until the policy ends; return the reason for an early end, empty after a regular one.

    Raises what :meth:`PolicyLaunches.finish` raises, and Interrupted after Ctrl-C or a stop request.
    """
    return drain(launch_in_steps(job, journal, tools, pool, policy, poll=None))


def launch_in_steps(
    job: Job, journal: Journal, tools: JobContext, pool: WorkerPool, policy: LaunchPolicy,
    *, poll: float | None,
) -> Generator[float, None, str]:  # fmt: skip
    """:func:`run_sequentially` beside other jobs of this thread.

    Waits for at most ``poll`` seconds at a time and yields the seconds for which there is nothing to do.
    """
    launches = PolicyLaunches(job, journal, tools, policy)
    while isinstance(order := launches.announce(), LaunchRequest):
        pool.start(order, launches.slot)
        while (ended := pool.ended(poll)) is None:
            yield 0.0
        launches.finish(ended)
        if launches.failures.rest is not None:
            yield launches.failures.rest
            launches.failures.wait()
    return order


def drain(steps: Generator[float, None, _Result]) -> _Result:
    """Make all steps, one after the other; return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


def fits_budget(records: Sequence[LaunchRecord], budget: float) -> bool:
    """True if another launch of median length fits into the budget in minutes."""
    each = [launch.minutes for launch in records if launch.end == "finished"]
    return sum(launch.minutes for launch in records) + (median(each) if each else 0.0) <= budget
