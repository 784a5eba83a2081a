"""Local executor: build, serve, warm, measure, stop."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from perfbisect.clients.runner import Runner
from perfbisect.common.secret_references import fill
from perfbisect.environments.base import Builder, Environment
from perfbisect.environments.cache import cache_variables
from perfbisect.errors import Interrupted, MachineError, ServerError, UsageError
from perfbisect.machine.devices import readings, wait_for_memory
from perfbisect.machine.interference import UNJUDGED, InterferenceLimits
from perfbisect.machine.profile import CUDA, Profile, machine
from perfbisect.machine.sampler import host_memory
from perfbisect.machine.slots import Slot, machine_of
from perfbisect.machine.torch_probe import torch_facts
from perfbisect.measure import faults
from perfbisect.measure.attempt import write_attempt
from perfbisect.measure.bench import (
    START_OF_LOG,
    BenchRuns,
    InterferenceMonitor,
    check_image,
    measure_process,
)
from perfbisect.measure.executor import AttemptRequest, Sink, Started
from perfbisect.measure.preparation import (
    fetch_models,
    hub_repositories,
    identify_client,
    is_offline,
)
from perfbisect.measure.profiling import FOLDER as PROFILE_FOLDER
from perfbisect.measure.profiling import profile_load, with_torch_profiler
from perfbisect.measure.record import AttemptRecord, ClientVersion, command_facts
from perfbisect.measure.serving import add_serve_args, check_stages, find_engine, running_server
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import LOCAL
from perfbisect.model.launch_facts import MEMORY_FACT, WAITED_FACT
from perfbisect.model.metric import Caches
from perfbisect.serving.families import FAMILIES, OFFLINE, Endpoint, ServerCommand
from perfbisect.serving.log_facts import engine_facts
from perfbisect.serving.server import Server
from perfbisect.system import environ, logs, ports
from perfbisect.system.files import redact_file, scratch_folder
from perfbisect.system.processes import StopRequested, never

DEVICE_MEMORY_SHARE = 0.9
"""Share of device memory that an engine takes by default."""

LEAST_DISK_MIB = 64
"""Free disk for the logs and result files of an attempt."""

WARM_SEED_OFFSET = 1_000_003
"""Gives the warm run prompts that no measured run has."""

CACHES = "caches"
"""Folder of a launch whose compile caches are to be empty."""


@dataclass
class LocalExecutor:
    """Runs attempts on this machine; threads may run several on different slots.

    ``client_environment``: the pinned client, or None for the change's own; ``side_clients``: the same of
    sides that have a client of their own, by its specification. ``shell``: the user's environment, of which
    allowed variables are passed on. ``overlap``: import the client during the server's start. ``limits``:
    tolerated foreign load. ``profile``: the kind of machine. ``caches``: ``cold``: each launch has empty
    compile caches of its own; ``warm``: the first start of an environment is not measured. ``exact``: the
    metrics do not depend on load, which discards no run.
    """

    builder: Builder
    client_environment: Environment | None = None
    shell: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    stop_requested: StopRequested = never
    overlap: bool = True
    limits: InterferenceLimits = UNJUDGED
    profile: Profile = CUDA
    caches: Caches = ""
    exact: bool = False
    side_clients: Mapping[str, Environment | None] = field(default_factory=dict)
    _complete: set[tuple[str, str]] = field(default_factory=set, init=False, repr=False)
    """Cells (digest, variant) whose repositories are downloaded."""
    _versions: dict[tuple[str, str], ClientVersion] = field(default_factory=dict, init=False, repr=False)
    _plain: dict[tuple[str, str], str] = field(default_factory=dict, init=False, repr=False)
    """Clients that cannot be forked, and why."""
    _torch: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict, init=False, repr=False)
    """Facts of torch by environment packages and slot."""

    def run(self, request: AttemptRequest, *, started: Started, sink: Sink) -> Attempt:
        """Run one attempt and write its ``attempt.json``.

        Raises:
            Interrupted: Ctrl-C or a stop; all processes ended and the attempt has no result.
            UsageError: the family or client does not support the cell.
        """
        record = AttemptRecord.begin(request)
        scratch = scratch_folder(record.token)
        try:
            try:
                # Engines keep their sockets there: other users have no access.
                scratch.mkdir(mode=0o700)
                if self._prepare(record, sink):
                    self._serve(record, started, sink)
            except faults.ATTEMPT_ERRORS as error:
                record.fail(error)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            return self._finish(record, sink)
        except KeyboardInterrupt:
            raise Interrupted(f"attempt {request.id} was interrupted in phase {record.phase}") from None

    def _finish(self, record: AttemptRecord, sink: Sink) -> Attempt:
        slot = self._slot(record.request)
        hardware = machine_of(slot, self.shell, self.profile)
        attempt = record.to_attempt(hardware, slot, pinned=self._client(record.request) is not None)
        folder = record.request.folder
        # The client wrote it, and may repeat secrets that it was given.
        for result in folder.glob("run-*.json"):
            redact_file(result)
        try:
            write_attempt(folder, attempt)
        except OSError as error:
            sink("warning", {"text": f"cannot write {folder}/attempt.json: {error.strerror}"})
        return attempt

    def _client(self, request: AttemptRequest) -> Environment | None:
        """The environment of the client that loads the server; None: the change's own."""
        return self.side_clients[request.client] if request.client else self.client_environment

    def _slot(self, request: AttemptRequest) -> Slot:
        """The leased slot, or the whole machine, without devices if the cell needs none."""
        if request.slot is not None:
            return request.slot
        visible = machine(self.shell, self.profile).gpus
        if not request.cell.gpus:
            return Slot("", env=self.profile.none_of(visible))
        return Slot("", tuple(gpu.uuid for gpu in visible))

    def _prepare(self, record: AttemptRecord, sink: Sink) -> bool:
        """Build the environment, download the models and set up the client; False if that failed."""
        request = record.request
        try:
            request.folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(request.folder).free >> 20
            if free < LEAST_DISK_MIB:
                raise MachineError(
                    f"{request.folder}: {free} MiB free, an attempt needs {LEAST_DISK_MIB} MiB for its files",
                    next_step="free some disk, or give another --state folder",
                    code="disk_full",
                )
            with record.timed("build", request.folder / "build.log"):
                environment = self.builder.ensure(
                    request.change, log=record.log, timeout=request.limits.build
                )
                record.environment, record.cold = environment, environment.is_cold
            record.offline = self._fetch(record, environment, sink)
            with record.timed("build"):
                record.runner = self._runner(record, self._client(request) or environment)
        except faults.ATTEMPT_ERRORS as error:
            record.fail(error)
            return False
        sink("build", {"seconds": environment.seconds, "cached": environment.seconds == 0.0})
        if self.stop_requested():
            raise Interrupted(f"attempt {request.id} was stopped in phase {record.phase}")
        return True

    def _fetch(self, record: AttemptRecord, environment: Environment, sink: Sink) -> Mapping[str, str]:
        """Download the cell's repositories once; returns the variables for offline mode."""
        request, cell = record.request, record.request.cell
        needed = hub_repositories(cell)
        if is_offline(self.shell):
            return OFFLINE
        # Once for all attempts: a look at the hub costs seconds, and its failure would fail a launch that
        # has all files.
        if needed and (cell.digest, cell.variant) not in self._complete:
            env = environ.for_interpreter(
                self.shell, environment.interpreter, environment.env, fill(cell.env, self.shell)
            )
            with record.timed("fetch", request.folder / "fetch.log"):
                complete = fetch_models(
                    needed,
                    interpreter=environment.interpreter,
                    # Downloads alone use the user's proxies.
                    env=environ.with_proxies(env, self.shell),
                    log=record.log,
                    token=f"{record.token}.fetch",
                    timeout=request.limits.fetch,
                    stop_requested=self.stop_requested,
                )
            if not complete:
                return {}
            self._complete.add((cell.digest, cell.variant))
            sink("fetch", {"seconds": record.seconds["fetch"], "repositories": needed})
        return OFFLINE if needed else {}

    def _runner(self, record: AttemptRecord, environment: Environment) -> Runner:
        """Digest the client and build its runner."""
        request, client, slot = record.request, record.instrument, self._slot(record.request)
        dataset, pinned = request.cell.dataset_path, request.cell.revision.dataset or ""
        # A client that reads its prompts from a hub does so before it loads the server.
        offline = {} if dataset and not pinned.startswith(LOCAL) else record.offline
        env = environ.for_interpreter(
            self.shell, environment.interpreter, environment.env, offline, record.scratch,
            client.env(request.cell), slot.env,
        )  # fmt: skip
        known = (environment.key, client.name)
        if known not in self._versions:
            self._versions[known] = identify_client(
                client, environment, env, request.folder, self.stop_requested
            )
        # A pinned client has no date of the change: its era is told by its version.
        date = request.change.date if self._client(request) is None else ""
        version = self._versions[known]
        # Where clients are compared, their packages are what may differ.
        packages = {"packages": environment.facts.get("packages", ())} if self.side_clients else {}
        record.client = replace(version, date=date, facts={**version.facts, **packages})
        modules = client.preload(env)
        # A fork does not reach into a container, where each client is a command of its own.
        reason = "in a container" if "image" in environment.facts else "" if self.overlap else "asked for"
        plain = self._plain.get(known, reason) if modules else ""
        return Runner(
            environment.interpreter,
            env,
            request.folder,
            record.token,
            modules,
            cores=slot.client_cores,
            plain=plain,
            secrets=self.shell,
        )

    def _add_torch_facts(self, record: AttemptRecord, env: Mapping[str, str], slot: Slot) -> None:
        """Add facts of torch, cached by environment packages and slot."""
        environment = record.environment
        if environment is None or not slot.devices or self.profile.devices != "nvidia-smi":
            return
        known = (environment.packages_digest or environment.key, slot.name)
        if known not in self._torch:
            self._torch[known] = torch_facts(
                environment.interpreter, env, slot, record.request.folder, self.stop_requested
            )
        record.facts["torch"] = self._torch[known]

    def _command(
        self, request: AttemptRequest, environment: Environment, endpoint: Endpoint, slot: Slot
    ) -> ServerCommand:
        """The server command of the attempt's cell."""
        cell = request.cell
        engine = find_engine(cell, request.change, environment)
        check_stages(cell, slot, self.profile.platform, root=engine.root)
        command = FAMILIES[cell.family].server(
            add_serve_args(cell, self.profile.serve_args), endpoint, engine
        )
        if request.purpose != "profile":
            return command
        if command.result:
            raise UsageError(f"cell {cell.name}: a benchmark without a server cannot be profiled")
        folder = request.folder / PROFILE_FOLDER
        return with_torch_profiler(command, Path(environment.engine_file).parent, folder)

    def _serve(self, record: AttemptRecord, started: Started, sink: Sink) -> None:
        """Start the server, measure and stop it."""
        profile, smi = self.profile, self.profile.smi()
        request, environment, slot = record.request, record.environment, self._slot(record.request)
        assert environment is not None
        record.phase, record.log = "launch", request.folder / "server.log"
        # Logs are appended to: the end of an earlier attempt's log must not explain this one.
        record.log.unlink(missing_ok=True)
        # A model name of its own: a foreign server on the port would answer to another one.
        endpoint = Endpoint(ports.free_port(), f"pb-{record.token[:12]}")
        command = self._command(request, environment, endpoint, slot)
        if command.result:
            # The result of an attempt that was killed before could count as this one's.
            (request.folder / command.result).unlink(missing_ok=True)
        for name, text in command.files.items():
            (request.folder / name).write_text(text, encoding="utf-8")
        argv = (
            *profile.before(len(slot.devices), slot.env), str(environment.interpreter), *command.args
        )  # fmt: skip
        env = environ.for_interpreter(
            self.shell, environment.interpreter, environment.env, record.offline, record.scratch, profile.env,
            command.env, slot.env,
        )  # fmt: skip
        record.facts |= {"model_name": endpoint.model_name, "server": command_facts(argv, env)}
        # Secrets are filled in after the facts are recorded, which have the references.
        argv, env = fill(argv, self.shell), fill(env, self.shell)
        first, check = command.first_request, command.image_check
        probes = replace(
            command,
            first_request=replace(first, body=fill(first.body, self.shell)) if first else None,
            image_check=replace(check, body=fill(check.body, self.shell)) if check else None,
        )
        if self.caches == "cold":
            env |= cache_variables(request.folder / CACHES)
            record.cold = True
        # Before the wait for memory: the time of a launch is what a user waits for.
        launched = time.monotonic()
        share = add_serve_args(request.cell, profile.serve_args).serve_args.get("gpu-memory-utilization")
        wait_for_memory(
            slot.devices,
            share=float(share) if isinstance(share, int | float) else DEVICE_MEMORY_SHARE,
            timeout=request.limits.memory,
            smi=smi,
            on_wait=lambda text: sink("wait", {"text": text}),
            stop_requested=self.stop_requested,
        )
        # Before the server takes the devices' memory.
        self._add_torch_facts(record, env, slot)
        lost = profile.lease.lost if profile.lease else ()
        run = partial(running_server, record, argv, env, endpoint, started=started, sink=sink, lost=lost)
        # A benchmark without a server fills the caches by its own warm-ups.
        if self.caches == "warm" and record.cold and not command.result:
            with self._caches_filled(record), run() as owned:
                self._await_server(record, Server(owned, endpoint, probes))
            if record.failure is not None:
                return
            record.phase, record.log, record.cold = "launch", request.folder / "server.log", False
        record.facts[WAITED_FACT] = round(time.monotonic() - launched, 3)
        try:
            with run() as owned:
                server = Server(owned, endpoint, probes)
                monitor = InterferenceMonitor(
                    slot, self.limits, owned.charged, smi, profile.list_devices(), exact=self.exact
                )
                if command.result:
                    measure_process(record, server, monitor, self.stop_requested, sink)
                else:
                    self._measure(record, server, monitor, env, sink, launched)
        finally:
            # Large, and no part of what a launch leaves.
            shutil.rmtree(request.folder / CACHES, ignore_errors=True)

    @contextmanager
    def _caches_filled(self, record: AttemptRecord) -> Iterator[None]:
        """A start that fills the environment's caches: its time counts as that of a build."""
        record.log, began = record.request.folder / "server-first.log", time.monotonic()
        record.log.unlink(missing_ok=True)
        try:
            yield
        finally:
            record.seconds["build"] = record.seconds.get("build", 0.0) + time.monotonic() - began

    def _await_server(self, record: AttemptRecord, server: Server) -> None:
        """Wait until the server is ready and has answered the first request."""
        limits, cell = record.request.limits, record.request.cell
        ready = cell.ready_timeout if limits.ready is None else limits.ready
        server.wait_named(ready, self.stop_requested)
        server.first_answer(limits.first_request, self.stop_requested)

    def _measure(
        self,
        record: AttemptRecord,
        server: Server,
        monitor: InterferenceMonitor,
        env: Mapping[str, str],
        sink: Sink,
        launched: float,
    ) -> None:
        """First request, warm run, measured runs. ``launched``: when the server was started."""
        cell, limits, log = record.request.cell, record.request.limits, server.owned.log
        runner = record.runner
        assert runner is not None
        bench = BenchRuns(record, runner, server, monitor, self.stop_requested)
        record.facts["client"] = command_facts(bench.argv(cell, "1", cell.seed + 1), runner.env)
        # The client is imported while the server starts.
        with self._hosted_client(record, runner):
            # Load of others delays a start.
            with monitor.sample(measured=bool(self.caches)):
                try:
                    server.wait_named(
                        cell.ready_timeout if limits.ready is None else limits.ready, self.stop_requested
                    )
                finally:
                    record.seconds["launch"] = time.monotonic() - launched
                with record.timed("first_request", log):
                    server.first_answer(limits.first_request, self.stop_requested)
            parents = {row.pid: row.parent for row in server.owned.living()}
            record.facts["engine_log"] = engine_facts(logs.text_of(log, START_OF_LOG, first=True), parents)
            seconds = {"seconds": record.seconds["launch"], "first_request": record.seconds["first_request"]}
            sink("ready", seconds)
            record.facts[MEMORY_FACT] = self._memory(record, server, "ready")
            with record.timed("warm", bench.log("warm")):
                self._await_client(record, runner)
                # Other prompts than any measured run: the warm run fills kernels' caches, not the prefix
                # cache.
                warm = bench.run("warm", 0, cell.seed + WARM_SEED_OFFSET)
            record.facts["warm"] = {"values": dict(warm.values), "warnings": warm.warnings}
            sink("warm", {"seconds": record.seconds["warm"]})
            with record.timed("bench"):
                if record.request.purpose == "profile":
                    profile_load(bench, env, sink)
                else:
                    bench.measure(sink)
            record.facts[MEMORY_FACT] |= self._memory(record, server, "end")
            with monitor.sample(measured=False):
                check_image(record, server, env, self.stop_requested, sink)

    def _memory(
        self, record: AttemptRecord, server: Server, when: Literal["ready", "end"]
    ) -> dict[str, float]:
        """GiB that the server's processes, and the slot's devices, use now."""
        host, client = server.owned.living(), record.runner.host if record.runner else None
        used = {"host": host_memory(row for row in host if client is None or row.session != client.pid)}
        # The driver does not say it of MIG instances.
        uuids = self._slot(record.request).devices
        devices = [one.used for one in readings(self.profile.smi(), uuids) if one.used] if uuids else []
        used |= {"device": sum(devices)} if devices and len(devices) == len(uuids) else {}
        return {f"{what} {when}": round(mib / 1024, 4) for what, mib in used.items()}

    def _await_client(self, record: AttemptRecord, runner: Runner) -> None:
        """Wait for the client's imports; remember a client that cannot be forked."""
        runner.ready(record.request.limits.first_request, self.stop_requested)
        environment = self._client(record.request) or record.environment
        if runner.plain and environment is not None:
            # Remembered: forked and plain runs differ, so all runs of a job are made in the same way.
            self._plain[environment.key, record.instrument.name] = runner.plain

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
