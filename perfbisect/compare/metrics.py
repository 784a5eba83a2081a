"""Every metric of a comparison: the levels of both sides, the effect and its verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from perfbisect.compare.documents import MetricComparisonDocument
from perfbisect.compare.launches import SIDES, attempts_of, observations, shared_metrics
from perfbisect.compare.plan import ComparePlan
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import metric_document, reported_value
from perfbisect.jobs.replay import LaunchRecord
from perfbisect.model.attempt import Attempt, key
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.stats import ab_test
from perfbisect.stats.sequential import most_of_none

_LEFT_OUT = (":std", ":p50")
"""Statistics that say nothing of their own: a spread, and the median once more."""

_COUNTED = {
    "failed": ("failed", ("completed", "failed")),
    "spec_decode_acceptance_rate": ("accepted_tokens", ("draft_tokens",)),
}
"""Shares of which a run keeps the counts: the fact that is counted, and those that it is a share of."""


def compare_metrics(
    plan: ComparePlan, measured: Sequence[LaunchRecord], verdict: ab_test.AbVerdict, guards: set[str]
) -> list[MetricComparisonDocument]:
    """The headline, the guards, then everything that both sides report; ``verdict`` is the headline's.

    A metric that is zero somewhere and has no ratio is left out; before the first block there are no rows.
    """
    if math.isnan(verdict.effect):
        return []
    names = shared_metrics(measured)
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
        own = verdict if headline else _judge(plan, ref, measured)
        if own is not None:
            own, note = (own, "") if headline else _constant_as_same(ref, own, measured)
            rows.append(_row(ref, own, headline=headline, guard=str(ref) in guards, note=note))
    rows.sort(key=lambda row: (not row.headline, not row.guard))
    return rows


def has_failed_guard(rows: Iterable[MetricComparisonDocument]) -> bool:
    """True if a guard moved for the worse, which decides the verdict."""
    return any(row.guard and row.verdict == "regression" for row in rows)


def has_open_guard(plan: ComparePlan, measured: Sequence[LaunchRecord], guards: Iterable[MetricRef]) -> bool:
    """True if a guard that both sides report needs more launches for a verdict."""
    names = shared_metrics(measured)
    for ref in guards:
        verdict = _judge(plan, ref, measured) if key(ref) in names else None
        if verdict is not None and _constant_as_same(ref, verdict, measured)[0].word == "inconclusive":
            return True
    return False


def has_equal_medians(measured: Sequence[LaunchRecord], ref: MetricRef) -> bool:
    """True if the median launch of both sides has one value."""
    sides = [[reported_value(attempt, ref) for attempt in attempts_of(measured, side)] for side in SIDES]
    left, right = ([value for value in values if value is not None] for values in sides)
    return bool(left and right) and median(left) == median(right)


def _judge(plan: ComparePlan, ref: MetricRef, measured: Sequence[LaunchRecord]) -> ab_test.AbVerdict | None:
    try:
        return ab_test.judge_blocks(plan.question(ref), observations(measured, ref))
    except ValueError:
        return None


def _constant_as_same(
    ref: MetricRef, verdict: ab_test.AbVerdict, measured: Sequence[LaunchRecord]
) -> tuple[ab_test.AbVerdict, str]:
    """The verdict on a metric that is not judged, with a note where it never varied in any run.

    The model would give a constant metric the least noise that it knows. For a share of which nothing was
    hit on either side the interval is that of counting.
    """
    values = {value for launch in observations(measured, ref) for value in launch.values}
    if math.isnan(verdict.effect) or len(values) != 1:
        return verdict, ""
    (value,) = values
    same = replace(verdict, word="same", effect=0.0, needed=0, a=value, b=value)
    sides = [_pool_counts(ref, attempts_of(measured, side)) for side in SIDES]
    (left, of_left), (right, of_right) = (side or (1, 1) for side in sides)
    if left or right:
        return same, "one value in every run"
    same = replace(same, low=-most_of_none(of_left), high=most_of_none(of_right))
    return same, f"none of {of_left} in A, none of {of_right} in B"


def _counts(guard: MetricRef, facts: Mapping[str, Any]) -> tuple[int, int] | None:
    """Hits, and of how many; None where the run keeps no counts of the share."""
    if guard.name not in _COUNTED:
        return None
    hits, of = _COUNTED[guard.name]
    known = [number for name in (hits, *of) if isinstance(number := facts.get(name), int)]
    if len(known) != 1 + len(of):
        return None
    count, whole = known[0], sum(known[1:])
    return (count, whole) if 0 <= count <= whole and whole else None


def _pool_counts(guard: MetricRef, attempts: Iterable[Attempt]) -> tuple[int, int] | None:
    """Hits, and of how many, over all runs of launches; None where a run keeps no counts."""
    counts = [_counts(guard, run.facts) for attempt in attempts for run in attempt.runs]
    known = [count for count in counts if count is not None]
    if not known or len(known) != len(counts):
        return None
    return sum(hits for hits, _ in known), sum(of for _, of in known)


def _row(
    ref: MetricRef, verdict: ab_test.AbVerdict, *, headline: bool, guard: bool, note: str
) -> MetricComparisonDocument:
    return MetricComparisonDocument(
        name=str(ref),
        display=metric_document(ref).display,
        unit=ref.metric.unit,
        headline=headline,
        guard=guard,
        absolute=ref.metric.absolute,
        verdict=verdict.word,
        left=verdict.a,
        right=verdict.b,
        effect=verdict.effect,
        low=verdict.low,
        high=verdict.high,
        note=note,
    )
