"""From a job to why one of its sides is slower."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from perfbisect.commands.kinds import kind_of
from perfbisect.errors import UsageError
from perfbisect.explain.documents import ExplainDocument, explain_bisection, explain_comparison
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read
from perfbisect.jobs.plans import plan_data

_EXPLAINED: Final[Mapping[str, Callable[[Any], ExplainDocument]]] = {
    "bisect": explain_bisection,
    "compare": explain_comparison,
}


def explain_job(job: Job) -> ExplainDocument:
    """What the launches of a job say, finished or not.

    Raises:
        UsageError: the job has no two sides.
    """
    events = read(job.journal).events
    kind = kind_of(events)
    explained = _EXPLAINED.get(str(plan_data(events).get("verb")))
    if explained is None:
        raise UsageError(
            f"job {job.id} is a {kind.plan.noun}: it has no two sides to explain",
            next_step="perfbisect compare CELL --a REV --b REV",
        )
    return explained(kind.document(job, events))
