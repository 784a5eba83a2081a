"""``perfbisect compare``: two sides of one workload in blocks, A B B A or B A A B."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any, ClassVar, Final, Literal, NamedTuple

from pydantic import Field, FiniteFloat

from perfbisect.common.quantities import percent
from perfbisect.engine.experiment import Experiment, JobStatus
from perfbisect.errors import UsageError
from perfbisect.experiments.claims import EffectRange, Settled, combine_claims, parse_change
from perfbisect.experiments.measure import (
    CLAIMS,
    OUTCOMES,
    MeasurementPlan,
    MeasurementRule,
    Measurements,
    MetricResult,
    SideDocument,
    SidePlan,
    VerdictResult,
    attempts_of,
    combine_words,
    metric_result,
)
from perfbisect.jobs.commands import follow_up_command, repeat_command
from perfbisect.jobs.documents import log_differences
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.plans import MeasurementConfig, guard_metrics, require_plan
from perfbisect.jobs.replay import Launch, reported_value, require_reported, require_same_provenance
from perfbisect.model.attempt import Attempt, key
from perfbisect.model.environment import environment_differences, package_versions
from perfbisect.model.metric import METRICS, PER_UNIT, MetricRef, parse_metric
from perfbisect.report.document import Report
from perfbisect.report.phases import PhasesDocument, moved_sentences, phase_blocks, phases_document
from perfbisect.report.plots import LaunchGroup, launches_plot
from perfbisect.report.template import render_report, render_sentences
from perfbisect.stats import ab_test
from perfbisect.stats.sequential import most_of_none

SIDES: tuple[ab_test.Side, ab_test.Side] = ("a", "b")
"""Position 0 and 1 of a comparison."""

_LEFT_OUT = (":std", ":p50")
"""Statistics that say nothing of their own: a spread, and the median once more."""

_COUNTED = {
    "failed": ("failed", ("completed", "failed")),
    "spec_decode_acceptance_rate": ("accepted_tokens", ("draft_tokens",)),
}
"""Shares of which a run keeps the counts: the fact that is counted, and those that it is a share of."""


class ComparePlan(MeasurementPlan):
    """``perfbisect compare``: two sides of one workload. ``cell``: before variants."""

    noun: ClassVar[str] = "comparison"
    per_look: ClassVar[int] = ab_test.BLOCK_SIZE
    verb: Literal["compare"] = "compare"
    a: SidePlan
    b: SidePlan
    blocks: int
    budget: FiniteFloat
    seed: int = 0
    expect: str = ""
    """The change of the metric that is claimed; empty where nothing is."""
    watch: tuple[str, ...] = ()
    """Guards besides the cell's own."""
    max_regression: float | None = None
    """Of a check: the share by which B may be worse than A."""

    @property
    def sides(self) -> tuple[SidePlan, ...]:
        return self.a, self.b

    @property
    def side_clients(self) -> Mapping[str, MeasurementConfig]:
        fields = ("client", "client_exclude_newer")
        return {
            side.client: self.setting.model_copy(update={name: getattr(side, name) for name in fields})
            for side in self.sides
            if side.client
        }

    @property
    def instrument(self) -> str:
        """Description of the client."""
        return "each side's own" if all(side.client for side in self.sides) else self.setting.instrument

    @property
    def max_launches(self) -> int:
        return ab_test.BLOCK_SIZE * self.blocks

    def expected(self, metric: MetricRef) -> EffectRange | None:
        """The effects of a metric that the claim or the check allows; None where nothing was claimed."""
        if self.max_regression is not None:
            limit, is_worse_larger = self.max_regression, metric.metric.sign > 0
            return EffectRange(-math.inf, limit) if is_worse_larger else EffectRange(-limit, math.inf)
        return parse_change(self.expect) if self.expect else None

    def question(self, metric: MetricRef, tests: int) -> ab_test.AbTest:
        """The test of a metric, as one of so many.

        Of several metrics all must be the same, which needs no correction, or one of them different. Under a
        limit both verdicts rest on the interval, so that the intervals hold together.
        """
        row, is_judged = metric.metric, metric in self.refs
        limited = is_judged and self.max_regression is not None
        return ab_test.AbTest(
            sign=row.sign,
            min_effect=self.smallest_effect_of(metric) if is_judged else row.smallest_effect,
            blocks=self.blocks,
            seed=self.seed,
            absolute=row.absolute,
            tests=tests,
            missed=ab_test.MISSED / tests if limited else ab_test.MISSED,
        )


