"""Summaries of comparisons and checks in sentences, and the command that comes next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from perfbisect.common.numbers import minutes, percent, with_unit
from perfbisect.compare.baseline import dependency_days
from perfbisect.compare.claims import Settled
from perfbisect.compare.documents import (
    CheckWord,
    CompareDocument,
    MetricComparisonDocument,
    recorded_document,
)
from perfbisect.compare.metrics import has_equal_medians, has_failed_guard
from perfbisect.compare.plan import CheckPlan, ComparePlan
from perfbisect.jobs.commands import follow_up_command, repeat_command
from perfbisect.jobs.documents import metric_document
from perfbisect.jobs.folders import Job
from perfbisect.jobs.measurement import guard_metrics
from perfbisect.jobs.replay import LaunchRecord
from perfbisect.model.cell import Cell
from perfbisect.model.metric import METRICS, PER_UNIT, MetricRef
from perfbisect.stats import ab_test, threshold
from perfbisect.stats.two_sample import Scale

_UNDECIDED = (None, "inconclusive")
"""Claims of which more launches may tell more: none was made, or it is not settled."""


def interval_text(effect: float, low: float, high: float) -> str:
    """``+0.4 % (95 % CI -1.9 % to +2.8 %)``."""
    return f"{percent(effect)} (95 % CI {percent(low)} to {percent(high)})"


def compare_summary(
    plan: ComparePlan,
    verdict: ab_test.AbVerdict,
    rows: Sequence[MetricComparisonDocument],
    guards: Sequence[MetricRef],
    seen: Sequence[LaunchRecord],
    claim: Settled | None,
) -> Iterator[str]:
    """The effect first; ``claim``: whether what was claimed holds, or the limit of a check."""
    names = f"{plan.b.name} against {plan.a.name}"
    if math.isnan(verdict.effect):
        yield f"{names}: a verdict takes at least one block of four launches."
        return
    display = metric_document(plan.ref).display
    if claim is not None and plan.max_regression is None:
        yield _claim_sentence(plan, claim, has_failed_guard(rows))
    yield f"{names}: {display} {interval_text(verdict.effect, verdict.low, verdict.high)}."
    if claim is None:
        smallest = percent(plan.question().min_effect, False)
        better = "smaller" if plan.ref.metric.direction == "lower" else "larger"
        yield f"{better.capitalize()} is better; effects within {smallest} count as the same."
    yield from _guard_sentences(verdict, rows, guards, seen)
    open_question = plan.max_regression is None and claim in _UNDECIDED
    if verdict.word == "inconclusive" and verdict.needed and open_question:
        yield _cost_sentence(max(0, verdict.needed * ab_test.BLOCK_SIZE - verdict.launches), seen)
    yield from _contradictions(plan, verdict, rows)
    yield _launches_sentence(seen)


def _claim_sentence(plan: ComparePlan, claim: Settled, guard_failed: bool) -> str:
    claimed = f"{plan.metric} {plan.expect} of B against A"
    if claim == "inconclusive":
        return f"The claim ({claimed}) is neither confirmed nor refuted."
    outcome = "holds" if claim == "holds" else "is refuted by a guard" if guard_failed else "is refuted"
    return f"The claim ({claimed}) {outcome}."


def _guard_sentences(
    verdict: ab_test.AbVerdict,
    rows: Sequence[MetricComparisonDocument],
    guards: Sequence[MetricRef],
    seen: Sequence[LaunchRecord],
) -> Iterator[str]:
    by_name = {row.name: row for row in rows}
    good_news = verdict.word in ("improvement", "same")
    for ref in guards:
        row = by_name.get(str(ref))
        if row is None:
            yield f"Guard not checked: {ref} was not reported by both sides, or is zero."
        elif row.verdict == "regression":
            step = f"{with_unit(row.left, row.unit)} -> {with_unit(row.right, row.unit)}"
            yield f"Guard failed: {row.display} {step}. Verdict: regression."
        elif row.verdict == "inconclusive" and good_news and not has_equal_medians(seen, ref):
            yield f"Guard inconclusive: {row.display} {interval_text(row.effect, row.low, row.high)}."


def _contradictions(
    plan: ComparePlan, verdict: ab_test.AbVerdict, rows: Sequence[MetricComparisonDocument]
) -> Iterator[str]:
    """Another verdict where the length of the answers is taken out, or left in."""
    by_name = {row.name: row for row in rows}
    shown: set[str] = set()
    for name, (whole, length) in PER_UNIT.items():
        if plan.ref.name not in (name, whole) or length in shown:
            continue
        other, how = (name, "Per unit of output") if plan.ref.name == whole else (whole, "Of whole answers")
        row = by_name.get(_same_statistic(plan.ref, other))
        if row is None or row.verdict in (verdict.word, "inconclusive"):
            continue
        shown.add(length)
        grown = by_name.get(length)
        step = (
            f"; {grown.display} {with_unit(grown.left, grown.unit)} -> {with_unit(grown.right, grown.unit)}"
            if grown
            else ""
        )
        yield f"{how} ({row.name}): {row.verdict}, {percent(row.effect)}{step}."


def _same_statistic(ref: MetricRef, other: str) -> str:
    """Another metric in the same statistic, by its row's name; one number a run stands for a median."""
    statistic = ref.statistic or "median"
    if not METRICS[other].per_request:
        return other if statistic == "median" else ""
    return str(MetricRef(other, statistic))


