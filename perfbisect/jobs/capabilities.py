"""The metric and the runs per launch that a cell's client and family support."""

from __future__ import annotations

from perfbisect.clients import CLIENTS
from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.serving.families import FAMILIES, Endpoint

MOST_RUNS = 6
"""Maximum runs per launch if the engine can reset its caches between them."""

EXAMPLE = Endpoint(port=8000, model_name="perfbisect")
"""Placeholder in commands for the port and model name of an attempt."""


def resolve_metric(cell: Cell, asked: str | None) -> MetricRef:
    """The requested metric, or the cell's headline.

    Raises:
        UsageError: the metric is unknown, is a guard, or is not reported by the client.
    """
    metric = parse_metric(asked or cell.headline)
    client = CLIENTS[cell.client.name]
    client.check_metric(cell, metric)
    if metric.metric.guard:
        raise UsageError(
            f"{metric.name} is a guard and cannot be the metric under test",
            next_step="name another metric with --metric",
        )
    return metric


def runs_per_launch(cell: Cell) -> int:
    """Maximum runs per launch: one if the engine cannot reset its caches.

    Raises:
        UsageError: the family cannot serve the cell.
    """
    return MOST_RUNS if FAMILIES[cell.family].server(cell, EXAMPLE).reset_requests else 1
