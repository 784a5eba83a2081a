"""The checks of ``perfbisect doctor``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from perfbisect.cells.settings import FILE
from perfbisect.commands.documents import DoctorCheckDocument
from perfbisect.commands.workspace import Workspace
from perfbisect.environments import uv
from perfbisect.environments.base import Builder
from perfbisect.machine.profile import CUDA, Profile
from perfbisect.model.change import Change
from perfbisect.setup import doctor as setup_doctor
from perfbisect.setup.doctor import Check, guarded, machine_checks


def all_checks(
    place: Workspace,
    *,
    online: bool,
    profile: Profile = CUDA,
    builder: Callable[[], Builder] | None = None,
    change: Change | None = None,
) -> tuple[DoctorCheckDocument, ...]:
    """Every check, in the order in which a measurement would need it; none of them raises.

    ``profile``: the kind of machine. ``online``: the package registry too, and the wheel indices of
    ``builder``, asked for ``change``.
    """
    found = machine_checks(
        state=place.state, cache=place.cache, shell=dict(os.environ), uv=uv.find_uv, profile=profile
    )
    if online or builder is not None:
        found = (*found, *_indices(builder, change))
    return tuple(
        DoctorCheckDocument(name=one.name, state=one.state, found=one.found, advice=one.advice)
        for one in (_settings(place), *found)
    )


def _settings(place: Workspace) -> Check:
    """Which ``perfbisect.yaml`` was read: the kind of machine and the state folder may be from it."""
    if place.repository is None:
        return Check("settings", "good", f"no {FILE}: {Path.cwd()} is in no repository; --repo names one")
    path = place.root / FILE
    if not path.is_file():
        return Check("settings", "good", f"none: there is no {path}")
    machine = f", machine {place.settings.machine}" if place.settings.machine else ""
    return Check("settings", "good", f"{path}{machine}")


def _indices(builder: Callable[[], Builder] | None, change: Change | None) -> tuple[Check, ...]:
    """A line for every place that environments come from."""
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
            "" if one.ok else one.next_step or "look at the network and the proxies",
        )
        for one in places
    ]
    return tuple(told) if asked.state == "good" else (asked, *told)
