"""The result of a bisection: its value, its public JSON, and what its report is made from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from perfbisect.bisect.bisection import Bisection, recast_bisection
from perfbisect.bisect.decision.machines import machine_offsets
from perfbisect.bisect.decision.model import Beliefs, Comparison, NamedStep, Skipped
from perfbisect.bisect.decision.outcome import MAX_PROBABILITY
from perfbisect.bisect.learnt import LearntDocument, lesson
from perfbisect.bisect.plan import RangePlan
from perfbisect.bisect.replicate import Replication
from perfbisect.bisect.revert import RevertCheck
from perfbisect.bisect.search_events import SEARCHING, machines_out, to_search_events, why_out
from perfbisect.bisect.summary import next_command, summarize
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import (
    CommandsDocument,
    Document,
    MeasuredDocument,
    NamedMetric,
    log_differences,
    measured_fields,
)
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.plans import guard_metrics, plan_cell
from perfbisect.jobs.replay import minutes_saved, reported_value
from perfbisect.model.attempt import Attempt
from perfbisect.model.change import Change
from perfbisect.model.environment import EnvironmentRows, environment_differences
from perfbisect.model.metric import MetricRef
from perfbisect.report.phases import PhasesDocument, phases_document
from perfbisect.stats.two_sample import Scale, differ

BisectOutcome = Literal[
    "found",
    "narrowed",
    "not reproduced",
    "too small",
    "gradual",
    "out of budget",
    "inconclusive",
    "unfinished",
]


GUARD_ERROR = 0.01
"""Probability that any guard of a bisection is said to have moved where none did."""


def shown_probability(p: float) -> float:
    return min(MAX_PROBABILITY, round(p, 4))


ShownProbability = Annotated[float, AfterValidator(shown_probability)]
"""Rounded to a ten-thousandth, and never above what the model is good for."""


def _shown_beliefs(beliefs: Beliefs) -> Beliefs:
    return replace(
        beliefs,
        p=tuple(map(shown_probability, beliefs.p)),
        none=shown_probability(beliefs.none),
        leading_p=shown_probability(beliefs.leading_p),
    )


class PositionDocument(Document):
    """A step of the range: changes whose environments are byte-identical, oldest first."""

    index: int
    changes: tuple[Change, ...]


class CandidateDocument(Document):
    """A position of a narrowed range, with its probability."""

    position: PositionDocument
    probability: ShownProbability


class GuardDocument(NamedMetric):
    """A metric that must not move, in the confirming A/B: medians over launches.

    ``moved``: the sides differ; one of all guards does so falsely with at most :data:`GUARD_ERROR`.
    """

    left: float | None
    right: float | None
    moved: bool
    note: Literal["", "not reported", "one launch", "not ended", "zero"] = ""


class SkipDocument(Document):
    """A change that cannot be measured. ``known``: before anything was built, or only when it was tried."""

    change: Change
    reason: str
    known: Literal["before", "measured"]
    log: str = ""


class RangeDocument(Document):
    """The range of a bisection. ``changes``: how many; ``skips``: what of it cannot be measured."""

    repository: str
    good: Change
    bad: Change
    changes: int
    skips: tuple[SkipDocument, ...]


class FleetMachineDocument(Document):
    """A machine of a fleet.

    ``offset``: by how much the metric is larger there than on the middle machine, for any change, with its
    95 % interval; None where that is not known. ``out_of_use``: why, empty where it is in use.
    """

    name: str
    launches: int
    offset: float | None
    low: float | None
    high: float | None
    out_of_use: str = ""


class RangeSearchResult(RangeDocument, MeasuredDocument):
    """What the results of searches of a range have in common."""

    reproduce: CommandsDocument
    culprit: Change | None
    culprits: tuple[PositionDocument, ...]
    parent: Change | None
    positions: int
    cherry_picks: tuple[Change, ...] = ()
    """Changes that only the good end's own branch has, where the cause is between it and the merge base."""


