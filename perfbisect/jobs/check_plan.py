"""The question of a check against what is known already, as data: enough to go on from its journal alone."""

from __future__ import annotations

from typing import Any, Literal

from perfbisect.core.change import Change
from perfbisect.core.difference import Scale
from perfbisect.core.level import Line, above, between
from perfbisect.core.metric import MetricRef, parse_metric
from perfbisect.jobs.recorded import Recorded
from perfbisect.jobs.setting import Data, Setting


class CheckPlan(Data):
    """``perfbisect check`` of one change against a level. ``cell``: as it is served; budget in minutes.

    ``how`` says where the level is from: a ``baseline`` (``recorded`` has it, ``fail_over`` the share by
    which the change may be worse), two ``ends`` (``recorded`` has the good and the bad one; the line is in
    their middle), or two ``values`` of the metric.
    """

    verb: Literal["check"] = "check"
    cell: dict[str, Any]
    digest: str
    setting: Setting
    metric: str
    change: Change
    how: Literal["baseline", "ends", "values"]
    recorded: tuple[Recorded, ...] = ()
    values: tuple[float, float] | None = None
    """The good and the bad value."""
    fail_over: float = 0.0
    launches: int
    """At most."""
    runs: int
    budget: float
    told: tuple[str, ...] = ()

    @property
    def ref(self) -> MetricRef:
        return parse_metric(self.metric)

    @property
    def line(self) -> Line:
        """The line that the change must not be beyond.

        :raises ValueError: the recorded levels are none, or the bad one is not the worse.
        """
        scale = Scale.of(self.ref.metric)
        if self.values is not None:
            good, bad = (scale.level((value,)) for value in self.values)
            if bad <= good:
                raise ValueError("the bad value is not the worse one")
            return Line(0.5 * (good + bad))
        levels = [[scale.level(v) for v in one.values(self.ref)] for one in self.recorded]
        if self.how == "ends":
            return between(levels[0], levels[1])
        return above(levels[0], scale.worse_by(self.fail_over))

    def guard_line(self, guard: MetricRef) -> Line | None:
        """Where a guard is worse than the baseline by its smallest effect; None if the baseline lacks it.

        :raises ValueError: a value of which no level can be made.
        """
        scale = Scale.of(guard.metric)
        try:
            levels = [scale.level(v) for v in self.recorded[0].values(guard)]
        except KeyError:
            return None
        return above(levels, scale.worse_by(guard.metric.smallest_effect))
