"""Retry policy after failed attempts: back off, try again, or end the job with an error."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfbisect.errors import BuildError, ClientError, MachineError, PerfbisectError, ServerError
from perfbisect.jobs.events import JobNote, MachineBackoff
from perfbisect.jobs.folders import Job
from perfbisect.jobs.replay import LaunchRecord
from perfbisect.jobs.runner import JobContext
from perfbisect.machine.slots import Slot

MAX_CLIENT_FAILURES = 2


@dataclass
class Failures:
    """Consecutive failures in this process; a resumed job starts from zero."""

    job: Job
    tools: JobContext
    _client: int = field(default=0, init=False)
    _machine: dict[str, int] = field(default_factory=dict, init=False)
    """Consecutive machine failures by slot."""
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
    def slots(self) -> tuple[str, ...]:
        """Names of the slots still in use."""
        return tuple(slot.name for slot in self.tools.slots if slot.name not in self._given_up)

    @property
    def rest(self) -> float | None:
        """Seconds until the first back-off ends; None if no slot backs off."""
        if not self._until:
            return None
        return max(0.0, min(self._until.values()) - self.tools.seconds())

    def wait(self) -> None:
        """Wait until the first back-off ends."""
        first = min(self._until, key=lambda name: self._until[name])
        self.tools.wait(max(0.0, self._until.pop(first) - self.tools.seconds()))

    def after(self, launch: LaunchRecord) -> None:
        """Account for an ended launch; a slot backs off after a failure of the machine.

        Raises:
            MachineError: every slot has used up its back-offs.
            ClientError: the client failed twice in a row.
            PerfbisectError: perfbisect itself failed.
        """
        failure = launch.attempt.failure if launch.attempt else None
        if launch.discarded:
            self._machine_failed(launch, launch.reason)
            return
        if failure is None:
            self._machine.pop(launch.slot, None)
            self._client = 0
            return
        reason, where = f"{failure.phase}: {failure.reason}", self._log(launch)
        resume = f"perfbisect resume {self.job.id}"
        if failure.fault == "machine":
            self._machine_failed(launch, reason)
        elif failure.fault == "client":
            self._client += 1
            if self._client >= MAX_CLIENT_FAILURES:
                raise ClientError(
                    f"the client failed {self._client} times in a row, in {reason}",
                    where=where,
                    next_step=f"fix the cell or --client; or: {resume}",
                )
        elif failure.fault == "ours":
            raise PerfbisectError(reason, where=where, next_step=resume)

    def broken(self, launch: LaunchRecord, what: str, advice: str) -> PerfbisectError:
        """The error for a change that must work and fails; ``advice`` is the next step."""
        kind, problem = (ServerError, "does not serve") if launch.built else (BuildError, "cannot be built")
        failure = launch.attempt.failure if launch.attempt else None
        phase, reason = (failure.phase, failure.reason) if failure else ("launch", launch.reason)
        return kind(f"{what} {problem}: {phase}: {reason}", where=self._log(launch), next_step=advice)

    def _machine_failed(self, launch: LaunchRecord, reason: str) -> None:
        count = self._machine[launch.slot] = self._machine.get(launch.slot, 0) + 1
        if count <= len(self.tools.backoff):
            seconds = self.tools.backoff[count - 1]
            self._until[launch.slot] = self.tools.seconds() + seconds
            self.tools.sink(MachineBackoff(seconds, reason, launch.slot))
            return
        self._given_up.add(launch.slot)
        on = f" on slot {launch.slot}" if launch.slot else ""
        if self.slots:
            self.tools.sink(JobNote(f"the machine failed {count} times in a row{on}: continuing without it"))
            return
        raise MachineError(
            f"the machine failed {count} times in a row{on}, in {reason}",
            where=self._log(launch),
            next_step=f"perfbisect doctor; then: perfbisect resume {self.job.id}",
        )

    def _log(self, launch: LaunchRecord) -> str:
        failure = launch.attempt.failure if launch.attempt else None
        return failure.log if failure and failure.log else str(self.job.path / launch.folder)
