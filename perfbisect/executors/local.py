"""An attempt on this machine: build, serve, warm, measure, stop; nothing of it stays behind."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from perfbisect.clients import CLIENTS, Client
from perfbisect.core.attempt import Attempt
from perfbisect.environments import Builder, Environment
from perfbisect.errors import Interrupted, ServerError, UsageError
from perfbisect.executors import AttemptRequest, Sink, Started, faults, likeness, provenance
from perfbisect.executors.bench import Bench, measure
from perfbisect.executors.engines import check_stages, engine_of, lay, with_arguments
from perfbisect.executors.fetch import data_from_hub
from perfbisect.executors.preparing import Preparation
from perfbisect.executors.record import Record
from perfbisect.executors.running import Runner
from perfbisect.executors.serving import serving
from perfbisect.executors.surroundings import Surroundings, wait_until_free
from perfbisect.families import FAMILIES, Endpoint, Family
from perfbisect.families.engine_log import engine_facts
from perfbisect.store.attempts import write_attempt
from perfbisect.system import environ, logs, machine, ports
from perfbisect.system.proc import Asked, never
from perfbisect.system.profile import CUDA, Profile
from perfbisect.system.sampled import UNJUDGED
from perfbisect.system.sampled import Limits as MachineLimits
from perfbisect.system.server import Server
from perfbisect.system.slots import Slot

WARM_SEED_OFFSET = 1_000_003
"""The discarded run's prompts are others than those of any measured run."""


def _shell() -> dict[str, str]:
    return dict(os.environ)


