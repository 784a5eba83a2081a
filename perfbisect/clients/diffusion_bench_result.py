"""The result of vLLM-Omni's diffusion benchmark -> the numbers of a run, or why they are none.

The script writes one mapping; its harness wraps each in a record (``result``) of a list. All times are in
seconds, of successful requests alone; a stage's are too, but where its name ends in ``_ms``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from perfbisect.clients.omni_bench_result import STAGE_STATISTICS, stages
from perfbisect.clients.reading import count, number, unfinished
from perfbisect.core.attempt import RunResult
from perfbisect.core.cell import Cell
from perfbisect.errors import ClientError

__all__ = ["STAGE_STATISTICS", "parse"]

_SAME = 1e-9
"""``latency_median`` and ``latency_p50`` are one number told twice."""


def parse(
    cell: Cell,
    document: Mapping[str, Any],
    *,
    keys: Sequence[str],
    optional: Sequence[str],
    index: int,
    seed: int,
    model: str | None,
) -> RunResult:
    """The run; ``model``: the name that the document must be of, where it is known.

    :raises ClientError: a gate was touched: the message says which and with what value.
    """
    told = document["result"] if isinstance(document.get("result"), Mapping) else document
    if model is not None and told.get("model") != model:
        raise ClientError(f"the result is of another run: model is {told.get('model')!r}, expected {model!r}")
    completed, failed = count(told, "completed_requests"), count(told, "failed_requests")
    if completed == 0:
        raise ClientError(
            f"none of {cell.num_prompts} requests completed ({failed} failed); the client keeps no errors"
        )
    duration = number(told, "duration")
    if duration <= 0:
        raise ClientError(f"duration is {told['duration']} s")
    values = {"failed": failed / (completed + failed)}
    missing = [name for name in map(_name, keys) if name not in told and name != "failed"]
    if missing:
        raise ClientError(f"the result has no {', '.join(missing)}")
    for key in keys:
        if key in values:
            continue
        value = number(told, _name(key))
        if value <= 0:
            raise ClientError(f"{_name(key)} is {value:g}: no measurement")
        values[key] = value
    if abs(values["latency:median"] - values["latency:p50"]) > _SAME * values["latency:p50"]:
        raise ClientError(
            f"the result contradicts itself: latency_median is {values['latency:median']:g}, latency_p50 "
            f"{values['latency:p50']:g}"
        )
    for key in optional:
        more = told.get(_name(key))
        if not isinstance(more, (int, float)) or not math.isfinite(more):
            continue
        # A distance of nothing is the reference's very image; memory or time of nothing was not told.
        if more > 0 or (more == 0 and key.startswith("image_distance")):
            values[key] = float(more)
    warnings = unfinished(cell.num_prompts, completed, failed, ["the client keeps no errors"])
    return RunResult(
        index=index,
        seed=seed,
        values={**values, **stages(told)},
        warnings=tuple(warnings),
        seconds=duration,
        facts={"completed": completed, "failed": failed, "task": told.get("task")},
    )


def _name(key: str) -> str:
    """``latency:p99`` -> ``latency_p99``, the script's name for it."""
    return key.replace(":", "_")
