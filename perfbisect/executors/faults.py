"""Whose a failure is (DESIGN rule 3): only what depends on the change is data about the change."""

from __future__ import annotations

from dataclasses import dataclass

from perfbisect.core.attempt import Fault, Phase
from perfbisect.errors import BuildError, ClientError, MachineError, PerfbisectError, ServerError
from perfbisect.system import machine

RAISED = (BuildError, ServerError, ClientError, MachineError, OSError)
"""Failures that become an attempt with its failure; all else is bad input or a mistake of ours: raised."""


class BlamedError(ClientError):
    """A failed run, with its fault known already."""

    def __init__(self, error: PerfbisectError, fault: Fault) -> None:
        super().__init__(error.message, where=error.where, next_step=error.next_step)
        self.fault: Fault = fault


@dataclass(frozen=True)
class Judge:
    """Tells faults apart. ``oom_kills``: processes the kernel had ended for memory when the attempt began."""

    oom_kills: int

    def fault(self, error: BaseException, phase: Phase, log_text: str = "") -> Fault:
        """Whose it is, from the kind of the error, what it says, and what the machine did meanwhile.

        ``log_text`` is the end of the log of the process that failed.
        """
        if isinstance(error, BlamedError):
            return error.fault
        if isinstance(error, MachineError | OSError) or phase == "stop":
            return "machine"
        if machine.oom_kills() > self.oom_kills:
            return "machine"
        text = error.message if isinstance(error, PerfbisectError) else str(error)
        if machine.trouble(text) or machine.trouble(log_text):
            return "machine"
        return "client" if isinstance(error, ClientError) else "change"

    def reason(self, error: BaseException, fault: Fault, log_text: str = "") -> str:
        """The failure in words; what the machine did is said first where it is to blame."""
        if isinstance(error, PerfbisectError):
            text = error.message
        else:
            name = getattr(error, "filename", None)
            text = f"{getattr(error, 'strerror', None) or error}" + (f": {name}" if name else "")
        if fault != "machine" or isinstance(error, MachineError):
            return text
        if machine.oom_kills() > self.oom_kills:
            return f"the kernel ended a process for lack of memory: {text}"
        meaning = machine.trouble(text) or machine.trouble(log_text)
        return f"{meaning}: {text}" if meaning else text
