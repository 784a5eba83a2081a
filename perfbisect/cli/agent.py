"""``perfbisect agent``: what a job on another machine calls here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.commands import options
from perfbisect.commands.options import PATH, Verbs
from perfbisect.commands.output import CommandResult

if TYPE_CHECKING:
    from perfbisect.commands.workspace import Workspace


@click.group(cls=Verbs, short_help="Launches for a job on another machine.")
def agent() -> None:
    """Make launches for a job that runs on another machine."""


@agent.command(short_help="Make the launches of a bundle.")
@click.argument("request", type=PATH)
@click.option(
    "--folder",
    type=PATH,
    required=True,
    help="Folder of this bundle: journal, attempts, heartbeat, manifest.",
)
@options.as_json
def run(request: Path, folder: Path) -> CommandResult:
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
    from perfbisect.commands.agent import run_agent

    return run_agent(request, folder)


@agent.command(short_help="Build the environment of a change.")
@click.argument("request", type=PATH)
@options.as_json
def build(request: Path) -> CommandResult:
    """Build the environment that REQUEST asks for, as JSON, into the cache of this machine.

    A job calls this on machines with the role build, and brings what was built to the machines that measure.
    The log is beside REQUEST.

    \b
    Example:
      perfbisect agent build builds/0a1b/request.json --json

    Exit code: 0; 2 the request is wrong; 5 it cannot be built; 130 ended by a signal.
    """
    from perfbisect.commands.agent import build as build_here

    return build_here(request)


@agent.command(short_help="What this machine can measure.")
@click.option("--gpus", type=click.IntRange(0), default=0, show_default=True, help="Devices of a slot.")
@click.option(
    "--workers", type=click.IntRange(1), help="Slots.  [default: as many as devices; 1 without devices]"
)
@click.option("--checks", is_flag=True, help="Check it as perfbisect doctor does.")
@options.in_workspace(options.machine)
@options.as_json
def look(workspace: Workspace, gpus: int, workers: int | None, checks: bool) -> CommandResult:
    """Show the machine class, the devices, the slots and the built environments of this machine.

    \b
    Example:
      perfbisect agent look --gpus 1 --json

    Exit code: 0; 2 no such machine profile.
    """
    from perfbisect.commands.agent import look as look_here

    return look_here(workspace, gpus, workers, checks=checks)


@agent.command(short_help="Install perfbisect on machines that ssh or Ray reaches.")
@click.argument("hosts", metavar="HOST...", nargs=-1, required=True)
@click.option("--fleet", metavar="SPEC", required=True, help="The machines: ssh:hosts.yaml or ray:ADDRESS.")
@click.option(
    "--wheels",
    type=PATH,
    help="Folder with wheels of all dependencies, for machines without a package index.",
)
@options.in_workspace()
@options.as_json
def install(workspace: Workspace, hosts: tuple[str, ...], fleet: str, wheels: Path | None) -> CommandResult:
    """Install this version of perfbisect into its folder on each HOST, with the uv that is sent along.

    \b
    Examples:
      perfbisect agent install box1 box2 --fleet ssh:hosts.yaml
      perfbisect agent install box1 --fleet ssh:hosts.yaml --wheels wheels
      perfbisect agent install gpu-node-1 --fleet ray:auto

    Exit code: 0; 2 no such host; 5 a machine does not answer, or the installation failed there.
    """
    from perfbisect.commands.agent import install_on

    return install_on(workspace, hosts, fleet, wheels)
