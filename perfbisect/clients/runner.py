"""Runs the client: through a fork server that imports it during the server's start, or as a command."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from perfbisect.clients import fork_server
from perfbisect.errors import ClientError, Interrupted, MachineError
from perfbisect.system import logs, processes
from perfbisect.system.processes import OwnedProcess, ProcessResult, StopRequested

LOG = "client-host.log"

_TICK = 0.05
_PATIENCE = 5.0
_GRACE = 2.0


class HostUnavailableError(ClientError):
    """The client cannot be forked in this environment and runs as a plain command."""


class ImportCosts(NamedTuple):
    """Wall and CPU seconds of the host's imports."""

    seconds: float
    cpu_seconds: float


@dataclass
class ClientHost:
    """The fork server of one attempt; ``close`` ends it and its runs."""

    owned: OwnedProcess
    cwd: Path
    channel: socket.socket = field(repr=False)
    _buffer: bytes = field(default=b"", repr=False)

    def ready(self, limit: float, stop_requested: StopRequested) -> ImportCosts:
        """Return once everything is imported.

        Raises:
            HostUnavailableError: the client cannot be imported beforehand, or not in ``limit`` seconds.
        """
        message = self._receive(time.monotonic() + limit, stop_requested, "while it imported the client")
        if message is None:
            raise HostUnavailableError(f"not imported after {limit:.0f} s", where=self.owned.log)
        if not message.get("ready"):
            raise HostUnavailableError(logs.neutral(str(message.get("failed"))), where=self.owned.log)
        return ImportCosts(float(message["seconds"]), float(message["cpu"]))

    def run(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        token: str,
        timeout: float,
        stop_requested: StopRequested,
        at_limit: Callable[[], None] | None = None,
    ) -> ProcessResult:
        """Run ``argv``, whose interpreter is the host's, like :func:`perfbisect.system.processes.run`.

        Raises:
            MachineError: a signal ended the host, or no memory or process is available.
            ClientError: the host failed.
            Interrupted: ``stop_requested`` returned True.
        """
        began, when = time.monotonic(), f"in {log.stem}"
        env = {processes.TOKEN_VARIABLE: token}
        request = {"argv": list(argv[1:]), "env": env, "log": str(log), "cwd": str(self.cwd)}
        try:
            self.channel.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            raise self._gone(when) from None
        message = self._receive(began + timeout, stop_requested, when) or {}
        if "pid" not in message:
            reason = message.get("refused", "")
            raise MachineError(
                f"the client's host did not start a run: {reason or 'no answer'}",
                where=self.owned.log,
                output=reason,
            )
        pid = int(message["pid"])
        row = processes.process(pid)
        ended: Mapping[str, Any] | None = None
        try:
            ended = self._receive(began + timeout, stop_requested, when)
            if ended is None and at_limit is not None:
                at_limit()
            seconds = time.monotonic() - began
        finally:
            if row is not None:
                processes.stop_leftovers("", pid, row.created, log=log, grace=0.0 if ended else _GRACE)
        if ended is None:
            killed = self._receive(time.monotonic() + _PATIENCE, processes.never, when)
            return ProcessResult(int(killed["code"]) if killed else -9, seconds, timed_out=True)
        return ProcessResult(int(ended["code"]), seconds, False, float(ended["cpu"]))

    def close(self) -> None:
        """End the host. :raises ServerError: it survived."""
        self.channel.close()  # ends the host
        processes.stop(self.owned, 0.0)
        if self.owned.log.exists() and not logs.text_of(self.owned.log, 1):
            self.owned.log.unlink()

    def _receive(self, deadline: float, stop_requested: StopRequested, when: str) -> Mapping[str, Any] | None:
        """The host's next message; None at the deadline."""
        while b"\n" not in self._buffer:
            if stop_requested():
                raise Interrupted(f"stopped {when}", where=self.owned.log)
            if not select.select([self.channel], [], [], _TICK)[0]:
                if time.monotonic() > deadline:
                    return None
                continue
            try:
                received = self.channel.recv(65536)
            except OSError:
                received = b""
            if not received:
                raise self._gone(when)
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Mapping[str, Any] = json.loads(line)
        return message

    def _gone(self, when: str) -> MachineError | ClientError:
        end = time.monotonic() + _PATIENCE
        while (code := self.owned.exited()) is None and time.monotonic() < end:
            time.sleep(_TICK)
        log = self.owned.log
        if code is None:
            return MachineError(f"the client's host closed its channel {when}", where=log)
        if code < 0:
            ended = f"the client's host was ended by signal {-code} {when}, not sent by perfbisect"
            return MachineError(ended, where=log, code=processes.signal_code(-code))
        output = logs.cause(log) or logs.tail(log, 5)
        return ClientError(
            f"the client's host ended with exit code {code} {when}: {output}", where=log, output=output
        )


