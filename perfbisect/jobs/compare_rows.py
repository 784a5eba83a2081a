"""Every metric of a comparison on both sides: the headline, the guards, then all the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from perfbisect.core import compare as core
from perfbisect.core.attempt import key
from perfbisect.core.metric import MetricRef, parse_metric
from perfbisect.core.shares import most_of_none
from perfbisect.errors import UsageError
from perfbisect.jobs.compare_plan import ComparePlan
from perfbisect.jobs.counts import pooled
from perfbisect.jobs.fold import Launch
from perfbisect.jobs.sides import SIDES, attempts_of, seen_of, shared_metrics
from perfbisect.jobs.views import metric_document, reported_value
from perfbisect.render.compare_documents import ComparedDocument

_LEFT_OUT = (":std", ":p50")
"""Statistics that say nothing of their own: a spread, and the median once more."""


def rows_of(
    plan: ComparePlan, made: Sequence[Launch], verdict: core.Verdict, guards: set[str]
) -> list[ComparedDocument]:
    """The headline, the guards, then everything that both sides report; ``verdict`` is the headline's.

    A metric that is zero somewhere and has no ratio is left out; before the first block there are no rows.
    """
    if math.isnan(verdict.effect):
        return []
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
            told, note = (told, "") if headline else _unmoved(ref, told, made)
            rows.append(_row(ref, told, headline=headline, guard=str(ref) in guards, note=note))
    rows.sort(key=lambda row: (not row.headline, not row.guard))
    return rows


def guard_moved(rows: Iterable[ComparedDocument]) -> bool:
    """True if a guard moved for the worse: that decides, whatever the headline says."""
    return any(row.guard and row.word == "regression" for row in rows)


def untold(plan: ComparePlan, made: Sequence[Launch], guards: Iterable[MetricRef]) -> bool:
    """True if a guard that both sides report needs more launches before it says anything."""
    names = shared_metrics(made)
    for ref in guards:
        told = _judged(plan, ref, made) if key(ref) in names else None
        if told is not None and _unmoved(ref, told, made)[0].word == "inconclusive":
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


def _unmoved(ref: MetricRef, told: core.Verdict, made: Sequence[Launch]) -> tuple[core.Verdict, str]:
    """What is told of a metric that is not judged, and why where that is not the launches' model.

    One that never varied, in any run of either side, did not move. The model would give it the least noise
    that it knows; of a share of which nothing was hit on either side the interval is that of counting.
    """
    values = {value for launch in seen_of(made, ref) for value in launch.values}
    if math.isnan(told.effect) or len(values) != 1:
        return told, ""
    (value,) = values
    same = replace(told, word="same", effect=0.0, needed=0, a=value, b=value)
    sides = [pooled(ref, attempts_of(made, side)) for side in SIDES]
    (left, of_left), (right, of_right) = (side or (1, 1) for side in sides)
    if left or right:
        return same, "one value in every run"
    same = replace(same, low=-most_of_none(of_left), high=most_of_none(of_right))
    return same, f"none of {of_left} in A, none of {of_right} in B"


def equal_medians(made: Sequence[Launch], ref: MetricRef) -> bool:
    """True if the median launch of both sides has one value."""
    sides = [[reported_value(attempt, ref) for attempt in attempts_of(made, side)] for side in SIDES]
    left, right = ([value for value in values if value is not None] for values in sides)
    return bool(left and right) and median(left) == median(right)


def _row(ref: MetricRef, told: core.Verdict, *, headline: bool, guard: bool, note: str) -> ComparedDocument:
    return ComparedDocument(
        name=str(ref),
        display=metric_document(ref).display,
        unit=ref.metric.unit,
        headline=headline,
        guard=guard,
        absolute=ref.metric.absolute,
        word=told.word,
        left=told.a,
        right=told.b,
        effect=told.effect,
        low=told.low,
        high=told.high,
        note=note,
    )
