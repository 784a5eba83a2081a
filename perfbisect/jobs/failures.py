"""What follows a failure in any job: back-offs, slots that are given up, and the end of the job."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from perfbisect.errors import BuildError, ClientError, MachineError, PerfbisectError, ServerError
from perfbisect.jobs.events import JobNote, MachineBackoff
from perfbisect.jobs.folders import Job
from perfbisect.jobs.replay import Launch
from perfbisect.jobs.runner import JobContext
from perfbisect.machine.slots import Slot

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
