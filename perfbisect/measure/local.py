"""Local executor: build, serve, warm, measure, stop."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from perfbisect.clients.runner import Runner
from perfbisect.environments.base import Builder, Environment
from perfbisect.errors import Interrupted, ServerError
from perfbisect.machine.devices import wait_for_memory
from perfbisect.machine.interference import UNJUDGED, InterferenceLimits
from perfbisect.machine.profile import CUDA, Profile
from perfbisect.machine.slots import Slot, machine_of
from perfbisect.measure import faults
from perfbisect.measure.attempt import write_attempt
from perfbisect.measure.bench import BenchRuns, check_image, measure_runs
from perfbisect.measure.executor import AttemptRequest, Shared, Sink, Started, Turn
from perfbisect.measure.interference import InterferenceMonitor
from perfbisect.measure.preparation import Preparation, Prepared, look_up
from perfbisect.measure.record import AttemptRecord, SharedTurns, command_facts
from perfbisect.measure.serving import add_serve_args, check_stages, find_engine, running_server
from perfbisect.model.attempt import Attempt
from perfbisect.serving.families import FAMILIES, Endpoint, Family, ServerCommand
from perfbisect.serving.log_facts import engine_facts
from perfbisect.serving.server import Server
from perfbisect.system import environ, logs, ports
from perfbisect.system.processes import StopRequested, never

DEVICE_MEMORY_SHARE = 0.9
"""Share of device memory that an engine takes by default."""

WARM_SEED_OFFSET = 1_000_003
"""Gives the warm run prompts that no measured run has."""

_SERVER_FACTS = ("model_name", "server", "torch")
"""Facts that all attempts of one server share."""


@dataclass
class LocalExecutor:
    """Runs attempts on this machine; threads may run several on different slots.

    ``client_environment``: the pinned client, or None for the change's own. ``shell``: the user's
    environment, of which allowed variables are passed on. ``overlap``: import the client during the server's
    start. ``limits``: tolerated foreign load. ``profile``: the kind of machine.
    """

    builder: Builder
    client_environment: Environment | None = None
    shell: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    stop_requested: StopRequested = never
    overlap: bool = True
    limits: InterferenceLimits = UNJUDGED
    profile: Profile = CUDA

    def __post_init__(self) -> None:
        self._preparation = Preparation(
            self.client_environment, self.shell, self.stop_requested, self.overlap, self.profile
        )

    def run(self, request: AttemptRequest, *, started: Started, sink: Sink) -> Attempt:
        """Run one attempt and write its ``attempt.json``.

        Raises:
            Interrupted: Ctrl-C or a stop; all processes ended and the attempt has no result.
            UsageError: the family or client does not support the cell.
        """
        ((attempt, _),) = self.share((lambda: request,), started=started, sink=sink)
        return attempt

    def share(self, turns: Sequence[Turn], *, started: Started, sink: Sink) -> Shared:
        """See :class:`perfbisect.measure.executor.Executor`; raises what :meth:`run` does."""
        shared = SharedTurns(turns)
        try:
            # Closing the generator between two turns ends the server here.
            with closing(self._take_turns(shared, started, sink)) as ended:
                for _ in ended:
                    yield self._finish(shared.record, sink), True
                    shared.next()
            yield self._finish(shared.record, sink), False
        except KeyboardInterrupt:
            request, phase = shared.record.request, shared.record.phase
            raise Interrupted(f"attempt {request.id} was interrupted in phase {phase}") from None

    def _take_turns(self, shared: SharedTurns, started: Started, sink: Sink) -> Generator[None, None, None]:
        """Run the turns; yields between two of them."""
        try:
            prepared = self._prepare(shared.record, sink)
            while prepared is None and shared.more and shared.record.environment is not None:
                yield
                prepared = self._prepare(shared.record, sink)
            if prepared is not None:
                yield from self._serve(shared, prepared, started, sink)
        except faults.ATTEMPT_ERRORS as error:
            shared.record.fail(error)
        failed = shared.record
        while failed.failure is not None and shared.more:
            yield
            shared.record.follow(failed.failure, failed.request.cell.name)

    def _finish(self, record: AttemptRecord, sink: Sink) -> Attempt:
        slot = self._preparation.slot(record.request)
        machine = machine_of(slot, self.shell, self.profile)
        attempt = record.to_attempt(machine, slot, pinned=self.client_environment is not None)
        folder = record.request.folder
        try:
            write_attempt(folder, attempt)
        except OSError as error:
            sink("warning", {"text": f"cannot write {folder}/attempt.json: {error.strerror}"})
        return attempt

    def _prepare(self, record: AttemptRecord, sink: Sink) -> Prepared | None:
        """Prepare an attempt; None if that failed."""
        try:
            return self._preparation.prepare(record, self.builder, sink)
        except faults.ATTEMPT_ERRORS as error:
            record.fail(error)
            return None

    def _command(
        self, request: AttemptRequest, environment: Environment, endpoint: Endpoint, slot: Slot
    ) -> ServerCommand:
        """The server command of the attempt's cell."""
        cell = request.cell
        family: Family = look_up(FAMILIES, cell.family, "family")
        engine = find_engine(cell, request.change, environment)
        check_stages(cell, slot, self.profile.platform, root=engine.root)
        return family.server(add_serve_args(cell, self.profile.serve_args), endpoint, engine)

    def _serve(self, shared: SharedTurns, prepared: Prepared, started: Started, sink: Sink) -> Iterator[None]:
        """Start the server and measure the turns; other failures than the server's fail one turn."""
        record, profile, smi = shared.record, self.profile, self.profile.smi()
        request, environment = record.request, prepared.environment
        slot = self._preparation.slot(request)
        record.phase, record.log = "launch", request.folder / "server.log"
        record.log.unlink(missing_ok=True)
        endpoint = Endpoint(ports.free_port(), f"pb-{record.token[:12]}")
        command = self._command(request, environment, endpoint, slot)
        for name, text in command.files.items():
            (request.folder / name).write_text(text, encoding="utf-8")
        argv = (
            *profile.before(len(slot.devices), slot.env), str(environment.interpreter), *command.args
        )  # fmt: skip
        env = environ.for_interpreter(
            self.shell, environment.interpreter, environment.env, prepared.offline, profile.env, command.env,
            slot.env,
        )  # fmt: skip
        record.facts |= {"model_name": endpoint.model_name, "server": command_facts(argv, env)}
        launched: float | None = time.monotonic()
        share = add_serve_args(request.cell, profile.serve_args).serve_args.get("gpu-memory-utilization")
        wait_for_memory(
            slot.devices,
            share=float(share) if isinstance(share, int | float) else DEVICE_MEMORY_SHARE,
            timeout=request.limits.memory,
            smi=smi,
            on_wait=lambda text: sink("wait", {"text": text}),
            stop_requested=self.stop_requested,
        )
        self._preparation.add_torch_facts(record, environment, env, slot)
        common = {name: record.facts[name] for name in _SERVER_FACTS if name in record.facts}
        lost = profile.lease.lost if profile.lease else ()
        with running_server(
            lambda: shared.record, argv, env, endpoint, started=started, sink=sink, lost=lost
        ) as owned:
            first = server = Server(owned, endpoint, command)
            monitor = InterferenceMonitor(slot, self.limits, owned.living, smi, profile.list_devices())
            turn: Prepared | None = prepared
            while True:
                try:
                    if turn is not None:
                        self._measure(shared.record, turn, server, monitor, env, sink, launched)
                except faults.ATTEMPT_ERRORS as error:
                    if not shared.more or isinstance(error, ports.SharedPortError) or first.trouble():
                        raise
                    shared.record.fail(error, owned)
                if shared.more and (refusal := first.reset_caches()):
                    shared.close()
                    sink("warning", {"text": f"the server is not shared with the next cell: {refusal}"})
                if not shared.more:
                    return
                yield
                launched = None
                shared.record.facts |= common
                turn = self._prepare(shared.record, sink)
                if turn is not None:
                    command = self._command(shared.record.request, environment, endpoint, slot)
                    server = replace(first, command=command)

    def _measure(
        self,
        record: AttemptRecord,
        prepared: Prepared,
        server: Server,
        monitor: InterferenceMonitor,
        env: Mapping[str, str],
        sink: Sink,
        launched: float | None,
    ) -> None:
        """Measure one turn: first request, warm run, measured runs.

        ``launched``: start time of a server that is not ready yet, else None.
        """
        request, log = record.request, server.owned.log
        cell, limits, runner = request.cell, request.limits, prepared.runner
        bench = BenchRuns(
            prepared.client, cell, runner, server, monitor, request.folder,
            {"attempt": request.id, "change": request.change.id}, limits.bench, record.classifier,
            self.stop_requested,
        )  # fmt: skip
        record.facts["client"] = command_facts(bench.argv(cell, "1", cell.seed + 1), runner.env)
        with self._hosted_client(record, runner):
            with monitor.sample(measured=False):
                if launched is not None:
                    server.wait_named(
                        cell.ready_timeout if limits.ready is None else limits.ready, self.stop_requested
                    )
                    record.seconds["launch"] = time.monotonic() - launched
                with record.timed("first_request", log):
                    server.first_answer(limits.first_request, self.stop_requested)
            record.facts["engine_log"] = engine_facts(logs.head_of(log))
            launch_s = record.seconds.get("launch", 0.0)
            sink("ready", {"seconds": launch_s, "first_request": record.seconds["first_request"]})
            with record.timed("warm", bench.log("warm")):
                self._preparation.await_client(record, prepared.client, runner)
                warm = bench.run("warm", 0, cell.seed + WARM_SEED_OFFSET)
            record.facts["warm"] = {"values": dict(warm.values), "warnings": warm.warnings}
            sink("warm", {"seconds": record.seconds["warm"]})
            with record.timed("bench"):
                measure_runs(record, bench, server, sink)
            with monitor.sample(measured=False):
                check_image(record, server, env, self.stop_requested, sink)

    @contextmanager
    def _hosted_client(self, record: AttemptRecord, runner: Runner) -> Iterator[None]:
        """Start the client's host and end it on exit."""
        try:
            runner.begin()
            yield
        finally:
            record.facts |= runner.facts()
            if runner.plain and record.client is not None:
                record.client = replace(record.client, forced_plain=True)
            try:
                runner.end()
            except ServerError as error:
                record.fail(error)
