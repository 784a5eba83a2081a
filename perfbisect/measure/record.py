"""An attempt in progress, and its provenance."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfbisect.clients import CLIENTS, Client
from perfbisect.clients.runner import Runner
from perfbisect.environments.base import Environment
from perfbisect.errors import PerfbisectError, ServerError
from perfbisect.machine import profile
from perfbisect.machine.profile import Machine
from perfbisect.machine.slots import Slot
from perfbisect.measure import faults
from perfbisect.measure.attempt import plain
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Attempt, Failure, Phase, Provenance, RunResult
from perfbisect.model.trace import Trace
from perfbisect.redaction import redacted, redacted_argv
from perfbisect.serving.eras import ERAS
from perfbisect.system import clock, logs, ports
from perfbisect.system.files import scratch_folder
from perfbisect.system.http import NoAnswerError
from perfbisect.system.processes import OwnedProcess

END_OF_LOG = 32768
"""Bytes of a log that are read to classify a failure."""


@dataclass(frozen=True)
class ClientVersion:
    """Version and source digest of the client."""

    name: str
    version: str
    sha256: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    forced_plain: bool = False
    """It supports the fork server (:mod:`perfbisect.clients.runner`) but ran as a command."""
    date: str = ""
    """Commit date if the client is the change's own, else empty."""

    @property
    def digest(self) -> str:
        """Must be equal on both sides of a comparison."""
        return f"{self.name} {self.version} {self.sha256[:16]}" + (" plain" if self.forced_plain else "")

    @property
    def era(self) -> str:
        """The client's name and the change that began its era; empty if unknown."""
        eras = reversed(ERAS.get(self.name, ()))
        found = next((era for era in eras if era.reached(self.date, self.version)), None)
        if found is None:
            return ""
        return f"{self.name} since {found.change}" + (", plain" if self.forced_plain else "")


def command_facts(argv: tuple[str, ...], env: Mapping[str, str]) -> dict[str, Any]:
    """A command and its environment without secrets."""
    return {"argv": redacted_argv(argv), "env": redacted(env)}


@dataclass
class AttemptRecord:
    """An attempt in progress: what was prepared for it, phase, results and first failure.

    ``log``: of the current phase. ``token``: marks every process of the attempt.
    """

    request: AttemptRequest
    token: str
    classifier: faults.FaultClassifier
    phase: Phase = "build"
    log: Path = field(default_factory=Path)
    seconds: dict[str, float] = field(default_factory=dict)
    runs: list[RunResult] = field(default_factory=list)
    failure: Failure | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    environment: Environment | None = None
    runner: Runner | None = None
    client: ClientVersion | None = None
    offline: Mapping[str, str] = field(default_factory=dict)
    """Variables that keep server and client offline."""
    cold: bool = False
    """The environment's compile and kernel caches were empty."""
    started_at: str = field(default_factory=lambda: clock.now().isoformat(timespec="seconds"))

    @classmethod
    def begin(cls, request: AttemptRequest) -> AttemptRecord:
        # Read before anything is started: what the kernel kills from now on may belong to this attempt.
        classifier = faults.FaultClassifier(profile.oom_kills(), request.measured_before)
        return cls(request, request.token or secrets.token_hex(16), classifier, log=request.folder)

    @property
    def instrument(self) -> Client:
        return CLIENTS[self.request.cell.client.name]

    @property
    def scratch(self) -> dict[str, str]:
        """The variable by which the attempt's processes keep their temporary files in its own folder."""
        return {"TMPDIR": str(scratch_folder(self.token))}

    @contextmanager
    def timed(self, phase: Phase, log: Path | None = None) -> Iterator[None]:
        """Enter a phase and add up its wall seconds."""
        self.phase, self.log = phase, log or self.log
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - began

    def fail(self, error: BaseException, server: OwnedProcess | None = None) -> None:
        """Keep the first failure; later ones follow from it. ``server``: its log helps to classify."""
        if isinstance(error, ports.SharedPortError):
            # It is not known since when another server has answered: no run counts.
            self.runs.clear()
        if self.failure is not None:
            return
        is_servers = server is not None and isinstance(error, ServerError)
        # Only for the server's own failures: its log names errors of requests that it survived.
        text = logs.text_of(server.log, END_OF_LOG) if server is not None and is_servers else ""
        row = self.classifier.row(error, self.phase, text)
        reason = self.classifier.reason(error, self.phase, text)
        log = getattr(error, "where", None) or str(self.log)
        # An old error in the log of a server that hangs is not why it hangs.
        is_going = server is not None and server.exited() is None
        is_silent = is_going and (self.phase == "launch" or isinstance(error.__cause__, NoAnswerError))
        is_hang = is_silent or row.code == "server_hung"
        trace = None if is_hang else Trace.read(logs.text_of(Path(log), END_OF_LOG))
        self.failure = Failure(self.phase, row.fault, reason, log, row.code, trace)
        if isinstance(error, PerfbisectError) and error.next_step:
            self.facts["next_step"] = error.next_step

    def to_attempt(self, machine: Machine | None, slot: Slot, *, pinned: bool = False) -> Attempt:
        """Convert to an attempt. ``machine`` None: it reached none; ``pinned``: one client for all."""
        request, environment, client = self.request, self.environment, self.client
        if machine is not None:
            self.facts["machine"] = machine.facts()
        if environment is not None:
            self.facts["engine"] = {
                "version": environment.engine_version,
                "commit": environment.engine_commit,
                "file": environment.engine_file,
                "interpreter": str(environment.interpreter),
                "key": environment.key,
                "packages_digest": environment.packages_digest,
                "caches": "cold" if self.cold else "warm",
                **environment.facts,
            }
        if client is not None:
            self.facts["instrument"] = {"version": client.version, "pinned": pinned, **client.facts}
        return Attempt(
            id=request.id,
            change_id=request.change.id,
            purpose=request.purpose,
            provenance=Provenance(
                cell_digest=request.cell.digest,
                machine_class=machine.kind if machine else "",
                client_digest=client.digest if client else "",
                client_era=client.era if client else "",
                engine_version=environment.engine_version if environment else "",
                engine_commit=environment.engine_commit if environment else "",
                environment_key=environment.key if environment else "",
                facts=plain(self.facts),
            ),
            runs=tuple(self.runs),
            failure=self.failure,
            seconds=dict(self.seconds),
            folder=str(request.folder),
            cold=self.cold,
            started_at=self.started_at,
            slot=slot.name,
        )
