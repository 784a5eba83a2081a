"""The plan of ``perfbisect explain JOB --hunks``, and what it will probably do and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field, FiniteFloat

from perfbisect.bisect.decision.confirm import PAIRS
from perfbisect.bisect.decision.endpoints import MAX_ROUNDS
from perfbisect.bisect.decision.model import Plan
from perfbisect.changes.hunk_groups import HunkGroup, LeftOutFile, left_out_texts
from perfbisect.changes.hunks import CommitDiff, DiffHunk, HunkId, line_texts
from perfbisect.environments.base import Builder
from perfbisect.errors import BuildError, UsageError
from perfbisect.experiments.dry_run import LaunchPlanDocument
from perfbisect.explain.hunk_search import forecast_launches
from perfbisect.jobs.documents import (
    Document,
    LongDocument,
    cell_document,
    metric_document,
)
from perfbisect.jobs.estimates import Noise
from perfbisect.jobs.plans import (
    BudgetedPlan,
    MeasurementConfig,
    PlanPart,
    cell_data,
    plan_cell,
    runs_per_launch,
)
from perfbisect.model.attempt import Costs
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.report.template import render_sentences

MAX_LINES = 400
"""Lines of a side of a hunk that a plan keeps: a new file may have thousands."""

RevertHunks = Callable[[Change, Sequence[HunkId]], Change | str]
"""Maps a commit and some of its hunks to the commit with these taken back, or to why there is none."""


class HunkPart(PlanPart):
    """A hunk of a file, by ``index``. ``removed``, ``added``: its lines, ``more`` of which are left out."""

    path: str
    lines: str
    function: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    more: int
    index: int

    @classmethod
    def of(cls, diff: CommitDiff, hunk: DiffHunk) -> HunkPart:
        file = diff.by_path[hunk.path]
        sides = [
            [text.rstrip("\r\n") for text in line_texts(lines)]
            for lines in (file.old_lines(hunk), file.new_lines(hunk))
        ]
        removed, added = (tuple(side[:MAX_LINES]) for side in sides)
        return cls(
            path=hunk.path,
            index=hunk.index,
            lines=hunk.lines,
            function=hunk.function,
            removed=removed,
            added=added,
            more=sum(map(len, sides)) - len(removed) - len(added),
        )


class HunkGroupPart(PlanPart):
    """Hunks that are taken back together. ``minutes``: of the build without them; None: not known.

    ``patch``: what takes them back from the culprit.
    """

    label: str
    hunks: tuple[HunkPart, ...]
    patch: str = ""
    minutes: float | None = None

    @property
    def ids(self) -> tuple[HunkId, ...]:
        return tuple((hunk.path, hunk.index) for hunk in self.hunks)


class HunksPlan(BudgetedPlan):
    """A search of a commit's hunks. ``budget`` in minutes."""

    noun: ClassVar[str] = "search of hunks"
    verb: Literal["hunks"] = "hunks"
    source: str
    """The job whose culprit is explained."""
    culprit: Change
    parent: str
    groups: tuple[HunkGroupPart, ...]
    left_out: tuple[str, ...] = ()
    step: float | None = None
    """Culprit / parent - 1 as that job measured it, of shares the difference; never used as evidence."""
    slower: bool = True
    """Whether the culprit is worse than its parent."""
    max_runs: int
    costs: Costs
    budget: FiniteFloat

    @property
    def changes(self) -> tuple[Change, ...]:
        return (self.culprit,)

    @property
    def search(self) -> Plan:
        """The plan of the search: the hunks of an improvement are those of a step in the other direction."""
        metric = self.ref.metric
        return Plan(
            n=len(self.groups),
            sign=metric.sign if self.slower else -metric.sign,
            absolute=metric.absolute,
            min_effect=self.smallest_effect,
            costs=self.costs,
            budget=math.inf,
            max_runs=self.max_runs,
        )

    def hunks_of(self, node: Sequence[int]) -> tuple[HunkId, ...]:
        """The hunks of several groups."""
        return tuple(sorted(hunk for index in node for hunk in self.groups[index].ids))


