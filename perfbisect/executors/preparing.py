"""What an attempt needs before its server starts; what was found out once is not asked again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from perfbisect.clients import CLIENTS, Client
from perfbisect.environments import Builder, Environment
from perfbisect.errors import Interrupted, UsageError
from perfbisect.executors import AttemptRequest, Sink, provenance
from perfbisect.executors.fetch import OFFLINE_WORDS, data_from_hub, from_hub
from perfbisect.executors.fetch import fetch as bring
from perfbisect.executors.provenance import Instrument
from perfbisect.executors.record import Record
from perfbisect.executors.running import Runner
from perfbisect.executors.surroundings import torch_facts
from perfbisect.families import OFFLINE
from perfbisect.system import environ, machine
from perfbisect.system.proc import Asked
from perfbisect.system.profile import CUDA, Profile
from perfbisect.system.slots import Slot


@dataclass(frozen=True)
class Prepared:
    """What an attempt has before its server starts. ``offline``: the variables that keep all offline."""

    environment: Environment
    offline: Mapping[str, str]
    client: Client
    runner: Runner


@dataclass
class Preparation:
    """Of all attempts of one executor; see there for what is given."""

    client_environment: Environment | None
    shell: Mapping[str, str]
    asked: Asked
    overlap: bool
    profile: Profile = CUDA
    _complete: set[tuple[str, str]] = field(default_factory=set, repr=False)
    """Cells (digest, variant) measured once: what they need of a hub is on this machine."""
    _instruments: dict[tuple[str, str], Instrument] = field(default_factory=dict, repr=False)
    _plain: dict[tuple[str, str], str] = field(default_factory=dict, repr=False)
    """Clients that cannot be run from a host, and why."""
    _torch: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict, repr=False)
    """What torch told, by the packages of an environment and the slot."""

    def slot(self, request: AttemptRequest) -> Slot:
        """What it runs on: what is leased, else the whole machine, of whose devices a cell may want none."""
        if request.slot is not None:
            return request.slot
        visible = machine.machine(self.shell, self.profile).gpus
        if not request.cell.gpus:
            return Slot("", env=self.profile.none_of(visible))
        return Slot("", tuple(gpu.uuid for gpu in visible))

    def all(self, record: Record, builder: Builder, sink: Sink) -> Prepared:
        """The attempt's environment, what it needs of a hub, its client.

        :raises PerfbisectError: one of them fails; the record has the environment if there is one.
        """
        request = record.request
        client: Client = named(CLIENTS, request.cell.client.name, "client")
        request.folder.mkdir(parents=True, exist_ok=True)
        machine.check_room(request.folder)
        with record.timed("build", request.folder / "build.log"):
            environment = builder.ensure(request.change, log=record.log, timeout=request.limits.build)
            record.environment, record.cold = environment, provenance.is_cold(environment)
        offline = self.fetch(record, environment, sink)
        with record.timed("build"):
            own = {} if data_from_hub(request.cell) else offline
            runner = self.runner(record, client, own, self.slot(request))
        sink("build", {"seconds": environment.seconds, "cached": environment.seconds == 0.0})
        if self.asked():
            raise Interrupted(f"attempt {request.id} was stopped in phase {record.phase}")
        return Prepared(environment, offline, client, runner)

    def fetch(self, record: Record, environment: Environment, sink: Sink) -> Mapping[str, str]:
        """Brings what the cell needs from a hub, once; returns the variables that keep all offline."""
        request = record.request
        cell = request.cell
        needed = from_hub(cell)
        if self.shell.get("HF_HUB_OFFLINE", "") in OFFLINE_WORDS:
            return OFFLINE
        if needed and (cell.digest, cell.variant) not in self._complete:
            with record.timed("fetch", request.folder / "fetch.log"):
                complete = bring(
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

    def ask_torch(self, record: Record, environment: Environment, env: Mapping[str, str], slot: Slot) -> None:
        """CUDA facts, once for the packages of an environment on a slot: overlays share theirs."""
        if not slot.devices or self.profile.source != "nvidia-smi":
            return
        known = (environment.packages_digest or environment.key, slot.name)
        if known not in self._torch:
            self._torch[known] = torch_facts(
                environment.interpreter, env, slot, record.request.folder, self.asked
            )
        record.facts["torch"] = self._torch[known]

    def runner(self, record: Record, client: Client, offline: Mapping[str, str], slot: Slot) -> Runner:
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

    def ready(self, record: Record, client: Client, runner: Runner) -> None:
        """Wait for the client's imports; a client that has no host is run plainly from now on."""
        runner.ready(record.request.limits.first_request, self.asked)
        if runner.plain and record.environment is not None:
            key = (self.client_environment or record.environment).key
            self._plain[key, client.name] = runner.plain


def named(known: Mapping[str, Any], name: str, what: str) -> Any:
    """A family or a client by its name. :raises UsageError: there is none of it; the known ones are told."""
    if name not in known:
        raise UsageError(f"no {what} {name!r}; known: {', '.join(known)}")
    return known[name]