class BisectResult(RangeSearchResult):
    """How a bisection ended, or how far it is: ``bisect``, ``resume``, ``report``."""

    shown: ClassVar[Mapping[str, int]] = {
        "launches": -4,
        "skips": 10,
        "merged": 0,
        "not_tested": 5,
        "cherry_picks": 10,
    }
    schema_: Literal["perfbisect.report/6"] = Field(default="perfbisect.report/6", alias="schema")
    outcome: BisectOutcome
    probability: ShownProbability
    candidates: tuple[CandidateDocument, ...] = ()
    """Of a narrowed range: the same positions, the likeliest first."""
    confirmed: Comparison | None
    whole: Comparison | None
    share: float | None
    guards: tuple[GuardDocument, ...]
    beliefs: Annotated[Beliefs, AfterValidator(_shown_beliefs)] | None
    history: tuple[PositionDocument, ...] = ()
    """Every position of the range, the good end first: what positions everywhere count through."""
    merged: tuple[PositionDocument, ...]
    not_tested: tuple[Change, ...]
    steps: tuple[NamedStep, ...] = ()
    """Where every step was asked for: those that were named, in the history's order."""
    log_differences: tuple[tuple[str, str, str], ...] = ()
    """What the engines' own logs say differently at parent and culprit: fact, parent's, culprit's."""
    environment_differences: EnvironmentRows | None = None
    """How the environments of parent and culprit differ; None where none was named or recorded."""
    phases: PhasesDocument | None = None
    """Of parent and culprit, or without an A/B of the two ends; None for launches without counters."""
    machines: tuple[FleetMachineDocument, ...] = ()
    """Those of a fleet that made launches."""
    replication: Replication = Replication()
    """The step on other machines of a fleet."""
    revert: RevertCheck = RevertCheck()
    """The bad end against the bad end with the culprit reverted, where that was asked for."""
    learnt: LearntDocument | None = None
    """What it teaches later bisections of the repository."""

    def change(self, position: int) -> Change:
        """The change that is measured at a position."""
        return self.history[position].changes[0]

    def brief(self) -> BisectResult:
        """With the positions that are named alone, and without the probability of every one."""
        brief = super().brief()
        steps = [step for step in (self.confirmed, *(named.confirmed for named in self.steps)) if step]
        named = {position.index for position in self.culprits}
        named |= {index for step in steps for index in range(step.parent, step.culprit + 1)}
        history = tuple(position for position in self.history if position.index in named)
        left, beliefs = dict(brief.left_out), self.beliefs
        if len(history) < len(self.history):
            left["history"] = len(self.history) - len(history)
        if beliefs is not None and beliefs.p:
            left["beliefs.p"] = len(beliefs.p)
            beliefs = replace(beliefs, p=())
        return brief.model_copy(update={"history": history, "beliefs": beliefs, "left_out": left})


def result_for_metric(job: Job, events: Sequence[JournalEvent], metric: MetricRef) -> BisectResult:
    """The result as if another metric had been asked for.

    If the launches do not settle that, the outcome is ``inconclusive`` with the price of the rest.

    Raises:
        UsageError: the job is no bisection, or its client did not report the metric.
    """
    return build_result(recast_bisection(job, events, metric))


def build_result(bisection: Bisection) -> BisectResult:
    """The result of launches and their outcome; without one, how far the job is."""
    plan, records, outcome, check = bisection.plan, bisection.records, bisection.outcome, bisection.revert
    cell, positions = plan_cell(plan), position_documents(plan)
    culprits = outcome.culprits if outcome else ()
    confirmed = outcome.confirmed if outcome else None
    parent = plan.positions[confirmed.parent if confirmed else 0].change
    shown = plan.positions[culprits[0] if bisection.found else -1].change
    good, bad = plan.ends
    changes = {change.id: change for position in plan.positions for change in position.changes}
    measured = {x.position for x in bisection.measured if x.purpose in SEARCHING}
    skips = (*skip_documents(plan), *_measured_skips(bisection, measured))
    skipped = {skip.change.id for skip in skips}
    example = next((x.attempt for x in reversed(bisection.measured) if x.change.id == shown.id), None)
    launched = {
        (index, change.id): change
        for index, position in enumerate(plan.positions)
        for change in position.changes
    }
    # The culprits of a narrowed range, the likeliest first.
    p = outcome.beliefs.p if outcome and outcome.beliefs and outcome.verdict == "narrowed" else ()
    narrowed = bisection.likeliest if p else ()
    return BisectResult(
        **measured_fields(
            bisection.job,
            plan,
            cell,
            records,
            lambda launch: (
                check.change
                if check.change is not None and launch.change.id == check.change.id
                else launched[launch.position, launch.change.id]
            ),
            minutes_saved(bisection.events, records),
        ),
        outcome=outcome.verdict if outcome else "inconclusive" if bisection.is_recast else "unfinished",
        summary=summarize(bisection),
        next=next_command(bisection),
        finished=bisection.outcome is not None,
        probability=outcome.probability if outcome else 0.0,
        culprit=(shown if bisection.found and len(culprits) == 1 and not bisection.is_on_branch else None),
        culprits=tuple(positions[index] for index in culprits),
        candidates=tuple(CandidateDocument(position=positions[i], probability=p[i]) for i in narrowed),
        parent=parent if bisection.found else None,
        confirmed=confirmed,
        whole=outcome.whole if outcome else None,
        share=outcome.share if outcome else None,
        guards=_guards(bisection),
        beliefs=bisection.beliefs,
        repository=plan.setting.repository,
        good=good,
        bad=bad,
        changes=len(changes),
        positions=len(positions),
        history=positions,
        skips=skips,
        merged=tuple(position for position in positions if len(position.changes) > 1),
        not_tested=tuple(
            position.changes[0]
            for position in positions
            if position.index not in measured and position.changes[0].id not in skipped
        ),
        reproduce=commands_document(cell, plan.setting, shown, example),
        steps=tuple(
            replace(step, probability=shown_probability(step.probability))
            for step in (outcome.steps if outcome else ())
        ),
        log_differences=(
            log_differences(*([x.measurement for x in side] for side in bisection.sides))
            if bisection.found
            else ()
        ),
        environment_differences=(
            environment_differences(*([x.measurement for x in side] for side in bisection.sides))
            if bisection.found
            else None
        ),
        phases=_phases(bisection),
        machines=tuple(_machines(bisection)),
        replication=bisection.replication,
        revert=bisection.revert,
        learnt=lesson(bisection),
        cherry_picks=(plan.branch.own if bisection.is_on_branch and plan.branch else ()),
    )


