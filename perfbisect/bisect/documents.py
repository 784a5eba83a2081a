"""Values of a bisection -> the parts of its documents."""

from __future__ import annotations

from perfbisect.bisect.decision import decide
from perfbisect.bisect.decision.outcome import MAX_PROBABILITY
from perfbisect.bisect.plan import Position
from perfbisect.jobs.documents import BeliefDocument, PositionDocument, change_document


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
