"""The report of a bisection as public JSON, and the values in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from perfbisect.bisect.decision.model import Beliefs
from perfbisect.bisect.decision.outcome import MAX_PROBABILITY
from perfbisect.bisect.plan import BisectPlan
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
)

BisectOutcome = Literal["found", "not reproduced", "too small", "out of budget", "inconclusive", "unfinished"]


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

    Probabilities are capped at 0.99, so those of all positions need not add up to what is left of ``none``.
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
    """One of several steps of a range: ``culprits`` cannot be distinguished; ``confirmed``: their A/B."""

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


def position_documents(plan: BisectPlan) -> tuple[PositionDocument, ...]:
    return tuple(
        PositionDocument(index=index, changes=tuple(map(change_document, position.changes)))
        for index, position in enumerate(plan.positions)
    )


def skip_documents(plan: BisectPlan) -> tuple[SkipDocument, ...]:
    """The positions that are known not to be testable."""
    return tuple(
        SkipDocument(change=change_document(position.change), reason=position.skip, known="before")
        for position in plan.positions
        if position.skip
    )


def shown_probability(p: float) -> float:
    """Rounded to a ten-thousandth, and never above what the model is good for."""
    return min(MAX_PROBABILITY, round(p, 4))


def belief_document(beliefs: Beliefs) -> BeliefDocument:
    return BeliefDocument(
        none=shown_probability(beliefs.none),
        leading=beliefs.leading,
        leading_probability=shown_probability(beliefs.leading_p),
        by_position=tuple(map(shown_probability, beliefs.p)),
        noise_between_runs=beliefs.sigma,
        noise_between_launches=beliefs.tau,
        step=beliefs.step,
        step_low=beliefs.step_low,
        step_high=beliefs.step_high,
    )
