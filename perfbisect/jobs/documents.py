"""What each verb hands out as JSON: one document with a ``schema`` field. The report is made from it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

import perfbisect
from perfbisect.common.digests import digest
from perfbisect.common.secret_references import hide_literals
from perfbisect.common.text import json_text
from perfbisect.errors import LocatedError, PerfbisectError
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import RESTORE
from perfbisect.jobs.plans import BudgetedPlan, MeasurementConfig
from perfbisect.jobs.replay import Launch, lost_minutes
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.serving.log_facts import combine_launches, fact_differences

_Self = TypeVar("_Self", bound="Document")
_Long = TypeVar("_Long", bound="LongDocument")


class Document(BaseModel):
    """A part of a document; every field is there, whatever its value."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        serialize_by_alias=True,
        json_schema_serialization_defaults_required=True,
    )

    def text(self) -> str:
        """The document as indented JSON."""
        return json_text(self.model_dump_json(indent=2, by_alias=True))

    def brief(self: _Self) -> _Self:
        """The document as a program that acts on it needs it: see :class:`LongDocument`."""
        return self


class LongDocument(Document):
    """A document with lists that grow with the work: a brief one has the ends of them, and says so."""

    schema_: str = Field(alias="schema")

    shown: ClassVar[Mapping[str, int]] = {}
    """List -> how many of its items are in the brief document: the first, or, below zero, the last."""
    left_out: dict[str, int] = Field(default_factory=dict)
    """List -> how many of its items are not here; ``--full`` brings them."""

    def brief(self: _Long) -> _Long:
        """With as much of its lists as ``shown`` says, and ``left_out`` for the rest."""
        kept: dict[str, object] = {}
        left: dict[str, int] = {}
        for name, most in self.shown.items():
            items = getattr(self, name)
            if len(items) > abs(most):
                kept[name] = items[:most] if most >= 0 else items[most:]
                left[name] = len(items) - abs(most)
        return self.model_copy(update={**kept, "left_out": {**self.left_out, **left}})


class NamedMetric(Document):
    """How a metric is called and shown."""

    name: str
    display: str
    unit: str


class MetricDocument(NamedMetric):
    """What is compared. ``smallest_effect`` is relative: 0.03 is three per cent."""

    direction: Literal["lower", "higher"]
    smallest_effect: float


class CellDocument(Document):
    """What is measured: the fields of a cell file, with the variant applied and secrets replaced."""

    name: str
    variant: str
    family: str
    task: str
    digest: str
    metric: str
    """The judged metric."""
    guards: tuple[str, ...]
    model: str
    tokenizer: str | None
    revision: dict[str, str | None]
    deploy_yaml: dict[str, str] | None
    """Where it comes from; ``digest``: of its text, where that is pinned."""
    dataset_name: str
    dataset_path: str | None
    dataset_args: dict[str, Any]
    backend: str
    endpoint: str
    sampling: dict[str, Any]
    ignore_eos: bool
    extra_body: dict[str, Any]
    num_prompts: int
    num_warmups: int
    discard_prompts: int | None
    max_concurrency: int | None
    request_rate: float | Literal["inf"]
    burstiness: float
    seed: int
    stage_overrides: dict[str, Any]
    serve_args: dict[str, Any]
    env: dict[str, str]
    client: dict[str, Any]
    gpus: int
    reference: dict[str, Any] | None


class CommandsDocument(Document):
    """Commands to type: the server's and the client's of one attempt, and perfbisect's own.

    ``bench`` is empty where ``serve`` is a benchmark without a server.
    """

    change: str
    serve: str
    bench: str
    perfbisect: str
    note: str = ""


class MinutesDocument(Document):
    """Where the minutes went; ``lost``: those of launches that are no evidence, such as discarded ones."""

    total: float
    budget: float
    lost: float
    by_phase: dict[str, float]
    saved: float = 0.0
    """Minutes that were not waited for, since work overlapped: imports with a start, a build with a bench."""


class NotedDocument(Document):
    """A document of its own, with what it has to say besides its numbers."""

    schema_: str = Field(alias="schema")
    notes: tuple[str, ...] = ()


class MeasurementDocument(NotedDocument):
    """What is measured, and with what: of plans and of results."""

    cell: CellDocument
    metric: MetricDocument
    environment: str
    client: str


class DryRunDocument(MeasurementDocument):
    """What the documents of all plans have in common."""

    runs_per_launch: int
    budget_minutes: float


class JobDocument(Document):
    """A job, and the ``next`` command to type."""

    job: str
    next: str


class JobFolderDocument(JobDocument):
    """A job in its folder."""

    folder: str


class ConclusionDocument(JobDocument):
    """What a job says: ``summary`` in sentences."""

    summary: tuple[str, ...] = ()


