"""``perfbisect agent``: what a job on another machine calls here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from perfbisect.commands.options import MachineName
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Argument, Option, prints
from perfbisect.commands.workspace import Workspace


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
    from perfbisect.fleet.agent_commands import run_agent

    return run_agent(request, folder)


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
    from perfbisect.fleet.agent_commands import build

    return build(request)


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
    from perfbisect.fleet.agent_commands import look

    return look(workspace, machine, gpus, workers, checks=checks)


@prints("perfbisect.fleet.install:InstalledDocument")
def install(
    workspace: Workspace,
    *,
    hosts: Annotated[tuple[str, ...], Argument("HOST...")],
    fleet: Annotated[str, Option("The machines: ssh:hosts.yaml or ray:ADDRESS.", metavar="SPEC")],
    wheels: Annotated[
        Path | None,
        Option("Folder with wheels of all dependencies, for machines without a package index."),
    ] = None,
) -> CommandResult:
    """Install this version of perfbisect into its folder on each HOST, with the uv that is sent along.

    \b
    Examples:
      perfbisect agent install box1 box2 --fleet ssh:hosts.yaml
      perfbisect agent install box1 --fleet ssh:hosts.yaml --wheels wheels
      perfbisect agent install gpu-node-1 --fleet ray:auto

    Exit code: 0; 2 no such host; 5 a machine does not answer, or the installation failed there.
    """
    from perfbisect.fleet.agent_commands import install_on

    return install_on(workspace, hosts, fleet, wheels)
