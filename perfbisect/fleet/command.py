"""``perfbisect agent``: what a job on another machine calls here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import click

import perfbisect
from perfbisect.commands import setups
from perfbisect.commands.options import JobOptions, MachineName
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Argument, Option, prints
from perfbisect.commands.session import interruptible, open_session
from perfbisect.commands.workspace import Workspace, open_workspace
from perfbisect.common.yaml_source import load, validate
from perfbisect.environments.base import Builder, Environment, Refusal
from perfbisect.environments.cache import EnvironmentCache
from perfbisect.errors import EXIT_OK, EXIT_OUTSIDE, BuildError, Interrupted, MachineError, UsageError
from perfbisect.fleet.agent import measure_bundle, run_bundle
from perfbisect.fleet.building import LOG, BuildDocument, BuildFailureDocument, BuildRequest
from perfbisect.fleet.bundle import CLIENT, Bundle
from perfbisect.fleet.folders import with_bases
from perfbisect.jobs.folders import Job
from perfbisect.jobs.machines import MachineDocument
from perfbisect.jobs.plans import plan_cell
from perfbisect.machine.leases import describe_holders, holders, lock_folder
from perfbisect.machine.profile import load_profile
from perfbisect.machine.profile import machine as detect_machine
from perfbisect.machine.slots import Slot, machine_of, plan_slots
from perfbisect.model.change import Change
from perfbisect.setup.doctor import Check, check_tool, machine_checks, run_checks
from perfbisect.system.clock import now
from perfbisect.system.files import write_atomic


@prints("perfbisect.fleet.bundle:BundleDocument")
def run(
    *,
    request: Annotated[Path, Argument()],
    folder: Annotated[Path, Option("Folder of this bundle: journal, attempts, heartbeat, manifest.")],
) -> CommandResult:
    """Make the launches of REQUEST, a bundle as JSON, one after the other under one lease of its slot.

    Each launch is made once at most: a second call says what came of them. A call after the agent was killed
    ends what it left running, and measures nothing. Results are in FOLDER/attempts as they come;
    FOLDER/heartbeat.json says that the agent lives, FOLDER/manifest.json that it has ended, with a digest of
    each file.

    \b
    Example:
      perfbisect agent run request.json --folder bundles/0a1b --json

    Exit code: 0 the launches have ended, or are under way; 2 the request is wrong; 5 the slot is leased or an
    environment is missing; 130 ended by a signal or by the bundle's limit.
    """
    bundle = validate(load(request), Bundle)
    plan_cell(bundle)
    document = run_bundle(bundle, folder, now, partial(_measure, bundle=bundle))
    lines = [f"bundle {document.token} {document.state} on {document.machine}"]
    for number, launch in enumerate(document.launches, 1):
        reason = f": {launch.reason}" if launch.reason else ""
        lines.append(f"  {number}  {launch.change[:12]}  {launch.outcome}{reason}")
    return CommandResult(document, lines)


def _measure(job: Job, bundle: Bundle) -> None:
    workspace = open_workspace(state=job.path)
    setting = bundle.setting
    if not setting.cache:
        setting = setting.model_copy(update={"cache": str(workspace.cache)})
    working, keys = JobOptions(quiet=True, wait=bundle.wait or None), bundle.environments
    with open_session(job, (bundle.slot,), working, plan=bundle, held=True) as session:
        if keys:
            builder: Builder = KeyedBuilder(Path(setting.cache), keys, keys.get(CLIENT, ""))
        else:
            builder = setups.build_builder(workspace, setting)
        newest = bundle.launches[-1].change
        tools = session.tools(workspace, setting, builder, newest, bundle.interference)
        measure_bundle(job, replace(tools, ahead=None))


class KeyedBuilder(Builder):
    """Environments that were brought to this machine; builds nothing.

    ``keys``: of the environments, by the id of their change; ``client``: of the client's.
    """

    name = spec = "keyed"

    def __init__(self, cache: Path, keys: Mapping[str, str], client: str = "") -> None:
        self.cache = EnvironmentCache(cache)
        self.keys = keys
        self.client_key = client

    def refuses(self, change: Change) -> Refusal | None:
        if change.id in self.keys:
            return None
        return Refusal(f"no environment of {change.short} was named", error=True)

    def key(self, change: Change) -> str:
        return self.keys[change.id]

    def cached(self, change: Change) -> bool:
        return change.id in self.keys

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        del log, timeout
        return self._find(self.key(change), change.short)

    def client(self) -> Environment | None:
        return self._find(self.client_key, "the client") if self.client_key else None

    def _find(self, key: str, what: str) -> Environment:
        environment = self.cache.find(key)
        if environment is None:
            raise MachineError(
                f"the environment of {what} is not on this machine: {key}",
                where=self.cache.folder(key),
                next_step="bring it there again",
            )
        return environment


@prints("perfbisect.fleet.building:BuildDocument")
def build(
    *,
    request: Annotated[Path, Argument()],
) -> CommandResult:
    """Build the environment that REQUEST asks for, as JSON, into the cache of this machine.

    A job calls this on machines with the role build, and brings what was built to the machines that measure.
    The log is beside REQUEST.

    \b
    Example:
      perfbisect agent build builds/0a1b/request.json --json

    Exit code: 0; 2 the request is wrong; 5 it cannot be built; 130 ended by a signal.
    """
    wanted, folder = validate(load(request), BuildRequest), request.absolute().parent
    setting = wanted.setting
    if wanted.constraints:
        pins = folder / "constraints.txt"
        write_atomic(pins, wanted.constraints)
        setting = setting.model_copy(update={"constraints": str(pins)})
    workspace, log = open_workspace(state=folder), folder / LOG
    log.unlink(missing_ok=True)
    keys: tuple[str, ...] = ()
    seconds, key, failure = 0.0, wanted.key, None
    try:
        with interruptible(Interrupted):
            builder = setups.build_builder(workspace, setting)
            builder.prepare(wanted.changes)
            key = builder.key(wanted.change)
            if key == wanted.key:
                environment = builder.ensure(wanted.change, log=log, timeout=60 * wanted.limit)
                keys = tuple(part.name for part in with_bases(environment.folder))
                seconds = environment.seconds
    except (BuildError, MachineError) as error:
        failure = BuildFailureDocument(
            part="build" if isinstance(error, BuildError) else "machine",
            message=error.message,
            code=error.code,
            output=error.output,
        )
    document = BuildDocument(
        version=perfbisect.__version__, key=key, seconds=seconds, environments=keys, failure=failure
    )
    lines = [failure.message if failure else f"{key}: {seconds:.0f} s"]
    return CommandResult(document, lines, EXIT_OUTSIDE if failure else EXIT_OK)


@prints("perfbisect.jobs.machines:MachineDocument")
def look(
    workspace: Workspace,
    *,
    gpus: Annotated[int, Option("Devices of a slot.", type=click.IntRange(0))] = 0,
    workers: Annotated[
        int | None,
        Option("Slots.", default="as many as devices; 1 without devices", type=click.IntRange(1)),
    ] = None,
    checks: Annotated[bool, Option("Check it as perfbisect doctor does.")] = False,
    machine: MachineName = None,
) -> CommandResult:
    """Show the machine class, the devices, the slots and the built environments of this machine.

    \b
    Example:
      perfbisect agent look --gpus 1 --json

    Exit code: 0; 2 no such machine profile.
    """
    profile = load_profile(machine or "")
    shell = dict(os.environ)
    hardware = detect_machine(shell, profile)
    count = workers or (max(1, len(hardware.gpus) // gpus) if gpus else 1)
    slots: Sequence[Slot] = ()
    problem = ""
    try:
        slots = plan_slots(hardware, gpus=gpus, workers=count, profile=profile)
    except (UsageError, MachineError) as error:
        problem = error.message
    kind = machine_of(slots[0], shell, profile).kind if slots else hardware.kind
    held = holders(lock_folder(shell))
    folders = {"state": workspace.state, "cache": workspace.cache}
    flock: Check = ("flock", partial(check_tool, "flock"))
    rows = (*machine_checks(**folders, shell=shell, profile=profile), flock)
    document = MachineDocument(
        name=hardware.host,
        version=perfbisect.__version__,
        machine_class=kind,
        devices=tuple(gpu.uuid for gpu in hardware.gpus),
        slots=tuple(slots),
        leased=tuple(lock.name or lock.kind for lock in held),
        problem=problem,
        environments=tuple(stamp.key for stamp in EnvironmentCache(workspace.cache).stamps()),
        checks=run_checks(rows) if checks else (),
        time=now().timestamp(),
    )
    lines = [
        f"{document.name}: {document.machine_class}, perfbisect {document.version}",
        problem or f"slots: {', '.join(slot.name or 'the whole machine' for slot in slots)}",
        f"leased: {describe_holders(held) or 'nothing'}",
        f"environments: {len(document.environments)}",
        *(f"{check.name}: {check.found}" for check in document.checks if check.state != "good"),
    ]
    return CommandResult(document, lines)
