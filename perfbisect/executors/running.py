"""How the runs of one attempt are started: from a host that has imported the client, or as plain commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfbisect.executors import overlap
from perfbisect.executors.overlap import ClientHost, Imported, NoHostError
from perfbisect.system import proc
from perfbisect.system.proc import Asked, Finished


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
    _imported: Imported | None = None
    _waited: float = 0.0
    _runs: int = 0

    def begin(self) -> None:
        """Start the host, if there is to be one, and go on.

        :raises ServerError: there is no such interpreter.
        :raises MachineError: no process or memory for it.
        """
        if self.modules and not self.plain:
            self._host = overlap.start(
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
        except NoHostError as error:
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
        return proc.run(
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
