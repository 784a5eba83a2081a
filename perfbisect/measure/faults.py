"""Fault table and classification: which failures are data about a change.

The first row that fits counts: rows that name a cause stand before rows that name a consequence.
docs/errors.md has the same rows.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from perfbisect.errors import BuildError, ClientError, FaultCode, MachineError, PerfbisectError, ServerError
from perfbisect.machine import profile
from perfbisect.model.attempt import Fault, Phase
from perfbisect.model.trace import Trace

Event = Literal["oom kill", "machine", "build", "server", "client"]
"""Observed by perfbisect: an OOM kill, or the part that failed."""


@dataclass(frozen=True)
class FaultRow:
    """One kind of failure; docs/errors.md has the user's action and an example of each.

    Fits failures raised with its ``code``. A row with a ``pattern`` or ``event`` also fits a failure with
    that pattern in another program's output and that event observed.
    """

    code: FaultCode
    means: str
    fault: Fault
    pattern: str = ""
    event: Event | None = None
    if_measured: bool = False
    """Only if another launch of the same change succeeded."""
    if_silent: bool = False
    """Only if the log names no error: a failing engine logs one."""


FAULT_TABLE: tuple[FaultRow, ...] = (
    FaultRow("load_exceeded", "the load was over the limit", "machine"),
    FaultRow("oom_killed", "the kernel ended a process for lack of memory", "machine", event="oom kill"),
    FaultRow(
        "port_taken", "a port is taken or shared", "machine", pattern=r"[Aa]ddress already in use|Errno 98\b"
    ),
    FaultRow("lease_lost", "the lease is lost", "machine"),
    FaultRow(
        "disk_full",
        "the disk is full",
        "machine",
        pattern=r"No space left on device|Disk quota exceeded|ENOSPC|Errno 28\b|Errno 122\b",
    ),
    FaultRow(
        "file_size_limit", "a file may not grow any more", "machine", pattern=r"File too large|Errno 27\b"
    ),
    FaultRow(
        "read_only_disk",
        "the file system is read-only",
        "machine",
        pattern=r"Read-only file system|Errno 30\b",
    ),
    FaultRow(
        "out_of_memory",
        "no memory is left",
        "machine",
        pattern=r"Cannot allocate memory|\bMemoryError\b|std::bad_alloc|Errno 12\b",
    ),
    FaultRow(
        "descriptor_limit", "no file descriptor is left", "machine", pattern=r"Too many open files|Errno 24\b"
    ),
    FaultRow(
        "process_limit",
        "no process or thread is left",
        "machine",
        pattern=r"Resource temporarily unavailable|can't start new thread",
    ),
    FaultRow(
        "device_memory_taken",
        "another process holds the device's memory",
        "machine",
        pattern=(
            r"Free memory on device.*less than (?:desired|the engine's)|Error in memory profiling"
            r"|all CUDA-capable devices are busy"
        ),
    ),
    FaultRow(
        "device_failed",
        "the device or its driver failed",
        "machine",
        pattern=(
            r"uncorrectable ECC|GPU is lost|fallen off the bus|NVRM: Xid|no CUDA-capable device"
            r"|CUDA driver version is insufficient|Driver/library version mismatch|device unavailable"
        ),
    ),
    FaultRow(
        "hub_unreachable",
        "the network or the hub does not answer",
        "machine",
        pattern=(
            r"couldn't connect to|LocalEntryNotFoundError|Max retries exceeded|Errno -[23]\b|name resolution"
            r"|\b[45]\d\d (?:Client|Server) Error|HfHubHTTPError|RepositoryNotFoundError|GatedRepoError"
        ),
    ),
    FaultRow(
        "container_failed",
        "the container could not be started",
        "machine",
        pattern=(
            r"OCI runtime|OCI permission denied|Error response from daemon|unresolvable CDI devices"
            r"|[Ee]rror creating container|: image not known"
        ),
    ),
    FaultRow(
        "device_out_of_memory",
        "out of memory, where the same change has measured before",
        "machine",
        if_measured=True,
        pattern=r"OutOfMemoryError|CUDA out of memory|No available memory for the cache blocks",
    ),
    FaultRow(
        "device_out_of_memory",
        "out of device memory, on a change that never measured",
        "change",
        pattern=r"OutOfMemoryError|CUDA out of memory|No available memory for the cache blocks",
        event="server",
    ),
    FaultRow(
        "crashed",
        "a process crashed",
        "change",
        pattern=(
            r"exit code: -(?:4|5|6|7|8|11|31)\b"
            r"|core proc\(s\): \{[^}]*: -(?:4|5|6|7|8|11|31)\b|Fatal Python error|Segfault encountered"
            r"|\*\*\* SIG(?:SEGV|ABRT|BUS|FPE|ILL)|terminate called after throwing"
        ),
    ),
    FaultRow(
        "killed",
        "it was ended from outside",
        "machine",
        pattern=r"exit code:? -(?:9|15)\b|core proc\(s\): \{[^}]*: -(?:9|15)\b",
    ),
    FaultRow(
        "terminated",
        "it was told to end from outside",
        "machine",
        if_silent=True,
        pattern=r"API server: shutdown triggered|EngineCore: trigger received signal",
    ),
    FaultRow(
        "engine_vanished",
        "the engine's process vanished without a word",
        "machine",
        if_silent=True,
        pattern=(
            r"engine core exited unexpectedly|[Cc]ore process \S+ died unexpectedly"
            r"|Worker proc \S+ died unexpectedly(?! \(exit code: \d)"
        ),
    ),
    FaultRow("machine_failed", "the machine failed", "machine", event="machine"),
    FaultRow("image_missing", "there is no image of the change", "change"),
    FaultRow("build_failed", "the environment is not built, or is not the change", "change", event="build"),
    FaultRow("server_hung", "the server hung", "change"),
    FaultRow("no_output", "the server answers nothing", "change"),
    FaultRow("wrong_answer", "the server answers otherwise than the cell expects", "change"),
    FaultRow(
        "server_option_unknown",
        "the engine does not know an option of the cell",
        "change",
        pattern=r"serve: error:|unrecognized arguments|invalid choice",
        event="server",
    ),
    FaultRow(
        "engine_import_failed",
        "the engine does not import",
        "change",
        pattern=r"ImportError|ModuleNotFoundError|undefined symbol",
        event="server",
    ),
    FaultRow(
        "model_unsupported",
        "the engine does not serve this model",
        "change",
        pattern=r"Model architectures|not supported|Unsupported",
        event="server",
    ),
    FaultRow("server_failed", "the server failed", "change", event="server"),
    FaultRow(
        "client_option_unknown",
        "the client does not know its own arguments",
        "client",
        pattern=r"bench serve: error:|unrecognized arguments|invalid choice",
        event="client",
    ),
    FaultRow(
        "dataset_unreadable",
        "the client cannot read its dataset",
        "client",
        event="client",
        pattern=r"[Dd]ataset|FileNotFoundError|No such file or directory",
    ),
    FaultRow("client_hung", "the client hung", "client"),
    FaultRow("client_failed", "the client failed, and the server still answers", "client", event="client"),
)
"""Every way in which an attempt fails. The last rows of a kind fit whatever is left of it."""


ATTEMPT_ERRORS = (BuildError, ServerError, ClientError, MachineError, OSError)
"""Errors that become the failure of an attempt; others are raised."""

_POSSIBLE_FAULTS: dict[Event, tuple[Fault, ...]] = {
    "machine": ("machine",),
    "build": ("machine", "change"),
    "server": ("machine", "change"),
    "client": ("machine", "client"),
}
"""Possible faults by failed part. A client crash says nothing about the change."""

_SECOND_HAND = re.compile(
    r"EngineDeadError|See (?:the )?(?:root cause|stack trace)|initialization failed|Executor failed"
)
_HARMLESS = re.compile(r"^(?:\([^()]*\)\s*)*(?:DEBUG|INFO|WARNING)\b")
"""Log levels that report no failure, even if they name one."""
_OF_LOAD = re.compile(
    r"[Tt]imed? ?[Oo]ut|[Oo]ut ?[Oo]f ?[Mm]emory|MemoryError|No available memory|allocate memory"
)
"""Errors of an engine that other work on the machine can cause."""
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


class DiscardedRunError(MachineError):
    """A run that does not count because of other load on the machine."""

    def __init__(self, message: str, *, where: str | None = None, next_step: str | None = None) -> None:
        super().__init__(message, where=where, next_step=next_step, code="load_exceeded")


class BlamedError(ClientError):
    """A failed run whose fault row is known; ``reason`` replaces its message."""

    def __init__(self, error: PerfbisectError, row: FaultRow, reason: str) -> None:
        super().__init__(reason, where=error.where, next_step=error.next_step, code=row.code)
        self.row = row


@dataclass(frozen=True)
class FaultClassifier:
    """Classifies failures with the fault table.

    ``oom_kills``: the kernel's OOM count at the start. ``measured_before``: another launch succeeded.
    """

    oom_kills: int
    measured_before: bool = False

    def row(self, error: BaseException, phase: Phase, log_text: str = "") -> FaultRow:
        """The first row that fits; ``log_text``: end of the failed process's log."""
        if isinstance(error, BlamedError):
            return error.row
        part: Event = "server"
        # A server that does not end has measured already: what is wrong then is not the change.
        if isinstance(error, MachineError | OSError) or phase == "stop":
            part = "machine"
        elif isinstance(error, BuildError):
            part = "build"
        elif isinstance(error, ClientError):
            part = "client"
        events = {part}
        # The kernel's counter: a killed process says nothing, and its parent only that it vanished.
        if profile.oom_kills() > self.oom_kills:
            events.add("oom kill")
        code: FaultCode | None = None
        cause: BaseException | None = error
        # The system's error may be wrapped several times.
        while cause is not None and code is None:
            if isinstance(cause, PerfbisectError):
                code = cause.code
            elif isinstance(cause, OSError) and cause.errno is not None:
                code = _ERRNO_CODES.get(cause.errno)
            cause = cause.__cause__
        # Output of other programs is the only text that is searched.
        output = error.output if isinstance(error, PerfbisectError) else str(error)
        # Equal lines once: a log may repeat a short one a hundred thousand times.
        lines = list(dict.fromkeys([*output.splitlines(), *log_text.splitlines()]))
        faults = _POSSIBLE_FAULTS[part]
        return next(
            row for row in FAULT_TABLE if row.fault in faults and self._fits(row, code, events, lines)
        )

    def reason(self, error: BaseException, phase: Phase, log_text: str = "") -> str:
        """The failure as text, prefixed with the machine's fault if there is one."""
        text = _text(error)
        if isinstance(error, BlamedError | MachineError):
            return text
        row = self.row(error, phase, log_text)
        return f"{row.means}: {text}" if row.fault == "machine" else text

    def _fits(self, row: FaultRow, code: FaultCode | None, events: set[Event], lines: Sequence[str]) -> bool:
        if row.if_measured and not self.measured_before:
            return False
        if row.code == code:
            return True
        if not row.pattern and row.event is None:
            return False
        # A process that gets a signal does not log it as an error: those rows read lines of any level.
        searched = lines if row.if_silent else [line for line in lines if not _HARMLESS.match(line)]
        return (
            (row.event is None or row.event in events)
            and (not row.pattern or any(re.search(row.pattern, line) for line in searched))
            and (not row.if_silent or not names_an_error(lines))
        )


def names_an_error(lines: Iterable[str]) -> bool:
    """Whether a line names an error, or a traceback ends with one, that does not refer to another one."""
    told = [line for line in lines if not _HARMLESS.match(line)]
    named = any(_FIRST_HAND.search(line) and not _SECOND_HAND.search(line) for line in told)
    # Not every exception's name ends with Error: triton's OutOfResources, dynamo's Unsupported.
    return named or Trace.read("\n".join(told)) is not None


def is_own_error(error: BaseException) -> bool:
    """Whether a server ended by itself with an error that other work on the machine does not explain."""
    if not isinstance(error, ServerError) or error.code != "server_failed":
        return False
    lines = error.output.splitlines()
    return names_an_error(lines) and not any(_OF_LOAD.search(line) for line in lines)


def _text(error: BaseException) -> str:
    if isinstance(error, PerfbisectError):
        return error.message
    name = getattr(error, "filename", None)
    return f"{getattr(error, 'strerror', None) or error}" + (f": {name}" if name else "")
