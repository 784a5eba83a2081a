"""Results of comparisons and checks in sentences, and the command that comes next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from statistics import median

from perfbisect.common.quantities import counted, minutes, percent, spent_text, with_unit
from perfbisect.compare.baseline import RecordedLevel
from perfbisect.compare.claims import Settled
from perfbisect.compare.plan import CLAIMS, CheckPlan, ComparePlan, MetricVerdict, combine_words
from perfbisect.compare.result import JobResult, has_equal_medians
from perfbisect.jobs.commands import follow_up_command, repeat_command
from perfbisect.jobs.documents import metric_document
from perfbisect.jobs.replay import LaunchRecord, lost_minutes
from perfbisect.model.change import Change
from perfbisect.model.metric import METRICS, PER_UNIT, MetricRef
from perfbisect.stats import threshold
from perfbisect.stats.ab_test import BLOCK_SIZE
from perfbisect.stats.two_sample import Scale


def compare_summary(result: JobResult[ComparePlan]) -> Iterator[str]:
    """What is claimed, the effects, what the guards say, what a verdict takes, and what contradicts it."""
    plan, verdicts = result.plan, result.verdicts
    names = f"{plan.b.name} against {plan.a.name}"
    if math.isnan(result.verdict.effect):
        yield f"{names}: a verdict takes at least one block of four launches."
        return
    if plan.max_regression is not None:
        yield from _limit_sentences(result, plan.max_regression)
    if plan.expect:
        outcome = {
            "holds": "holds",
            "refuted": "is refuted by a guard" if result.guard_failed else "is refuted",
            "inconclusive": "is neither confirmed nor refuted",
        }
        yield f"The claim ({plan.metric} {plan.expect} of B against A) {outcome[result.claim]}."
    yield f"{names}: {'; '.join(map(_effect_text, verdicts))}."
    if len(verdicts) > 1:
        yield _together_sentence(plan)
    if plan.expected(plan.ref) is None:
        yield from _smallest_sentences(plan)
    yield from _guard_sentences(result)
    needed = max(verdict.needed or 0 for verdict in verdicts)
    if needed and _is_open(plan, result.claim):
        yield _cost_sentence(max(0, needed - result.verdict.launches), result.launches)
    yield from _contradictions(result)
    yield _launches_sentence(result)


def _together_sentence(plan: ComparePlan | CheckPlan) -> str:
    count = len(plan.refs)
    if isinstance(plan, ComparePlan) and plan.max_regression is None:
        return f"The {count} metrics share the error of a false difference; each interval is its own."
    return f"The intervals of the {count} metrics hold together with 95 %."


def _smallest_sentences(plan: ComparePlan) -> Iterator[str]:
    """Which direction is better, and which effects are none; metrics that are alike in one sentence."""
    alike: dict[str, list[str]] = {}
    for metric in plan.refs:
        better = "Smaller" if metric.metric.direction == "lower" else "Larger"
        smallest = percent(plan.smallest_effect_of(metric), False)
        text = f"{better} is better; effects within {smallest} count as the same."
        alike.setdefault(text, []).append(str(metric))
    for text, names in alike.items():
        yield text if len(alike) == 1 else f"{', '.join(names)}: {text[0].lower()}{text[1:]}"


def _limit_sentences(result: JobResult[ComparePlan], limit: float) -> Iterator[str]:
    """What a check says of its limit, and what a verdict takes where that is open."""
    plan, share = result.plan, percent(limit, False)
    a, b = plan.a.name, plan.b.name
    if result.guard_failed and combine_words(x.word for x in result.verdicts) != "regression":
        yield f"A guard failed, which decides whatever the limit of {share}."
        return
    for verdict in result.verdicts:
        claim, name = plan.claim(verdict), f" in {verdict.metric}" if plan.further else ""
        if claim != "inconclusive":
            side = _SIDES_OF_LIMIT["beyond" if claim == "refuted" else "within"].format(share)
            yield f"{b} is {side} than {a}{name}."
            continue
        yield f"The interval of {b} against {a} includes the limit of {share}{name}."
        half = max(verdict.high - verdict.effect, verdict.effect - verdict.low)
        distance = abs(verdict.effect - limit * verdict.metric.metric.sign)
        more = math.ceil(verdict.launches * ((half / max(distance, 1e-6)) ** 2 - 1))
        yield _cost_sentence(max(BLOCK_SIZE, more), result.launches)


def _is_open(plan: ComparePlan, claim: Settled) -> bool:
    """True if more launches may tell more: nothing was claimed, or it is not settled."""
    return plan.max_regression is None and (not plan.expect or claim == "inconclusive")


def _guard_sentences(result: JobResult[ComparePlan] | JobResult[CheckPlan]) -> Iterator[str]:
    compared = isinstance(result.plan, ComparePlan)
    missing = "reported by both sides, or is zero" if compared else "in the baseline or was not reported"
    for metric, guard in result.guards.items():
        if guard is None:
            yield f"Guard not checked: {metric} {'was' if compared else 'is'} not {missing}."
        elif guard.word == "regression":
            unit = metric.metric.unit
            step = f"{with_unit(guard.a, unit)} -> {with_unit(guard.b, unit)}"
            yield f"Guard failed: {_display(metric)} {step}. Verdict: regression."
        elif guard.word == "beyond":
            yield f"Guard failed: {_effect_text(guard)}. Verdict: failed."
        elif (
            guard.word == "inconclusive"
            and all(CLAIMS[verdict.word] == "holds" for verdict in result.verdicts)
            and not has_equal_medians(result.measured, metric)
        ):
            yield f"Guard inconclusive: {_effect_text(guard)}."


def _contradictions(result: JobResult[ComparePlan]) -> Iterator[str]:
    """Another verdict where the length of the answers is taken out, or left in."""
    by_name = {str(row.metric): row for row in result.metrics}
    shown: set[str] = set()
    for verdict, (name, (whole, length)) in product(result.verdicts, PER_UNIT.items()):
        judged = verdict.metric
        if judged.name not in (name, whole) or length in shown:
            continue
        other, how = (name, "Per unit of output") if judged.name == whole else (whole, "Of whole answers")
        row = by_name.get(_same_statistic(judged, other))
        if row is None or row in result.verdicts or row.word in (verdict.word, "inconclusive"):
            continue
        shown.add(length)
        step = ""
        if grown := by_name.get(length):
            unit = grown.metric.metric.unit
            step = f"; {_display(grown.metric)} {with_unit(grown.a, unit)} -> {with_unit(grown.b, unit)}"
        yield f"{how} ({row.metric}): {row.word}, {percent(row.effect)}{step}."


def _same_statistic(metric: MetricRef, other: str) -> str:
    """Another metric in the same statistic, by its row's name; one number a run stands for a median."""
    statistic = metric.statistic or "median"
    if not METRICS[other].per_request:
        return other if statistic == "median" else ""
    return str(MetricRef(other, statistic))


