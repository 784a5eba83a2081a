"""Plans of jobs: what is measured and how, and writing to and reading from a journal."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, FiniteFloat, TypeAdapter, ValidationError

from perfbisect.clients import CLIENTS
from perfbisect.errors import UsageError
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import Clock, Journal, JournalEvent
from perfbisect.jobs.requests import NO_REQUEST, RequestRecord
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import Caches, MetricRef, parse_metric
from perfbisect.serving.families import FAMILIES, Endpoint

MAX_RUNS = 6
"""Runs per launch if the engine can reset its caches between them."""

EXAMPLE = Endpoint(port=8000, model_name="perfbisect")
"""Placeholder in commands for the port and model name of an attempt."""


class PlanPart(BaseModel):
    """A frozen part of a plan that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MeasurementConfig(PlanPart):
    """What a job measures with, enough to rebuild it on resume."""

    repository: str = ""
    cache: str = ""
    environment: str
    client: str = ""
    """Specification of the client's environment; empty: pinned by the environment."""
    exclude_newer: str = ""
    """The day of the servers' dependencies."""
    client_exclude_newer: str = ""
    """The day of the client's, where it has dependencies of its own; empty: the servers'."""
    constraints: str = ""
    machine: str = ""
    """Machine profile by name or file; empty: detected."""
    fleet: str = ""
    """The machines that measure, as typed; empty: this one."""
    caches: Caches = ""
    """What launches find in their compile caches, where a metric needs one or the other."""
    exact: bool = False
    """Load of others discards no launch: all metrics are exact."""
    request: RequestRecord = NO_REQUEST
    """What the command that began the job was asked for."""

    def for_metrics(self, cell: Cell, metrics: Sequence[MetricRef]) -> MeasurementConfig:
        """With what launches of these metrics need of compile caches and of an idle machine.

        A benchmark without a server fills and empties the caches by itself.

        Raises:
            UsageError: one needs filled caches and another empty ones.
        """
        needed = {metric.metric.caches: metric for metric in metrics if metric.metric.caches}
        needed = needed if FAMILIES[cell.family].serves else {}
        if len(needed) > 1:
            raise UsageError(
                f"{needed['warm']} needs filled compile caches, {needed['cold']} empty ones: a launch begins "
                "with one or the other",
                next_step="a job for each",
            )
        exact = bool(metrics) and all(metric.metric.exact for metric in metrics)
        return self.model_copy(update={"caches": next(iter(needed), self.caches), "exact": exact})

    def lacks(self, cell: Cell, metric: MetricRef) -> str:
        """What launches of this configuration lack for a metric; empty if nothing."""
        needed = self.for_metrics(cell, (metric,))
        if needed.caches != self.caches:
            return f"{needed.caches} compile caches"
        return "launches without load of others" if self.exact and not needed.exact else ""

    @property
    def instrument(self) -> str:
        """Description of the client."""
        if self.client == "change":
            return "each change's own"
        return self.client or "one, pinned: that of --env, or where it has none the newest change's"


class JobPlan(PlanPart):
    """A job's plan, enough to resume it from its journal.

    Each kind of job derives its own plan and fixes ``verb``, the kind's name in journals.
    """

    noun: ClassVar[str] = "job"
    """Name of this kind in messages."""
    verb: str
    cell: dict[str, Any]
    digest: str
    setting: MeasurementConfig
    metric: str
    min_effect: float | None = None
    """The smallest relevant effect, where it is not the metric's own."""

    @property
    @abstractmethod
    def changes(self) -> tuple[Change, ...]:
        """What is measured, for the builder to prepare: a resumed job builds as it was planned."""

    @property
    def side_clients(self) -> Mapping[str, MeasurementConfig]:
        """What the client of each side that has one of its own is built with, by its specification."""
        return {}

    @property
    def ref(self) -> MetricRef:
        return parse_metric(self.metric)

    @property
    def smallest_effect(self) -> float:
        """The smallest relevant effect: relative, of shares a difference."""
        return self.smallest_effect_of(self.ref)

    def smallest_effect_of(self, metric: MetricRef) -> float:
        """The smallest relevant effect of a metric that is judged."""
        return self.min_effect or metric.metric.smallest_effect


class BudgetedPlan(JobPlan):
    """A plan whose launches are made until its verdict; ``budget`` in minutes, None: unlimited."""

    budget: FiniteFloat | None = None
    notes: tuple[str, ...] = ()


def require_more_budget(job: Job, plan: BudgetedPlan, budget: float, verdict: str = "") -> None:
    """Require a larger budget than the plan's; ``verdict``: the job's, if minutes cannot change it.

    Raises:
        UsageError: it has its verdict, or the budget is no larger.
    """
    if verdict:
        raise UsageError(
            f"job {job.id} has its verdict, {verdict!r}: more minutes would change nothing",
            next_step=f"perfbisect report {job.id}",
        )
    current = plan.budget or 0.0
    if budget <= current:
        raise UsageError(
            f"--budget {budget:.0f}m is not larger than the current budget ({current:.0f}m)",
            next_step=f"--budget with more than {current:.0f}m",
        )


PlanT = TypeVar("PlanT", bound=JobPlan)
_OutcomeT = TypeVar("_OutcomeT")


