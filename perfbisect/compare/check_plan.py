"""The question of a check against what is known already, as data: enough to go on from its journal alone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from perfbisect.errors import UsageError
from perfbisect.jobs.plans import JobPlan
from perfbisect.jobs.settings import Data, Setting
from perfbisect.measure.attempt import from_dict
from perfbisect.model.attempt import Attempt, Provenance, comparable
from perfbisect.model.cell import SERVER_SIDE, Cell, difference
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.stats.threshold import Line, above, between
from perfbisect.stats.two_sample import Scale


class Recorded(Data):
    """Launches of one change under one cell; ``cell`` as it was served, ``attempts`` without their facts."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_: Literal["perfbisect.baseline/1"] = Field(default="perfbisect.baseline/1", alias="schema")
    job: str
    change: Change
    cell: dict[str, Any]
    environment: str
    exclude_newer: str = ""
    constraints: str = ""
    attempts: tuple[dict[str, Any], ...]

    @property
    def launches(self) -> tuple[Attempt, ...]:
        """The launches, oldest first. :raises ValueError: one that is none."""
        return tuple(map(from_dict, self.attempts))

    @property
    def days(self) -> str:
        """When it was measured: ``2026-11-20``, or the first and the last day."""
        days = sorted({attempt.started_at[:10] for attempt in self.launches})
        return days[0] if len(days) < 2 else f"{days[0]} to {days[-1]}"

    @property
    def provenance(self) -> Provenance:
        """Of the first launch: that of all, where it can be compared with anything."""
        return self.launches[0].provenance

    def values(self, metric: MetricRef) -> tuple[tuple[float, ...], ...]:
        """The metric of each run of each launch. :raises KeyError: it was not reported."""
        return tuple(attempt.values(metric) for attempt in self.launches)


def refuse_other_workload(level: Recorded, cell: Cell, metric: MetricRef) -> None:
    """:raises UsageError: it is of another workload, was served otherwise, or lacks the metric: the field."""
    theirs = Cell.model_validate_json(json.dumps(level.cell))
    fields = [f"{name} {a} there, {b} here" for name, a, b in difference(theirs, cell)]
    if not fields and theirs.digest != level.provenance.cell_digest:
        fields = [f"cell_digest {level.provenance.cell_digest} there, {cell.digest} here"]
    if not fields:
        fields = [
            f"{name} {getattr(theirs, name)} there, {getattr(cell, name)} here"
            for name in SERVER_SIDE
            if getattr(theirs, name) != getattr(cell, name)
        ]
    if fields:
        raise UsageError(
            f"the baseline of {level.job} is of another workload: {'; '.join(fields)}",
            next_step="perfbisect check CELL --save-baseline FILE measures one of this cell",
        )
    try:
        level.values(metric)
    except KeyError:
        known = sorted({name for attempt in level.launches for run in attempt.runs for name in run.values})
        raise UsageError(
            f"the baseline of {level.job} does not have {metric}; it has: {', '.join(known)}",
            next_step="name one of these with --metric",
        ) from None


def refuse_other_place(
    level: Recorded, *, machine_class: str | None = None, client: tuple[str, str] | None = None
) -> None:
    """Refuses a level that was measured elsewhere or otherwise; ``client`` is digest and era.

    :raises UsageError: the field, with both values.
    """
    for attempt in level.launches:
        theirs = attempt.provenance
        digest, era = client or (theirs.client_digest, theirs.client_era)
        ours = replace(
            theirs, machine_class=machine_class or theirs.machine_class, client_digest=digest, client_era=era
        )
        for field, left, right in comparable(theirs, ours):
            raise UsageError(
                f"the baseline of {level.job} cannot be compared: {field} was {left!r} there "
                f"and is {right!r} here",
                next_step="record one on this machine with this client: --save-baseline; or --against REV, "
                "which measures both",
            )


def dependencies_differ(level: Recorded, setting: Setting) -> str:
    """In words, where the dependencies then were of another day or file; empty where not."""
    there = level.constraints or level.exclude_newer
    here = setting.constraints or setting.exclude_newer
    if there == here:
        return ""
    return f"dependencies were of {there or 'no one day'} there and are of {here or 'no one day'} here"


class CheckPlan(JobPlan):
    """``perfbisect check`` of one change against a level. ``cell``: as it is served; budget in minutes.

    ``how`` says where the level is from: a ``baseline`` (``recorded`` has it, ``fail_over`` the share by
    which the change may be worse), two ``ends`` (``recorded`` has the good and the bad one; the line is in
    their middle), or two ``values`` of the metric.
    """

    noun: ClassVar[str] = "check"
    verb: Literal["check"] = "check"
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