@dataclass
class LocalExecutor:
    """Runs attempts on this machine; each on a slot of its own, if several threads ask at once.

    ``client_environment``: the pinned client of all sides; None for the change's own. ``shell``: the user's
    process environment, of which only what is allowed is passed on. ``asked``: True asks for a prompt end.
    ``overlap``: the client's imports are done beside the server's start. ``limits``: what others may do on
    the machine before a run does not count. ``profile``: what kind of machine this is.
    """

    builder: Builder
    client_environment: Environment | None = None
    shell: Mapping[str, str] = field(default_factory=_shell)
    asked: Asked = never
    overlap: bool = True
    limits: MachineLimits = UNJUDGED
    profile: Profile = CUDA

    def __post_init__(self) -> None:
        self._prepare = Preparation(
            self.client_environment, self.shell, self.asked, self.overlap, self.profile
        )

    def run(self, request: AttemptRequest, *, started: Started, sink: Sink) -> Attempt:
        """One attempt: every failure of the outside comes back in it; ``attempt.json`` is in its folder.

        :raises Interrupted: Ctrl-C or a stop; nothing lives, and the attempt has no end.
        :raises UsageError: the cell asks for what its family or client cannot do.
        """
        record = Record(
            request,
            request.token or secrets.token_hex(16),
            faults.Judge(machine.oom_kills(), request.measured_before),
            log=request.folder,
        )
        try:
            return self._attempt(record, started, sink)
        except KeyboardInterrupt:
            raise Interrupted(f"attempt {request.id} was interrupted in phase {record.phase}") from None

    def _attempt(self, record: Record, started: Started, sink: Sink) -> Attempt:
        folder, slot = record.request.folder, self._prepare.slot(record.request)
        try:
            self._measure(record, slot, started, sink)
        except faults.RAISED as error:
            record.fail(error)
        made = record.made(
            self.shell,
            slot,
            pinned=self.client_environment is not None,
            profile=self.profile,
        )
        try:
            write_attempt(folder, made)
        except OSError as error:
            sink("warning", {"text": f"{folder}: attempt.json is not written: {error.strerror}"})
        return made

    def _measure(self, record: Record, slot: Slot, started: Started, sink: Sink) -> None:
        request = record.request
        cell, limits = request.cell, request.limits
        family: Family = _named(FAMILIES, cell.family, "family")
        client: Client = _named(CLIENTS, cell.client.name, "client")
        request.folder.mkdir(parents=True, exist_ok=True)
        machine.check_room(request.folder)
        with record.timed("build", request.folder / "build.log"):
            environment = self.builder.ensure(request.change, log=record.log, timeout=limits.build)
            record.environment, record.cold = environment, provenance.is_cold(environment)
        offline = self._prepare.fetch(record, environment, sink)
        with record.timed("build"):
            runner = self._prepare.runner(record, client, {} if data_from_hub(cell) else offline, slot)
        sink("build", {"seconds": environment.seconds, "cached": environment.seconds == 0.0})
        if self.asked():
            raise Interrupted(f"attempt {request.id} was stopped in phase {record.phase}")

        record.phase, record.log = "launch", request.folder / "server.log"
        record.log.unlink(missing_ok=True)
        endpoint = Endpoint(ports.free_port(), f"pb-{record.token[:12]}")
        profile, smi = self.profile, self.profile.smi()
        served = with_arguments(cell, profile.serve_args)
        engine = engine_of(cell, request.change, environment)
        check_stages(cell, slot, profile.platform, root=engine.root)
        command = family.server(served, endpoint, engine)
        lay(command.files, request.folder)
        before = profile.before(len(slot.devices), slot.env)
        argv = (*before, str(environment.interpreter), *command.args)
        env = environ.for_interpreter(
            self.shell, environment.interpreter, environment.env, offline, profile.env, command.env, slot.env
        )
        record.facts |= {"model_name": endpoint.model_name, "server": provenance.command_facts(argv, env)}
        launched = time.monotonic()
        wait_until_free(slot, served.serve_args, timeout=limits.memory, asked=self.asked, sink=sink, smi=smi)
        self._prepare.ask_torch(record, environment, env, slot)
        with (
            serving(
                record,
                argv,
                env,
                endpoint,
                started=started,
                sink=sink,
                lost=profile.lease.lost if before else (),
            ) as owned,
            self._client(record, runner),
        ):
            server = Server(owned, endpoint, command)
            around = Surroundings(slot, self.limits, owned.living, smi)
            bench = Bench(
                client, cell, runner, server, around, request.folder,
                {"attempt": request.id, "change": request.change.id}, limits.bench, record.judge, self.asked,
            )  # fmt: skip
            record.facts["client"] = provenance.command_facts(
                bench.argv(cell, "1", cell.seed + 1), runner.env
            )
            with around.unmeasured():
                server.wait_named(cell.ready_timeout if limits.ready is None else limits.ready, self.asked)
                record.seconds["launch"] = time.monotonic() - launched
                with record.timed("first_request"):
                    server.first_answer(limits.first_request, self.asked)
            record.facts["engine_log"] = engine_facts(logs.head_of(owned.log))
            sink(
                "ready",
                {"seconds": record.seconds["launch"], "first_request": record.seconds["first_request"]},
            )
            with record.timed("warm", bench.log("warm")):
                self._prepare.ready(record, client, runner)
                warm = bench.run("warm", 0, cell.seed + WARM_SEED_OFFSET)
            record.facts["warm"] = {"values": dict(warm.values), "warnings": warm.warnings}
            sink("warm", {"seconds": record.seconds["warm"]})
            with record.timed("bench"):
                measure(record, bench, server, sink)
            with around.unmeasured():
                likeness.compare(record, server, env, self.asked, sink)

    @contextmanager
    def _client(self, record: Record, runner: Runner) -> Iterator[None]:
        """The client's host, ended on every way out."""
        try:
            runner.begin()
            yield
        finally:
            record.facts |= runner.facts()
            if runner.plain:
                record.plainly()
            try:
                runner.end()
            except ServerError as error:
                record.fail(error)


def _named(known: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise UsageError(f"no {what} {name!r}; known: {', '.join(known)}")
    return known[name]
