"""Launches of one or two sides in turn, judged metric by metric: what run, compare and check share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from pydantic import Field

from perfbisect.common.quantities import percent
from perfbisect.engine.experiment import JobStatus
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION
from perfbisect.experiments.claims import Settled
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import (
    CommandsDocument,
    Document,
    MeasuredDocument,
    NamedMetric,
    measured_fields,
    metric_document,
)
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.loop import Done, JobState, LaunchPolicy, fits_budget
from perfbisect.jobs.plans import BudgetedPlan, PlanPart, plan_cell
from perfbisect.jobs.replay import Launch, LaunchRequest, launches, minutes_saved
from perfbisect.jobs.sequence import sequential
from perfbisect.model.attempt import Attempt, Purpose, is_same_class
from perfbisect.model.cell import Cell, apply_variant
from perfbisect.model.change import Change
from perfbisect.model.environment import EnvironmentRows
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.stats.two_sample import LaunchNoise

RUNS = 2
"""Runs a launch, where the engine can empty its caches between them: the second is nearly free."""

VerdictWord = Literal["regression", "beyond", "inconclusive", "improvement", "same", "within"]

CLAIMS: dict[str, Settled] = {
    "improvement": "holds",
    "same": "holds",
    "within": "holds",
    "regression": "refuted",
    "beyond": "refuted",
    "inconclusive": "inconclusive",
}
"""What a verdict means for the claim that nothing got worse."""

OUTCOMES: dict[Settled, str] = {"holds": "passed", "refuted": "failed", "inconclusive": "inconclusive"}
"""What was claimed of nothing worse than a limit -> the outcome of a check."""

_EXIT_CODES = {
    "regression": EXIT_REGRESSION,
    "refuted": EXIT_REGRESSION,
    "failed": EXIT_REGRESSION,
    "inconclusive": EXIT_INCONCLUSIVE,
}


def exit_code(outcome: str) -> int:
    """3 regression, refuted or failed; 4 inconclusive; 0 otherwise."""
    return _EXIT_CODES.get(outcome, EXIT_OK)


def combine_words(words: Iterable[VerdictWord]) -> VerdictWord:
    """The verdict on several metrics: the worst; no good one stands while a metric is open."""
    return min(words, key=get_args(VerdictWord).index, default="inconclusive")


def measured_launches(launches: Iterable[Launch]) -> tuple[Launch, ...]:
    """The launches that gave values, in order."""
    # A profiler slows what it watches: its launches explain a step and never measure one.
    return tuple(x for x in launches if x.outcome == "measured" and x.purpose != "profile")


def attempts_of(measured: Iterable[Launch], position: int) -> tuple[Attempt, ...]:
    """The attempts of one side."""
    return tuple(launch.measurement for launch in measured if launch.position == position)


class SidePlan(PlanPart):
    """One side: what was typed, the change that is built, the variant as which it is served."""

    typed: str
    change: Change
    variant: str = ""
    client: str = ""
    """Specification of the environment of its own client; empty: the job's client."""
    client_exclude_newer: str = ""
    """The day of that client's dependencies; empty: the servers'."""

    @property
    def name(self) -> str:
        own = f" (client {self.client})" if self.client else ""
        return self.change.short + (f"+{self.variant}" if self.variant else "") + own


