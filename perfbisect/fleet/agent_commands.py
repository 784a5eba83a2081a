"""``perfbisect agent``: launches for a job on another machine, and what this machine can measure."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import perfbisect
from perfbisect.commands import setups
from perfbisect.commands.options import JobOptions
from perfbisect.commands.output import CommandResult
from perfbisect.commands.session import interruptible, open_session
from perfbisect.commands.workspace import Workspace, open_workspace
from perfbisect.common.text import hint
from perfbisect.common.yaml_source import load, validate
from perfbisect.environments.base import Builder
from perfbisect.environments.builders.keyed import KeyedBuilder
from perfbisect.environments.cache import EnvironmentCache
from perfbisect.errors import EXIT_OK, EXIT_OUTSIDE, BuildError, Interrupted, MachineError, UsageError
from perfbisect.fleet.agent import (
    bundle_document,
    close_bundle,
    measure_bundle,
    read_manifest,
    write_manifest,
)
from perfbisect.fleet.building import LOG, BuildDocument, BuildFailureDocument, BuildRequest
from perfbisect.fleet.bundle import CLIENT, Bundle, BundleDocument
from perfbisect.fleet.folders import with_bases
from perfbisect.fleet.install import InstalledDocument, install_agent, own_wheel
from perfbisect.fleet.specs import build_hosts, make_fleet, split_fleet
from perfbisect.jobs.folders import Job
from perfbisect.jobs.machines import MachineDocument
from perfbisect.jobs.plans import plan_cell, require_plan
from perfbisect.machine.leases import describe_holders, holders, lock_folder
from perfbisect.machine.profile import load_profile, machine
from perfbisect.machine.slots import Slot, machine_of, plan_slots
from perfbisect.setup.doctor import check_flock, machine_checks, run_checks
from perfbisect.system.clock import now
from perfbisect.system.files import write_atomic


def run_agent(request: Path, folder: Path) -> CommandResult:
    """Make the launches of a bundle in ``folder``, or say what came of them.

    Raises:
        UsageError: the request is no bundle, or the folder is another's.
        MachineError: the slot is leased, or its environment is not here.
        Interrupted: Ctrl-C, a stop request, or the bundle's time is up.
    """
    bundle = validate(load(request), Bundle)
    plan_cell(bundle)
    job, host = Job(folder.absolute()), platform.node()
    ended = read_manifest(job.path)
    if ended is None and job.holder is not None and job.events():
        _require_token(job, bundle)
        return _result(bundle_document(job, host))
    if ended is None:
        with job.held():
            if job.events():
                _require_token(job, bundle)
                close_bundle(job, now)
            else:
                _measure(job, bundle)
            ended = write_manifest(job, host)
    if ended.token != bundle.token:
        raise _another(job, ended.token)
    return _result(ended)


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


def _require_token(job: Job, bundle: Bundle) -> None:
    token = require_plan(job, job.events(), Bundle).token
    if token != bundle.token:
        raise _another(job, token)


def _another(job: Job, token: str) -> UsageError:
    return UsageError(
        f"the folder is of another bundle, {token}", where=job.path, next_step="a folder for each bundle"
    )


def _result(document: BundleDocument) -> CommandResult:
    lines = [f"bundle {document.token} {document.state} on {document.machine}"]
    for number, launch in enumerate(document.launches, 1):
        reason = f": {launch.reason}" if launch.reason else ""
        lines.append(f"  {number}  {launch.change[:12]}  {launch.outcome}{reason}")
    return CommandResult(document, lines)


def build(request: Path) -> CommandResult:
    """Build the environment of a request here; the log is beside the request.

    Raises:
        UsageError: the request is wrong.
        Interrupted: the driver is gone, or a stop was requested.
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


def look(
    workspace: Workspace, machine_profile: str | None, gpus: int, workers: int | None, *, checks: bool
) -> CommandResult:
    """What this machine can measure: its slots of so many devices, and the environments that it has.

    ``checks``: what ``perfbisect doctor`` checks here, and what fleets need.
    """
    profile = load_profile(machine_profile or "")
    shell = dict(os.environ)
    hardware = machine(shell, profile)
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
    rows = (*machine_checks(**folders, shell=shell, profile=profile), ("flock", check_flock))
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


def install_on(workspace: Workspace, names: Sequence[str], spec: str, wheels: Path | None) -> CommandResult:
    """Install this version of perfbisect on machines that ssh or Ray reaches.

    Raises:
        UsageError: the fleet is of another engine, or has no such machine.
        MachineError: a machine does not answer, or the installation failed there.
    """
    fleet = make_fleet(spec, workspace.state)
    if any(name == "slurm" for name, _ in split_fleet(spec)):
        raise UsageError(
            f"--fleet {spec}: perfbisect is installed on machines that ssh or Ray reaches only",
            next_step="--fleet ssh:hosts.yaml or ray:ADDRESS; Slurm's nodes share the one that is here",
        )
    known = {host.name: host for host in (*fleet.hosts(), *build_hosts(spec))}
    for name in names:
        if name not in known:
            raise UsageError(
                f"{spec} has no machine {name!r}{hint(name, known)}", next_step=f"one of {', '.join(known)}"
            )
    if wheels is not None and not any(wheels.glob("*.whl")):
        raise UsageError(
            "--wheels: no wheel is there",
            where=wheels,
            next_step=f"pip download --only-binary :all: -d {wheels} -r requirements/runtime.txt",
        )
    with tempfile.TemporaryDirectory() as folder:
        wheel = own_wheel(Path(folder))
        machines = {name: known[name].below(known[name].home()) for name in names}
        versions = {name: install_agent(host, wheel, wheels) for name, host in machines.items()}
    lines = [f"{name}: perfbisect {version}" for name, version in versions.items()]
    return CommandResult(InstalledDocument(versions=versions), lines)
