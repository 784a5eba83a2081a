"""What a bisection tells whoever watches, as values."""

from __future__ import annotations

from collections.abc import Sequence

from perfbisect.core import bisect as core
from perfbisect.core.change import Change
from perfbisect.jobs.bisect_plan import BisectPlan
from perfbisect.jobs.bisect_views import belief_document, position_document, shown_probability
from perfbisect.jobs.fold import Launch
from perfbisect.jobs.projection import project
from perfbisect.jobs.views import launch_document
from perfbisect.render.notices import Launched

_LEADING = 3


def launched(
    ended: Launch, seen: Sequence[Launch], plan: BisectPlan, change: Change | None = None
) -> Launched:
    """An attempt that has ended, with what is believed since: nothing before both ends were measured.

    ``change``: the one that was measured, where it is none of the range.
    """
    change = change or plan.positions[ended.position].change
    beliefs: core.Beliefs | None = None
    if {0, plan.last} <= {x.position for x in seen if x.end == "finished"}:
        try:
            beliefs = core.beliefs(plan.question, project(seen, plan))
        except ValueError:
            beliefs = None
    leading: tuple[tuple[str, float], ...] = ()
    if beliefs is not None:
        best = sorted(range(1, plan.last + 1), key=lambda i: -beliefs.p[i])[:_LEADING]
        leading = tuple((plan.positions[i].change.short, shown_probability(beliefs.p[i])) for i in best)
    return Launched(
        launch=launch_document(ended, change, plan.ref),
        unit=plan.ref.metric.unit,
        leading=leading,
        none=None if beliefs is None else shown_probability(beliefs.none),
        used=sum(x.minutes for x in seen),
        budget=plan.budget,
        beliefs=belief_document(beliefs),
        history=tuple(position_document(i, p) for i, p in enumerate(plan.positions)),
    )
