"""The loop of every job: a launch on each free slot, as its policy decides, until the policy is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from perfbisect.errors import BuildError, ClientError, MachineError, PerfbisectError, ServerError
from perfbisect.jobs.events import JobEvent, JobNote, LaunchEnded, LaunchStarted, MachineBackoff
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import EventKind, Journal, JournalEvent
from perfbisect.jobs.replay import JournalReplay, Launch, LaunchRequest, lost_minutes
from perfbisect.jobs.runner import JobContext, SpareCores
from perfbisect.jobs.workers import WorkerPool
from perfbisect.machine.slots import Slot
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef


@dataclass(frozen=True)
class JobState:
    """The journal of a job, and the launches in it."""

    events: Sequence[JournalEvent]
    launches: tuple[Launch, ...]

    @property
    def is_running(self) -> bool:
        """Whether a launch is under way."""
        return any(launch.outcome == "running" for launch in self.launches)


@dataclass(frozen=True)
class SlotView:
    """The free slot that asks, the slots in use, and all of the job."""

    slot: Slot
    in_use: tuple[Slot, ...]
    all: tuple[Slot, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.in_use)


@dataclass(frozen=True)
class Idle:
    """Nothing for this slot until a launch has ended."""


@dataclass(frozen=True)
class Fact:
    """An event for the journal, after which the policy is asked again.

    ``told``: a message to the user. ``ends_others``: nothing rests on the launches that are under way.
    """

    kind: EventKind
    data: Mapping[str, object]
    told: str = ""
    ends_others: bool = False


@dataclass(frozen=True)
class GiveUp:
    """Use a machine of the fleet no more."""

    machine: str
    reason: str


@dataclass(frozen=True)
class Done:
    """No more launches. ``verdict``: for the journal."""

    verdict: Mapping[str, object] = field(default_factory=dict)


Decision = LaunchRequest | Idle | Fact | GiveUp | Done


@dataclass(frozen=True)
class LaunchPolicy:
    """Decides the launches of a job; all functions are pure but for what they are given."""

    next: Callable[[JobState, SlotView], Decision]
    metric: MetricRef
    budget: float = 0.0
    """In minutes; 0: unlimited."""
    last: int = 0
    """The highest position of a launch."""
    admit: Callable[[Launch, JobState, Sequence[Slot]], str] = lambda *_: ""
    """Why a measured launch does not count, empty where it does, by the slots in use.

    An error that it raises ends the job; the launch is discarded.
    """
    broken: Callable[[Launch, LaunchRequest, JobState], tuple[str, str] | None] = lambda *_: None
    """What is broken, and advice, where a launch that has failed ends the job."""
    recover: Callable[[PerfbisectError, Launch, JobState], Sequence[Fact]] = lambda *_: ()
    """The facts after which a job goes on in spite of a launch that would end it."""
    progress: Callable[[Launch, JobState], tuple[str, Sequence[JobEvent]]] = lambda *_: ("", ())
    """What is known after a launch, for display: the end of its line, and events."""
    likely: Callable[[JobState, Launch, SlotView], Iterable[tuple[int, Change]]] = lambda *_: ()
    """Positions that are probably launched after the one that has just begun."""


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

    def after(self, launch: Launch) -> None:
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
        if failure.fault == "machine":
            self._machine_failed(launch, launch.reason)
        elif failure.fault == "client":
            self._client += 1
            if self._client >= MAX_CLIENT_FAILURES:
                raise ClientError(
                    f"the client failed {self._client} times in a row, in {launch.reason}",
                    where=self._log(launch),
                    next_step=f"fix the cell or --client; or: perfbisect resume {self.job.id}",
                )

    def give_up(self, machine: str, reason: str) -> None:
        """Make no more launches on a machine of the fleet, whose slots are given up."""
        given_up = {slot.name for slot in self.tools.slots if slot.machine == machine}
        self._given_up |= given_up
        self._until = {name: until for name, until in self._until.items() if name not in given_up}
        self.tools.sink(JobNote(f"machine {machine} is out of use: {reason}"))

    def broken(self, launch: Launch, what: str, advice: str) -> PerfbisectError:
        """The error for a change that must work and fails; ``advice`` is the next step."""
        kind, problem = (ServerError, "does not serve") if launch.built else (BuildError, "cannot be built")
        return kind(f"{what} {problem}: {launch.reason}", where=self._log(launch), next_step=advice)

    def _machine_failed(self, launch: Launch, reason: str) -> None:
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

    def _log(self, launch: Launch) -> str:
        failure = launch.failure
        return failure.log if failure and failure.log else str(self.job.path / launch.folder)


class Launches:
    """The launches of a job: what the policy decides, and what follows from each that ended."""

    def __init__(self, job: Job, journal: Journal, tools: JobContext, policy: LaunchPolicy) -> None:
        self._job, self._journal, self._tools, self._policy = job, journal, tools, policy
        self.failures, self._replay = Failures(job, tools), JournalReplay()
        self._orders: dict[str, LaunchRequest] = {}
        self._begun: set[int] = set()
        """Positions whose environments were built ahead, each at most once a process."""

    @property
    def state(self) -> JobState:
        events = self._journal.events
        return JobState(events, self._replay.read(events))

    def view(self, slot: Slot) -> SlotView:
        return SlotView(slot, self.failures.in_use, self._tools.slots)

    def next(self, slot: Slot) -> LaunchRequest | Idle | Fact | Done:
        """What the policy decides for a free slot; facts are recorded.

        One that ends other launches is returned: their end comes before the next decision.
        """
        while True:
            decision = self._policy.next(self.state, self.view(slot))
            if isinstance(decision, Fact):
                self._record(decision)
                if decision.ends_others:
                    return decision
            elif isinstance(decision, GiveUp):
                self.failures.give_up(decision.machine, decision.reason)
                if slot not in self.failures.in_use:
                    return Idle()
            else:
                return decision

    def announce(self, order: LaunchRequest, slot: Slot) -> None:
        """Report a launch that is about to start."""
        self._orders[slot.name] = order
        number = len(self.state.launches) + 1
        self._tools.sink(LaunchStarted(number, order, self._policy.last, slot.name))

    def finish(self, attempt_id: str) -> None:
        """Admit and report an announced launch, which has ended and is recorded.

        Raises:
            PerfbisectError: the policy rejected the attempt, which is discarded.
            BuildError, ServerError: a change that must work cannot be built or served.
            ClientError, MachineError: they failed too often; the job can be resumed.
        """
        ended = self._find(attempt_id)
        try:
            self._finish(ended, self._orders[ended.slot])
        except PerfbisectError as error:
            facts = self._policy.recover(error, ended, self.state)
            if not facts:
                raise
            for fact in facts:
                self._record(fact)

    def _finish(self, ended: Launch, order: LaunchRequest) -> None:
        policy = self._policy
        if ended.attempt is not None and ended.attempt.failure is None:
            ended = self._admit(ended)
        detail, events = policy.progress(ended, self.state)
        made, named = self.state.launches, replace(ended, change=order.change)
        used, unit = sum(launch.minutes for launch in made), policy.metric.metric.unit
        self._tools.sink(LaunchEnded(named, unit, used, policy.budget, lost_minutes(made), detail))
        for event in events:
            self._tools.sink(event)
        broken = policy.broken(ended, order, self.state) if ended.refused else None
        if broken is not None:
            raise self.failures.broken(ended, *broken)
        if ended.slot in self.failures.slots:
            self.failures.after(ended)

    def _admit(self, ended: Launch) -> Launch:
        try:
            reason = self._policy.admit(ended, self.state, self.failures.in_use)
        except PerfbisectError as error:
            # A resumed job must not count it.
            self._discard(ended, error.message)
            raise
        if not reason:
            return ended
        self._discard(ended, reason)
        return self._find(ended.id)

    def _discard(self, launch: Launch, reason: str) -> None:
        self._journal.append("discarded", {"attempt": launch.id, "reason": reason})

    def _record(self, fact: Fact) -> None:
        self._journal.append(fact.kind, fact.data)
        if fact.told:
            self._tools.sink(JobNote(fact.told))

    def _find(self, attempt_id: str) -> Launch:
        return next(launch for launch in self.state.launches if launch.id == attempt_id)

    def build_ahead(self, pool: WorkerPool, slot: Slot) -> None:
        """Build, beside launches, what is likely to be needed after the one that has begun on a slot."""
        ahead = self._tools.ahead
        # Checked before the likely positions are computed, which takes a posterior for each answer.
        if ahead is None or not pool.has_room_beside(ahead.at_once):
            return
        state = self.state
        running = next(x for x in reversed(state.launches) if x.outcome == "running" and x.slot == slot.name)
        begun = self._begun | {launch.position for launch in state.launches}
        for position, change in self._policy.likely(state, running, self.view(slot)):
            if position in begun or not ahead.wanted(change):
                continue
            if not pool.has_room_beside(ahead.at_once):
                return
            self._begun.add(position)
            pool.beside(partial(self._build, ahead, position, change))

    def _build(self, ahead: SpareCores, position: int, change: Change) -> None:
        log = self._job.path / "ahead" / f"{position}.log"
        seconds = ahead.build(change, log, self._tools.limits.build)
        if seconds is not None:
            with suppress(MachineError):  # the job's next event meets the full disk, too
                self._journal.append("built", {"position": position, "seconds": round(seconds, 3)})


def launch_in_steps(
    job: Job, journal: Journal, tools: JobContext, pool: WorkerPool, policy: LaunchPolicy,
    *, poll: float | None,
) -> Generator[float, None, Mapping[str, object]]:  # fmt: skip
    """Launch until the policy is done; return its verdict.

    Yields the seconds for which there is nothing to do, so that other jobs of this thread have their turn;
    ``poll``: the longest time to wait for a launch before that, in seconds; None: until one has ended.

    Raises what :meth:`Launches.finish` raises, and Interrupted after Ctrl-C or a stop request.
    """
    launches = Launches(job, journal, tools, policy)
    failures = launches.failures
    while True:
        for slot in failures.ready(pool.busy):
            if slot not in failures.in_use:
                continue
            # Asked again for each slot: what one has begun changes what the next should launch.
            decision = launches.next(slot)
            if isinstance(decision, Done):
                return decision.verdict
            # No decision needs the launches under way any more: they would only use minutes.
            if isinstance(decision, Fact):
                pool.stop()
                break
            if isinstance(decision, LaunchRequest):
                launches.announce(decision, slot)
                pool.start(decision, slot)
                launches.build_ahead(pool, slot)
        else:
            if pool.busy:
                waits = [seconds for seconds in (poll, failures.rest) if seconds is not None]
                ended = pool.ended(min(waits, default=None))
                if ended is not None:
                    launches.finish(ended)
                elif poll is not None:
                    yield 0.0
            elif failures.rest is not None:
                yield failures.rest
                failures.wait()
            else:
                raise PerfbisectError("the job waits for a launch, and none is under way")


def fits_budget(records: Sequence[Launch], budget: float) -> bool:
    """True if another launch of median length fits into the budget in minutes."""
    # The length of a failed launch says nothing about that of the next one.
    each = [launch.minutes for launch in records if launch.outcome == "measured"]
    return sum(launch.minutes for launch in records) + (median(each) if each else 0.0) <= budget
