"""The client's imports beside the server's start: a host that has imported forks one process a run."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfbisect.clients import fork_server
from perfbisect.errors import ClientError, Interrupted, MachineError
from perfbisect.system import logs, processes
from perfbisect.system.processes import Asked, Finished, Owned

LOG = "client-host.log"

_TICK = 0.05
_PATIENCE = 5.0
_GRACE = 2.0


class HostUnavailableError(ClientError):
    """The client cannot be run from a host in this environment; it runs as a plain command."""


@dataclass(frozen=True)
class ImportCosts:
    """What the host's imports took: wall seconds beside the server's start, and of CPU time."""

    seconds: float
    cpu_seconds: float


@dataclass
class ClientHost:
    """The host of one attempt; ``close`` ends it and every run of it."""

    owned: Owned
    cwd: Path
    channel: socket.socket = field(repr=False)
    _heard: bytes = field(default=b"", repr=False)

    def ready(self, limit: float, asked: Asked) -> ImportCosts:
        """Return once everything is imported.

        :raises NoHostError: the client cannot be imported beforehand, or not in ``limit`` seconds.
        :raises MachineError: somebody ended the host.
        :raises Interrupted: ``asked`` said so.
        """
        told = self._told(time.monotonic() + limit, asked, "while it imported the client")
        if told is None:
            raise HostUnavailableError(f"not imported after {limit:.0f} s", where=self.owned.log)
        if not told.get("ready"):
            raise HostUnavailableError(logs.neutral(str(told.get("failed"))), where=self.owned.log)
        return ImportCosts(float(told["seconds"]), float(told["cpu"]))

    def run(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        token: str,
        timeout: float,
        asked: Asked,
        at_limit: Callable[[], None] | None = None,
    ) -> Finished:
        """One run of ``argv`` (less the interpreter), as :func:`perfbisect.system.processes.run` would do it.

        :raises MachineError: somebody ended the host, or there is no memory or process for a run.
        :raises ClientError: the host failed by itself.
        :raises Interrupted: ``asked`` said so.
        """
        began = time.monotonic()
        env = {processes.TOKEN_VARIABLE: token}
        when = f"in {log.stem}"
        self._ask({"argv": list(argv), "env": env, "log": str(log), "cwd": str(self.cwd)}, when)
        told = self._told(began + timeout, asked, when)
        if told is None or "pid" not in told:
            why = "no answer" if told is None else told.get("refused")
            raise MachineError(
                f"the client's host began no run: {why}",
                where=self.owned.log,
                output="" if told is None else str(why),
            )
        pid = int(told["pid"])
        row = processes.process(pid)
        ended: Mapping[str, Any] | None = None
        try:
            ended = self._told(began + timeout, asked, when)
            if ended is None and at_limit is not None:
                at_limit()
            seconds = time.monotonic() - began
        finally:
            if row is not None:
                processes.stop_leftovers("", pid, row.created, log=log, grace=0.0 if ended else _GRACE)
        if ended is None:
            killed = self._told(time.monotonic() + _PATIENCE, processes.never, when)
            return Finished(int(killed["code"]) if killed else -9, seconds, timed_out=True)
        return Finished(int(ended["code"]), seconds, False, float(ended["cpu"]))

    def close(self) -> None:
        """:raises ServerError: it cannot be ended."""
        self.channel.close()  # it ends by itself then
        processes.stop(self.owned, 0.0)
        if self.owned.log.exists() and not logs.text_of(self.owned.log, 1):
            self.owned.log.unlink()

    def _ask(self, asked: Mapping[str, Any], when: str) -> None:
        try:
            self.channel.sendall(json.dumps(asked).encode() + b"\n")
        except OSError:
            raise self._gone(when) from None

    def _told(self, deadline: float, asked: Asked, when: str) -> Mapping[str, Any] | None:
        """The next line that the host tells; None at the deadline."""
        while b"\n" not in self._heard:
            if asked():
                raise Interrupted(f"stopped {when}", where=self.owned.log)
            if not select.select([self.channel], [], [], _TICK)[0]:
                if time.monotonic() > deadline:
                    return None
                continue
            try:
                heard = self.channel.recv(65536)
            except OSError:
                heard = b""
            if not heard:
                raise self._gone(when)
            self._heard += heard
        line, _, self._heard = self._heard.partition(b"\n")
        told: Mapping[str, Any] = json.loads(line)
        return told

    def _gone(self, when: str) -> MachineError | ClientError:
        end = time.monotonic() + _PATIENCE
        while (code := self.owned.exited()) is None and time.monotonic() < end:
            time.sleep(_TICK)
        log = self.owned.log
        if code is None or code < 0:
            said = "closed its channel" if code is None else f"was ended by signal {-code}"
            return MachineError(
                f"the client's host {said} {when}; nobody here sent it",
                where=log,
                code=None if code is None else processes.signal_code(-code),
            )
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
    """Start a host that imports ``modules`` in the client's interpreter; it does not wait for them.

    :raises ServerError: there is no such interpreter.
    :raises MachineError: the machine has no process or memory for it.
    """
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
    """Starts the client of one attempt, its runs one after the other.

    ``modules``: what a host imports beforehand; none: plain commands. ``cores``: where the client may run.
    ``plain``: why a client that allows a host is run without one; that is told with its digest.
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
        """Start the host, if there is to be one, and go on.

        :raises ServerError: there is no such interpreter.
        :raises MachineError: no process or memory for it.
        """
        if self.modules and not self.plain:
            self._host = start_host(
                self.modules,
                interpreter=self.interpreter,
                env=self.env,
                cwd=self.cwd,
                token=f"{self.token}.client-host",
                cores=self.cores,
            )

    def ready(self, limit: float, asked: Asked) -> None:
        """Wait for the host's imports; where they fail, the client runs as a plain command.

        :raises MachineError: somebody ended the host.
        :raises Interrupted: ``asked`` said so.
        """
        if self._host is None:
            return
        began = time.monotonic()
        try:
            self._imported = self._host.ready(limit, asked)
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
        asked: Asked,
        at_limit: Callable[[], None] | None = None,
    ) -> Finished:
        """One run; nothing of it lives afterwards. ``argv``: the whole command as a user would type it.

        :raises Interrupted: ``asked`` said so.
        :raises PerfbisectError: it could not be started, or not be ended.
        """
        self._runs += 1
        if self._host is not None:
            return self._host.run(
                argv[1:], log=log, token=token, timeout=timeout, asked=asked, at_limit=at_limit
            )
        return processes.run(
            argv,
            env=self.env,
            cwd=self.cwd,
            log=log,
            token=token,
            timeout=timeout,
            asked=asked,
            at_limit=at_limit,
            cores=self.cores,
        )

    def end(self) -> None:
        """End the host. :raises ServerError: it lives on."""
        host, self._host = self._host, None
        if host is not None:
            host.close()

    def facts(self) -> dict[str, Any]:
        """For the provenance. What a host saved: its imports once for each run, less what was waited for it.

        Their CPU time, not their wall time: beside a starting server they take longer than alone.
        """
        if self._imported is None:
            why = self.plain or "the client is not run by this interpreter alone"
            return {"client_host": {"mode": "plain", "why": why}, "saved_seconds": 0.0}
        saved = self._imported.cpu_seconds * self._runs - self._waited
        return {
            "client_host": {
                "mode": "host",
                "import_seconds": self._imported.seconds,
                "import_cpu_seconds": self._imported.cpu_seconds,
                "waited_seconds": self._waited,
            },
            "saved_seconds": max(0.0, saved),
        }
