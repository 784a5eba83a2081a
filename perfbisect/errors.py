"""Errors that users see, with their exit codes.

::

    PerfbisectError            1   a failure of ours
    +- UsageError              2   bad input that the user can fix
    |  +- LocatedError         2   ... at a file, line and field
    |  +- RevisionError        2   a missing or unusable revision, range or repository
    +- OutsideError            5   something outside perfbisect
    |  +- BuildError           5   an environment cannot be built or is not the requested one
    |  +- ServerError          5   the engine did not start, answer or stop
    |  +- UntestableError    125   of check --git-bisect alone: the commit cannot be built or served
    |  +- ClientError          5   the load generator failed or its result is unusable
    |  +- MachineError         5   memory, port, disk, device or lock
    +- Interrupted           130   Ctrl-C or a requested stop

An error says what failed and why, where the log is and which command is next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from perfbisect.redaction import without_secrets

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
    "container_failed",
    "device_out_of_memory",
    "crashed",
    "killed",
    "terminated",
    "engine_vanished",
    "machine_failed",
    "image_missing",
    "build_failed",
    "server_hung",
    "no_output",
    "wrong_answer",
    "server_option_unknown",
    "engine_import_failed",
    "model_unsupported",
    "server_failed",
    "client_option_unknown",
    "dataset_unreadable",
    "client_hung",
    "client_failed",
]
"""What went wrong in an attempt; :data:`perfbisect.measure.faults.FAULT_TABLE` assigns the fault."""

EXIT_OK = 0
EXIT_OURS = 1
EXIT_USAGE = 2
EXIT_REGRESSION = 3
EXIT_INCONCLUSIVE = 4
EXIT_OUTSIDE = 5
EXIT_UNTESTABLE = 125
EXIT_INTERRUPTED = 130


class PerfbisectError(Exception):
    """A failure shown to the user.

    ``message``: what failed and why; ``where``: a log or ``file:line``; ``next_step``: the next command.
    Decisions use only ``code`` and ``output`` (text of another program). None of the texts holds a secret.
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
        self.message = without_secrets(message)
        super().__init__(self.message)
        self.where = None if where is None else str(where)
        self.next_step = None if next_step is None else without_secrets(next_step)
        self.code = code
        self.output = without_secrets(output)

    @property
    def next(self) -> str:
        """The next step, or the usual one for this kind of error."""
        return self.next_step or self._usual()

    def _usual(self) -> str:
        return "report this with the command that you ran"

    def __str__(self) -> str:
        lines = [self.message]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.next_step:
            lines.append(f"  next:  {self.next_step}")
        return "\n".join(lines)


class UsageError(PerfbisectError):
    """Bad input that the user can fix. ``field``: the key at fault."""

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
        where = f"fix {self.where}, then run the command again"
        return where if self.where else "see the allowed values with -h"


class LocatedError(UsageError):
    """Bad input in a file: ``file:line``, field and allowed values."""

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
    """A revision, range or repository that is missing or cannot be bisected."""

    def _usual(self) -> str:
        return "use another revision: git log --oneline lists them"


class OutsideError(PerfbisectError):
    """An environment, a server, a client or the machine failed."""

    exit_code = EXIT_OUTSIDE

    def _usual(self) -> str:
        return f"read {self.where}" if self.where else "perfbisect doctor"


class BuildError(OutsideError):
    """An environment cannot be built or has another engine than requested."""

    def _usual(self) -> str:
        other = "another --env, or another change"
        return f"read {self.where}; then {other}" if self.where else other


class ServerError(OutsideError):
    """The engine did not start, answer correctly or stop."""


class UntestableError(OutsideError):
    """``git bisect`` must skip this commit: it cannot be built or served."""

    exit_code = EXIT_UNTESTABLE


class ClientError(OutsideError):
    """The load generator failed or its result is not a measurement."""

    def _usual(self) -> str:
        other = "fix the cell or --client"
        return f"read {self.where}; then {other}" if self.where else other


class MachineError(OutsideError):
    """Memory, disk, ports, devices or locks failed; never evidence about a change."""

    def _usual(self) -> str:
        return "run perfbisect doctor, then the command again"


class Interrupted(PerfbisectError):  # noqa: N818 - an ending, not an error
    """Ctrl-C or a requested stop; all processes are stopped and the job can be resumed."""

    exit_code = EXIT_INTERRUPTED

    def _usual(self) -> str:
        return "run the command again"
