"""A kind of machine and its devices as ``perfbisect doctor`` tells them: what keeps one from using them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from perfbisect.system import devices
from perfbisect.system.check import Check
from perfbisect.system.command_smi import Query
from perfbisect.system.devices import Gpu, Reading, Tenant
from perfbisect.system.nvidia_smi import Smi
from perfbisect.system.processes import process
from perfbisect.system.profile import Profile
from perfbisect.system.sampled import SLOWED

_PATIENCE = 20.0
_MEND = "in the machine's file"


def device_checks(shell: Mapping[str, str], profile: Profile) -> list[tuple[str, Callable[[], Check]]]:
    """What tells of the devices, chooses them and stands before a server, on a kind of machine; by name."""
    checks: list[tuple[str, Callable[[], Check]]] = [("machine", lambda: machine(profile))]
    if profile.source == "none":
        return checks + _lease(profile)
    smi = profile.smi() or Smi()
    checks += [
        ("devices", lambda: look(shell, smi, profile)),
        ("select", lambda: select(shell, smi, profile)),
    ]
    asked = profile.queries
    if asked is not None:
        queries = (
            ("driver", "driver", asked.driver),
            ("memory", "device memory", asked.memory),
            ("tenants", "tenants", asked.tenants),
        )
        checks += [(name, _told(key, name, query)) for key, name, query in queries if query is not None]
    return checks + _lease(profile)


def machine(profile: Profile) -> Check:
    """Which command tells of devices, and is it on the PATH?"""
    if profile.source == "none":
        return Check("machine", "good", f"{profile.name}: no devices, cells with `gpus: 0` only")
    own = profile.queries.devices.command[0] if profile.queries else "nvidia-smi"
    path = shutil.which(own)
    if path is not None:
        return Check("machine", "good", f"{profile.name}: {path} tells of devices")
    instead = f"mend devices.command {_MEND}" if profile.queries else "cells with `gpus: 0`: --machine cpu"
    return Check("machine", "bad", f"{profile.name}: no {own} on the PATH", f"bring it there; or {instead}")


def look(shell: Mapping[str, str], smi: Smi, profile: Profile) -> Check:
    """Which devices there are, which the user's mask in ``shell`` leaves, and who uses them."""
    known = devices.look(smi)
    if not known:
        problem = smi.devices(("uuid",)).problem
        advice = "mend the driver, or give the container its devices; `gpus: 0` works without"
        if profile.queries is not None:
            unread = "" if problem else ": its expression finds none in what the command prints"
            advice = f"mend the driver, or devices {_MEND}{unread}"
        return Check("devices", "bad", problem or "no devices were found", advice)
    mask = shell.get(profile.variable)
    visible = devices.visible(known, mask)
    found = _listed(visible) + ("" if mask is None else f" ({profile.variable}={mask})")
    if not visible:
        none = f"none of {_listed(devices.usable(known))}{found}"
        return Check("devices", "bad", none, f"unset or mend {profile.variable}")
    if any(gpu.compute_mode == "Prohibited" for gpu in visible):
        return Check(
            "devices", "bad", f"{found}; compute mode Prohibited", "as root: nvidia-smi --compute-mode=0"
        )
    now = devices.readings(smi)
    troubles = [*_used(visible, now, devices.tenants(smi)), *_slowed(now)]
    if troubles:
        advice = "slots take these last; runs beside others are void"
        return Check("devices", "warning", "; ".join([found, *troubles]), advice)
    if any(gpu.parent for gpu in visible):
        advice = "many versions of vLLM end on the name of a MIG instance (vLLM issue 41848)"
        return Check("devices", "warning", found, advice)
    return Check("devices", "good", found)


def select(shell: Mapping[str, str], smi: Smi, profile: Profile) -> Check:
    """Which variable chooses devices, and what an engine on the first of them is given."""
    mask = shell.get(profile.variable)
    visible = devices.visible(devices.look(smi), mask)
    if not visible:
        return Check(
            "select", "warning", f"{profile.variable} has nothing to choose from", "see devices above"
        )
    said = "is not set here: all are used" if mask is None else "is set here: only these are used"
    given = " ".join(f"{name}={value}" for name, value in sorted(profile.mask(visible[:1]).items()))
    return Check("select", "good", f"{profile.variable} {said}; an engine on the first is given {given}")


def _told(key: str, name: str, query: Query) -> Callable[[], Check]:
    """What a further command of the machine's file tells; of processes there may well be none."""

    def check() -> Check:
        command = " ".join(query.command)
        rows, problem = query.rows(_PATIENCE)
        if problem:
            return Check(name, "bad", f"{command}: {problem}", f"bring it there; or mend {key} {_MEND}")
        if not rows and key != "tenants":
            found = f"{command}: {key}.each finds nothing in what it prints"
            return Check(name, "warning", found, f"mend {key}.each {_MEND}: what is not told is not judged")
        told = rows[0].get("driver", "") if key == "driver" else f"{len(rows)} found"
        return Check(name, "good", f"{command}: {told}")

    return check


def _lease(profile: Profile) -> list[tuple[str, Callable[[], Check]]]:
    if not profile.lease.command:
        return []

    def check() -> Check:
        words = profile.before(1, {profile.variable: "0"})
        lost = ", ".join(map(str, profile.lease.lost)) or "none"
        found = f"{shutil.which(words[0])} stands before every server ({' '.join(words)}); lost: {lost}"
        return Check("lease command", "good", found)

    return [("lease command", check)]


def _listed(gpus: Iterable[Gpu]) -> str:
    names = Counter(f"{gpu.name}, driver {gpu.driver}" for gpu in gpus)
    return "; ".join(f"{count} x {name}" for name, count in names.items())


def _used(gpus: Sequence[Gpu], now: Sequence[Reading], tenants: Sequence[Tenant]) -> list[str]:
    labels = {gpu.parent or gpu.uuid: f"gpu{gpu.index}" for gpu in gpus}
    told = []
    for one in now:
        if (
            one.uuid in labels
            and one.used is not None
            and one.total
            and one.used > devices.IN_USE * one.total
        ):
            here = [str(process(t.pid) or f"pid {t.pid}") for t in tenants if t.uuid == one.uuid]
            who = ", ".join(here) or "whom the driver does not name (another container?)"
            told.append(f"{labels[one.uuid]}: {one.used:.0f} of {one.total:.0f} MiB in use by {who}")
    return told


def _slowed(now: Iterable[Reading]) -> list[str]:
    return [f"{one.uuid} is held back: {reason}" for one in now for reason in one.reasons if reason in SLOWED]
