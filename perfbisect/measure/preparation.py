"""Preparation of an attempt: environment, model files and client, with cached results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfbisect.clients import CLIENTS, Client
from perfbisect.clients.runner import Runner
from perfbisect.environments.base import Builder, Environment
from perfbisect.errors import Interrupted, MachineError, UsageError
from perfbisect.machine import profile
from perfbisect.machine.profile import CUDA, Profile
from perfbisect.machine.slots import Slot
from perfbisect.machine.torch_probe import torch_facts
from perfbisect.measure.executor import AttemptRequest, Sink
from perfbisect.measure.record import AttemptRecord, ClientVersion, identify_client
from perfbisect.model.cell import LOCAL, Cell
from perfbisect.serving.families import OFFLINE
from perfbisect.system import environ, logs, processes
from perfbisect.system.processes import StopRequested

OFFLINE_WORDS = ("1", "true", "yes", "on")
"""Values of ``HF_HUB_OFFLINE`` that mean offline."""

_CANNOT = 3
"""Exit code of the script without a hub client."""

_SCRIPT = f"""
import sys
try:
    from huggingface_hub import HfApi, snapshot_download
except ImportError as error:
    print(error)
    sys.exit({_CANNOT})
for argument in sys.argv[1:]:
    name, _, revision = argument.partition("@")
    try:
        files = HfApi().list_repo_files(name, revision=revision or None)
    except Exception as error:
        # A machine without a way to the hub may have it all.
        try:
            print(snapshot_download(name, revision=revision or None, local_files_only=True), flush=True)
            continue
        except Exception:
            sys.exit(f"{{type(error).__name__}}: {{error}}")
    # Weights come in several formats; where there are safetensors, an engine reads those.
    other = ["*.bin", "*.pt", "*.pth", "*.gguf", "*.msgpack", "*.h5", "original/*"]
    skip = other if any(file.endswith(".safetensors") for file in files) else []
    print(snapshot_download(name, revision=revision or None, ignore_patterns=skip), flush=True)
"""


def hub_repositories(cell: Cell) -> tuple[str, ...]:
    """Hub repositories of model, tokenizer and draft model: ``owner/name`` or ``owner/name@revision``."""
    draft = cell.serve_args.get("speculative-config")
    named = [
        (cell.model, cell.revision.model),
        (cell.tokenizer, cell.revision.tokenizer),
        (draft.get("model") if isinstance(draft, Mapping) else None, None),
    ]
    remote = (
        f"{name}@{revision}" if revision else str(name)
        for name, revision in named
        if name and not str(name).startswith(("/", ".")) and not (revision or "").startswith(LOCAL)
    )
    return tuple(dict.fromkeys(remote))


def missing_repositories(repositories: Iterable[str], shell: Mapping[str, str]) -> tuple[str, ...]:
    """Repositories that the local cache lacks while the shell forbids downloads."""
    if shell.get("HF_HUB_OFFLINE", "") not in OFFLINE_WORDS:
        return ()
    home = Path(shell.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(shell.get("HF_HUB_CACHE") or home / "hub")
    missing = []
    for repository in repositories:
        name, _, revision = repository.partition("@")
        snapshots = cache / f"models--{name.replace('/', '--')}" / "snapshots"
        if not (snapshots / revision).is_dir():
            missing.append(repository)
    return tuple(missing)


def needs_hub_dataset(cell: Cell) -> bool:
    """Whether the client downloads its prompts and must stay online."""
    return bool(cell.dataset_path) and not (cell.revision.dataset or "").startswith(LOCAL)


def fetch_models(
    repositories: tuple[str, ...],
    *,
    interpreter: Path,
    env: Mapping[str, str],
    log: Path,
    token: str,
    timeout: float,
    stop_requested: StopRequested,
) -> bool:
    """Download repositories into the hub's cache; False if the interpreter has no hub client."""
    ended = processes.run(
        (str(interpreter), "-c", _SCRIPT, *repositories),
        env=env,
        cwd=log.parent,
        log=log,
        token=token,
        timeout=timeout,
        stop_requested=stop_requested,
    )
    if ended.code == 0:
        return True
    if ended.code == _CANNOT:
        return False
    why = f"not within {timeout:.0f} s" if ended.timed_out else logs.cause(log) or logs.tail(log)
    raise MachineError(
        f"cannot download {', '.join(repositories)}: {why}",
        where=log,
        next_step="check HF_TOKEN, HF_ENDPOINT and HF_HOME, or copy the files there and set HF_HUB_OFFLINE=1",
        code="hub_unreachable",
        output="" if ended.timed_out else why,
    )


@dataclass(frozen=True)
class Prepared:
    """A prepared attempt. ``offline``: variables that keep server and client offline."""

    environment: Environment
    offline: Mapping[str, str]
    client: Client
    runner: Runner


