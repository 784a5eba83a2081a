"""``perfbisect init`` and ``perfbisect doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perfbisect.commands.options import BuildOptions, InRepositoryAndState, MachineName
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Option, prints

if TYPE_CHECKING:
    from perfbisect.environments.base import Builder


@prints("perfbisect.setup.templates:InitDocument")
def init(
    *,
    repo: Annotated[Path | None, Option("Checkout of vLLM or vLLM-Omni.", default="the current one")] = None,
    force: Annotated[bool, Option("Overwrite a different perfbisect.yaml.")] = False,
    dry_run: Annotated[bool, Option("Show what would be written; write nothing.")] = False,
) -> CommandResult:
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


@prints("perfbisect.setup.doctor:DoctorDocument")
def doctor(
    workspace: InRepositoryAndState,
    *,
    online: Annotated[bool, Option("Query the package registry too.")] = False,
    at: Annotated[str | None, Option("Query the indices of --env for this change.", metavar="CHANGE")] = None,
    fleet: Annotated[
        str | None, Option("Check the machines of a fleet in place of this one.", metavar="SPEC")
    ] = None,
    machine: MachineName = None,
    env: Annotated[
        str | None, Option("Check that the indices of this environment answer.", metavar="SPEC")
    ] = None,
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
    import os
    from functools import partial

    from perfbisect.commands import setups
    from perfbisect.commands.changes import resolve_change
    from perfbisect.commands.fleets import fleets
    from perfbisect.commands.settings import resolve
    from perfbisect.common.text import line
    from perfbisect.errors import EXIT_OK, EXIT_OUTSIDE
    from perfbisect.machine.profile import load_profile
    from perfbisect.setup.doctor import (
        Check,
        DoctorDocument,
        check_settings,
        fleet_checks,
        index_checks,
        machine_checks,
        run_checks,
    )

    profile = load_profile(machine or "")
    change = resolve_change(workspace, at) if at else None
    options = resolve(BuildOptions, {"machine": machine}, workspace.settings)

    def make_builder() -> Builder:
        changes = (change,) if change else ()
        setting = setups.build_config(workspace, env or "", changes, options)
        return setups.build_builder(workspace, setting)

    root = workspace.root if workspace.repository else None
    folders = {"state": workspace.state, "cache": workspace.cache}
    checks: list[Check] = [("settings", partial(check_settings, root, workspace.settings.text("machine")))]
    if fleet:
        machines = fleets().check_machines(fleet, workspace.state)
        checks += fleet_checks(machines, fleet, fleets().check_builders(fleet))
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
