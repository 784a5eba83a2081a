"""A kind of job: its plan, how it runs, its document, report, status and exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from perfbisect.jobs.documents import MeasuredDocument, MetricDocument
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.plans import PlanT
from perfbisect.jobs.runner import JobContext
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.report.document import Report

DocumentT = TypeVar("DocumentT", bound=MeasuredDocument)


@dataclass(frozen=True)
class Candidate:
    """A possible culprit with its probability."""

    position: int
    change: str
    subject: str
    probability: float


@dataclass(frozen=True)
class JobStatus:
    """A job's progress. ``outcome``: the verdict in a word, ``unfinished`` before.

    ``verdict``: the outcome's subject, such as culprit or effect; ``next``: the next command, by default the
    report.
    """

    outcome: str
    verdict: str
    metric: MetricDocument
    next: str = ""
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Amendment:
    """Changes to a plan on resume: budget in minutes, metric, confirmation by revert."""

    budget: float | None = None
    metric: MetricRef | None = None
    confirm_revert: bool = False


@dataclass(frozen=True)
class JobKind(Generic[PlanT, DocumentT]):
    """A kind of job. The caller of ``run`` holds the job's lock."""

    plan: type[PlanT]
    run: Callable[[Job, JobContext], DocumentT]
    """Runs a job from its journal, new or resumed, to its document."""
    document: Callable[[Job, Sequence[JournalEvent]], DocumentT]
    """The document of a job, finished or not."""
    exit_code: Callable[[DocumentT], int]
    status: Callable[[DocumentT], JobStatus]
    report: Callable[[DocumentT], Report]
    client_change: Callable[[PlanT], Change]
    """The change whose environment provides the client by default."""
    workers: Callable[[PlanT], int] = lambda _: 1
    """Concurrent launches."""
    amend: Callable[[Job, JobContext, Amendment], None] | None = None
    document_for_metric: Callable[[Job, Sequence[JournalEvent], MetricRef], DocumentT] | None = None
    """The document for another metric of the same launches."""


AnyKind = JobKind[Any, Any]
"""A kind whose types only the registry knows."""
