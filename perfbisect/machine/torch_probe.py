"""Probes torch and its devices in the environment under test; torch is never imported here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfbisect.common.json_text import parse_json
from perfbisect.common.quantities import counted
from perfbisect.errors import MachineError
from perfbisect.machine.slots import Slot
from perfbisect.system import commands, logs
from perfbisect.system.processes import StopRequested, never

_MARK = "perfbisect-torch: "
_LIMIT_S = 180.0

PROGRAM = f"""
import json

def attempt(call):
    try:
        return call()
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"

def device(torch, index):
    properties = torch.cuda.get_device_properties(index)
    return {{
        "name": properties.name,
        "capability": f"{{properties.major}}.{{properties.minor}}",
        "total": torch.cuda.mem_get_info(index)[1],
        "processors": properties.multi_processor_count,
        "uuid": str(getattr(properties, "uuid", "") or ""),
    }}

def nccl(torch):
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return ""
    version = torch.cuda.nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)

def main():
    import torch
    available = torch.cuda.is_available()
    count = torch.cuda.device_count() if available else 0
    devices = [attempt(lambda i=i: device(torch, i)) for i in range(count)]
    result = {{
        "version": torch.__version__,
        "cuda": torch.version.cuda or "",
        "hip": getattr(torch.version, "hip", None) or "",
        "available": available,
        "cudnn": str(attempt(torch.backends.cudnn.version) or "") if available else "",
        "nccl": attempt(lambda: nccl(torch)) if available else "",
        "threads": torch.get_num_threads(),
        "devices": [row for row in devices if isinstance(row, dict)],
        "failed": [row for row in devices if not isinstance(row, dict)],
    }}
    print({_MARK!r} + json.dumps(result))

try:
    main()
except ImportError as error:
    print({_MARK!r} + json.dumps({{"error": str(error)}}))
"""
"""Script for the interpreter under test; it creates and drops a CUDA context.

It prints versions (empty: absent), and devices by logical index with memory in bytes. ``error``: why torch
does not import; ``failed``: errors of unusable devices; ``uuid`` is empty with an older torch.
"""


def torch_facts(
    interpreter: Path,
    env: Mapping[str, str],
    slot: Slot,
    folder: Path,
    stop_requested: StopRequested = never,
) -> Mapping[str, Any]:
    """Facts of torch in the environment under test and of the slot's devices.

    A torch that fails to import, or is built for none of these devices, is left to the engine: the change may
    be the cause.

    Raises:
        MachineError: torch sees other devices than the slot's, or none.
        Interrupted: ``stop_requested`` returned true.
    """
    try:
        torch = probe(interpreter, env, folder, stop_requested=stop_requested)
    except MachineError as error:
        return {"problem": error.message}
    built_for = (
        f"CUDA {torch['cuda']}" if torch.get("cuda") else f"HIP {torch['hip']}" if torch.get("hip") else ""
    )
    if slot.devices and built_for and not torch.get("available"):
        raise MachineError(
            f"torch {torch['version']}, built for {built_for}, sees no device of slot {slot.name}",
            next_step="nvidia-smi shows the CUDA version of the driver; an older variant= in --env may run",
            code="device_failed",
        )
    problem = disagreement(torch, slot)
    if problem:
        raise MachineError(problem, next_step="nvidia-smi -L shows the devices; see CUDA_VISIBLE_DEVICES")
    return torch


def probe(
    interpreter: Path,
    env: Mapping[str, str],
    folder: Path,
    *,
    limit: float = _LIMIT_S,
    stop_requested: StopRequested = never,
) -> Mapping[str, Any]:
    """The result of ``PROGRAM``; MachineError without a valid one within ``limit`` seconds."""
    log = folder / "torch-probe.log"
    ended = commands.run_script(
        PROGRAM, interpreter=interpreter, env=env, log=log, timeout=limit, stop_requested=stop_requested
    )
    torch = parse(logs.text_of(log))
    if torch is None:
        how = f"did not end within {limit:.0f} s" if ended.timed_out else f"ended with exit code {ended.code}"
        output = logs.cause(log) or logs.tail(log, 3)
        raise MachineError(
            f"the probe of torch with {interpreter} {how} without a result: {output}",
            where=log,
            output=output,
        )
    log.unlink(missing_ok=True)
    return torch


def parse(text: str) -> Mapping[str, Any] | None:
    """Find the result in the output; None if there is none."""
    # Libraries print on import: the result is the marked line.
    line = next((line for line in reversed(text.splitlines()) if line.startswith(_MARK)), "")
    try:
        torch = parse_json(line.removeprefix(_MARK))
    except ValueError:
        return None
    return torch if isinstance(torch, dict) else None


def disagreement(torch: Mapping[str, Any], slot: Slot) -> str:
    """How torch's devices differ from the slot's; empty if they are equal, in order, or torch finds none.

    Only the number is compared if torch reports no UUIDs, or for MIG instances.
    """
    if not slot.devices or not torch.get("available"):
        return ""
    uuids = [device["uuid"] for device in torch["devices"]]
    if len(uuids) != len(slot.devices):
        listed = [*(device["uuid"] or device["name"] for device in torch["devices"]), *torch["failed"]]
        return (
            f"slot {slot.name} has {counted(len(slot.devices), 'device')}, torch sees {len(listed)}: "
            f"{', '.join(listed) or 'none'}"
        )
    for wanted, uuid in zip(slot.devices, uuids, strict=True):
        known = uuid and wanted.startswith("GPU-")
        if known and _bare(uuid) != _bare(wanted):
            return f"slot {slot.name} has {wanted}, torch sees {uuid} in its place"
    return ""


def _bare(uuid: str) -> str:
    """A UUID as torch writes it, without the prefix."""
    return uuid.removeprefix("GPU-").lower()
