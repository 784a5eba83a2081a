"""What the engine must know of a kind of job: its plan, how it runs, its report and its exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from perfbisect.jobs.documents import Document, LaunchDocument, MetricDocument, MinutesDocument
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Event
from perfbisect.jobs.plans import JobPlan, PlanT, require_plan, verb_of
from perfbisect.jobs.runner import Tools
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef

DocumentT = TypeVar("DocumentT", bound=Document)


@dataclass(frozen=True)
class Candidate:
    """A change that may be behind what a job looks for, with its probability."""

    position: int
    change: str
    subject: str
    probability: float


@dataclass(frozen=True)
class JobStatus:
    """What ``status`` shows of a job. ``outcome``: the verdict in a word, ``unfinished`` before there is one.

    ``verdict``: what the outcome is of, for a person; ``next``: the command that follows, empty: its report.
    """

    outcome: str
    verdict: str
    cell: str
    metric: MetricDocument
    launches: tuple[LaunchDocument, ...]
    minutes: MinutesDocument
    next: str = ""
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Amendment:
    """What is asked of a job beyond its plan: minutes, another metric, a measurement of the revert."""

    budget: float | None = None
    metric: MetricRef | None = None
    confirm_revert: bool = False


def one_worker(_: JobPlan) -> int:
    """The workers of a kind that launches one attempt at a time."""
    return 1


@dataclass(frozen=True)
class JobKind(Generic[PlanT, DocumentT]):
    """A kind of job. Functions of a job hold no lock: whoever calls ``run`` holds the job."""

    plan: type[PlanT]
    run: Callable[[Job, Tools], DocumentT]
    """Runs a job that has its plan in the journal, new or resumed, to its document."""
    document: Callable[[Job, Sequence[Event]], DocumentT]
    """The document of a job as far as it is."""
    exit_code: Callable[[DocumentT], int]
    status: Callable[[DocumentT], JobStatus]
    lines: Callable[[DocumentT], list[str]]
    """The document for a terminal."""
    markdown: Callable[[DocumentT], str]
    client_change: Callable[[PlanT], Change]
    """The change whose engine brings the client where no other environment does."""
    workers: Callable[[PlanT], int] = one_worker
    page: Callable[[DocumentT], str] | None = None
    """The document as one HTML page."""
    amend: Callable[[Job, Tools, Amendment], None] | None = None
    document_for_metric: Callable[[Job, Sequence[Event], MetricRef], DocumentT] | None = None
    """The document as if another metric had been asked for."""

    @property
    def verb(self) -> str:
        """The verb by which journals of this kind are known."""
        return verb_of(self.plan)

    def read_plan(self, job: Job, events: Sequence[Event]) -> PlanT:
        """The plan in a journal. :raises UsageError: none of this kind that can be read."""
        return require_plan(job, events, self.plan)


AnyKind = JobKind[Any, Any]
"""A kind of which only the registry knows more."""
