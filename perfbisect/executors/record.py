"""What is known so far of one attempt under way, and the attempt that it becomes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfbisect.core.attempt import Attempt, Failure, Phase, Provenance, RunResult
from perfbisect.environments import Environment
from perfbisect.errors import PerfbisectError, ServerError
from perfbisect.executors import AttemptRequest, Turn, faults, provenance
from perfbisect.executors.provenance import Instrument
from perfbisect.store.attempts import plain
from perfbisect.system import clock, logs, machine, ports
from perfbisect.system.proc import Owned
from perfbisect.system.profile import CUDA, Profile
from perfbisect.system.slots import Slot, machine_of

_END_OF_LOG = 32768


def _now() -> str:
    return clock.now().isoformat(timespec="seconds")


@dataclass
class Record:
    """One attempt under way: where it stands, what it has measured, the first failure.

    ``log``: where the present phase writes. ``token``: marks every process of the attempt.
    """

    request: AttemptRequest
    token: str
    judge: faults.Judge
    phase: Phase = "build"
    log: Path = field(default_factory=Path)
    seconds: dict[str, float] = field(default_factory=dict)
    runs: list[RunResult] = field(default_factory=list)
    failure: Failure | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    environment: Environment | None = None
    instrument: Instrument | None = None
    cold: bool = False
    started_at: str = field(default_factory=_now)

    @contextmanager
    def timed(self, phase: Phase, log: Path | None = None) -> Iterator[None]:
        """The attempt is in this phase; its wall seconds are added up."""
        self.phase, self.log = phase, log or self.log
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - began

    def fail(self, error: BaseException, server: Owned | None = None) -> None:
        """Keep the first failure: what comes later follows from it. ``server``: whose log may tell more."""
        if isinstance(error, ports.SharedPortError):
            self.runs.clear()
        if self.failure is not None:
            return
        log = Path(getattr(error, "where", None) or self.log)
        text = ""
        if server is not None and isinstance(error, ServerError):
            text = logs.text_of(server.log, _END_OF_LOG)
        row, reason = self.judge.row(error, self.phase, text), self.judge.reason(error, self.phase, text)
        self.failure = Failure(self.phase, row.fault, reason, str(log), row.code)
        if isinstance(error, PerfbisectError) and error.next_step:
            self.facts["next_step"] = error.next_step

    def follow(self, failure: Failure, cell: str) -> None:
        """Fails with the server, which failed when it served that cell."""
        self.phase = "build" if failure.phase == "build" else "launch"
        reason = f"the server that it shares failed with cell {cell}: {failure.reason}"
        self.failure = replace(failure, phase=self.phase, reason=reason)

    def made(self, shell: Mapping[str, str], slot: Slot, *, pinned: bool, profile: Profile = CUDA) -> Attempt:
        """The attempt as it is now, on its slot. ``pinned``: the client is the same for all changes."""
        request, environment, instrument = self.request, self.environment, self.instrument
        here = machine_of(slot, shell, profile)
        self.facts["machine"] = here.facts()
        if environment is not None:
            self.facts["engine"] = provenance.engine_facts(environment, self.cold)
        if instrument is not None:
            self.facts["instrument"] = {
                "version": instrument.version,
                "pinned": pinned,
                **instrument.facts,
            }
        return Attempt(
            id=request.id,
            change_id=request.change.id,
            purpose=request.purpose,
            provenance=Provenance(
                cell_digest=request.cell.digest,
                machine_class=here.kind,
                client_digest=instrument.digest if instrument else "",
                client_era=instrument.era if instrument else "",
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

    def plainly(self) -> None:
        """The client is run in another way than usual: that is another instrument."""
        if self.instrument is not None:
            self.instrument = replace(self.instrument, forced_plain=True)


class Turns:
    """The attempts that one server serves in turn; ``record`` is of the present one."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns, self._place, self._last = turns, -1, len(turns) - 1
        self._before: list[str] = []
        self._first = ""
        self.next()

    @property
    def more(self) -> bool:
        """True if another turn follows."""
        return self._place < self._last

    def next(self) -> None:
        """The next turn begins."""
        self._place += 1
        request = self._turns[self._place]()
        token = request.token or secrets.token_hex(16)
        judge = faults.Judge(machine.oom_kills(), request.measured_before)
        self.record = Record(request, token, judge, log=request.folder)
        if request.suite:
            self._first = self._first or request.id
            self.record.facts["launch"] = {
                "id": self._first, "suite": request.suite, "place": self._place + 1, "after": [*self._before],
            }  # fmt: skip
            self._before.append(request.cell.name)

    def close(self) -> None:
        """No other turn follows."""
        self._last = self._place
