"""``perfbisect init`` and ``perfbisect doctor``."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.commands import options
from perfbisect.commands.options import PATH, MeasureOptions
from perfbisect.commands.output import CommandResult

if TYPE_CHECKING:
    from perfbisect.commands.workspace import Workspace
    from perfbisect.environments.base import Builder


@click.command(short_help="Write perfbisect.yaml for a checkout.")
@click.option("--repo", type=PATH, help="Checkout of vLLM or vLLM-Omni.  [default: the current one]")
@click.option("--force", is_flag=True, help="Overwrite a different perfbisect.yaml.")
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
@options.as_json
def init(repo: Path | None, force: bool, dry_run: bool) -> CommandResult:
    """Write perfbisect.yaml at the root of a checkout, so that a bisection needs a cell and two revisions.

    The settings follow from the engine, its release tags, the vLLM that HEAD pins and this machine's devices;
    comments give the reasons. An existing file that differs is kept, and the difference shown.

    \b
    Examples:
      perfbisect init
      perfbisect init --repo ~/vllm-omni --dry-run

    Exit code: 0 written or up to date; 2 no such checkout, or a different file exists.
    """
    from perfbisect.common.text import line
    from perfbisect.setup.templates import write_settings

    document = write_settings(repo, force=force, dry_run=dry_run)
    rows = [(row.what, row.found) for row in document.saw]
    rows += [(key, value) for key, value in document.settings.items() if key != "machine"]
    result = f"{'would write' if dry_run else 'wrote'} {document.file}"
    if document.state == "same":
        result = f"{document.file} is up to date"
    preview = (document.difference or document.content.splitlines()) if dry_run else ()
    lines = [
        *(f"{name:<8} {line(value)}" for name, value in rows),
        result,
        *(f"  {line(text)}" for text in preview),
        f"next: {document.next}",
    ]
    return CommandResult(document, lines)


@click.command(short_help="Check this machine.")
@click.option("--online", is_flag=True, help="Query the package registry too.")
@click.option("--at", "at", metavar="CHANGE", help="Query the indices of --env for this change.")
@click.option("--fleet", metavar="SPEC", help="Check the machines of a fleet in place of this one.")
@options.env
@options.in_workspace(options.machine, options.repo, options.state)
@options.as_json
def doctor(
    workspace: Workspace, online: bool, at: str | None, fleet: str | None, env: str | None
) -> CommandResult:
    """Check that this machine, or each of a fleet, can measure, with advice where it cannot.

    Of a fleet, each machine is a row, followed by what is not good there.

    Checks the perfbisect.yaml in effect, git, uv, disk, memory, ports, devices and their users, leases, load
    and clock; with --machine (or that of perfbisect.yaml) the device commands, the variable that selects
    devices and the lease command; with --online the registry, with --env and --at the indices that the
    environment of a change comes from.

    \b
    Examples:
      perfbisect doctor --online
      perfbisect doctor --machine ascend
      perfbisect doctor --env wheel:https://wheels.example/{sha} --at HEAD
      perfbisect doctor --fleet ssh:hosts.yaml

    Exit code: 0 fit to measure (warnings included), 5 not.
    """
    from perfbisect.commands import wiring
    from perfbisect.commands.changes import resolve_change
    from perfbisect.common.text import line
    from perfbisect.errors import EXIT_OK, EXIT_OUTSIDE
    from perfbisect.fleet.folders import FolderFleet
    from perfbisect.fleet.specs import build_hosts, make_fleet
    from perfbisect.setup.doctor import (
        Check,
        DoctorDocument,
        check_settings,
        fleet_checks,
        index_checks,
        machine_checks,
        run_checks,
    )

    profile = wiring.load_profile(wiring.machine_name(workspace))
    change = resolve_change(workspace, at) if at else None

    def make_builder() -> Builder:
        changes = (change,) if change else ()
        setting = wiring.build_config(workspace, env or "", changes, MeasureOptions())
        return wiring.build_builder(workspace, setting)

    root = workspace.root if workspace.repository else None
    folders = {"state": workspace.state, "cache": workspace.cache}
    checks: list[Check] = [("settings", partial(check_settings, root, workspace.settings.machine))]
    if fleet:
        machines = make_fleet(fleet, workspace.state).machines(checks=True)
        builders = FolderFleet(fleet, partial(build_hosts, fleet)).machines(checks=True)
        checks += fleet_checks(machines, fleet, builders)
    else:
        checks += machine_checks(**folders, shell=dict(os.environ), profile=profile)
    if online or env:
        checks += index_checks(make_builder if env else None, change)
    results = run_checks(checks)
    fit = all(check.state != "bad" for check in results)
    lines = []
    for check in results:
        lines.append(f"{check.state:<8} {check.name:<14} {line(check.found)}")
        if check.advice:
            lines.append(f"{'':<24}{line(check.advice)}")
    return CommandResult(DoctorDocument(fit=fit, checks=results), lines, EXIT_OK if fit else EXIT_OUTSIDE)
