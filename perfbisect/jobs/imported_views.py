"""Imported launches as a document shows them: beside a comparison, never in it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from perfbisect.core.metric import MetricRef
from perfbisect.core.shares import two_proportions
from perfbisect.jobs.counts import counts
from perfbisect.jobs.imports import Imported
from perfbisect.jobs.views import reported_value
from perfbisect.render.compare_documents import ImportedDocument, SingleRunDocument


def imported_documents(found: Sequence[Imported], metric: MetricRef) -> tuple[ImportedDocument, ...]:
    """The launches of each job on each side, with the median of a metric where they report it."""
    documents = []
    for job, side in sorted({(one.job, one.side) for one in found}):
        attempts = [one.attempt for one in found if (one.job, one.side) == (job, side)]
        values = [v for v in (reported_value(attempt, metric) for attempt in attempts) if v is not None]
        documents.append(
            ImportedDocument(
                job=job,
                side=side,
                launches=len(attempts),
                runs=sum(len(attempt.runs) for attempt in attempts),
                value=median(values) if values else None,
            )
        )
    return tuple(documents)


def single_runs(found: Sequence[Imported], guards: Sequence[MetricRef]) -> tuple[SingleRunDocument, ...]:
    """Guards that are shares, where one run a side is all that was imported: by counting alone."""
    runs = {side: [run for x in found if x.side == side for run in x.attempt.runs] for side in ("a", "b")}
    if any(len(known) != 1 for known in runs.values()):
        return ()
    (left,), (right,) = runs["a"], runs["b"]
    documents = []
    for guard in guards:
        one, other = counts(guard, left.facts), counts(guard, right.facts)
        if one is None or other is None:
            continue
        told = two_proportions(*one, *other)
        documents.append(
            SingleRunDocument(
                name=str(guard),
                display=guard.metric.display,
                left=one,
                right=other,
                difference=told.difference,
                low=told.low,
                high=told.high,
            )
        )
    return tuple(documents)