def limit_summary(document: CompareDocument) -> tuple[str, ...]:
    """What a check says of its limit, and what more would cost where that is open."""
    limit, a, b = percent(document.limit or 0.0, False), document.a.name, document.b.name
    if document.claim == "refuted" and document.verdict != document.headline:
        return (f"A guard failed, which decides whatever the limit of {limit}.",)
    if document.claim == "holds":
        return (f"{b} is not more than {limit} worse than {a}.",)
    if document.claim == "refuted":
        return (f"{b} is more than {limit} worse than {a}.",)
    return f"The interval of {b} against {a} includes the limit of {limit}.", *_cost_of_limit(document)


def _cost_of_limit(document: CompareDocument) -> tuple[str, ...]:
    """What it takes for the interval to end at the limit, which lies within it."""
    effect, low, high = document.effect, document.low, document.high
    if effect is None or low is None or high is None or not low < high:
        return ()
    at = (document.limit or 0.0) * (1 if document.metric.direction == "lower" else -1)
    launches, half = 2 * document.launches_a_side, max(high - effect, effect - low)
    more = max(4, math.ceil(launches * ((half / max(abs(effect - at), 1e-6)) ** 2 - 1)))
    each = document.minutes.total / max(1, len(document.launches))
    return (f"A verdict takes about {more} more launches, {minutes(more * each)}.",)


def check_summary(
    plan: CheckPlan,
    cell: Cell,
    verdict: threshold.ThresholdVerdict,
    effect: tuple[float, float, float],
    value: float | None,
    guards: Sequence[tuple[MetricRef, threshold.ThresholdVerdict]],
    seen: Sequence[LaunchRecord],
) -> Iterator[str]:
    """``effect``: of the change against its reference, with its interval; ``value``: the change's level."""
    scale, unit, short = Scale.of(plan.ref.metric), plan.ref.metric.unit, plan.change.short
    display = metric_document(plan.ref).display
    if math.isnan(verdict.over):
        yield f"{short}: a verdict takes at least {threshold.STEP} launches."
        return
    if plan.how == "baseline":
        base, limit = plan.recorded[0], percent(plan.max_regression, False)
        side = {
            "beyond": f"more than {limit} worse",
            "within": f"not more than {limit} worse",
            "inconclusive": f"the interval includes the limit of {limit}",
        }[verdict.word]
        yield (
            f"{short} against the baseline {base.change.short} ({len(base.attempts)} launches of "
            f"{base.days}, job {base.job}): {display} {interval_text(*effect)}, {side}."
        )
        yield (
            "Drift of the machine since then is part of this difference; --against REV measures both sides "
            "in turn."
        )
        days = dependency_days(base, plan.setting)
        if days is not None:
            there, here = (day or "no fixed day" for day in days)
            yield f"Dependencies were of {there} there and are of {here} here, which is part of it too."
        yield from _level_guard_sentences(cell, verdict, guards)
    else:
        side = {"beyond": "bad side", "within": "good side", "inconclusive": "neither side"}[verdict.word]
        at = with_unit(scale.value(plan.threshold.at), unit)
        yield (
            f"{short}: {display} {with_unit(value, unit)}, {interval_text(*effect)} against the threshold "
            f"{at} between {_ends_text(plan)}: {side}."
        )
    if verdict.word == "inconclusive" and verdict.needed is None:
        yield "The recorded launches are too few for a verdict at this noise: record more of them."
    elif verdict.word == "inconclusive" and verdict.needed is not None:
        yield _cost_sentence(max(threshold.STEP, verdict.needed - verdict.launches), seen)
    yield _launches_sentence(seen)


