"""Whose a failure is (DESIGN rule 3): only what depends on the change is data about the change."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfbisect.errors import BuildError, ClientError, FaultCode, MachineError, PerfbisectError, ServerError
from perfbisect.machine import profile
from perfbisect.measure.fault_table import TABLE, Event, Row
from perfbisect.model.attempt import Fault, Phase

RAISED = (BuildError, ServerError, ClientError, MachineError, OSError)
"""Failures that become an attempt with its failure; all else is bad input or a mistake of ours: raised."""

_MAY_BE: dict[Event, tuple[Fault, ...]] = {
    "machine": ("machine",),
    "build": ("machine", "change"),
    "server": ("machine", "change"),
    "client": ("machine", "client"),
}
"""Whose fault it can be when this one failed. A client that crashes says nothing about the change."""

_SECOND_HAND = re.compile(
    r"EngineDeadError|See (?:the )?(?:root cause|stack trace)|initialization failed|Executor failed"
)
_HARMLESS = re.compile(r"^(?:\([^()]*\)\s*)*(?:DEBUG|INFO|WARNING)\b")
"""Lines that tell no failure, though they may name one: vLLM warns of what a low limit of files can cause."""
_FIRST_HAND = re.compile(r"(?:^|[\s:])[A-Za-z_][\w.]*(?:Error|Exception)\b(?::|$)|Fatal Python error", re.M)


_ERRNO_CODES: dict[int, FaultCode] = {
    errno.EADDRINUSE: "port_taken",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "file_size_limit",
    errno.EROFS: "read_only_disk",
    errno.ENOMEM: "out_of_memory",
    errno.EMFILE: "descriptor_limit",
    errno.ENFILE: "descriptor_limit",
    errno.EAGAIN: "process_limit",
}


class VoidError(MachineError):
    """What was measured does not count: the machine was not ours alone, or not as it was before."""

    def __init__(self, message: str, *, where: str | None = None, next_step: str | None = None) -> None:
        super().__init__(message, where=where, next_step=next_step, code="load_exceeded")


class BlamedError(ClientError):
    """A failed run whose row of the fault table is already chosen; ``reason`` replaces its message."""

    def __init__(self, error: PerfbisectError, row: Row, reason: str) -> None:
        super().__init__(reason, where=error.where, next_step=error.next_step, code=row.code)
        self.row = row


@dataclass(frozen=True)
class Judge:
    """Tells faults apart, by the one table.

    ``oom_kills``: processes the kernel had ended for memory when the attempt began. ``measured_before``:
    another launch of this change has measured under this cell.
    """

    oom_kills: int
    measured_before: bool = False

    def row(self, error: BaseException, phase: Phase, log_text: str = "") -> Row:
        """The first row of the table that fits the error's code and output, the log and the machine.

        ``log_text`` is the end of the log of the process that failed.
        """
        if isinstance(error, BlamedError):
            return error.row
        failed = _failed_part(error, phase)
        seen = {failed}
        if profile.oom_kills() > self.oom_kills:
            seen.add("oom kill")
        code = fault_code(error)
        said = [*_output(error).splitlines(), *log_text.splitlines()]
        may_be = _MAY_BE[failed]
        return next(row for row in TABLE if row.fault in may_be and self._fits(row, code, seen, said))

    def fault(self, error: BaseException, phase: Phase, log_text: str = "") -> Fault:
        """Whose it is."""
        return self.row(error, phase, log_text).fault

    def reason(self, error: BaseException, phase: Phase, log_text: str = "") -> str:
        """The failure in words; what the machine did is said first where it is to blame."""
        text = _text(error)
        if isinstance(error, BlamedError | MachineError):
            return text
        row = self.row(error, phase, log_text)
        return f"{row.means}: {text}" if row.fault == "machine" else text

    def _fits(self, row: Row, code: FaultCode | None, seen: set[Event], said: Sequence[str]) -> bool:
        if row.if_measured and not self.measured_before:
            return False
        if row.code == code:
            return True
        if not row.pattern and row.event is None:
            return False
        heard = said if row.if_silent else [line for line in said if not _HARMLESS.match(line)]
        return (
            (row.event is None or row.event in seen)
            and (not row.pattern or any(re.search(row.pattern, line) for line in heard))
            and (not row.if_silent or not names_an_error(said))
        )


def fault_code(error: BaseException) -> FaultCode | None:
    """The code that an error was raised with, else that of the operating system's error behind it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, PerfbisectError) and cause.code is not None:
            return cause.code
        if isinstance(cause, OSError) and cause.errno in _ERRNO_CODES:
            return _ERRNO_CODES[cause.errno]
        cause = cause.__cause__
    return None


def names_an_error(said: Iterable[str]) -> bool:
    """True if a line names an error that points at no other: the engine failed by itself and says how."""
    return any(
        _FIRST_HAND.search(line) and not _SECOND_HAND.search(line) and not _HARMLESS.match(line)
        for line in said
    )


def _failed_part(error: BaseException, phase: Phase) -> Event:
    if isinstance(error, MachineError | OSError) or phase == "stop":
        return "machine"
    if isinstance(error, BuildError):
        return "build"
    return "client" if isinstance(error, ClientError) else "server"


def _output(error: BaseException) -> str:
    """What was written by others about the failure: the only text that is searched for its cause."""
    return error.output if isinstance(error, PerfbisectError) else str(error)


def _text(error: BaseException) -> str:
    if isinstance(error, PerfbisectError):
        return error.message
    name = getattr(error, "filename", None)
    return f"{getattr(error, 'strerror', None) or error}" + (f": {name}" if name else "")
