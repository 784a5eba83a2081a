"""What torch says of itself and of the devices, asked in the environment under test: never imported here."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perfbisect.errors import MachineError
from perfbisect.machine.slots import Slot
from perfbisect.system import logs, processes
from perfbisect.system.processes import Asked, never

_MARK = "perfbisect-torch: "
_LIMIT = 180.0

PROGRAM = f"""
import json, sys

def attempt(call):
    try:
        return call()
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"

def device(torch, index):
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return {{
        "name": properties.name,
        "capability": f"{{properties.major}}.{{properties.minor}}",
        "total": total,
        "free": free,
        "processors": properties.multi_processor_count,
        "uuid": str(getattr(properties, "uuid", "") or ""),
    }}

def nccl(torch):
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return None
    version = torch.cuda.nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)

def main():
    import torch
    available = torch.cuda.is_available()
    told = {{
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "available": available,
        "cudnn": attempt(torch.backends.cudnn.version) if available else None,
        "nccl": attempt(lambda: nccl(torch)) if available else None,
        "threads": torch.get_num_threads(),
        "devices": [attempt(lambda i=i: device(torch, i)) for i in range(torch.cuda.device_count())]
        if available else [],
    }}
    print({_MARK!r} + json.dumps(told))

try:
    main()
except ImportError as error:
    print({_MARK!r} + json.dumps({{"error": str(error)}}))
"""
"""For the interpreter under test, with the slot's process environment; it makes and drops a CUDA context."""


@dataclass(frozen=True)
class TorchDevice:
    """A device as torch sees it; memory in bytes, free at that moment; ``uuid`` empty with an older torch."""

    name: str
    capability: str
    total: int
    free: int
    processors: int
    uuid: str


@dataclass(frozen=True)
class Torch:
    """Versions (empty: not there), and the devices in the order of their logical numbers.

    ``error``: why there is no torch; ``failed``: what devices said that cannot be used.
    """

    version: str = ""
    cuda: str = ""
    hip: str = ""
    cudnn: str = ""
    nccl: str = ""
    available: bool = False
    threads: int = 0
    devices: tuple[TorchDevice, ...] = ()
    failed: tuple[str, ...] = ()
    error: str = ""

    def facts(self) -> dict[str, Any]:
        """For the provenance; without what changes from one moment to the next."""
        told = asdict(self)
        for device in told["devices"]:
            del device["free"]
        return told


def probe(
    interpreter: Path, env: Mapping[str, str], folder: Path, *, limit: float = _LIMIT, asked: Asked = never
) -> Torch:
    """Ask the torch of an interpreter. ``env``: its whole process environment, with the slot's.

    :raises MachineError: it did not answer within ``limit`` seconds, or answered with something else.
    :raises Interrupted: ``asked`` said so.
    """
    log = folder / "torch-probe.log"
    log.unlink(missing_ok=True)
    ended = processes.run(
        [str(interpreter), "-c", PROGRAM],
        env=env,
        cwd=folder,
        log=log,
        token=secrets.token_hex(16),
        timeout=limit,
        asked=asked,
    )
    found = parse(logs.text_of(log))
    if found is None:
        how = f"did not end within {limit:.0f} s" if ended.timed_out else f"ended with exit code {ended.code}"
        said = logs.cause(log) or logs.tail(log, 3)
        raise MachineError(
            f"the probe of torch with {interpreter} {how} and told nothing: {said}",
            where=log,
            output=said,
        )
    log.unlink(missing_ok=True)
    return found


def parse(text: str) -> Torch | None:
    """What the program printed, among whatever else was; None if there is nothing of it."""
    for line in reversed(text.splitlines()):
        if line.startswith(_MARK):
            try:
                told = json.loads(line.removeprefix(_MARK))
            except ValueError:
                return None
            return _torch(told) if isinstance(told, dict) else None
    return None


def _torch(told: Mapping[str, Any]) -> Torch:
    def text(name: str) -> str:
        return "" if told.get(name) is None else str(told[name])

    rows = told.get("devices") or []
    return Torch(
        version=text("torch"),
        cuda=text("cuda"),
        hip=text("hip"),
        cudnn=text("cudnn"),
        nccl=text("nccl"),
        available=told.get("available") is True,
        threads=int(told.get("threads") or 0),
        devices=tuple(_device(row) for row in rows if isinstance(row, dict)),
        failed=tuple(str(row) for row in rows if not isinstance(row, dict)),
        error=text("error"),
    )


def _device(row: Mapping[str, Any]) -> TorchDevice:
    return TorchDevice(
        name=str(row.get("name", "")),
        capability=str(row.get("capability", "")),
        total=int(row.get("total") or 0),
        free=int(row.get("free") or 0),
        processors=int(row.get("processors") or 0),
        uuid=str(row.get("uuid", "")),
    )


def disagreement(found: Torch, slot: Slot) -> str:
    """How what torch sees differs from the slot's devices; empty if it sees just these, in this order.

    An older torch does not tell UUIDs, and of a MIG instance it may tell its device's: then only the number
    is compared.
    """
    if not slot.devices:
        return ""
    if found.error or not found.available:
        return (
            f"slot {slot.name} has {len(slot.devices)} device(s), torch sees none: {found.error or 'no CUDA'}"
        )
    if len(found.devices) != len(slot.devices):
        seen = [*(device.uuid or device.name for device in found.devices), *found.failed]
        return (
            f"slot {slot.name} has {len(slot.devices)} device(s), torch sees {len(seen)}: "
            f"{', '.join(seen) or 'none'}"
        )
    for wanted, device in zip(slot.devices, found.devices, strict=True):
        known = device.uuid and wanted.startswith("GPU-")
        if known and _bare(device.uuid) != _bare(wanted):
            return f"slot {slot.name} has {wanted}, torch sees {device.uuid} in its place"
    return ""


def _bare(uuid: str) -> str:
    """Torch writes a UUID without the kind of device before it."""
    return uuid.removeprefix("GPU-").lower()