@dataclass
class Preparation:
    """Prepares the attempts of one executor."""

    client_environment: Environment | None
    shell: Mapping[str, str]
    stop_requested: StopRequested
    overlap: bool
    profile: Profile = CUDA
    _complete: set[tuple[str, str]] = field(default_factory=set, repr=False)
    """Cells (digest, variant) whose repositories are downloaded."""
    _versions: dict[tuple[str, str], ClientVersion] = field(default_factory=dict, repr=False)
    _plain: dict[tuple[str, str], str] = field(default_factory=dict, repr=False)
    """Clients that cannot be forked, and why."""
    _torch: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict, repr=False)
    """Facts of torch by environment packages and slot."""

    def slot(self, request: AttemptRequest) -> Slot:
        """The leased slot, or the whole machine, without devices if the cell needs none."""
        if request.slot is not None:
            return request.slot
        visible = profile.machine(self.shell, self.profile).gpus
        if not request.cell.gpus:
            return Slot("", env=self.profile.none_of(visible))
        return Slot("", tuple(gpu.uuid for gpu in visible))

    def prepare(self, record: AttemptRecord, builder: Builder, sink: Sink) -> Prepared:
        """Build the environment, download the models and set up the client.

        Raises:
            PerfbisectError: a step failed; the record has the environment if it was built.
        """
        request = record.request
        client: Client = look_up(CLIENTS, request.cell.client.name, "client")
        request.folder.mkdir(parents=True, exist_ok=True)
        profile.check_room(request.folder)
        with record.timed("build", request.folder / "build.log"):
            environment = builder.ensure(request.change, log=record.log, timeout=request.limits.build)
            record.environment, record.cold = environment, _is_cold(environment)
        offline = self._fetch(record, environment, sink)
        with record.timed("build"):
            runner = self._runner(record, client, {} if needs_hub_dataset(request.cell) else offline)
        sink("build", {"seconds": environment.seconds, "cached": environment.seconds == 0.0})
        if self.stop_requested():
            raise Interrupted(f"attempt {request.id} was stopped in phase {record.phase}")
        return Prepared(environment, offline, client, runner)

    def _fetch(self, record: AttemptRecord, environment: Environment, sink: Sink) -> Mapping[str, str]:
        """Download the cell's repositories once; returns the variables for offline mode."""
        request, cell = record.request, record.request.cell
        needed = hub_repositories(cell)
        if self.shell.get("HF_HUB_OFFLINE", "") in OFFLINE_WORDS:
            return OFFLINE
        if needed and (cell.digest, cell.variant) not in self._complete:
            env = environ.for_interpreter(self.shell, environment.interpreter, environment.env, cell.env)
            with record.timed("fetch", request.folder / "fetch.log"):
                complete = fetch_models(
                    needed,
                    interpreter=environment.interpreter,
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

    def _runner(self, record: AttemptRecord, client: Client, offline: Mapping[str, str]) -> Runner:
        """Digest the client and build its runner."""
        request, slot = record.request, self.slot(record.request)
        environment = self.client_environment or record.environment
        assert environment is not None
        env = environ.for_interpreter(
            self.shell, environment.interpreter, environment.env, offline, client.env(request.cell), slot.env
        )
        known = (environment.key, client.name)
        if known not in self._versions:
            self._versions[known] = identify_client(
                client, environment, env, request.folder, self.stop_requested
            )
        date = request.change.date if self.client_environment is None else ""
        record.client = replace(self._versions[known], date=date)
        modules = client.preload(env)
        plain = self._plain.get(known, "" if self.overlap else "asked for") if modules else ""
        return Runner(
            environment.interpreter, env, request.folder, record.token, modules,
            cores=slot.client_cores, plain=plain,
        )  # fmt: skip

    def add_torch_facts(
        self, record: AttemptRecord, environment: Environment, env: Mapping[str, str], slot: Slot
    ) -> None:
        """Add facts of torch, cached by environment packages and slot."""
        if not slot.devices or self.profile.devices != "nvidia-smi":
            return
        known = (environment.packages_digest or environment.key, slot.name)
        if known not in self._torch:
            self._torch[known] = torch_facts(
                environment.interpreter, env, slot, record.request.folder, stop_requested=self.stop_requested
            )
        record.facts["torch"] = self._torch[known]

    def await_client(self, record: AttemptRecord, client: Client, runner: Runner) -> None:
        """Wait for the client's imports; remember a client that cannot be forked."""
        runner.ready(record.request.limits.first_request, self.stop_requested)
        environment = self.client_environment or record.environment
        if runner.plain and environment is not None:
            self._plain[environment.key, client.name] = runner.plain


def _is_cold(environment: Environment) -> bool:
    """Whether the environment's compile and kernel caches are empty."""
    try:
        return not any(path.is_file() for path in environment.caches.rglob("*"))
    except OSError:
        return True


def look_up(known: Mapping[str, Any], name: str, what: str) -> Any:
    """Look up a family or client by name; UsageError if it is unknown."""
    if name not in known:
        raise UsageError(f"unknown {what} {name!r}; known: {', '.join(known)}")
    return known[name]