def verb_of(plan_type: type[JobPlan]) -> str:
    """The name of a kind in journals."""
    return str(plan_type.model_fields["verb"].default)


def cell_data(cell: Cell) -> dict[str, Any]:
    """A cell as JSON, with the contents of its files."""
    data: dict[str, Any] = cell.model_dump(mode="json", by_alias=True)
    return data


def plan_cell(plan: JobPlan) -> Cell:
    """The cell of a plan; raises UsageError if its digest changed."""
    return read_cell(plan.cell, plan.digest)


def read_cell(data: Mapping[str, Any], digest: str) -> Cell:
    """Read a cell from a plan; UsageError if it cannot be parsed, or its digest differs from the plan's."""
    try:
        cell = Cell.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise UsageError(f"the job's cell cannot be read: {error}", next_step="start a new job") from error
    for what, name, known in (("client", cell.client.name, CLIENTS), ("family", cell.family, FAMILIES)):
        if name not in known:
            raise UsageError(
                f"the job's cell has the {what} {name!r}, which this version does not have",
                next_step="use the version of perfbisect that began it",
            )
    if cell.digest != digest:
        raise UsageError(
            f"the job's cell has the digest {cell.digest} and had {digest} when the job began",
            next_step="continue with the version of perfbisect that began it, or start a new job",
        )
    return cell


def write_plan(job: Job, plan: JobPlan, clock: Clock) -> None:
    """Write the plan to the job's journal; from then on the job can be resumed."""
    with Journal(job.journal, clock=clock) as journal:
        journal.append("plan", plan.model_dump(mode="json"))


def plan_data(events: Sequence[JournalEvent]) -> Mapping[str, Any]:
    """The newest plan in a journal as JSON; raises UsageError if there is none."""
    return plan_event(events).data


def plan_event(events: Sequence[JournalEvent]) -> JournalEvent:
    """The newest plan in a journal; raises UsageError if there is none."""
    event = next((event for event in reversed(events) if event.kind == "plan"), None)
    if event is None:
        raise UsageError(
            "the journal has no plan: the job ended before anything began", next_step="start a new job"
        )
    return event


def find_plan(events: Sequence[JournalEvent], plan_type: type[PlanT]) -> PlanT | None:
    """Read the plan; None if the job is of another kind, UsageError if it cannot be parsed."""
    event = plan_event(events)
    if event.data.get("verb") != verb_of(plan_type):
        return None
    try:
        return plan_type.model_validate_json(json.dumps(event.data))
    except (ValidationError, RecursionError) as error:
        raise event.error(error, "the job's plan") from error


def require_plan(
    job: Job, events: Sequence[JournalEvent], plan_type: type[PlanT], *, next_step: str | None = None
) -> PlanT:
    """Read the plan; raises UsageError if the job is of another kind."""
    plan = find_plan(events, plan_type)
    if plan is None:
        raise UsageError(
            f"job {job.id} is not a {plan_type.noun}",
            next_step=next_step or f"perfbisect report {job.id}",
        )
    return plan


def read_verdict(events: Sequence[JournalEvent], reader: TypeAdapter[_OutcomeT]) -> _OutcomeT | None:
    """The verdict in a journal; None while there is none.

    Raises:
        LocatedError: it cannot be read.
    """
    if not finished(events):
        return None
    event = next(event for event in reversed(events) if event.kind == "verdict")
    return read_event(event, reader, "the job's verdict")


def read_event(event: JournalEvent, reader: TypeAdapter[_OutcomeT], what: str) -> _OutcomeT:
    """The value of an event.

    Raises:
        LocatedError: it cannot be read.
    """
    try:
        return reader.validate_json(json.dumps(event.data))
    except (ValidationError, RecursionError) as error:
        raise event.error(error, what) from error


def resolve_metric(cell: Cell, name: str | None, *, claimed: bool = False) -> MetricRef:
    """The named metric, or the cell's headline; UsageError if it is unknown, a guard or not reported.

    ``claimed``: of a claim, which may speak of a guard that has a better side: acceptance, image distance.
    """
    metric = parse_metric(name or cell.headline)
    CLIENTS[cell.client.name].check_metric(cell, metric)
    if metric.metric.guard and not (claimed and not metric.metric.neutral):
        raise UsageError(
            f"{metric.name} is a guard and cannot be the metric under test",
            next_step="name another metric with --metric",
        )
    return metric


def guard_metrics(cell: Cell) -> tuple[MetricRef, ...]:
    """The guards of a cell and of its family, each once."""
    names = dict.fromkeys((*cell.guards, *FAMILIES[cell.family].guards))
    return tuple(parse_metric(name) for name in names)


def runs_per_launch(cell: Cell, metrics: Sequence[MetricRef] = ()) -> int:
    """Maximum runs per launch: one if caches cannot be reset, or if all metrics are of the launch.

    Iterations of a benchmark without a server are the runs of its launch.
    """
    if metrics and all(metric.metric.is_of_launch for metric in metrics):
        return 1
    command = FAMILIES[cell.family].server(cell, EXAMPLE)
    return MAX_RUNS if command.reset_requests or command.iterates else 1
