"""Runs the client: through a fork server that imports it during the server's start, or as a command."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfbisect.clients import fork_server
from perfbisect.clients.base import is_number
from perfbisect.common.json_text import parse_json
from perfbisect.common.secret_references import fill
from perfbisect.errors import ClientError, Interrupted, MachineError
from perfbisect.system import logs, processes
from perfbisect.system.commands import ProcessResult, run
from perfbisect.system.processes import OwnedProcess, StopRequested

LOG = "client-host.log"

_TICK = 0.05
_PATIENCE = 5.0
_GRACE = 2.0
_FORK_TIMEOUT_S = 60.0


@dataclass
class Runner:
    """Runs the client of one attempt, with a host from ``begin`` to ``end``.

    ``modules``: imported by the host in advance; empty for plain commands. ``cores``: CPU affinity.
    ``plain``: why a client that supports a host runs without one; part of its digest. ``imported``: the
    host's first message, with the seconds of its imports. ``secrets``: variables that ``env`` and commands
    refer to.
    """

    interpreter: Path
    env: Mapping[str, str]
    cwd: Path
    token: str
    modules: tuple[str, ...]
    cores: tuple[int, ...] = ()
    plain: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    host: OwnedProcess | None = field(default=None, repr=False)
    imported: Mapping[str, Any] | None = None
    _channel: socket.socket | None = field(default=None, repr=False)
    _buffer: bytes = field(default=b"", repr=False)
    _waited: float = 0.0
    _runs: int = 0

    def begin(self) -> None:
        """Start the host if one is used, without waiting."""
        if not self.modules or self.plain:
            return
        here, there = socket.socketpair()
        log = self.cwd / LOG
        log.unlink(missing_ok=True)
        # The client's interpreter has no perfbisect: it gets the source as text.
        source = Path(fork_server.__file__).read_text("utf-8")
        try:
            self.host = processes.spawn(
                (str(self.interpreter), "-c", source, str(there.fileno()), *self.modules),
                env=fill(self.env, self.secrets),
                cwd=self.cwd,
                log=log,
                token=f"{self.token}.client-host",
                cores=self.cores,
                inherit=(there.fileno(),),
            )
        except BaseException:
            here.close()
            raise
        finally:
            # Only the host holds this end: its death closes the channel.
            there.close()
        self._channel = here

    def ready(self, limit: float, stop_requested: StopRequested) -> None:
        """Wait for the imports; if they fail, the client runs as a plain command."""
        if self.host is None:
            return
        began = time.monotonic()
        message = self._receive(began + limit, stop_requested, "while it imported the client")
        is_timed = message is not None and all(is_number(message.get(name)) for name in ("cpu", "seconds"))
        if message is not None and message.get("ready") and is_timed:
            self.imported = message
        else:
            failed = "" if message is None else logs.excerpt(str(message.get("failed")))
            self.plain = failed or f"not imported after {limit:.0f} s"
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
        """Run the whole command ``argv``; none of its processes survive.

        Raises:
            MachineError: a signal ended the host, or no memory or process is available.
            ClientError: the host failed.
            Interrupted: ``stop_requested`` returned True.
        """
        self._runs += 1
        argv = fill(tuple(argv), self.secrets)
        if self.host is None:
            return run(
                argv,
                env=fill(self.env, self.secrets),
                cwd=self.cwd,
                log=log,
                token=token,
                timeout=timeout,
                stop_requested=stop_requested,
                at_limit=at_limit,
                cores=self.cores,
            )
        began, when, host = time.monotonic(), f"in {log.stem}", self.host
        # The host prints nothing during a run: what its output has then is the run's.
        if not host.continue_log(log):
            raise self._gone(host, when)
        pid = self._fork(argv, token, min(began + timeout, began + _FORK_TIMEOUT_S), when)
        row = processes.process(pid)
        ended: Mapping[str, Any] | None = None
        try:
            ended = self._receive(began + timeout, stop_requested, when)
            if ended is None and at_limit is not None:
                at_limit()
            seconds = time.monotonic() - began
        finally:
            if row is not None:
                grace = 0.0 if ended else _GRACE
                processes.stop_leftovers("", pid, row.created, own_shim=host.own_shim, grace=grace)
            host.continue_log(host.log)
        if ended is None:
            # The host waits for the killed run and still sends its code.
            killed = self._receive(time.monotonic() + _PATIENCE, processes.never, when)
            return ProcessResult(int(_number(killed, "code")) if killed else -9, seconds, timed_out=True)
        return ProcessResult(int(_number(ended, "code")), seconds, False, _number(ended, "cpu"))

    def end(self) -> None:
        """End the host and its runs. :raises ServerError: one survived."""
        host, self.host = self.host, None
        if self._channel is not None:
            # The host ends when its channel closes.
            self._channel.close()
        if host is not None:
            processes.stop(host, 0.0)
            if host.log.exists() and not host.log.stat().st_size:
                host.log.unlink()

    def facts(self) -> dict[str, Any]:
        """Provenance: the mode, and seconds saved: CPU time of the imports per run, less the wait."""
        if self.imported is None:
            why = self.plain or "the client needs another interpreter"
            return {"client_host": {"mode": "plain", "why": why}, "saved_seconds": 0.0}
        cpu_seconds = float(self.imported["cpu"])
        host = {
            "mode": "host",
            "import_seconds": float(self.imported["seconds"]),
            "import_cpu_seconds": cpu_seconds,
            "waited_seconds": self._waited,
        }
        return {"client_host": host, "saved_seconds": max(0.0, cpu_seconds * self._runs - self._waited)}

    def _fork(self, argv: Sequence[str], token: str, deadline: float, when: str) -> int:
        """Start a run in the host; returns its process id.

        A stop waits for it: without the id the run could not be ended.
        """
        assert self.host is not None and self._channel is not None
        env = {processes.TOKEN_VARIABLE: token}
        request = {"argv": list(argv[1:]), "env": env, "cwd": str(self.cwd)}
        try:
            self._channel.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            raise self._gone(self.host, when) from None
        message = self._receive(deadline, processes.never, when) or {}
        if "pid" not in message:
            reason = logs.excerpt(str(message.get("refused", "")))
            raise MachineError(
                f"the client's host did not start a run: {reason or 'no answer'}",
                where=self.host.log,
                output=reason,
            )
        return int(_number(message, "pid"))

    def _receive(self, deadline: float, stop_requested: StopRequested, when: str) -> Mapping[str, Any] | None:
        """The host's next message; None at the deadline."""
        assert self.host is not None and self._channel is not None
        while b"\n" not in self._buffer:
            if stop_requested():
                raise Interrupted(f"stopped {when}", where=self.host.log)
            if not select.select([self._channel], [], [], _TICK)[0]:
                if time.monotonic() > deadline:
                    return None
                continue
            try:
                received = self._channel.recv(65536)
            except OSError:
                received = b""
            if not received:
                raise self._gone(self.host, when)
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = parse_json(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            text = logs.excerpt(line.decode("utf-8", "replace"), 120)
            raise ClientError(f"the client's host sent no message {when}: {text}", where=self.host.log)
        return message

    def _gone(self, host: OwnedProcess, when: str) -> MachineError | ClientError:
        end = time.monotonic() + _PATIENCE
        # The channel closes a moment before the exit code is known.
        while (code := host.exited()) is None and time.monotonic() < end:
            time.sleep(_TICK)
        if code is None:
            return MachineError(f"the client's host closed its channel {when}", where=host.log)
        if code < 0:
            ended = f"the client's host was ended by signal {-code} {when}, not sent by perfbisect"
            return MachineError(ended, where=host.log, code=processes.signal_code(-code))
        output = logs.cause(host.log) or logs.tail(host.log, 5)
        return ClientError(
            f"the client's host ended with exit code {code} {when}: {output}", where=host.log, output=output
        )


def _number(message: Mapping[str, Any], name: str) -> float:
    """:raises ClientError: the host says no such number."""
    value = message.get(name)
    if not is_number(value):
        raise ClientError(f"the client's host says no {name}: {logs.excerpt(str(message), 120)}")
    return float(value)