def _side_of(plan: ComparePlan, count: int) -> int:
    return SIDES.index(ab_test.side_of_launch(plan.question(plan.ref, 1), count))


def _reason(plan: ComparePlan, count: int) -> str:
    return f"{SIDES[_side_of(plan, count)].upper()}, block {count // ab_test.BLOCK_SIZE + 1}"


def _guards(plan: ComparePlan) -> tuple[MetricRef, ...]:
    found = dict.fromkeys((*guard_metrics(plan.cells[0]), *map(parse_metric, plan.watch)))
    return tuple(guard for guard in found if guard != plan.ref)


def _admit(plan: ComparePlan, attempt: Attempt, records: Sequence[Launch]) -> None:
    for ref in plan.refs:
        require_reported(attempt, ref)
    advice, has_clients = "measure both sides", bool(plan.side_clients)
    require_same_provenance(attempt, records, advice, any_client=has_clients)
    if has_clients:
        # Clients are to differ between the sides, never within one.
        side = next(launch.position for launch in records if launch.id == attempt.id)
        own = [launch for launch in records if launch.position == side]
        require_same_provenance(attempt, own, advice)


def _judge(plan: ComparePlan, measured: Sequence[Launch], metric: MetricRef, tests: int) -> MetricResult:
    launches = [ab_test.AbLaunch(SIDES[x.position], x.measurement.values(metric)) for x in measured]
    test = replace(plan.question(metric, tests), noise=plan.known_noise(metric, measured))
    judged = ab_test.judge_blocks(test, launches)
    claim, line = CLAIMS[judged.word], None
    if expected := plan.expected(metric):
        claim = expected.settles(judged.low, judged.high)
    if plan.max_regression is not None:
        # A limit is a share of A in the metric's direction; where the metric is a share itself, it is added.
        worse = plan.max_regression * metric.metric.sign
        line = judged.a + worse if metric.metric.absolute else judged.a * (1 + worse)
    is_judged = metric in plan.refs
    return metric_result(
        plan,
        metric,
        verdict=judged.word,
        claim=claim if is_judged else None,
        left=judged.a,
        right=judged.b,
        line=line if is_judged else None,
        effect=judged.effect,
        low=judged.low,
        high=judged.high,
        launches=judged.launches,
        needed=judged.needed * ab_test.BLOCK_SIZE,
    )


def _judge_unvaried(plan: ComparePlan, measured: Sequence[Launch], row: MetricResult) -> MetricResult:
    """One that was the same in every run did not move, however few they are: the model would give it the
    least noise that it knows. For a share of which nothing was hit the interval is that of counting.
    """
    del plan
    values = {value for launch in measured for value in launch.measurement.values(row.ref)}
    if len(values) != 1:
        return row
    (value,) = values
    same = {"verdict": "same", "effect": 0.0, "needed": 0, "left": value, "right": value}
    counts = [_pool_counts(row.ref, attempts_of(measured, side)) for side in (0, 1)]
    # (1, 1) stands for unknown counts: they are not zero, so no interval for a zero count is given.
    (left, of_left), (right, of_right) = (count or (1, 1) for count in counts)
    if left or right:
        return row.model_copy(update=same | {"note": "one value in every run"})
    interval = {"low": -most_of_none(of_left), "high": most_of_none(of_right)}
    note = {"note": f"none of {of_left} in A, none of {of_right} in B"}
    return row.model_copy(update=same | interval | note)


def _pool_counts(metric: MetricRef, attempts: Sequence[Attempt]) -> tuple[int, int] | None:
    """Hits, and of how many, over all runs; None where a run keeps no counts of the share."""
    if metric.name not in _COUNTED:
        return None
    hit_name, names = _COUNTED[metric.name]
    hits = total = 0
    for run in (run for attempt in attempts for run in attempt.runs):
        counts: list[Any] = [run.facts.get(name) for name in (hit_name, *names)]
        hit, *parts = counts
        if not all(isinstance(count, int) for count in counts) or not 0 <= hit <= sum(parts):
            return None
        hits, total = hits + hit, total + sum(parts)
    return (hits, total) if total else None