def _ends_text(plan: CheckPlan) -> str:
    unit = plan.ref.metric.unit
    if plan.values is not None:
        return f"{with_unit(plan.values[0], unit)} and {with_unit(plan.values[1], unit)}"
    return " and ".join(
        f"{word} {level.change.short} at {with_unit(recorded_document(level, plan.ref).value, unit)}"
        for word, level in zip(("good", "bad"), plan.recorded, strict=True)
    )


def _level_guard_sentences(
    cell: Cell,
    verdict: threshold.ThresholdVerdict,
    guards: Sequence[tuple[MetricRef, threshold.ThresholdVerdict]],
) -> Iterator[str]:
    words = {str(guard): judged.word for guard, judged in guards}
    for guard in guard_metrics(cell):
        word = words.get(str(guard))
        display = metric_document(guard).display
        if word is None:
            yield f"Guard not checked: {guard} is not in the baseline or was not reported."
        elif word == "beyond":
            yield f"Guard failed: {display}. Verdict: failed."
        elif word == "inconclusive" and verdict.word == "within":
            yield f"Guard inconclusive: {display}."


def _cost_sentence(more: int, seen: Sequence[LaunchRecord]) -> str:
    each = [launch.minutes for launch in seen if launch.end == "finished"]
    cost = f", {minutes(more * median(each))}" if each else ""
    return f"A verdict takes about {more} more launches{cost}."


def _launches_sentence(seen: Sequence[LaunchRecord]) -> str:
    count = sum(launch.end == "finished" for launch in seen)
    return f"{count} launches, {minutes(sum(launch.minutes for launch in seen))}."


def next_of_comparison(
    plan: ComparePlan, verdict: ab_test.AbVerdict, job: Job, ended: bool, claim: Settled | None
) -> str:
    """The command that comes next."""
    check = plan.max_regression is not None
    if ended and check and claim == "inconclusive":
        return _repeat_check(plan, ab_test.BLOCK_SIZE * plan.blocks)
    worse = verdict.word == "regression" or (check and claim == "refuted")
    if ended and worse and not plan.a.variant and not plan.b.variant:
        return _bisect(plan, plan.a.change.short, plan.b.change.short)
    if ended and verdict.word == "inconclusive" and claim in _UNDECIDED:
        blocks = ("--blocks", str(max(verdict.needed, plan.blocks + 1)))
        sides = ("--a", plan.a.text, "--b", plan.b.text)
        return repeat_command(plan.setting, *blocks) or follow_up_command(
            plan.setting, "compare", plan.cell, plan.metric, *sides, *blocks
        )
    return f"perfbisect {'report' if ended else 'resume'} {job.id}"


def next_of_check(plan: CheckPlan, job: Job, word: CheckWord, ended: bool) -> str:
    """The command that comes next."""
    if ended and word == "inconclusive":
        return _repeat_check(plan, 2 * plan.launches)
    if ended and word == "failed" and plan.how == "baseline":
        return _bisect(plan, plan.recorded[0].change.short, plan.change.short)
    return f"perfbisect {'report' if ended else 'resume'} {job.id}"


def _repeat_check(plan: ComparePlan | CheckPlan, launches: int) -> str:
    command = repeat_command(plan.setting, "--launches", str(launches))
    return command or f"perfbisect check ... --launches {launches}"


def _bisect(plan: ComparePlan | CheckPlan, good: str, bad: str) -> str:
    return follow_up_command(plan.setting, "bisect", plan.cell, plan.metric, "--good", good, "--bad", bad)
