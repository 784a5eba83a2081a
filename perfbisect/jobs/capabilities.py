"""What the client and the family of a cell allow: the metric to judge, runs of one launch."""

from __future__ import annotations

from perfbisect.clients import CLIENTS
from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.serving.families import FAMILIES, Endpoint

MOST_RUNS = 6
"""Runs a launch at most, where the engine can empty its caches between them."""

EXAMPLE = Endpoint(port=8000, model_name="perfbisect")
"""Stands in commands for the port and name that each attempt draws for itself."""


def metric_of(cell: Cell, asked: str | None) -> MetricRef:
    """The metric that is judged: the one asked for, or the cell's headline.

    :raises UsageError: an unknown metric, or one that the client does not report (those it does are named).
    """
    metric = parse_metric(asked or cell.headline)
    client = CLIENTS[cell.client.name]
    client.check_metric(cell, metric)
    if metric.metric.guard:
        raise UsageError(
            f"{metric.name} is watched, not chased: it has no step that a bisection could follow",
            next_step="name another metric with --metric",
        )
    return metric


def runs_per_launch(cell: Cell) -> int:
    """How many runs a launch may have: one, where the engine cannot empty its caches between them.

    :raises UsageError: the cell asks for what its family cannot serve.
    """
    return MOST_RUNS if FAMILIES[cell.family].server(cell, EXAMPLE).reset_requests else 1
