"""An attempt on this machine: build, serve, warm, measure, stop; nothing of it stays behind."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from perfbisect.clients import CLIENTS, Client
from perfbisect.core.attempt import Attempt
from perfbisect.environments import Builder, Environment
from perfbisect.errors import Interrupted, ServerError, UsageError
from perfbisect.executors import AttemptRequest, Sink, Started, faults, provenance
from perfbisect.executors.bench import Bench, measure
from perfbisect.executors.engines import engine_of, lay
from perfbisect.executors.fetch import data_from_hub, fetch, from_hub
from perfbisect.executors.provenance import Instrument
from perfbisect.executors.record import Record
from perfbisect.executors.running import Runner
from perfbisect.executors.serving import serving
from perfbisect.executors.surroundings import Surroundings, torch_facts, wait_until_free
from perfbisect.families import FAMILIES, OFFLINE, Endpoint, Family
from perfbisect.families.engine_log import engine_facts
from perfbisect.store.attempts import write_attempt
from perfbisect.system import environ, logs, machine, ports
from perfbisect.system.proc import Asked, never
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
    the machine before a run does not count.
    """

    builder: Builder
    client_environment: Environment | None = None
    shell: Mapping[str, str] = field(default_factory=_shell)
    asked: Asked = never
    overlap: bool = True
    limits: MachineLimits = UNJUDGED
    _complete: set[tuple[str, str]] = field(default_factory=set, repr=False)
    """Cells (digest, variant) measured once: what they need of a hub is on this machine."""
    _instruments: dict[tuple[str, str], Instrument] = field(default_factory=dict, repr=False)
    _plain: dict[tuple[str, str], str] = field(default_factory=dict, repr=False)
    """Clients that cannot be run from a host, and why."""
    _torch: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict, repr=False)
    """What torch told, by the packages of an environment and the slot."""

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
        folder = record.request.folder
        try:
            self._measure(record, started, sink)
        except faults.RAISED as error:
            record.fail(error)
        made = record.made(self.shell, pinned=self.client_environment is not None)
        try:
            write_attempt(folder, made)
        except OSError as error:
            sink("warning", {"text": f"{folder}: attempt.json is not written: {error.strerror}"})
        return made

    def _measure(self, record: Record, started: Started, sink: Sink) -> None:
        request = record.request
        cell, limits, slot = request.cell, request.limits, self._slot(request)
        family: Family = _named(FAMILIES, cell.family, "family")
        client: Client = _named(CLIENTS, cell.client.name, "client")
        request.folder.mkdir(parents=True, exist_ok=True)
        machine.check_room(request.folder)
        with record.timed("build", request.folder / "build.log"):
            environment = self.builder.ensure(request.change, log=record.log, timeout=limits.build)
            record.environment, record.cold = environment, provenance.is_cold(environment)
        offline = self._fetch(record, environment, sink)
        with record.timed("build"):
            runner = self._runner(record, client, {} if data_from_hub(cell) else offline, slot)
        sink("build", {"seconds": environment.seconds, "cached": environment.seconds == 0.0})
        if self.asked():
            raise Interrupted(f"attempt {request.id} was stopped in phase {record.phase}")

        record.phase, record.log = "launch", request.folder / "server.log"
        record.log.unlink(missing_ok=True)
        endpoint = Endpoint(ports.free_port(), f"pb-{record.token[:12]}")
        command = family.server(cell, endpoint, engine_of(cell, request.change, environment))
        lay(command.files, request.folder)
        argv = (str(environment.interpreter), *command.args)
        env = environ.for_interpreter(
            self.shell, environment.interpreter, environment.env, offline, command.env, slot.env
        )
        record.facts |= {"model_name": endpoint.model_name, "server": provenance.command_facts(argv, env)}
        wait_until_free(slot, cell.serve_args, timeout=limits.memory, asked=self.asked, sink=sink)
        self._ask_torch(record, environment, env, slot)
        launched = time.monotonic()
        with (
            serving(record, argv, env, endpoint, started=started, sink=sink) as owned,
            self._client(record, runner),
        ):
            server = Server(owned, endpoint, command)
            around = Surroundings(slot, self.limits, owned.living)
            bench = Bench(
                client, cell, runner, server, around, request.folder,
                {"attempt": request.id, "change": request.change.id}, limits.bench, record.judge, self.asked,
            )  # fmt: skip
            record.facts["client"] = provenance.command_facts(bench.argv("1", cell.seed + 1), runner.env)
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
                self._ready(record, client, runner)
                warm = bench.run("warm", 0, cell.seed + WARM_SEED_OFFSET)
            record.facts["warm"] = {"values": dict(warm.values), "warnings": warm.warnings}
            sink("warm", {"seconds": record.seconds["warm"]})
            with record.timed("bench"):
                measure(record, bench, server, sink)

    def _slot(self, request: AttemptRequest) -> Slot:
        """What it runs on: what is leased, else the whole machine."""
        if request.slot is not None:
            return request.slot
        visible = machine.machine(self.shell).gpus if request.cell.gpus else ()
        return Slot("", tuple(gpu.uuid for gpu in visible))

    def _ask_torch(
        self, record: Record, environment: Environment, env: Mapping[str, str], slot: Slot
    ) -> None:
        """CUDA facts, once for the packages of an environment on a slot: overlays share theirs."""
        if not slot.devices:
            return
        known = (environment.packages_digest or environment.key, slot.name)
        if known not in self._torch:
            self._torch[known] = torch_facts(
                environment.interpreter, env, slot, record.request.folder, self.asked
            )
        record.facts["torch"] = self._torch[known]

    def _runner(self, record: Record, client: Client, offline: Mapping[str, str], slot: Slot) -> Runner:
        """How the client is run, its sources digested. :raises ClientError: it has none."""
        request = record.request
        environment = self.client_environment or record.environment
        assert environment is not None
        env = environ.for_interpreter(
            self.shell, environment.interpreter, environment.env, offline, client.env(request.cell), slot.env
        )
        known = (environment.key, client.name)
        if known not in self._instruments:
            self._instruments[known] = provenance.instrument(
                client, environment, env, request.folder, self.asked
            )
        own = request.change.date if self.client_environment is None else ""
        record.instrument = replace(self._instruments[known], date=own)
        modules = client.preload(env)
        plain = "" if self.overlap else "asked for"
        return Runner(
            environment.interpreter, env, request.folder, record.token, modules,
            cores=slot.client_cores,
            plain=(self._plain.get(known, plain) if modules else ""),
        )  # fmt: skip

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

    def _ready(self, record: Record, client: Client, runner: Runner) -> None:
        runner.ready(record.request.limits.first_request, self.asked)
        if runner.plain and record.environment is not None:
            key = (self.client_environment or record.environment).key
            self._plain[key, client.name] = runner.plain

    def _fetch(self, record: Record, environment: Environment, sink: Sink) -> Mapping[str, str]:
        """Brings what the cell needs from a hub, once; returns the variables that keep all offline."""
        request = record.request
        cell = request.cell
        needed = from_hub(cell)
        if self.shell.get("HF_HUB_OFFLINE", "") in ("1", "true", "yes", "on"):
            return OFFLINE
        if needed and (cell.digest, cell.variant) not in self._complete:
            with record.timed("fetch", request.folder / "fetch.log"):
                complete = fetch(
                    needed,
                    interpreter=environment.interpreter,
                    env=environ.with_proxies(
                        environ.for_interpreter(
                            self.shell, environment.interpreter, environment.env, cell.env
                        ),
                        self.shell,
                    ),
                    log=record.log,
                    token=f"{record.token}.fetch",
                    timeout=request.limits.fetch,
                    asked=self.asked,
                )
            if not complete:
                return {}
            self._complete.add((cell.digest, cell.variant))
            sink("fetch", {"seconds": record.seconds["fetch"], "repositories": needed})
        return OFFLINE if needed else {}


def _named(known: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise UsageError(f"no {what} {name!r}; known: {', '.join(known)}")
    return known[name]
