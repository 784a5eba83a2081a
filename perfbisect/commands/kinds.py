"""Registry of the kinds of jobs, by their names in journals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from perfbisect.bisect.job import BISECT
from perfbisect.compare.job import CHECK, COMPARE, RUN
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent, read
from perfbisect.jobs.plans import plan_data
from perfbisect.model.metric import parse_metric
from perfbisect.report.kind import AnyKind

KINDS: Final[Mapping[str, AnyKind]] = {
    "run": RUN,
    "compare": COMPARE,
    "check": CHECK,
    "bisect": BISECT,
}


def kind_of(events: Sequence[JournalEvent]) -> AnyKind:
    """The kind of a job.

    Raises:
        UsageError: the journal has no plan, or one of an unknown kind.
    """
    verb = plan_data(events).get("verb")
    kind = KINDS.get(str(verb))
    if kind is None:
        raise UsageError(
            f"the job's plan cannot be read: no kind of job is called {verb!r}",
            next_step=f"use the version of perfbisect that began it; this one has {', '.join(KINDS)}",
        )
    return kind


def read_document(job: Job, metric: str | None = None) -> tuple[AnyKind, Document]:
    """Read a job's document, for some kinds also for another metric.

    Raises:
        UsageError: the journal cannot be read, or has no values of the metric.
    """
    events = read(job.journal).events
    kind = kind_of(events)
    document: Document
    if metric is None:
        document = kind.document(job, events)
    elif kind.document_for_metric is None:
        raise UsageError(
            f"job {job.id} is a {kind.plan.noun}: its report has every metric",
            next_step=f"perfbisect report {job.id}",
        )
    else:
        document = kind.document_for_metric(job, events, parse_metric(metric))
    return kind, document
