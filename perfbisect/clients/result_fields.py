"""Checked access to the fields of a client's result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from perfbisect.common.suggest import nearest
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.attempt import key
from perfbisect.model.cell import Cell
from perfbisect.model.metric import MetricRef

SEED = "perfbisect_seed"
CELL = "perfbisect_cell"
"""Metadata keys that stamp a result."""


def check_identity(
    cell: Cell, document: Mapping[str, Any], stamps: Mapping[str, object], expected: Mapping[str, object]
) -> None:
    """Check ``expected``, and the cell's load and ``stamps`` where the result has them.

    Raises:
        ClientError: the result is of another run.
    """
    for name, value in expected.items():
        if document.get(name) != value:
            raise ClientError(
                f"the result is of another run: {name} is {document.get(name)!r}, expected {value!r}"
            )
    load: dict[str, object] = {
        "num_prompts": cell.num_prompts,
        "max_concurrency": cell.max_concurrency,
        **stamps,
    }
    for name, value in load.items():
        if name in document and document[name] != value:
            raise ClientError(
                f"the result is of another run: {name} is {document[name]!r}, expected {value!r}"
            )


def check_metric_reported(client: str, cell: Cell, metric: MetricRef, reported: Sequence[str]) -> None:
    """:raises UsageError: results of the cell do not report the metric."""
    if key(metric) in reported:
        return
    step = "choose one of these, or extend percentile_metrics or metric_percentiles in the cell"
    if not metric.metric.per_request:
        # No setting of the cell adds a metric of a whole run.
        near = nearest(metric.name, dict.fromkeys(name.partition(":")[0] for name in reported))
        step = f"--metric, nearest of these: {', '.join(near)}" if near else "choose one of these"
    raise UsageError(
        f"client {client} does not report {key(metric)} for cell {cell.name}; "
        f"it reports: {', '.join(reported)}",
        next_step=step,
    )


def number(document: Mapping[str, Any], name: str) -> float:
    """A finite number. :raises ClientError: missing or not finite."""
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ClientError(f"{name} is {value!r}, not a number")
    if not math.isfinite(value):
        raise ClientError(f"{name} is {value}: no measurement")
    return float(value)


def count(document: Mapping[str, Any], name: str) -> int:
    """A count. :raises ClientError: missing or not a count."""
    if name not in document:
        raise ClientError(f"the result has no {name}")
    value = number(document, name)
    if value < 0 or value != int(value):
        raise ClientError(f"{name} is {value:g}, not a count")
    return int(value)


def incomplete_warnings(wanted: int, completed: int, failed: int, errors: Sequence[str]) -> list[str]:
    """Warnings about failed or missing requests."""
    warnings = []
    if failed:
        warnings.append(f"{failed} of {completed + failed} requests failed: {first_error(errors)}")
    if completed + failed != wanted:
        warnings.append(f"{completed + failed} of {wanted} requests were sent")
    return warnings


def first_error(errors: Sequence[str]) -> str:
    """The last line of the first error."""
    if not errors:
        return "no error was recorded"
    lines = [line for line in errors[0].strip().splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "an empty error"