RULE: Final[MeasurementRule[ComparePlan]] = MeasurementRule(
    judge=_judge,
    judge_unvaried=_judge_unvaried,
    guards=_guards,
    side_of=_side_of,
    reason=_reason,
    side_name=lambda plan, side: f"side {SIDES[side]} ({plan.sides[side].typed})",
    admit=_admit,
    purpose="confirm",
    advice="name another change",
    block=ab_test.BLOCK_SIZE,
)


class CompareResult(VerdictResult):
    """How a comparison ended, or how far it is: all judged metrics together, and the first (``metric``)."""

    schema_: Literal["perfbisect.compare/6"] = Field(default="perfbisect.compare/6", alias="schema")
    verdict: ab_test.Word
    """On all judged metrics and guards."""
    expected: str = ""
    claim: Settled | None = None
    """Whether what was claimed (``expected``) holds; a guard that failed refutes it."""
    limit: float | None = None
    """Of a check: by which share B may be worse; ``claim`` says whether it is not."""
    by_guard: bool
    """Whether a guard made the verdict what it is."""
    launches_a_side: int
    a: SideDocument
    b: SideDocument
    repository: str
    log_differences: tuple[tuple[str, str, str], ...] = ()
    """What the engines' logs say differently: fact, A, B."""
    client_differences: tuple[tuple[str, str, str], ...] = ()
    """What differs between the clients of the sides: version, sources, packages, ...; A, B."""
    phases: PhasesDocument | None = None
    """None for launches without counters."""

    def report(self) -> Report:
        """The report of a comparison, or of the check that asked for it."""
        headline = self.headline
        sides = zip((self.a, self.b), (headline.left, headline.right), strict=True)
        groups = [
            LaunchGroup(
                f"{SIDES[index].upper()}: {side.name}",
                ("end", "search")[index],
                ("circle", "square")[index],
                tuple(launch for launch in self.launches if launch.position == index),
                level,
            )
            for index, (side, level) in enumerate(sides)
        ]
        return render_report(
            "experiments/templates/compare.md.jinja",
            {"r": self, "moved_phases": moved_sentences(self.phases)},
            {
                "by-commit": launches_plot(groups, self.metric, by_side=True),
                "launches": launches_plot(groups, self.metric),
                "phases": phase_blocks(self.phases) if self.phases else None,
            },
        )


def read_comparison(job: Job, events: Sequence[JournalEvent]) -> CompareResult:
    """How a comparison ended, or how far it is; a UsageError says why the journal holds none."""
    plan = require_plan(job, events, ComparePlan)
    found = Measurements(job, events, plan)
    metrics = judge_metrics(plan, found.measured)
    judged = [row for row in metrics if row.judged]
    unchecked = tuple(str(g) for g in RULE.guards(plan) if str(g) not in {x.name for x in metrics})
    failed = any(row.guard and row.verdict == "regression" for row in metrics)
    claim = combine_claims((row.claim for row in judged), is_refuted=failed)
    # A guard that was not reported may have got worse, so that no claim holds without it.
    if plan.expect and unchecked and claim == "holds":
        claim = "inconclusive"
    combined = combine_words(row.verdict for row in judged)
    # A failed guard decides, however the headline moved: shorter answers are faster and no improvement.
    verdict = "regression" if failed else combined
    is_claimed = plan.expected(plan.ref) is not None
    sides = attempts_of(found.measured, 0), attempts_of(found.measured, 1)
    outcome: str = claim if is_claimed else verdict
    result = CompareResult(
        **found.fields(outcome if plan.max_regression is None else OUTCOMES[claim])
        | {"client": plan.instrument},
        verdict=verdict,
        expected=plan.expect,
        claim=claim if is_claimed else None,
        limit=plan.max_regression,
        by_guard=verdict != combined,
        next=_next_command(plan, job, judged, claim, is_finished=found.finished),
        launches_a_side=metrics[0].launches // 2,
        a=SideDocument.model_validate(plan.a, from_attributes=True),
        b=SideDocument.model_validate(plan.b, from_attributes=True),
        metrics=metrics,
        unchecked=unchecked,
        repository=plan.setting.repository,
        log_differences=log_differences(*sides),
        environment_differences=environment_differences(*sides),
        client_differences=_client_differences(*sides) if plan.side_clients else (),
        phases=phases_document((plan.a.name, plan.b.name), sides, is_blocked=True),
    )
    return result.model_copy(update={"summary": _sentences(plan, result, found.measured)})


