"""Whose a failure is (DESIGN rule 3): only what depends on the change is data about the change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfbisect.core.attempt import Fault, Phase
from perfbisect.errors import BuildError, ClientError, MachineError, PerfbisectError, ServerError
from perfbisect.executors.fault_table import TABLE, Event, Row
from perfbisect.system import machine

RAISED = (BuildError, ServerError, ClientError, MachineError, OSError)
"""Failures that become an attempt with its failure; all else is bad input or a mistake of ours: raised."""

_MAY_BE: dict[Event, tuple[Fault, ...]] = {
    "void": ("machine",),
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


class VoidError(MachineError):
    """What was measured does not count: the machine was not ours alone, or not as it was before."""


class BlamedError(ClientError):
    """A failed run, with its fault known already."""

    def __init__(self, error: PerfbisectError, fault: Fault) -> None:
        super().__init__(error.message, where=error.where, next_step=error.next_step)
        self.fault: Fault = fault


@dataclass(frozen=True)
class Judge:
    """Tells faults apart, by the one table.

    ``oom_kills``: processes the kernel had ended for memory when the attempt began. ``measured_before``:
    another launch of this change has measured under this cell.
    """

    oom_kills: int
    measured_before: bool = False

    def row(self, error: BaseException, phase: Phase, log_text: str = "") -> Row:
        """The row of the table that fits: by who failed, what it says, and what the machine did meanwhile.

        ``log_text`` is the end of the log of the process that failed.
        """
        failed = _who(error, phase)
        seen = {failed}
        if machine.oom_kills() > self.oom_kills and failed != "void":
            seen.add("oom kill")
        said = [*_text(error).splitlines(), *log_text.splitlines()]
        may_be = _MAY_BE[failed]
        return next(row for row in TABLE if row.fault in may_be and self._fits(row, seen, said))

    def fault(self, error: BaseException, phase: Phase, log_text: str = "") -> Fault:
        """Whose it is."""
        return error.fault if isinstance(error, BlamedError) else self.row(error, phase, log_text).fault

    def reason(self, error: BaseException, phase: Phase, log_text: str = "") -> str:
        """The failure in words; what the machine did is said first where it is to blame."""
        text = _text(error)
        if isinstance(error, BlamedError | MachineError):
            return text
        row = self.row(error, phase, log_text)
        return f"{row.means}: {text}" if row.fault == "machine" else text

    def _fits(self, row: Row, seen: set[Event], said: Sequence[str]) -> bool:
        heard = said if row.if_silent else [line for line in said if not _HARMLESS.match(line)]
        return (
            (row.event is None or row.event in seen)
            and (not row.if_measured or self.measured_before)
            and (not row.pattern or any(re.search(row.pattern, line) for line in heard))
            and (not row.if_silent or not names_an_error(said))
        )


def names_an_error(said: Iterable[str]) -> bool:
    """True if a line names an error that points at no other: the engine failed by itself and says how."""
    return any(
        _FIRST_HAND.search(line) and not _SECOND_HAND.search(line) and not _HARMLESS.match(line)
        for line in said
    )


def _who(error: BaseException, phase: Phase) -> Event:
    if isinstance(error, VoidError):
        return "void"
    if isinstance(error, MachineError | OSError) or phase == "stop":
        return "machine"
    if isinstance(error, BuildError):
        return "build"
    return "client" if isinstance(error, ClientError) else "server"


def _text(error: BaseException) -> str:
    if isinstance(error, PerfbisectError):
        return error.message
    name = getattr(error, "filename", None)
    return f"{getattr(error, 'strerror', None) or error}" + (f": {name}" if name else "")