class MeasuredDocument(MeasurementDocument, ConclusionDocument, JobFolderDocument, LongDocument):
    """What the documents of all kinds of jobs have in common, finished or not."""

    shown: ClassVar[Mapping[str, int]] = {"launches": -4}
    finished: bool
    """Whether the journal has its verdict."""
    launches: tuple[Launch, ...] = ()
    minutes: MinutesDocument
    versions: dict[str, Any] = Field(default_factory=dict)


class ErrorDocument(Document):
    """An error: what was tried and came back, where to look, what comes next."""

    schema_: Literal["perfbisect.error/1"] = Field(default="perfbisect.error/1", alias="schema")
    error: str
    kind: str
    exit_code: int
    where: str | None
    next: str | None

    @classmethod
    def of(cls, error: PerfbisectError) -> ErrorDocument:
        """The document of an error."""
        return cls(
            error=error.message,
            kind=type(error).__name__,
            exit_code=error.exit_code,
            where=error.where,
            next=error.next,
        )


def measured_fields(
    job: Job,
    plan: BudgetedPlan,
    cell: Cell,
    records: Sequence[Launch],
    change_of: Callable[[Launch], Change],
    saved: float = 0.0,
) -> dict[str, Any]:
    """The fields of a :class:`MeasuredDocument`; ``saved``: minutes that were not waited for."""
    phases: dict[str, float] = {}
    for launch in records:
        for phase, seconds in (launch.attempt.seconds if launch.attempt else {}).items():
            phases[phase] = phases.get(phase, 0.0) + seconds / 60
    return {
        "job": job.id,
        "folder": str(job.path),
        "cell": cell_document(cell, plan.ref),
        "metric": metric_document(plan.ref, plan.smallest_effect),
        "environment": plan.setting.environment,
        "client": plan.setting.instrument,
        "launches": tuple(_named(job, plan, records, change_of)),
        "minutes": MinutesDocument(
            total=sum(launch.minutes for launch in records),
            budget=plan.budget or 0.0,
            lost=lost_minutes(records),
            by_phase=phases,
            saved=saved,
        ),
        "versions": versions(plan.setting, records),
        "notes": plan.notes,
    }


def _named(
    job: Job, plan: BudgetedPlan, records: Sequence[Launch], change_of: Callable[[Launch], Change]
) -> Iterator[Launch]:
    """The launches with the plan's changes and metric."""
    for launch in records:
        try:
            change = change_of(launch)
        except LookupError as error:
            raise LocatedError(
                f"launch {launch.number} is of change {launch.change.id} at position {launch.position}, "
                "which the plan does not have",
                file=job.journal,
                next_step=RESTORE,
            ) from error
        yield replace(launch, change=change).valued(plan.ref)


def metric_document(metric: MetricRef, smallest_effect: float | None = None) -> MetricDocument:
    """A metric; ``smallest_effect`` if a job has its own."""
    row = metric.metric
    statistic = f", {metric.statistic}" if metric.statistic else ""
    return MetricDocument(
        name=str(metric),
        display=row.display + statistic,
        unit=row.unit,
        direction=row.direction,
        smallest_effect=smallest_effect or row.smallest_effect,
    )


def cell_document(cell: Cell, metric: MetricRef) -> CellDocument:
    """A cell; ``metric``: the judged one."""
    fields = hide_literals(cell.model_dump(mode="json", by_alias=True))
    known = {name: value for name, value in fields.items() if name in CellDocument.model_fields}
    deploy = cell.deploy_yaml
    if deploy is not None:
        places = deploy.model_dump(by_alias=True, exclude_none=True, exclude={"text"})
        known["deploy_yaml"] = places if deploy.text is None else {**places, "digest": digest(deploy.text)}
    sampling = cell.sampling.model_dump(exclude_none=True)
    return CellDocument(**known | {"sampling": sampling}, digest=cell.digest, metric=str(metric))


def versions(setting: MeasurementConfig, records: Iterable[Launch]) -> dict[str, Any]:
    """Versions of perfbisect, engines, client and machine; several where they differ."""
    provenances = [launch.attempt.provenance for launch in records if launch.attempt is not None]
    facts: Mapping[str, Any] = next((p.facts for p in provenances if p.facts), {})
    return {
        "perfbisect": perfbisect.__version__,
        "python": platform.python_version(),
        "engine": sorted({p.engine_version for p in provenances if p.engine_version}),
        "client": sorted({p.client_digest for p in provenances if p.client_digest}),
        "machine_class": sorted({p.machine_class for p in provenances if p.machine_class}),
        "machine": facts.get("machine", {}),
        "exclude_newer": setting.exclude_newer,
        "client_exclude_newer": setting.client_exclude_newer,
        "constraints": setting.constraints,
    }


def log_differences(a: Iterable[Attempt], b: Iterable[Attempt]) -> tuple[tuple[str, str, str], ...]:
    """What the engines' own logs say differently on the two sides: fact, A, B."""
    left, right = (
        combine_launches(
            facts
            for attempt in side
            if isinstance(facts := attempt.provenance.facts.get("engine_log"), Mapping)
        )
        for side in (a, b)
    )
    return fact_differences(left, right) if left and right else ()