def make_hunks_plan(
    *,
    source: str,
    culprit: Change,
    diff: CommitDiff,
    groups: Sequence[HunkGroup],
    left_out: Sequence[LeftOutFile],
    cell: Cell,
    setting: MeasurementConfig,
    metric: MetricRef,
    builder: Builder,
    revert: RevertHunks,
    patch_of: Callable[[Change, Change], str],
    min_effect: float | None = None,
    step: float | None = None,
    slower: bool = True,
    costs: Costs,
    budget: float,
    notes: Sequence[str] = (),
) -> HunksPlan:
    """Plan a search; a group that cannot be taken back or built is left out.

    Raises:
        BuildError: the culprit cannot be built.
        UsageError: --env is wrong, or no group is left.
    """
    refusal = builder.refuses(culprit)
    if refusal is not None and refusal.error:
        raise UsageError(refusal.reason, next_step="correct --env")
    if refusal is not None:
        raise BuildError(
            f"{culprit.short} cannot be built: {refusal.reason}", next_step="choose another --env"
        )
    parts, excluded = [], []
    for group in groups:
        reverted = revert(culprit, group.ids)
        if isinstance(reverted, str):
            excluded.append((group.label, reverted))
        # Equal environments run equally: these files never reach the engine.
        elif builder.key(reverted) == builder.key(culprit):
            excluded.append((group.label, ""))
        else:
            parts.append(
                HunkGroupPart(
                    label=group.label,
                    hunks=tuple(HunkPart.of(diff, hunk) for hunk in group.hunks),
                    patch=patch_of(culprit, reverted),
                    minutes=builder.price((reverted,)).minutes,
                )
            )
    reasons = (
        *left_out_texts(left_out),
        *render_sentences(
            "explain/templates/left_out.jinja", {"groups": excluded, "environment": setting.environment}
        ),
    )
    if not parts:
        raise UsageError(
            f"nothing that {culprit.short} changed can be taken back by itself: {'; '.join(reasons)}",
            next_step="choose an --env that these files enter",
        )
    builds = {
        "groups": len(parts),
        "slow": [part.minutes for part in parts if (part.minutes or 0.0) >= _SLOW_BUILD_MIN],
    }
    return HunksPlan(
        cell=cell_data(cell),
        digest=cell.digest,
        setting=setting,
        metric=str(metric),
        min_effect=min_effect,
        source=source,
        culprit=culprit,
        parent=diff.parent,
        groups=tuple(parts),
        left_out=reasons,
        step=step,
        slower=slower,
        max_runs=runs_per_launch(cell, (metric,)),
        costs=costs,
        budget=budget,
        notes=(*notes, *render_sentences("explain/templates/plan_notes.jinja", builds)),
    )


_SLOW_BUILD_MIN = 2.0


RUNS = 2
"""Runs of a launch that a forecast takes."""


class PlannedGroupDocument(Document):
    """A group of hunks. ``build_minutes``: of the culprit without it; None: not known."""

    number: int
    label: str
    lines: int
    build_minutes: float | None


class HunksPlanDocument(LaunchPlanDocument, LongDocument):
    """What will be done. ``launches``: as likely as not enough; None: the step is too small, or not known."""

    shown: ClassVar[Mapping[str, int]] = {"groups": 20, "excluded": 10}
    schema_: Literal["perfbisect.hunks-plan/3"] = Field(default="perfbisect.hunks-plan/3", alias="schema")
    source: str
    culprit: Change
    parent: str
    step: float | None
    groups: tuple[PlannedGroupDocument, ...]
    excluded: tuple[str, ...]
    launches: int | None
    noise: str

    @classmethod
    def of(cls, plan: HunksPlan, noise: Noise, *, basis: str) -> HunksPlanDocument:
        """The forecast of a plan; ``noise``: of earlier launches of the cell; ``basis``: of its costs."""
        runs, groups = min(RUNS, plan.max_runs), len(plan.groups)
        each = plan.costs.launch + runs * plan.costs.run
        known = [group.minutes for group in plan.groups if group.minutes is not None]
        builds = (2 + math.ceil(math.log2(groups))) * max(known, default=plan.costs.build)
        launches = None
        if plan.step is not None and not plan.ref.metric.absolute:
            spread = math.hypot(noise.launches, noise.runs / math.sqrt(runs))
            launches = forecast_launches(groups, abs(math.log1p(plan.step)), spread)
        most = 2 * MAX_ROUNDS + 3 * PAIRS + 4 * groups.bit_length()
        metric = metric_document(plan.ref, plan.smallest_effect)
        return cls(
            source=plan.source,
            culprit=plan.culprit,
            parent=plan.parent,
            cell=cell_document(plan_cell(plan), plan.ref),
            metric=metric,
            metrics=(metric,),
            environment=plan.setting.environment,
            client=plan.setting.instrument,
            step=plan.step,
            groups=tuple(
                PlannedGroupDocument(
                    number=number,
                    label=group.label,
                    lines=sum(len(hunk.removed) + len(hunk.added) + hunk.more for hunk in group.hunks),
                    build_minutes=group.minutes,
                )
                for number, group in enumerate(plan.groups, 1)
            ),
            excluded=plan.left_out,
            runs_per_launch=plan.max_runs,
            launches=launches,
            most_launches=most,
            minutes_low=min(plan.budget, builds + (launches or most) * each),
            minutes_high=min(plan.budget, 2 * builds + most * each),
            budget_minutes=plan.budget,
            minutes_basis=basis,
            noise=noise.source,
            notes=plan.notes,
        )
