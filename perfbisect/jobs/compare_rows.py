"""Every metric of a comparison on both sides: the headline, the guards, then all the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from perfbisect.core import compare as core
from perfbisect.core.attempt import key
from perfbisect.core.metric import MetricRef, parse_metric
from perfbisect.errors import UsageError
from perfbisect.jobs.compare_plan import ComparePlan
from perfbisect.jobs.fold import Launch
from perfbisect.jobs.sides import SIDES, attempts_of, seen_of, shared_metrics
from perfbisect.jobs.views import mean_value, metric_document
from perfbisect.render.compare_documents import ComparedDocument

_LEFT_OUT = (":std", ":p50")
"""Statistics that say nothing of their own: a spread, and the median once more."""


def rows_of(
    plan: ComparePlan, made: Sequence[Launch], verdict: core.Verdict, guards: set[str]
) -> list[ComparedDocument]:
    """The headline, the guards, then everything that both sides report; ``verdict`` is the headline's.

    A metric that is zero somewhere and has no ratio is left out.
    """
    names = shared_metrics(made)
    refs: list[MetricRef] = []
    for name in (key(plan.ref), *(name for name in names if not name.endswith(_LEFT_OUT))):
        try:
            ref = parse_metric(name)
        except UsageError:
            continue
        if ref not in refs and key(ref) in names:
            refs.append(ref)
    rows = []
    for ref in refs:
        headline = ref == plan.ref
        told = verdict if headline else _judged(plan, ref, made)
        if told is not None:
            rows.append(_row(ref, told, made, headline=headline, guard=str(ref) in guards))
    rows.sort(key=lambda row: (not row.headline, not row.guard))
    return rows


def untold(plan: ComparePlan, made: Sequence[Launch], guards: Iterable[MetricRef]) -> bool:
    """True if a guard that both sides report needs more launches before it says anything.

    One that never varied, on either side, says that it did not move.
    """
    names = shared_metrics(made)
    for ref in guards:
        seen = seen_of(made, ref) if key(ref) in names else ()
        if len({value for one in seen for value in one.values}) < 2:
            continue
        told = _judged(plan, ref, made)
        if told is not None and told.word == "inconclusive":
            return True
    return False


def number(value: float) -> float | None:
    """A number as a document has it: None where there is none yet."""
    return None if math.isnan(value) else value


def _judged(plan: ComparePlan, ref: MetricRef, made: Sequence[Launch]) -> core.Verdict | None:
    try:
        return core.judge(plan.question(ref), seen_of(made, ref))
    except ValueError:
        return None


def _row(
    ref: MetricRef, told: core.Verdict, made: Sequence[Launch], *, headline: bool, guard: bool
) -> ComparedDocument:
    left, right = (_median(made, side, key(ref)) for side in SIDES)
    return ComparedDocument(
        name=str(ref),
        display=metric_document(ref).display,
        unit=ref.metric.unit,
        headline=headline,
        guard=guard,
        absolute=ref.metric.absolute,
        word=told.word,
        left=left,
        right=right,
        effect=number(told.effect) or 0.0,
        low=number(told.low) or 0.0,
        high=number(told.high) or 0.0,
    )


def _median(made: Sequence[Launch], side: core.Side, name: str) -> float:
    values = [mean_value(attempt, name) for attempt in attempts_of(made, side)]
    return median([value for value in values if value is not None] or [0.0])
