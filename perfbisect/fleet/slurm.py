"""A Slurm cluster by its own commands: ``--fleet slurm[:partition=..,constraint=..,account=..]``.

A bundle is a job on one named node, known by its token in the job's comment: a controller that was killed
can forget jobs and give an id out again. The folder of the bundles and the cache of the environments are on a
file system that the nodes share.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from perfbisect.errors import MachineError
from perfbisect.fleet.base import Ticket, UnreachableError
from perfbisect.fleet.bundle import Bundle, MachineDocument
from perfbisect.fleet.connection import Answer, LocalConnection, run_script
from perfbisect.fleet.folders import AGENT_SCRIPT, KILLED_WITHIN_S, FleetHost, FolderFleet, escalate

_BATCH = "batch.sh"
_USABLE = ("idle", "mixed", "allocated", "completing")
"""States of nodes that take jobs, now or later; a mark behind them (``*``, ``~``) says that they do not."""

_AT_ONCE_S = 60
"""Seconds that a short command may wait for its node."""

_KILL_WAIT_S = 60.0
"""Beyond the grace: Slurm itself waits KillWait, 30 s by default, before it kills."""

_HAS_NOT_ENDED = 'cd "$1" 2>/dev/null && [ -e pid ] && [ ! -e exit ] && [ ! -e run/manifest.json ]'

_SIGNAL = """\
for entry in /proc/[0-9]*; do
  process=${entry#/proc/}
  if [ "$process" != $$ ] && [ "$entry/cwd" -ef "$1" ]; then
    kill -s "$2" "$process" 2>/dev/null && found=$process
  fi
done
[ -z "$found" ]
"""
"""Signals the agent and its script: they work in the bundle's folder, by whatever job they were started."""

_NOT_RUN = 121
"""The exit code that srun is told to have where it did not run the command."""

_SRUN = ("env", f"SLURM_EXIT_ERROR={_NOT_RUN}", f"SLURM_EXIT_IMMEDIATE={_NOT_RUN}", "srun")

_HAS_STARTED = '[ -e "$1/started" ]'


@dataclass(frozen=True)
class SlurmOptions:
    """How jobs are asked for; empty: as the site has it.

    ``nodes``: names joined by ``+``, empty: all. ``command``: perfbisect on the nodes, empty: as it is here.
    """

    partition: str = ""
    constraint: str = ""
    account: str = ""
    qos: str = ""
    gres: str = ""
    nodes: str = ""
    command: str = ""

    @property
    def arguments(self) -> list[str]:
        """Of sbatch and srun."""
        names = ("partition", "constraint", "account", "qos", "gres")
        return [f"--{name}={getattr(self, name)}" for name in names if getattr(self, name)]


class SlurmFleet(FolderFleet):
    """``folder``: of the bundles, ``command``: of perfbisect, both on the shared file system."""

    name = "slurm"

    def __init__(
        self,
        options: SlurmOptions,
        folder: str,
        command: tuple[str, ...],
        *,
        devices: int = 0,
        workers: int | None = None,
    ) -> None:
        super().__init__(devices=devices, workers=workers)
        self._options, self._folder, self._command = options, folder, command
        self._connection = LocalConnection()
        self._nodes: tuple[str, ...] = ()

    def hosts(self) -> Sequence[FleetHost]:
        if not self._nodes:
            self._list_nodes()
        return tuple(FleetHost(name, self._connection, self._folder, self._command) for name in self._nodes)

    def _list_nodes(self) -> None:
        found: dict[str, None] = {}
        words = ["sinfo", "--noheader", "--Node", "--format=%N|%f"]
        words += [f"--partition={self._options.partition}"] if self._options.partition else []
        wanted, needed = set(filter(None, self._options.nodes.split("+"))), self._options.constraint
        for row in self._slurm(words).text.splitlines():
            name, features = (part.strip() for part in row.split("|"))
            is_plain = needed.replace("_", "").isalnum()
            if (wanted and name not in wanted) or (is_plain and needed not in features.split(",")):
                continue
            found[name] = None
        self._nodes = tuple(found)

    def machines(self, *, checks: bool = False) -> Sequence[MachineDocument]:
        self._list_nodes()
        return super().machines(checks=checks)

    def ask(self, host: FleetHost, argv: Sequence[str]) -> Answer:
        """By a job of its own, which does not wait for long: a node that is in use does not answer.

        Raises:
            UnreachableError: the job did not run.
        """
        state = self._slurm(["sinfo", "--noheader", f"--nodes={host.name}", "--format=%T"]).text.split()
        if not set(state) & set(_USABLE):
            raise UnreachableError(f"{host.name} does not answer: Slurm says {' '.join(state) or 'nothing'}")
        words = [*_SRUN, "--quiet", "--nodes=1", "--ntasks=1", f"--nodelist={host.name}"]
        words += [f"--immediate={_AT_ONCE_S}", "--job-name=perfbisect", *self._options.arguments]
        answer = self._connection.run([*words, *argv], timeout=3 * _AT_ONCE_S)
        if answer.code == _NOT_RUN:
            raise UnreachableError(f"{host.name} does not answer: {answer.errors}")
        return answer

    def start(self, host: FleetHost, ticket: Ticket, argv: Sequence[str], bundle: Bundle) -> None:
        folder = host.bundle(ticket.token)
        has_started = run_script(self._connection, _HAS_STARTED, folder).code == 0
        if has_started or self.lives(host, ticket):
            return
        script = f"#!/bin/sh\n{AGENT_SCRIPT}".encode()
        written = run_script(self._connection, 'cat > "$1"', f"{folder}/{_BATCH}", given=script)
        written.checked(f"write {folder}")
        words = ["sbatch", "--no-requeue", "--nodes=1", "--exclusive", "--job-name=perfbisect"]
        words += [f"--comment={ticket.token}", f"--nodelist={host.name}", f"--output={folder}/slurm.out"]
        words += [f"--time={math.ceil(bundle.limit + bundle.wait) + 5}", *self._options.arguments]
        self._slurm([*words, f"{folder}/{_BATCH}", folder, *argv])

    def lives(self, host: FleetHost, ticket: Ticket) -> bool:
        del host
        return bool(self._jobs(ticket.token))

    def _jobs(self, token: str) -> list[str]:
        """Ids of the jobs with a token."""
        rows = self._slurm(["squeue", "--noheader", "--me", "--states=all", "--format=%i|%k|%T"]).text
        live = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING")
        parts = (row.split("|") for row in rows.splitlines())
        return [part[0] for part in parts if len(part) == 3 and part[1] == token and part[2] in live]

    def end(self, host: FleetHost, ticket: Ticket, grace: float) -> None:
        def cancel(number: int) -> None:
            force = ["--signal=KILL", "--full"] if number == signal.SIGKILL else []
            for job in self._jobs(ticket.token):
                self._connection.run(["scancel", *force, job])

        if not escalate(cancel, lambda: not self._jobs(ticket.token), grace + _KILL_WAIT_S, _KILL_WAIT_S):
            raise MachineError(f"Slurm does not end the job of bundle {ticket.token} on {host.name}")
        if run_script(self._connection, _HAS_NOT_ENDED, host.bundle(ticket.token)).code == 0:
            self._end_forgotten(host, ticket, grace)

    def _end_forgotten(self, host: FleetHost, ticket: Ticket, grace: float) -> None:
        """End an agent of whose job the controller knows nothing any more."""

        def signals_none(number: int = 0) -> bool:
            words = ["sh", "-c", _SIGNAL, "sh", host.bundle(ticket.token), str(number)]
            return self.ask(host, words).code == 0

        if not escalate(signals_none, signals_none, grace, KILLED_WITHIN_S):
            raise MachineError(f"the agent of bundle {ticket.token} cannot be ended on {host.name}")

    def _slurm(self, argv: Sequence[str]) -> Answer:
        """Run a command of Slurm's, twice where it failed and the controller answers: it may be back.

        Raises:
            UnreachableError: the controller does not answer.
            MachineError: the command failed.
        """
        for _ in range(2):
            answer = self._connection.run(argv)
            if answer.code == 0:
                return answer
            if self._connection.run(["scontrol", "ping"]).code:
                raise UnreachableError(f"Slurm does not answer: {answer.errors}")
        raise MachineError(f"{argv[0]} failed: {answer.errors}", next_step=f"run it yourself: {argv[0]}")
