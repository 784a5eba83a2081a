"""Every error a user can meet, and the exit code it ends in.

::

    PerfbisectError            1   a failure of ours
    +- UsageError              2   bad input: the user can mend it
    |  +- LocatedError         2   ... at a file, line and field
    |  +- RevisionError        2   a revision, range or repository that is not what was asked
    +- OutsideError            5   the world around us
    |  +- BuildError           5   an environment could not be built, or is not the one asked for
    |  +- ServerError          5   the engine did not start, answer or stop
    |  +- UntestableError    125   of check --git-bisect alone: the commit cannot be built or served
    |  +- ClientError          5   the load generator failed, or reported nothing that may be believed
    |  +- MachineError         5   the machine: no memory, no port, no disk, a lock that is held
    +- Interrupted           130   Ctrl-C or a stop that was asked for

An error says what was tried, what came back, where the log is and which command comes next (DESIGN rule 10).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

FaultCode = Literal[
    "load_exceeded",
    "oom_killed",
    "port_taken",
    "lease_lost",
    "disk_full",
    "file_size_limit",
    "read_only_disk",
    "out_of_memory",
    "descriptor_limit",
    "process_limit",
    "device_memory_taken",
    "device_failed",
    "hub_unreachable",
    "device_out_of_memory",
    "crashed",
    "killed",
    "terminated",
    "engine_vanished",
    "machine_failed",
    "build_failed",
    "server_hung",
    "server_option_unknown",
    "engine_import_failed",
    "model_unsupported",
    "server_failed",
    "client_option_unknown",
    "dataset_unreadable",
    "client_hung",
    "client_failed",
]
"""What went wrong in an attempt; ``measure.faults`` says whose fault each is."""

EXIT_OK = 0
EXIT_OURS = 1
EXIT_USAGE = 2
EXIT_REGRESSION = 3
EXIT_INCONCLUSIVE = 4
EXIT_OUTSIDE = 5
EXIT_UNTESTABLE = 125
EXIT_INTERRUPTED = 130


class PerfbisectError(Exception):
    """A failure, told to the user.

    ``message`` says what was tried and what came back; ``where`` a log or place (``file:line``) to look at;
    ``next_step`` the command or change that comes next. All three are for readers; decisions use ``code``
    (what went wrong, where that is known) and ``output`` (what another program wrote about it).
    """

    exit_code = EXIT_OURS

    def __init__(
        self,
        message: str,
        *,
        where: str | Path | None = None,
        next_step: str | None = None,
        code: FaultCode | None = None,
        output: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = None if where is None else str(where)
        self.next_step = next_step
        self.code = code
        self.output = output

    @property
    def next(self) -> str:
        """What comes next: what was said when it was raised, else what is usual after such an error."""
        return self.next_step or self._usual()

    def _usual(self) -> str:
        return "report it, with the command that led here"

    def __str__(self) -> str:
        lines = [self.message]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.next_step:
            lines.append(f"  next:  {self.next_step}")
        return "\n".join(lines)


class UsageError(PerfbisectError):
    """Bad input: a word, file or combination that the user can mend. ``field``: the key at fault."""

    exit_code = EXIT_USAGE

    def __init__(
        self,
        message: str,
        *,
        where: str | Path | None = None,
        next_step: str | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message, where=where, next_step=next_step)
        self.field = field

    def _usual(self) -> str:
        where = f"mend {self.where}, then the same command again"
        return where if self.where else "mend it: -h says what may be"


class LocatedError(UsageError):
    """Bad input at a place in a file: ``file:line``, the field, and what is allowed there."""

    def __init__(
        self,
        message: str,
        *,
        file: str | Path,
        line: int | None = None,
        field: str | None = None,
        allowed: str | None = None,
        next_step: str | None = None,
    ) -> None:
        self.file, self.line, self.allowed = str(file), line, allowed
        place = str(file) if line is None else f"{file}:{line}"
        text = f"{field}: {message}" if field else message
        if allowed:
            text += f" (allowed: {allowed})"
        super().__init__(text, where=place, next_step=next_step, field=field)


class RevisionError(UsageError):
    """A revision, range or repository that does not exist or cannot be bisected."""

    def _usual(self) -> str:
        return "name another revision: git log --oneline shows what there is"


class OutsideError(PerfbisectError):
    """The world around us failed: an environment, a server, a client or the machine."""

    exit_code = EXIT_OUTSIDE

    def _usual(self) -> str:
        return f"read {self.where}" if self.where else "perfbisect doctor"


class BuildError(OutsideError):
    """An environment could not be built, or its health check found another engine than the one asked for."""

    def _usual(self) -> str:
        other = "another --env, or another change"
        return f"read {self.where}; then {other}" if self.where else other


class ServerError(OutsideError):
    """The engine did not start, did not answer as a server of this attempt must, or did not stop."""


class UntestableError(OutsideError):
    """The commit that git's bisection asks about cannot be built or served: git goes on without it."""

    exit_code = EXIT_UNTESTABLE


class ClientError(OutsideError):
    """The load generator failed, or what it reported is no measurement."""

    def _usual(self) -> str:
        other = "mend the cell or --client"
        return f"read {self.where}; then {other}" if self.where else other


class MachineError(OutsideError):
    """The machine: memory, disk, ports, devices, locks. Never evidence about a change."""

    def _usual(self) -> str:
        return "perfbisect doctor, then the same command again"


class Interrupted(PerfbisectError):  # noqa: N818 - an ending, not an error
    """Ctrl-C, or a stop asked for from elsewhere; everything started was stopped and can be resumed."""

    exit_code = EXIT_INTERRUPTED

    def _usual(self) -> str:
        return "the same command again"
