"""The devices as ``perfbisect doctor`` tells them: which there are, and what keeps one from using them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from perfbisect.system import devices
from perfbisect.system.devices import Gpu, Reading, Tenant
from perfbisect.system.nvidia_smi import Smi
from perfbisect.system.processes import process
from perfbisect.system.sampled import SLOWED


@dataclass(frozen=True)
class Seen:
    """What was seen of the devices, and what to do about it."""

    state: Literal["good", "warning", "bad"]
    found: str
    advice: str = ""


def look(shell: Mapping[str, str], smi: Smi) -> Seen:
    """``shell``: the user's environment, whose mask is respected."""
    if smi.command is None:
        return Seen("good", "no nvidia-smi: cells with `gpus: 0` only")
    known = devices.look(smi)
    if not known:
        why = smi.devices(("uuid",)).problem or "no devices were found"
        return Seen("bad", why, "mend the driver, or give the container its devices; `gpus: 0` works without")
    mask = shell.get("CUDA_VISIBLE_DEVICES")
    visible = devices.visible(known, mask)
    found = _listed(visible) + ("" if mask is None else f" (CUDA_VISIBLE_DEVICES={mask})")
    if not visible:
        return Seen("bad", f"none of {_listed(devices.usable(known))}{found}", "unset or mend the mask")
    if any(gpu.compute_mode == "Prohibited" for gpu in visible):
        return Seen("bad", f"{found}; compute mode Prohibited", "as root: nvidia-smi --compute-mode=0")
    now = devices.readings(smi)
    troubles = [*_used(visible, now, devices.tenants(smi)), *_slowed(now)]
    if troubles:
        return Seen(
            "warning", "; ".join([found, *troubles]), "slots take these last; runs beside others are void"
        )
    if any(gpu.parent for gpu in visible):
        return Seen(
            "warning", found, "many versions of vLLM end on the name of a MIG instance (vLLM issue 41848)"
        )
    return Seen("good", found)


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
