"""``perfbisect doctor``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from perfbisect.cells.settings import FILE
from perfbisect.commands import options
from perfbisect.commands.documents import CheckDocument
from perfbisect.commands.workspace import Place
from perfbisect.environments import uv
from perfbisect.environments.base import Builder
from perfbisect.machine.profile import CUDA, Profile
from perfbisect.model.change import Change
from perfbisect.setup import doctor as setup_doctor
from perfbisect.setup.doctor import Check, guarded, machine_checks


def all_checks(
    place: Place,
    *,
    online: bool,
    profile: Profile = CUDA,
    builder: Callable[[], Builder] | None = None,
    change: Change | None = None,
) -> tuple[CheckDocument, ...]:
    """Run every check; none raises.

    ``online``: the package registry too, and the wheel indices of ``builder`` for ``change``.
    """
    found = machine_checks(
        state=place.state, cache=place.cache, shell=dict(os.environ), uv=uv.find_uv, profile=profile
    )
    if online or builder is not None:
        found = (*found, *_indices(builder, change))
    return tuple(
        CheckDocument(name=one.name, state=one.state, found=one.found, advice=one.advice)
        for one in (_settings(place), *found)
    )


def _settings(place: Place) -> Check:
    """The ``perfbisect.yaml`` in effect."""
    if place.repository is None:
        return Check("settings", "good", f"no {FILE}: {Path.cwd()} is in no repository; --repo names one")
    path = place.root / FILE
    if not path.is_file():
        return Check("settings", "good", f"none: there is no {path}")
    machine = f", machine {place.settings.machine}" if place.settings.machine else ""
    return Check("settings", "good", f"{path}{machine}")


def _indices(builder: Callable[[], Builder] | None, change: Change | None) -> tuple[Check, ...]:
    """A check for every package source."""
    with tempfile.TemporaryDirectory(prefix="perfbisect-") as folder:
        places: list[setup_doctor.Reach] = []

        def ask() -> Check:
            made = builder() if builder is not None else None
            places.extend(setup_doctor.check(made, change, log=Path(folder) / "reach.log"))
            return Check("indices", "good", f"{len(places)} asked")

        asked = guarded("indices", ask)
    told = [
        Check(
            "index",
            "good" if one.ok else "bad",
            f"{one.what}: {one.told}",
            "" if one.ok else one.next_step or "check the network and the proxies",
        )
        for one in places
    ]
    return tuple(told) if asked.state == "good" else (asked, *told)


@click.command(short_help="Check this machine.")
@click.option("--online", is_flag=True, help="Query the package registry too.")
@click.option("--at", "at", metavar="CHANGE", help="Query the indices of --env for this change.")
@options.env
@options.machine
@options.repo
@options.state
@options.as_json
def doctor(
    online: bool,
    at: str | None,
    env: str | None,
    machine: str | None,
    repo: Path | None,
    state: Path | None,
    as_json: bool,
) -> int:
    """Check that this machine can measure, with advice where it cannot.

    Checks the perfbisect.yaml in effect, git, uv, disk, memory, ports, devices and their users, leases, load
    and clock; with --machine (or that of perfbisect.yaml) the device commands, the variable that selects
    devices and the lease command; with --online the registry, with --env and --at the indices that the
    environment of a change comes from.

    \b
    Examples:
      perfbisect doctor --online
      perfbisect doctor --machine ascend
      perfbisect doctor --env wheel:https://wheels.example/{sha} --at HEAD

    Exit code: 0 fit to measure (warnings included), 5 not.
    """
    from perfbisect.commands import changes, wiring
    from perfbisect.commands.documents import DoctorDocument
    from perfbisect.commands.output import emit
    from perfbisect.commands.workspace import place
    from perfbisect.common.text import line
    from perfbisect.errors import EXIT_OK, EXIT_OUTSIDE

    here = place(repo=repo, state=state, machine=machine)
    profile = wiring.profile_named(wiring.the_machine(here))
    change = changes.the_change(here, at) if at else None

    def builder() -> Builder:
        setting = wiring.the_setting(
            here,
            environment=env or "",
            client=None,
            constraints=None,
            exclude_newer=None,
            needs_repository=False,
        )
        return wiring.builder_of(here, setting)

    checks = all_checks(here, online=online, profile=profile, builder=builder if env else None, change=change)
    fit = all(check.state != "bad" for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.state:<8} {check.name:<14} {line(check.found)}")
        if check.advice:
            lines.append(f"{'':<24}{line(check.advice)}")
    emit(DoctorDocument(fit=fit, checks=checks), lines, as_json=as_json)
    return EXIT_OK if fit else EXIT_OUTSIDE
