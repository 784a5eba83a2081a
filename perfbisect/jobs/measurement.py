"""What is measured and how: configuration, metric, guards, runs per launch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from perfbisect.clients import CLIENTS
from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.serving.families import FAMILIES, Endpoint

MAX_RUNS = 6
"""Runs per launch if the engine can reset its caches between them."""

EXAMPLE = Endpoint(port=8000, model_name="perfbisect")
"""Placeholder in commands for the port and model name of an attempt."""


class PlanPart(BaseModel):
    """A frozen part of a plan that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MeasurementConfig(PlanPart):
    """The measurement configuration as typed, enough to rebuild it on resume."""

    repository: str = ""
    cache: str = ""
    environment: str
    client: str = ""
    """Specification of the client's environment; empty: pinned by the environment."""
    exclude_newer: str = ""
    constraints: str = ""
    machine: str = ""
    """Machine profile by name or file; empty: detected."""
    typed: str = ""
    """The command line."""

    @property
    def instrument(self) -> str:
        """Description of the client."""
        if self.client == "change":
            return "each change's own"
        return self.client or "one, pinned: that of --env, or where it has none the newest change's"


def resolve_metric(cell: Cell, name: str | None) -> MetricRef:
    """The named metric, or the cell's headline; UsageError if it is unknown, a guard or not reported."""
    metric = parse_metric(name or cell.headline)
    CLIENTS[cell.client.name].check_metric(cell, metric)
    if metric.metric.guard:
        raise UsageError(
            f"{metric.name} is a guard and cannot be the metric under test",
            next_step="name another metric with --metric",
        )
    return metric


def guard_metrics(cell: Cell) -> tuple[MetricRef, ...]:
    """The guards of a cell and of its family, each once."""
    names = dict.fromkeys((*cell.guards, *FAMILIES[cell.family].guards))
    return tuple(parse_metric(name) for name in names)


def runs_per_launch(cell: Cell) -> int:
    """Maximum runs per launch: one if the engine cannot reset its caches."""
    return MAX_RUNS if FAMILIES[cell.family].server(cell, EXAMPLE).reset_requests else 1