_SIDES_OF_LIMIT = {
    "beyond": "more than {} worse",
    "within": "not more than {} worse",
    "inconclusive": "the interval includes the limit of {}",
}
_SIDES_OF_THRESHOLD = {"beyond": "bad side", "within": "good side", "inconclusive": "neither side"}


def check_summary(result: JobResult[CheckPlan]) -> Iterator[str]:
    """The effects against the level, what is part of them, what the guards say, and what a verdict takes."""
    plan, verdict, short = result.plan, result.verdict, result.plan.change.short
    if math.isnan(verdict.effect):
        yield f"{short}: a verdict takes at least {threshold.STEP} launches."
        return
    if plan.how == "baseline":
        base, limit = plan.recorded[0], percent(plan.max_regression, False)
        effects = (f"{_effect_text(x)}, {_SIDES_OF_LIMIT[x.word].format(limit)}" for x in result.verdicts)
        yield (
            f"{short} against the baseline {base.change.short} ({counted(len(base.attempts), 'launch')} of "
            f"{base.days}, job {base.job}): {'; '.join(effects)}."
        )
        if plan.further:
            yield _together_sentence(plan)
        yield (
            "Drift of the machine since then is part of this difference; --against REV measures both sides "
            "in turn."
        )
        there, here = (config.constraints or config.exclude_newer for config in (base, plan.setting))
        if there != here:
            there, here = there or "no fixed day", here or "no fixed day"
            yield f"Dependencies were of {there} there and are of {here} here, which is part of it too."
        yield from _guard_sentences(result)
    else:
        unit = plan.ref.metric.unit
        yield (
            f"{short}: {_display(plan.ref)} {with_unit(verdict.b, unit)}, {_interval_text(verdict)} against "
            f"the threshold {with_unit(verdict.a, unit)} between {_ends_text(plan)}: "
            f"{_SIDES_OF_THRESHOLD[verdict.word]}."
        )
    needed = [x.needed for x in result.verdicts if x.word == "inconclusive"]
    if None in needed:
        yield "The recorded launches are too few for a verdict at this noise: record more of them."
    elif needed:
        more = max(count or 0 for count in needed) - verdict.launches
        yield _cost_sentence(max(threshold.STEP, more), result.launches)
    yield _launches_sentence(result)