class MeasurementPlan(BudgetedPlan):
    """Launches of the sides in turn, ``runs`` each; budget in minutes."""

    per_look: ClassVar[int]
    """Launches between two verdicts."""
    runs: int
    further: tuple[str, ...] = ()
    """Metrics that are judged too, besides ``metric``."""
    noise: Mapping[str, LaunchNoise] = Field(default_factory=dict)
    """What earlier launches of the cell say of a launch, by metric ..."""
    noise_machine: str = ""
    """... and the class of the machine that made them: of another they say nothing."""

    @property
    def refs(self) -> tuple[MetricRef, ...]:
        """All metrics that are judged."""
        return self.ref, *map(parse_metric, self.further)

    def known_noise(self, metric: MetricRef, measured: Iterable[Launch]) -> LaunchNoise | None:
        """What is known of the noise of these launches before them."""
        kinds = {launch.measurement.provenance.machine_class for launch in measured}
        is_known = all(is_same_class(kind, self.noise_machine) for kind in kinds)
        return self.noise.get(str(metric)) if is_known else None

    @property
    @abstractmethod
    def sides(self) -> tuple[SidePlan, ...]: ...

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(side.change for side in self.sides)

    @property
    @abstractmethod
    def max_launches(self) -> int: ...

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cell as each side serves it."""
        cell = plan_cell(self)
        return tuple(apply_variant(cell, side.variant) if side.variant else cell for side in self.sides)


class ChangePlan(MeasurementPlan):
    """Launches of one change; ``launches``: at most."""

    change: Change
    launches: int

    @property
    def sides(self) -> tuple[SidePlan, ...]:
        return (SidePlan(typed=self.change.short, change=self.change),)

    @property
    def max_launches(self) -> int:
        return self.launches


class MetricResult(NamedMetric):
    """A metric of B against A, or of a change (``right``) against a limit (``line``); None: not known yet.

    ``effect``: B / A - 1 (of shares B - A, where ``absolute``) with its interval, of a check that against the
    recorded level. ``judged``: the verdict counts; of any other it is one of many: a hint. ``claim``: of a
    judged one, whether it is no worse, or as was claimed. ``needed``: launches that a verdict takes; 0:
    unknown or settled, None: no number of launches is enough.
    """

    absolute: bool
    judged: bool
    guard: bool
    verdict: VerdictWord
    claim: Settled | None = None
    left: float | None = None
    right: float | None = None
    line: float | None = None
    """The level from which on it is too bad."""
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    launches: int
    needed: int | None = 0
    note: str = ""
    """Why it is the same where no run of either side differed from another."""

    @property
    def ref(self) -> MetricRef:
        return parse_metric(self.name)


def known(value: float) -> float | None:
    """A number as a result has it: None where there is none yet."""
    return None if math.isnan(value) else value


def metric_fields(metric: MetricRef) -> dict[str, Any]:
    """How a metric is called and shown."""
    document = metric_document(metric)
    return {"name": document.name, "display": document.display, "unit": document.unit}


def metric_result(plan: MeasurementPlan, metric: MetricRef, **found: Any) -> MetricResult:
    """A row of a result; ``found``: the verdict and its numbers, nan where there is none."""
    return MetricResult(
        **metric_fields(metric),
        absolute=metric.metric.absolute,
        judged=metric in plan.refs,
        **{"guard": False} | {k: known(v) if isinstance(v, float) else v for k, v in found.items()},
    )


PlanT = TypeVar("PlanT", bound=MeasurementPlan)


@dataclass(frozen=True)
class MeasurementRule(Generic[PlanT]):
    """What kinds of measurements differ in."""

    judge: Callable[[PlanT, Sequence[Launch], MetricRef, int], MetricResult] | None = None
    """The verdict on a metric, as one of so many tests that share its error; None: nothing is judged.

    Raises KeyError where the metric was not reported, ValueError where a value has no level.
    """
    judge_unvaried: Callable[[PlanT, Sequence[Launch], MetricResult], MetricResult] = (
        lambda _plan, _measured, row: row
    )
    """The verdict on a metric beside those under test, where it may never have varied."""
    guards: Callable[[PlanT], tuple[MetricRef, ...]] = lambda _: ()
    """Metrics that must not get worse."""
    side_of: Callable[[PlanT, int], int] = lambda *_: 0
    """The side of the launch after so many."""
    reason: Callable[[PlanT, int], str] = lambda plan, count: f"launch {count + 1} of {plan.max_launches}"
    """Why there is a launch after so many."""
    side_name: Callable[[PlanT, int], str] = lambda plan, side: f"change {plan.sides[side].name}"
    """Names a side in error messages."""
    admit: Callable[[PlanT, Attempt, Sequence[Launch]], None] = lambda *_: None
    """Raises an error if a launch cannot be compared with the others."""
    purpose: Purpose = "run"
    advice: str = "read the log; choose another --at or --env"
    block: int = 0
    """Launches that belong on one machine; 0: all on one."""

    def judge_all(self, plan: PlanT, measured: Sequence[Launch]) -> tuple[MetricResult, ...]:
        """The verdict on each metric under test."""
        refs = plan.refs
        return tuple(self.judge(plan, measured, ref, len(refs)) for ref in refs) if self.judge else ()

    def judge_beside(
        self, plan: PlanT, measured: Sequence[Launch], metric: MetricRef, *, guards: int = 0
    ) -> MetricResult | None:
        """The verdict on a metric that is not under test; None where it was not reported or has no ratio.

        ``guards``: how many there are, of a guard: they share its error.
        """
        assert self.judge is not None
        try:
            row = self.judge(plan, measured, metric, guards or 1)
        except (KeyError, ValueError):
            return None
        # The limit and the claim are of the metrics under test alone.
        row = row.model_copy(update={"judged": False, "claim": None, "guard": bool(guards)})
        return row if row.effect is None else self.judge_unvaried(plan, measured, row)

    def judge_guards(self, plan: PlanT, measured: Sequence[Launch]) -> dict[MetricRef, MetricResult | None]:
        """The verdict on each guard; None where it was not reported or has no ratio."""
        guards = self.guards(plan)
        return {guard: self.judge_beside(plan, measured, guard, guards=len(guards)) for guard in guards}

    def policy(self, plan: PlanT) -> LaunchPolicy:
        """The launches of a plan."""
        return sequential(
            partial(self._next_launch, plan, plan.cells),
            plan.ref,
            admit=partial(self.admit, plan),
            budget=plan.budget or 0.0,
            advice=self.advice,
            block=self.block,
        )

    def _next_launch(self, plan: PlanT, cells: Sequence[Cell], state: JobState) -> LaunchRequest | Done:
        measured = measured_launches(state.launches)
        count, for_guards = len(measured), False
        if count >= plan.max_launches:
            return self._done(plan, measured)
        if self.judge and count and count % plan.per_look == 0:
            claims = {row.claim for row in self.judge_all(plan, measured)}
            is_last = count + plan.per_look > plan.max_launches
            # Good news waits for its guards while launches are left; a regression needs none.
            for_guards = claims == {"holds"} and not is_last and self._has_open_guard(plan, measured)
            if is_last or ("inconclusive" not in claims and not for_guards):
                return self._done(plan, measured)
        # After the look above: the launches made so far may settle it without more budget.
        if plan.budget is not None and not fits_budget(state.launches, plan.budget):
            return self._done(plan, measured)
        side = self.side_of(plan, count)
        why = self.reason(plan, count) + (", for the guards" if for_guards else "")
        mate: Change | None = None
        if len(cells) > 1 and count % 2 == 0 and cells[0] == cells[1]:
            mate = plan.sides[1 - side].change
        return LaunchRequest(
            side,
            plan.sides[side].change,
            self.purpose,
            plan.runs,
            why,
            cells[side],
            self.side_name(plan, side),
            mate,
            client=plan.sides[side].client,
        )

    def _done(self, plan: PlanT, measured: Sequence[Launch]) -> Done:
        judged = self.judge_all(plan, measured)
        if not judged:
            return Done({"verdict": "measured"})
        word = combine_words(row.verdict for row in judged)
        return Done({"verdict": word, "launches": judged[0].launches})

    def _has_open_guard(self, plan: PlanT, measured: Sequence[Launch]) -> bool:
        """True if a guard that was reported needs more launches for a verdict."""
        guards = self.judge_guards(plan, measured).values()
        return any(row is not None and row.verdict == "inconclusive" for row in guards)


class SideDocument(Document):
    """One side: as it was typed, the change that was built, the variant as which it was served."""

    typed: str
    name: str
    change: Change
    variant: str
    client: str = ""
    """Specification of the environment of its own client; empty: the job's client."""


