"""The public JSON of a bisection: its plan and its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from perfbisect.bisect.decision import decide
from perfbisect.bisect.decision.outcome import MAX_PROBABILITY
from perfbisect.bisect.plan import BisectPlan, Position
from perfbisect.bisect.projection import project
from perfbisect.common.numbers import probability
from perfbisect.jobs.documents import (
    CellDocument,
    ChangeDocument,
    CommandsDocument,
    Document,
    GuardDocument,
    LaunchDocument,
    LongDocument,
    MetricDocument,
    MinutesDocument,
    change_document,
    launch_document,
)
from perfbisect.jobs.events import EventListener, LaunchEnded
from perfbisect.jobs.replay import LaunchRecord
from perfbisect.report.console import CandidatesUpdated

BisectOutcome = Literal["found", "not reproduced", "too small", "out of budget", "inconclusive", "unfinished"]

_CHANGES = 3
"""Changes of one position that a brief plan names."""


class PositionDocument(Document):
    """A step of the range: changes whose environments are byte-identical, oldest first."""

    index: int
    changes: tuple[ChangeDocument, ...]


class SkipDocument(Document):
    """A change that cannot be measured. ``known``: before anything was built, or only when it was tried."""

    change: ChangeDocument
    reason: str
    known: Literal["before", "measured"]
    log: str = ""


class ExpectedDocument(Document):
    """What a bisection will probably take and what it can see."""

    launches_low: int
    launches_high: int
    minutes_low: float
    minutes_high: float
    resolves: tuple[tuple[int, float], ...]
    """Launches a side, and the relative step that so many can tell from nothing."""
    noise: str
    """Which noise is assumed, in words."""


class PlanDocument(LongDocument):
    """What will be done: ``perfbisect bisect --dry-run``."""

    shown: ClassVar[Mapping[str, int]] = {"positions": 30, "skips": 10}
    schema_: Literal["perfbisect.plan/2"] = Field(default="perfbisect.plan/2", alias="schema")
    cell: CellDocument
    metric: MetricDocument
    repository: str
    environment: str
    client: str
    good: ChangeDocument
    bad: ChangeDocument
    changes: int
    positions: tuple[PositionDocument, ...]
    skips: tuple[SkipDocument, ...]
    runs_per_launch: int
    budget_minutes: float
    expected: ExpectedDocument
    commands: CommandsDocument
    notes: tuple[str, ...]

    def brief(self) -> PlanDocument:
        """With the first changes of a position that has many, and how the rest is seen."""
        brief = super().brief()
        changes = sum(max(0, len(one.changes) - _CHANGES) for one in brief.positions)
        short = tuple(one.model_copy(update={"changes": one.changes[:_CHANGES]}) for one in brief.positions)
        left = {**brief.left_out, **({"positions.changes": changes} if changes else {})}
        notes = brief.notes
        if left:
            missing = ", ".join(f"{count} of {name}" for name, count in left.items())
            notes = (*notes, f"left out here: {missing}; --full brings them")
        return brief.model_copy(update={"positions": short, "left_out": left, "notes": notes})


class EffectDocument(Document):
    """A relative difference (0.1: the right side is 10 % larger) with its 95 % interval."""

    left: ChangeDocument
    right: ChangeDocument
    effect: float
    low: float
    high: float
    launches: int


class BeliefDocument(Document):
    """What is believed at the end: probabilities by position, and the noise as seen.

    No probability is told above 0.99, so those of all positions need not add up to what is left of ``none``.
    """

    none: float
    leading: tuple[int, ...]
    leading_probability: float
    by_position: tuple[float, ...]
    noise_between_runs: float
    noise_between_launches: float
    step: float
    step_low: float
    step_high: float


class StepDocument(Document):
    """One of several steps of a range: ``culprits`` cannot be told apart; ``confirmed``: their A/B."""

    culprits: tuple[PositionDocument, ...]
    probability: float
    confirmed: EffectDocument


class ReportDocument(LongDocument):
    """How a bisection ended, or how far it is: ``bisect``, ``resume``, ``report``."""

    shown: ClassVar[Mapping[str, int]] = {
        "launches": -4,
        "history": 0,
        "skips": 10,
        "merged": 0,
        "not_tested": 5,
        "cherry_picks": 10,
    }
    schema_: Literal["perfbisect.report/2"] = Field(default="perfbisect.report/2", alias="schema")
    job: str
    cell: CellDocument
    environment: str
    client: str
    launches: tuple[LaunchDocument, ...]
    minutes: MinutesDocument
    reproduce: CommandsDocument
    versions: dict[str, Any]
    notes: tuple[str, ...]
    folder: str
    outcome: BisectOutcome
    summary: tuple[str, ...]
    next: str
    probability: float
    culprit: ChangeDocument | None
    culprits: tuple[PositionDocument, ...]
    parent: ChangeDocument | None
    confirmed: EffectDocument | None
    whole: EffectDocument | None
    share: float | None
    guards: tuple[GuardDocument, ...]
    beliefs: BeliefDocument | None
    metric: MetricDocument
    repository: str
    good: ChangeDocument
    bad: ChangeDocument
    changes: int
    positions: int
    history: tuple[PositionDocument, ...] = ()
    """Every position of the range, the good end first: what ``beliefs.by_position`` counts through."""
    skips: tuple[SkipDocument, ...]
    merged: tuple[PositionDocument, ...]
    not_tested: tuple[ChangeDocument, ...]
    steps: tuple[StepDocument, ...] = ()
    """Where every step was asked for: those that were named, in the history's order."""
    log_differences: tuple[tuple[str, str, str], ...] = ()
    """What the engines' own logs say differently at parent and culprit: fact, parent's, culprit's."""
    revert: EffectDocument | None = None
    """The bad end against the bad end with the culprit reverted, where that was measured."""
    revert_note: str = ""
    """... and why it was not, where it was asked for."""
    cherry_picks: tuple[ChangeDocument, ...] = ()
    """Changes that only the good end's own branch has, where the step is between it and the merge base."""

    def brief(self) -> ReportDocument:
        """Without the probability of every position: those that lead are named."""
        brief = super().brief()
        if brief.beliefs is None or not brief.beliefs.by_position:
            return brief
        left = {**brief.left_out, "beliefs.by_position": len(brief.beliefs.by_position)}
        beliefs = brief.beliefs.model_copy(update={"by_position": ()})
        return brief.model_copy(update={"beliefs": beliefs, "left_out": left})