def _ends_text(plan: CheckPlan) -> str:
    unit = plan.ref.metric.unit
    if plan.values is not None:
        return f"{with_unit(plan.values[0], unit)} and {with_unit(plan.values[1], unit)}"
    good, bad = plan.recorded
    return (
        f"good {good.change.short} at {with_unit(recorded_value(good, plan.ref), unit)} and "
        f"bad {bad.change.short} at {with_unit(recorded_value(bad, plan.ref), unit)}"
    )


def recorded_value(level: RecordedLevel, metric: MetricRef) -> float:
    """The median of the recorded launches."""
    scale = Scale.of(metric.metric)
    return scale.value(median(scale.level(values) for values in level.values(metric)))


def _effect_text(verdict: MetricVerdict) -> str:
    return f"{_display(verdict.metric)} {_interval_text(verdict)}"


def _interval_text(verdict: MetricVerdict) -> str:
    """``+0.4 % (95 % CI -1.9 % to +2.8 %)``."""
    return f"{percent(verdict.effect)} (95 % CI {percent(verdict.low)} to {percent(verdict.high)})"


def _display(metric: MetricRef) -> str:
    return metric_document(metric).display


def _cost_sentence(more: int, launches: Sequence[LaunchRecord]) -> str:
    each = [launch.minutes for launch in launches if launch.end == "finished"]
    cost = f", {minutes(more * median(each))}" if each else ""
    return f"A verdict takes about {more} more launches{cost}."


def _launches_sentence(result: JobResult[ComparePlan] | JobResult[CheckPlan]) -> str:
    total, lost = sum(launch.minutes for launch in result.launches), lost_minutes(result.launches)
    return f"{counted(len(result.measured), 'launch')}, {spent_text(total, 0.0, lost)}."


def next_command(result: JobResult[ComparePlan] | JobResult[CheckPlan]) -> str:
    """The command that comes next."""
    plan, setting = result.plan, result.plan.setting
    if not result.finished:
        return f"perfbisect resume {result.job.id}"
    limited = isinstance(plan, CheckPlan) or plan.max_regression is not None
    if limited and result.claim == "inconclusive":
        launches = str(2 * plan.launches if isinstance(plan, CheckPlan) else plan.max_launches)
        repeated = repeat_command(setting, "--launches", launches)
        return repeated or f"perfbisect check ... --launches {launches}"
    worse, still_open = (
        [verdict for verdict in result.verdicts if verdict.word == word]
        for word in ("regression", "inconclusive")
    )
    ends: tuple[Change, Change] | None = None
    if isinstance(plan, CheckPlan):
        if plan.how == "baseline" and result.claim == "refuted":
            ends = plan.recorded[0].change, plan.change
    elif worse or (limited and result.claim == "refuted"):
        ends = None if plan.a.variant or plan.b.variant else (plan.a.change, plan.b.change)
    elif still_open and _is_open(plan, result.claim):
        needed = max(verdict.needed or 0 for verdict in still_open)
        blocks = ("--blocks", str(max(needed // BLOCK_SIZE, plan.blocks + 1)))
        sides = ("--a", plan.a.typed, "--b", plan.b.typed)
        further = (word for name in plan.further for word in ("--metric", name))
        return repeat_command(setting, *blocks) or follow_up_command(
            setting, "compare", plan.cell, plan.metric, *sides, *blocks, *further
        )
    if ends is None:
        return f"perfbisect report {result.job.id}"
    good, bad = (change.short for change in ends)
    refuted = [verdict for verdict in result.verdicts if plan.claim(verdict) == "refuted"]
    metric = str((worse or refuted or result.verdicts)[0].metric)
    return follow_up_command(setting, "bisect", plan.cell, metric, "--good", good, "--bad", bad)
