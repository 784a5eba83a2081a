"""An attempt on this machine: build, serve, warm, measure, stop; nothing of it stays behind."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from perfbisect.clients import CLIENTS, Client
from perfbisect.core.attempt import Attempt, Failure, Phase, Provenance, RunResult
from perfbisect.environments import Builder, Environment
from perfbisect.errors import Interrupted, MachineError, PerfbisectError, ServerError, UsageError
from perfbisect.executors import AttemptRequest, Sink, Started, faults, provenance
from perfbisect.executors.bench import Bench
from perfbisect.executors.fetch import data_from_hub, fetch, from_hub
from perfbisect.executors.provenance import Instrument
from perfbisect.families import FAMILIES, OFFLINE, Endpoint
from perfbisect.store.attempts import plain, write_attempt
from perfbisect.system import environ, logs, machine, ports, proc
from perfbisect.system.proc import Asked, Owned, never
from perfbisect.system.server import Server

WARM_SEED_OFFSET = 1_000_003
"""The discarded run's prompts are others than those of any measured run."""

_PORT_PATIENCE = 10.0


def _shell() -> dict[str, str]:
    return dict(os.environ)


@dataclass
class LocalExecutor:
    """Runs attempts on this machine, one at a time.

    ``client_environment``: the pinned client of all sides; None for the change's own. ``shell``: the user's
    process environment, of which only what is allowed is passed on. ``asked``: True asks for a prompt end.
    """

    builder: Builder
    client_environment: Environment | None = None
    shell: Mapping[str, str] = field(default_factory=_shell)
    asked: Asked = never
    _complete: set[tuple[str, str]] = field(default_factory=set, repr=False)
    """Cells (digest, variant) measured once: what they need of a hub is on this machine."""
    _instruments: dict[tuple[str, str], Instrument] = field(default_factory=dict, repr=False)

    def run(self, request: AttemptRequest, *, started: Started, sink: Sink) -> Attempt:
        """One attempt: every failure of the outside comes back in it; ``attempt.json`` is in its folder.

        :raises Interrupted: Ctrl-C or a stop; nothing lives, and the attempt has no end.
        :raises UsageError: the cell asks for what its family or client cannot do.
        """
        work = _Work(self, request, started, sink)
        try:
            return work.attempt()
        except KeyboardInterrupt:
            raise Interrupted(f"attempt {request.id} was interrupted in phase {work.phase}") from None

    def instrument(
        self, client: Client, environment: Environment, env: Mapping[str, str], folder: Path
    ) -> Instrument:
        """The client's digest, asked for once for each environment. :raises ClientError: it has none."""
        known = (environment.key, client.name)
        if known not in self._instruments:
            self._instruments[known] = provenance.instrument(client, environment, env, folder, self.asked)
        return self._instruments[known]