def judge_metrics(plan: ComparePlan, measured: Sequence[Launch]) -> tuple[MetricResult, ...]:
    """Those under test, guards, then every other metric that both sides report and that has a ratio.

    Before the first verdict there are none but those under test.
    """
    judged = RULE.judge_all(plan, measured)
    # With less than a block the model has no difference of any metric.
    if judged[0].effect is None:
        return judged
    guards = RULE.guards(plan)
    judged = tuple(row.model_copy(update={"guard": row.ref in guards}) for row in judged)
    first, *others = (launch.measurement.reported for launch in measured)
    names = [name for name in first if all(name in reported for reported in others)]
    metrics: list[MetricRef] = []
    for name in names:
        try:
            metric = parse_metric(name)
        except UsageError:
            continue
        if not name.endswith(_LEFT_OUT) and metric not in (*plan.refs, *metrics) and key(metric) in names:
            metrics.append(metric)
    metrics.sort(key=lambda metric: metric not in guards)
    beside = (
        RULE.judge_beside(plan, measured, metric, guards=len(guards) if metric in guards else 0)
        for metric in metrics
    )
    return (*judged, *(row for row in beside if row is not None))


def _next_command(
    plan: ComparePlan, job: Job, judged: Sequence[MetricResult], claim: Settled, *, is_finished: bool
) -> str:
    """The command that comes next."""
    setting, limited = plan.setting, plan.max_regression is not None
    if not is_finished:
        return f"perfbisect resume {job.id}"
    if limited and claim == "inconclusive":
        launches = str(plan.max_launches)
        repeated = repeat_command(setting, "launches", launches)
        return repeated or f"perfbisect check ... --launches {launches}"
    worse = [row for row in judged if row.verdict == "regression"]
    still_open = [row for row in judged if row.verdict == "inconclusive"]
    if worse or (limited and claim == "refuted"):
        refuted = [row for row in judged if row.claim == "refuted"]
        metric = (worse or refuted or judged)[0].name
        # The ends of a bisection are commits without variants, served alike and loaded by one client.
        if not (plan.a.variant or plan.b.variant or plan.side_clients):
            ends = {"good": plan.a.change.short, "bad": plan.b.change.short}
            return follow_up_command(setting, "bisect", plan.cell, (metric,), **ends)
    elif still_open and is_open(plan, claim):
        needed = max(row.needed or 0 for row in still_open)
        blocks = str(max(needed // ab_test.BLOCK_SIZE, plan.blocks + 1))
        metrics, sides = (plan.metric, *plan.further), {"a": plan.a.typed, "b": plan.b.typed}
        sides |= {"a_client": plan.a.client, "b_client": plan.b.client}
        return repeat_command(setting, "blocks", blocks) or follow_up_command(
            setting, "compare", plan.cell, metrics, **sides, blocks=blocks
        )
    return f"perfbisect report {job.id}"


def _client_differences(a: Sequence[Attempt], b: Sequence[Attempt]) -> tuple[tuple[str, str, str], ...]:
    """What differs between the clients of the sides' last launches; nothing before both have one."""
    described: list[dict[str, str]] = []
    for attempt in (side[-1] for side in (a, b) if side):
        facts = attempt.provenance.facts.get("instrument")
        known = facts if isinstance(facts, Mapping) else {}
        own = {"version": known.get("version"), "sources": known.get("sha256"), "python": known.get("python")}
        own |= {"definitions": attempt.provenance.client_era}
        own |= package_versions(known.get("packages"))
        described.append({name: str(value) for name, value in own.items() if value})
    if len(described) < 2:
        return ()
    left, right = described
    rows = ((name, left.get(name, "-"), right.get(name, "-")) for name in dict.fromkeys((*left, *right)))
    return tuple(row for row in rows if row[1] != row[2])


def is_open(plan: ComparePlan, claim: Settled) -> bool:
    """True if more launches may tell more: nothing was claimed, or it is not settled."""
    return plan.max_regression is None and (not plan.expect or claim == "inconclusive")


def _sentences(plan: ComparePlan, result: CompareResult, measured: Sequence[Launch]) -> tuple[str, ...]:
    needed = max(row.needed or 0 for row in result.judged)
    is_told = needed and is_open(plan, result.claim or "inconclusive")
    rows = {row.name: row for row in result.metrics}
    smallest: dict[tuple[str, str], list[str]] = {}
    for row in result.judged:
        effect = percent(plan.smallest_effect_of(row.ref), False)
        smallest.setdefault((row.ref.metric.direction, effect), []).append(row.name)
    values = {
        "r": result,
        "smallest": [(names, *alike) for alike, names in smallest.items()],
        "guards": [(str(guard), rows.get(str(guard))) for guard in RULE.guards(plan)],
        "open_guards": [row.name for row in result.guards if _is_open_guard(result, row, measured)],
        "needed": max(0, needed - result.headline.launches) if is_told else None,
        "needed_for_limit": {
            row.name: _needed_for_limit(row, plan.max_regression or 0.0) for row in result.judged
        },
        "contradictions": list(_contradictions(result)),
    }
    return render_sentences("experiments/templates/compare.summary.jinja", values)


def _is_open_guard(result: CompareResult, row: MetricResult, measured: Sequence[Launch]) -> bool:
    """True if a guard stands between good news and its verdict, and the median launches differ."""
    is_good = all(CLAIMS[judged.verdict] == "holds" for judged in result.judged)
    if row.verdict != "inconclusive" or not is_good:
        return False
    sides = [[reported_value(attempt, row.ref) for attempt in attempts_of(measured, side)] for side in (0, 1)]
    left, right = ([value for value in values if value is not None] for values in sides)
    return not (left and right) or median(left) != median(right)


def _needed_for_limit(row: MetricResult, limit: float) -> int:
    """Launches that a verdict on a limit takes, besides those that there are."""
    if row.effect is None or row.low is None or row.high is None:
        return 0
    half = max(row.high - row.effect, row.effect - row.low)
    distance = abs(row.effect - limit * row.ref.metric.sign)
    # The width falls with the root of the launches; the interval must end before the limit.
    return max(ab_test.BLOCK_SIZE, math.ceil(row.launches * ((half / max(distance, 1e-6)) ** 2 - 1)))


class _Contradiction(NamedTuple):
    """Another verdict where the length of the answers is taken out (``per_unit``), or left in."""

    per_unit: bool
    row: MetricResult
    length: MetricResult | None


def _contradictions(result: CompareResult) -> Iterator[_Contradiction]:
    by_name = {row.name: row for row in result.metrics}
    shown: set[str] = set()
    for verdict, (name, (whole, length)) in product(result.judged, PER_UNIT.items()):
        judged = verdict.ref
        if judged.name not in (name, whole) or length in shown:
            continue
        other = name if judged.name == whole else whole
        # The same statistic of the other; one number a run stands for a median.
        statistic = judged.statistic or "median"
        if METRICS[other].per_request:
            row = by_name.get(str(MetricRef(other, statistic)))
        else:
            row = by_name.get(other) if statistic == "median" else None
        if row is None or row.judged or row.verdict in (verdict.verdict, "inconclusive"):
            continue
        shown.add(length)
        yield _Contradiction(other == name, row, by_name.get(length))


def _status(result: CompareResult) -> JobStatus:
    return result.status(f"by a guard, {result.effects}" if result.by_guard else result.effects)


COMPARE: Final = Experiment(
    plan=ComparePlan,
    result=read_comparison,
    status=_status,
    report=CompareResult.report,
    client_change=lambda plan: plan.b.change,
    policy=lambda _job, plan, _tools: RULE.policy(plan),
)