def start_host(
    modules: Sequence[str],
    *,
    interpreter: Path,
    env: Mapping[str, str],
    cwd: Path,
    token: str,
    cores: Sequence[int] = (),
) -> ClientHost:
    """Start a host that imports ``modules``, without waiting."""
    here, there = socket.socketpair()
    log = cwd / LOG
    log.unlink(missing_ok=True)
    try:
        source = Path(fork_server.__file__).read_text("utf-8")
        argv = (str(interpreter), "-c", source, str(there.fileno()), *modules)
        owned = processes.spawn(
            argv, env=env, cwd=cwd, log=log, token=token, cores=cores, inherit=(there.fileno(),)
        )
    except BaseException:
        here.close()
        raise
    finally:
        there.close()
    os.set_blocking(here.fileno(), True)
    return ClientHost(owned, cwd, here)


@dataclass
class Runner:
    """Runs the client of one attempt.

    ``modules``: imported by a host in advance; empty for plain commands. ``cores``: CPU affinity.
    ``plain``: why a client that supports a host runs without one; part of its digest.
    """

    interpreter: Path
    env: Mapping[str, str]
    cwd: Path
    token: str
    modules: tuple[str, ...]
    cores: tuple[int, ...] = ()
    plain: str = ""
    _host: ClientHost | None = field(default=None, repr=False)
    _imported: ImportCosts | None = None
    _waited: float = 0.0
    _runs: int = 0

    def begin(self) -> None:
        """Start the host if one is used."""
        if self.modules and not self.plain:
            self._host = start_host(
                self.modules,
                interpreter=self.interpreter,
                env=self.env,
                cwd=self.cwd,
                token=f"{self.token}.client-host",
                cores=self.cores,
            )

    def ready(self, limit: float, stop_requested: StopRequested) -> None:
        """Wait for the imports; if they fail, the client runs as a plain command."""
        if self._host is None:
            return
        began = time.monotonic()
        try:
            self._imported = self._host.ready(limit, stop_requested)
        except HostUnavailableError as error:
            self.plain = error.message
            self.end()
        self._waited = time.monotonic() - began

    def run(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        token: str,
        timeout: float,
        stop_requested: StopRequested,
        at_limit: Callable[[], None] | None = None,
    ) -> ProcessResult:
        """Run the whole command ``argv``; none of its processes survive."""
        self._runs += 1
        start: Callable[..., ProcessResult] = partial(
            processes.run, env=self.env, cwd=self.cwd, cores=self.cores
        )
        if self._host is not None:
            start = self._host.run
        return start(
            argv, log=log, token=token, timeout=timeout, stop_requested=stop_requested, at_limit=at_limit
        )

    def end(self) -> None:
        """End the host. :raises ServerError: it survived."""
        host, self._host = self._host, None
        if host is not None:
            host.close()

    def facts(self) -> dict[str, Any]:
        """Provenance: the mode, and seconds saved: CPU time of the imports per run, less the wait."""
        if self._imported is None:
            why = self.plain or "the client needs another interpreter"
            return {"client_host": {"mode": "plain", "why": why}, "saved_seconds": 0.0}
        seconds, cpu_seconds = self._imported
        host = {
            "mode": "host",
            "import_seconds": seconds,
            "import_cpu_seconds": cpu_seconds,
            "waited_seconds": self._waited,
        }
        return {"client_host": host, "saved_seconds": max(0.0, cpu_seconds * self._runs - self._waited)}
