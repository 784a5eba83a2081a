"""What follows from a failed attempt (DESIGN rule 3): wait, try again, or end the job with an error."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfbisect.errors import BuildError, ClientError, MachineError, PerfbisectError, ServerError
from perfbisect.jobs.fold import Launch
from perfbisect.jobs.work import Tools
from perfbisect.render.notices import Waiting
from perfbisect.store.jobs import Job

CLIENT_FAILURES = 2


@dataclass
class Failures:
    """Failures in a row, of this process: a resumed job begins anew."""

    job: Job
    tools: Tools
    machine: int = field(default=0, init=False)
    client: int = field(default=0, init=False)

    def after(self, launch: Launch) -> None:
        """Takes an ended launch into account: waits for the machine where it failed.

        :raises MachineError: the machine failed once more than there are waits.
        :raises ClientError: the client failed twice in a row.
        :raises PerfbisectError: a failure of ours.
        """
        failure = launch.attempt.failure if launch.attempt else None
        if failure is None:
            self.machine = self.client = 0
            return
        where, again = self._log(launch), f"perfbisect resume {self.job.id}"
        if failure.fault == "machine":
            self.machine += 1
            if self.machine > len(self.tools.backoff):
                raise MachineError(
                    f"the machine failed {self.machine} times in a row, in {failure.phase}: {failure.reason}",
                    where=where,
                    next_step=f"perfbisect doctor; then: {again}",
                )
            seconds = self.tools.backoff[self.machine - 1]
            self.tools.sink(Waiting(seconds, f"{failure.phase}: {failure.reason}"))
            self.tools.wait(seconds)
        elif failure.fault == "client":
            self.client += 1
            if self.client >= CLIENT_FAILURES:
                raise ClientError(
                    f"the client failed {self.client} times in a row, in {failure.phase}: {failure.reason}",
                    where=where,
                    next_step=f"mend the cell or --client; or: {again}",
                )
        elif failure.fault == "ours":
            raise PerfbisectError(f"{failure.phase}: {failure.reason}", where=where, next_step=again)

    def broken(self, launch: Launch, what: str, advice: str) -> PerfbisectError:
        """The error for a change that must work and does not; ``advice`` says what comes next."""
        kind = ServerError if launch.built else BuildError
        failure = launch.attempt.failure if launch.attempt else None
        phase, reason = (failure.phase, failure.reason) if failure else ("launch", launch.reason)
        does = "does not serve" if launch.built else "cannot be built"
        return kind(f"{what} {does}: {phase}: {reason}", where=self._log(launch), next_step=advice)

    def _log(self, launch: Launch) -> str:
        failure = launch.attempt.failure if launch.attempt else None
        return failure.log if failure and failure.log else str(self.job.path / launch.folder)