class MeasurementResult(MeasuredDocument):
    """What launches of the sides say; ``outcome``: in a word, as the exit code, ``unfinished`` before."""

    outcome: str
    reproduce: tuple[CommandsDocument, ...]

    def status(self, verdict: str) -> JobStatus:
        """The progress of the job; ``verdict``: the outcome's subject."""
        return JobStatus(
            outcome=self.outcome,
            exit_code=exit_code(self.outcome),
            verdict=verdict,
            next=self.next,
        )


class VerdictResult(MeasurementResult):
    """A verdict on ``metrics``, those under test first: ``metric`` and further ones.

    ``unchecked``: guards without a verdict. ``environment_differences``: between the two sides, or what was
    recorded and what was measured; None where nothing is known of one.
    """

    metrics: tuple[MetricResult, ...]
    unchecked: tuple[str, ...] = ()
    environment_differences: EnvironmentRows | None = None

    @property
    def headline(self) -> MetricResult:
        return self.metrics[0]

    @property
    def judged(self) -> tuple[MetricResult, ...]:
        return tuple(row for row in self.metrics if row.judged)

    @property
    def guards(self) -> tuple[MetricResult, ...]:
        return tuple(row for row in self.metrics if row.guard)

    @property
    def effects(self) -> str:
        """The effects under test in a line; empty before the first verdict."""
        return ", ".join(f"{row.name} {percent(row.effect)}" for row in self.judged if row.effect is not None)


class Measurements(Generic[PlanT]):
    """What a journal holds of a plan's launches."""

    def __init__(self, job: Job, events: Sequence[JournalEvent], plan: PlanT) -> None:
        self.job, self.plan, self.events = job, plan, events
        self.records = launches(events)
        self.measured = measured_launches(self.records)
        self.finished = finished(events)

    def fields(self, outcome: str) -> dict[str, Any]:
        """The fields that all results have; ``outcome``: of the job if it has ended."""
        plan, cells = self.plan, self.plan.cells
        shared = measured_fields(
            self.job,
            plan,
            cells[0],
            self.records,
            lambda launch: plan.sides[launch.position].change,
            minutes_saved(self.events, self.records),
        )
        last = {launch.position: launch.attempt for launch in self.measured}
        return {
            **shared,
            "finished": self.finished,
            "outcome": outcome if self.finished else "unfinished",
            "reproduce": tuple(
                commands_document(cell, plan.setting, side.change, last.get(index))
                for index, (side, cell) in enumerate(zip(plan.sides, cells, strict=True))
            ),
        }
