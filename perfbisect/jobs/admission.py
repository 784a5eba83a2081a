"""Comparability of an attempt with the earlier ones of its job."""

from __future__ import annotations

from collections.abc import Sequence

from perfbisect.errors import MachineError, UsageError
from perfbisect.jobs.replay import LaunchRecord, ended_launches
from perfbisect.model.attempt import Attempt, key, provenance_differences
from perfbisect.model.metric import MetricRef


def require_comparable(
    attempt: Attempt,
    seen: Sequence[LaunchRecord],
    metric: MetricRef,
    advice: str = "measure all of a bisection",
) -> None:
    """Require the job's metric and comparable provenance; ``advice`` begins the error's next step.

    Raises:
        UsageError: the client did not report the metric.
        MachineError: the provenance differs from earlier attempts.
    """
    try:
        attempt.values(metric)
    except KeyError:
        reported = sorted({name for run in attempt.runs for name in run.values})
        raise UsageError(
            f"the client did not report {key(metric)}; it reported: {', '.join(reported)}",
            where=attempt.folder,
            next_step="name one of these with --metric",
        ) from None
    first = next(
        (x.attempt for x in ended_launches(seen) if x.end == "finished" and x.attempt is not None), attempt
    )
    for field, left, right in provenance_differences(first.provenance, attempt.provenance):
        raise MachineError(
            f"attempt {attempt.id} cannot be compared with {first.id}: {field} was {left!r} and is {right!r}",
            where=attempt.folder,
            next_step=f"{advice} on one machine, with one client (--client), of one cell",
        )
