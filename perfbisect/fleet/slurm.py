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
from perfbisect.fleet.bundle import Bundle, UnreachableError
from perfbisect.fleet.connection import Answer, Connection
from perfbisect.fleet.hosts import AGENT_SCRIPT, FleetHost, HostSettings, escalate

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


@dataclass(frozen=True)
class SlurmHost(FleetHost):
    """A node; its folder and its command are on the shared file system."""

    options: SlurmOptions = SlurmOptions()

    def ask(self, argv: Sequence[str]) -> Answer:
        """By a job of its own, which does not wait for long: a node that is in use does not answer.

        Raises:
            UnreachableError: the job did not run.
        """
        # srun would wait a minute for a node that is down, which sinfo says at once.
        state = _run_slurm(["sinfo", "--noheader", f"--nodes={self.name}", "--format=%T"]).text.split()
        if not set(state) & set(_USABLE):
            raise UnreachableError(f"{self.name} does not answer: Slurm says {' '.join(state) or 'nothing'}")
        words = [*_SRUN, "--quiet", "--nodes=1", "--ntasks=1", f"--nodelist={self.name}"]
        words += [f"--immediate={_AT_ONCE_S}", "--job-name=perfbisect", *self.options.arguments]
        answer = self.connection.run([*words, *argv], timeout=3 * _AT_ONCE_S)
        if answer.code == _NOT_RUN:
            raise UnreachableError(f"{self.name} does not answer: {answer.errors}")
        return answer

    def start(self, bundle: Bundle, argv: Sequence[str]) -> None:
        folder = self.bundle(bundle.token)
        # A bundle is submitted again where the answer to the first was lost: its job may be there.
        has_started = self.connection.run_script(_HAS_STARTED, folder).code == 0
        if has_started or self.lives(bundle.token):
            return
        script = f"#!/bin/sh\n{AGENT_SCRIPT}".encode()
        written = self.connection.run_script('cat > "$1"', f"{folder}/{_BATCH}", given=script)
        written.checked(f"write {folder}")
        # Slurm restarts a job that lost its node by default, but a launch is made once.
        words = ["sbatch", "--no-requeue", "--nodes=1", "--exclusive", "--job-name=perfbisect"]
        words += [f"--comment={bundle.token}", f"--nodelist={self.name}", f"--output={folder}/slurm.out"]
        # The agent ends itself by its own limit: that of Slurm is for an agent that hangs.
        words += [f"--time={math.ceil(bundle.limit + bundle.wait) + 5}", *self.options.arguments]
        _run_slurm([*words, f"{folder}/{_BATCH}", folder, *argv])

    def lives(self, token: str) -> bool:
        return bool(_jobs(token))

    def end(self, token: str, grace: float) -> None:
        folder = self.bundle(token)

        def signals_none(number: int = 0) -> bool:
            return self.ask(["sh", "-c", _SIGNAL, "sh", folder, str(number)]).code == 0

        def cancel(number: int) -> None:
            force = ["--signal=KILL", "--full"] if number == signal.SIGKILL else []
            for job in _jobs(token):
                self.connection.run(["scancel", *force, job])

        if not escalate(cancel, lambda: not _jobs(token), grace + _KILL_WAIT_S, _KILL_WAIT_S):
            raise MachineError(f"Slurm does not end the job of bundle {token} on {self.name}")
        if self.connection.run_script(_HAS_NOT_ENDED, folder).code == 0:  # the controller forgot its job
            self.end_agent(token, signals_none, signals_none, grace)


def slurm_hosts(options: SlurmOptions, folder: str, command: tuple[str, ...]) -> tuple[SlurmHost, ...]:
    """The nodes. ``folder``: of the bundles, ``command``: of perfbisect, both on the shared file system.

    Raises:
        UnreachableError: the controller does not answer.
        MachineError: Slurm does not list them.
    """
    words = ["sinfo", "--noheader", "--Node", "--format=%N|%f"]
    words += [f"--partition={options.partition}"] if options.partition else []
    wanted, needed = set(filter(None, options.nodes.split("+"))), options.constraint
    # An expression of features (a&b, a|b) is left to sbatch; a plain name can be asked of the list here.
    is_plain = needed.replace("_", "").isalnum()
    names: dict[str, None] = {}
    for row in _run_slurm(words).text.splitlines():
        name, features = (part.strip() for part in row.split("|"))
        if (not wanted or name in wanted) and (not is_plain or needed in features.split(",")):
            names[name] = None
    connection, settings = Connection(), HostSettings(folder=folder, command=command)
    return tuple(SlurmHost(name, connection, settings, options) for name in names)


def _jobs(token: str) -> list[str]:
    """Ids of the jobs with a token."""
    rows = _run_slurm(["squeue", "--noheader", "--me", "--states=all", "--format=%i|%k|%T"]).text
    # squeue lists jobs for some minutes after their end.
    live = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING")
    parts = (row.split("|") for row in rows.splitlines())
    return [part[0] for part in parts if len(part) == 3 and part[1] == token and part[2] in live]


def _run_slurm(argv: Sequence[str]) -> Answer:
    """Run a command of Slurm's, twice where it failed and the controller answers: it may be back.

    Raises:
        UnreachableError: the controller does not answer.
        MachineError: the command failed.
    """
    connection = Connection()
    for _ in range(2):
        answer = connection.run(argv)
        if answer.code == 0:
            return answer
        if connection.run(["scontrol", "ping"]).code:
            raise UnreachableError(f"Slurm does not answer: {answer.errors}")
    raise MachineError(f"{argv[0]} failed: {answer.errors}", next_step=f"run it yourself: {argv[0]}")
