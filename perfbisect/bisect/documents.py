"""Parts of a bisection's documents, and the notice of a launch that ended."""

from __future__ import annotations

from collections.abc import Sequence

from perfbisect.bisect.decision import decide
from perfbisect.bisect.decision.outcome import MAX_PROBABILITY
from perfbisect.bisect.plan import BisectPlan, Position
from perfbisect.bisect.projection import project
from perfbisect.jobs.documents import BeliefDocument, PositionDocument, change_document, launch_document
from perfbisect.jobs.events import LaunchEnded
from perfbisect.jobs.replay import LaunchRecord
from perfbisect.model.change import Change


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


def launched(
    ended: LaunchRecord, seen: Sequence[LaunchRecord], plan: BisectPlan, change: Change | None = None
) -> LaunchEnded:
    """An attempt that has ended, with what is believed since: nothing before both ends were measured.

    ``change``: the one that was measured, where it is none of the range.
    """
    change = change or plan.positions[ended.position].change
    beliefs: decide.Beliefs | None = None
    if {0, plan.last} <= {x.position for x in seen if x.end == "finished"}:
        try:
            beliefs = decide.beliefs(plan.question, project(seen, plan))
        except ValueError:
            beliefs = None
    leading: tuple[tuple[str, float], ...] = ()
    if beliefs is not None:
        best = sorted(range(1, plan.last + 1), key=lambda i: -beliefs.p[i])[:_LEADING]
        leading = tuple((plan.positions[i].change.short, shown_probability(beliefs.p[i])) for i in best)
    return LaunchEnded(
        launch=launch_document(ended, change, plan.ref),
        unit=plan.ref.metric.unit,
        leading=leading,
        none=None if beliefs is None else shown_probability(beliefs.none),
        used=sum(x.minutes for x in seen),
        budget=plan.budget,
        beliefs=belief_document(beliefs),
        history=tuple(position_document(i, p) for i, p in enumerate(plan.positions)),
    )