def position_document(index: int, position: Position) -> PositionDocument:
    return PositionDocument(index=index, changes=tuple(change_document(c) for c in position.changes))


def shown_probability(p: float) -> float:
    """A probability as documents tell it: to a ten-thousandth, and never above what the model is good for."""
    return min(MAX_PROBABILITY, round(p, 4))


def belief_document(told: decide.Beliefs | None) -> BeliefDocument | None:
    """A posterior as it is shown."""
    if told is None:
        return None
    return BeliefDocument(
        none=shown_probability(told.none),
        leading=told.leading,
        leading_probability=shown_probability(told.leading_p),
        by_position=tuple(shown_probability(p) for p in told.p),
        noise_between_runs=told.sigma,
        noise_between_launches=told.tau,
        step=told.step,
        step_low=told.step_low,
        step_high=told.step_high,
    )


_LEADING = 3


def report_launch(
    ended: LaunchRecord, seen: Sequence[LaunchRecord], plan: BisectPlan, sink: EventListener
) -> None:
    """Sends an ended launch, and what is believed since, once both ends were measured."""
    positions, unit = plan.positions, plan.ref.metric.unit
    document = launch_document(ended, positions[ended.position].change, plan.ref)
    used = sum(x.minutes for x in seen)
    both_ends = {0, plan.last} <= {x.position for x in seen if x.end == "finished"}
    beliefs = search_beliefs(plan, seen) if both_ends else None
    if beliefs is None:
        sink(LaunchEnded(document, unit, used, plan.budget))
        return
    best = sorted(range(1, plan.last + 1), key=lambda i: -beliefs.p[i])[:_LEADING]
    leading = ", ".join(
        f"{positions[i].change.short} {probability(shown_probability(beliefs.p[i]))}" for i in best
    )
    none = shown_probability(beliefs.none)
    sink(
        LaunchEnded(
            document, unit, used, plan.budget, f"leading {leading}; nothing changed {probability(none)}"
        )
    )
    labels = tuple((position.change.short, position.change.subject) for position in positions)
    shares = tuple(map(shown_probability, beliefs.p))
    sink(CandidatesUpdated(labels, shares, none, frozenset(i for i, p in enumerate(positions) if p.skip)))


def search_beliefs(plan: BisectPlan, seen: Sequence[LaunchRecord]) -> decide.Beliefs | None:
    """What the launches say; None if they cannot be judged."""
    try:
        return decide.beliefs(plan.question, project(seen, plan))
    except (ValueError, KeyError):
        return None