def _machines(bisection: Bisection) -> Iterator[FleetMachineDocument]:
    """The machines of a fleet, in the order of their first launches; none of a job without a fleet."""
    plan, scale, out = bisection.plan, bisection.plan.search.scale, machines_out(bisection.events)
    events = to_search_events(bisection.records, plan)
    known = {x.machine: x for x in machine_offsets(events, plan.last, scale)} | out
    for name in bisection.machines:
        offset = known.get(name)
        is_known = offset is not None and math.isfinite(offset.error)
        effect, low, high = offset.relative(scale) if offset and is_known else (None, None, None)
        yield FleetMachineDocument(
            name=name,
            launches=sum(launch.machine == name for launch in bisection.records),
            offset=effect,
            low=low,
            high=high,
            out_of_use=why_out(out[name], plan) if name in out else "",
        )


def position_documents(plan: RangePlan) -> tuple[PositionDocument, ...]:
    return tuple(
        PositionDocument(index=index, changes=position.changes)
        for index, position in enumerate(plan.positions)
    )


def skip_documents(plan: RangePlan) -> tuple[SkipDocument, ...]:
    """The positions that are known not to be testable."""
    return tuple(
        SkipDocument(change=position.change, reason=position.skip, known="before")
        for position in plan.positions
        if position.skip
    )


def _measured_skips(bisection: Bisection, measured: set[int]) -> Sequence[SkipDocument]:
    skips = []
    events = to_search_events(bisection.records, bisection.plan)
    for index in dict.fromkeys(event.index for event in events if isinstance(event, Skipped)):
        last = [x for x in bisection.records if x.position == index and x.refused][-1]
        skips.append(
            SkipDocument(
                change=bisection.plan.positions[index].change,
                reason=last.reason + (" (it was served at other times)" if index in measured else ""),
                known="measured",
                log=last.log,
            )
        )
    return skips


def _guards(bisection: Bisection) -> tuple[GuardDocument, ...]:
    """Judged once, when the job has ended: in the A/B, or without one over all launches of the sides."""
    attempts: dict[tuple[int, bool], list[Attempt]] = {}
    for launch in bisection.measured:
        if launch.purpose in SEARCHING:
            key = launch.position, launch.purpose == "confirm"
            attempts.setdefault(key, []).append(launch.measurement)
    sides = [attempts.pop((x, True), []) or attempts.pop((x, False), []) for x in bisection.compared]
    plan = bisection.plan
    guards = tuple(dict.fromkeys((*guard_metrics(plan_cell(plan)), *plan.channel_refs)))
    # Bonferroni over the guards. Once, at the end: a look after each launch would multiply the error.
    error, has_ended = GUARD_ERROR / max(1, len(guards)), bisection.outcome is not None
    return tuple(_judge_guard(guard, [*sides, *attempts.values()], error, has_ended) for guard in guards)


def _phases(bisection: Bisection) -> PhasesDocument | None:
    """Of all launches of both changes, also of those before the A/B."""
    a, b = ([launch.measurement for launch in side] for side in bisection.sides)
    others: dict[int, list[Attempt]] = {}
    for launch in bisection.measured:
        is_compared = launch.position in bisection.compared
        if launch.purpose in SEARCHING and not is_compared:
            others.setdefault(launch.position, []).append(launch.measurement)
    left, right = (bisection.plan.positions[x].change.short for x in bisection.compared)
    # Whether these launches are those of the A/B and no others.
    is_blocked = all(launch.purpose == "confirm" for side in bisection.sides for launch in side)
    return phases_document((left, right), (a, b), others.values(), is_blocked=is_blocked)


def _judge_guard(
    metric: MetricRef, groups: Sequence[Sequence[Attempt]], error: float, has_ended: bool
) -> GuardDocument:
    """``groups``: the sides, then other launches of one change each, which show the noise."""
    row, scale = metric.metric, Scale.of(metric.metric)
    reported = [
        [value for attempt in group if (value := reported_value(attempt, metric)) is not None]
        for group in groups
    ]
    a, b, *others = reported
    moved = False
    note: Literal["", "not reported", "one launch", "not ended", "zero"] = ""
    if not a or not b:
        note = "not reported"
    elif min(len(a), len(b)) < 2:
        note = "one launch"
    elif not has_ended:
        note = "not ended"
    elif not row.absolute and min(value for group in reported for value in group) <= 0:
        note = "zero"
    else:
        levels = [[scale.level((value,)) for value in group] for group in (a, b, *filter(None, others))]
        moved = differ(levels, scale.room(row.smallest_effect), error)
    return GuardDocument(
        name=str(metric),
        display=row.display,
        unit=row.unit,
        left=median(a) if a and b else None,
        right=median(b) if a and b else None,
        moved=moved,
        note=note,
    )