class _Work:
    """What is known so far of one attempt under way."""

    def __init__(
        self, executor: LocalExecutor, request: AttemptRequest, started: Started, sink: Sink
    ) -> None:
        self.executor, self.request, self.started, self.sink = executor, request, started, sink
        self.token = request.token or secrets.token_hex(16)
        self.phase: Phase = "build"
        self.seconds: dict[str, float] = {}
        self.runs: list[RunResult] = []
        self.failure: Failure | None = None
        self.facts: dict[str, Any] = {}
        self.environment: Environment | None = None
        self.instrument: Instrument | None = None
        self.cold = False
        self.log = request.folder
        self.started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.judge = faults.Judge(machine.oom_kills())

    def attempt(self) -> Attempt:
        try:
            self._measure()
        except faults.RAISED as error:
            self._fail(error)
        made = self._made()
        try:
            write_attempt(self.request.folder, made)
        except OSError as error:
            self.sink(
                "warning", {"text": f"{self.request.folder}: attempt.json is not written: {error.strerror}"}
            )
        return made

    def _measure(self) -> None:
        request, executor = self.request, self.executor
        cell, limits = request.cell, request.limits
        family, client = _named(FAMILIES, cell.family, "family"), _named(CLIENTS, cell.client.name, "client")
        request.folder.mkdir(parents=True, exist_ok=True)
        machine.check_room(request.folder)
        with self._timed("build"):
            self.log = request.folder / "build.log"
            environment = executor.builder.ensure(request.change, log=self.log, timeout=limits.build)
            self.environment, self.cold = environment, provenance.is_cold(environment)
        offline = self._fetch(environment)
        with self._timed("build"):
            bench_environment = executor.client_environment or environment
            client_env = environ.for_interpreter(
                executor.shell,
                bench_environment.interpreter,
                bench_environment.env,
                {} if data_from_hub(cell) else offline,
                client.env(cell),
            )
            self.instrument = executor.instrument(client, bench_environment, client_env, request.folder)
        self.sink("build", {"seconds": environment.seconds, "cached": environment.seconds == 0.0})
        self._check_asked()

        self.phase, self.log = "launch", request.folder / "server.log"
        self.log.unlink(missing_ok=True)
        endpoint = Endpoint(ports.free_port(), f"pb-{self.token[:12]}")
        command = family.server(cell, endpoint)
        argv = (str(environment.interpreter), *command.args)
        env = environ.for_interpreter(
            executor.shell, environment.interpreter, environment.env, offline, command.env
        )
        self.facts |= {"model_name": endpoint.model_name, "server": provenance.command_facts(argv, env)}
        launched = time.monotonic()
        with self._owned(argv, env, endpoint) as owned:
            server = Server(owned, endpoint, command)
            bench = Bench(
                client, cell, bench_environment.interpreter, client_env, server, request.folder, self.token,
                {"attempt": request.id, "change": request.change.id}, limits.bench, self.judge,
                executor.asked,
            )  # fmt: skip
            self.facts["client"] = provenance.command_facts(bench.argv("1", cell.seed + 1), client_env)
            server.wait_named(cell.ready_timeout if limits.ready is None else limits.ready, executor.asked)
            self.seconds["launch"] = time.monotonic() - launched
            with self._timed("first_request"):
                server.first_answer(limits.first_request, executor.asked)
            self.sink(
                "ready", {"seconds": self.seconds["launch"], "first_request": self.seconds["first_request"]}
            )
            with self._timed("warm"):
                self.log = bench.log("warm")
                warm = bench.run("warm", 0, cell.seed + WARM_SEED_OFFSET)
            self.facts["warm"] = {"values": dict(warm.values), "warnings": warm.warnings}
            self.sink("warm", {"seconds": self.seconds["warm"]})
            with self._timed("bench"):
                self._runs(bench, server)

    def _fetch(self, environment: Environment) -> Mapping[str, str]:
        """Brings what the cell needs from a hub, once; returns the variables that keep all offline."""
        cell, executor = self.request.cell, self.executor
        needed = from_hub(cell)
        if executor.shell.get("HF_HUB_OFFLINE", "") in ("1", "true", "yes", "on"):
            return OFFLINE
        if needed and (cell.digest, cell.variant) not in executor._complete:
            with self._timed("fetch"):
                self.log = self.request.folder / "fetch.log"
                complete = fetch(
                    needed,
                    interpreter=environment.interpreter,
                    env=environ.with_proxies(
                        environ.for_interpreter(
                            executor.shell, environment.interpreter, environment.env, cell.env
                        ),
                        executor.shell,
                    ),
                    log=self.log,
                    token=f"{self.token}.fetch",
                    timeout=self.request.limits.fetch,
                    asked=executor.asked,
                )
            if not complete:
                return {}
            executor._complete.add((cell.digest, cell.variant))
            self.sink("fetch", {"seconds": self.seconds["fetch"], "repositories": needed})
        return OFFLINE if needed else {}

    def _runs(self, bench: Bench, server: Server) -> None:
        """The measured runs: caches emptied before each; where that is not possible, one run a launch."""
        cell, count = self.request.cell, self.request.runs
        self.facts["cache_reset"] = "yes"
        for index in range(1, count + 1):
            server.check_ports(f"before run {index}")
            refused = server.reset_caches()
            if refused:
                if server.command.reset_requests and (wrong := server.trouble()) is not None:
                    raise wrong
                self.facts["cache_reset"] = f"no: {refused}"
                count = 1
                if index > 1:
                    return
            self.log = bench.log(str(index))
            run = bench.run(str(index), index, cell.seed + index)
            self.runs.append(run)
            self.sink(
                "bench",
                {
                    "run": index,
                    "of": count,
                    "seed": run.seed,
                    "seconds": run.seconds,
                    "values": dict(run.values),
                    "warnings": run.warnings,
                },
            )
            if index >= count:
                return

    @contextmanager
    def _owned(self, argv: tuple[str, ...], env: Mapping[str, str], endpoint: Endpoint) -> Iterator[Owned]:
        """The server's processes, ended on every way out."""
        folder, port = self.request.folder, endpoint.port
        try:
            owned = proc.spawn(argv, env=env, cwd=folder, log=self.log, token=self.token)
            try:
                self.started(token=self.token, pid=owned.pid, created=owned.created, port=port)
                self.sink(
                    "launch",
                    {"pid": owned.pid, "port": port, "model": endpoint.model_name, "log": str(self.log)},
                )
                yield owned
            except faults.RAISED as error:
                self._fail(error, owned)
            finally:
                self._stop(owned, port)
        finally:
            proc.stop_leftovers(self.token, 0, 0.0, grace=0.0)

    def _stop(self, owned: Owned, port: int) -> None:
        began = time.monotonic()
        self.phase, self.log = "stop", owned.log
        try:
            removed = proc.stop(owned, self.request.limits.stop)
            if removed:
                self.facts["shared_memory_removed"] = removed
            ports.wait_free(port, _PORT_PATIENCE if self.failure is None else 0.0)
        except (ServerError, MachineError) as error:
            self._fail(error)
        self.seconds["stop"] = time.monotonic() - began
        self.sink("stop", {"seconds": self.seconds["stop"], "exit_code": owned.exited()})

    def _fail(self, error: BaseException, owned: Owned | None = None) -> None:
        """Keep the first failure: what comes later follows from it."""
        if isinstance(error, ports.SharedPortError):
            self.runs.clear()
        if self.failure is not None:
            return
        log = Path(getattr(error, "where", None) or self.log)
        text = (
            logs.text_of(owned.log, 32768)
            if owned is not None and self.phase in ("launch", "first_request")
            else ""
        )
        fault = self.judge.fault(error, self.phase, text)
        self.failure = Failure(self.phase, fault, self.judge.reason(error, fault, text), str(log))
        if isinstance(error, PerfbisectError) and error.next_step:
            self.facts["next_step"] = error.next_step

    def _made(self) -> Attempt:
        request, environment = self.request, self.environment
        here = machine.machine(self.executor.shell)
        self.facts["machine"] = here.facts()
        if environment is not None:
            self.facts["engine"] = provenance.engine_facts(environment, self.cold)
        if self.instrument is not None:
            self.facts["instrument"] = {
                "version": self.instrument.version,
                "pinned": self.executor.client_environment is not None,
                **self.instrument.facts,
            }
        return Attempt(
            id=request.id,
            change_id=request.change.id,
            purpose=request.purpose,
            provenance=Provenance(
                cell_digest=request.cell.digest,
                machine_class=here.kind,
                client_digest=self.instrument.digest if self.instrument else "",
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
        )

    @contextmanager
    def _timed(self, phase: Phase) -> Iterator[None]:
        self.phase = phase
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - began

    def _check_asked(self) -> None:
        if self.executor.asked():
            raise Interrupted(f"attempt {self.request.id} was stopped in phase {self.phase}")


def _named(known: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise UsageError(f"no {what} {name!r}; known: {', '.join(known)}")
    return known[name]
