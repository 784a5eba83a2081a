"""What bisections teach later ones of their repository, builder and class of machine: how builds differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from perfbisect.bisect.bisection import Bisection
from perfbisect.bisect.decision.model import BUILD_SD
from perfbisect.bisect.decision.posterior import usual_builds
from perfbisect.bisect.decision.state import SearchState
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.search_events import to_search_events
from perfbisect.jobs.documents import Document
from perfbisect.jobs.folders import Jobs
from perfbisect.report.template import render_sentences

_JOBS_BACK = 100
"""Jobs whose reports are read."""

_FLOOR = -5.0
"""Least log likelihood that one job may give a deviation: its model may be wrong."""

_POSSIBLE = 0.01
"""Prior weight of a deviation that the usual prior excludes, before earlier jobs speak ..."""

_KEPT = 0.05
"""... and the part of the usual prior that is kept whatever they say."""

_POSITIONS = 5
"""Positions from which on a range tells builds from steps."""

_MISLEADING = frozenset({"more steps", "intermittent"})
"""Notes of launches that differ for other reasons than builds."""


class LearntDocument(Document):
    """By how much builds differed, by one bisection.

    ``compiled``: most changes had compiled files of their own. ``builds``: log likelihood of each standard
    deviation of :data:`BUILD_SD`, relative to the greatest.
    """

    repository: str
    builder: str
    machine_class: str
    compiled: bool
    builds: tuple[float, ...]

    def is_of(self, plan: BisectPlan, machine_class: str) -> bool:
        """Whether it teaches a bisection."""
        here = (*_range_of(plan), machine_class, plan.search.compiles_each)
        return (self.repository, self.builder, self.machine_class, self.compiled) == here


def _range_of(plan: BisectPlan) -> tuple[str, str]:
    """Repository, or the package of its releases, and the kind of builder."""
    change = plan.positions[0].change
    repository = plan.setting.repository if change.kind == "commit" else change.source.partition("==")[0]
    return repository, plan.setting.environment.partition(":")[0]


def lesson(bisection: Bisection) -> LearntDocument | None:
    """What an ended bisection teaches; None where its launches differ for other reasons, or are too few."""
    plan, outcome = bisection.plan, bisection.outcome
    kinds = {launch.measurement.provenance.machine_class for launch in bisection.measured}
    is_clear = outcome is not None and not _MISLEADING & {note.kind for note in outcome.notes}
    is_one_machine = len(kinds) == 1 and len(bisection.machines) < 2
    if not is_clear or not is_one_machine or bisection.is_recast or plan.all_steps or plan.search.exact:
        return None
    # Under equal weights the posterior of the deviations is their likelihood.
    equal = replace(plan.search, noise=replace(plan.search.noise, builds=(1.0,) * len(BUILD_SD)))
    state = SearchState.from_events(equal, to_search_events(bisection.records, plan))
    if state.explained is None or len(state.explained.at) < _POSITIONS:
        return None
    with np.errstate(divide="ignore"):
        logs = np.log(state.explained.builds)
    builds = tuple(round(max(_FLOOR, float(x)), 3) for x in logs - logs.max())
    repository, builder = _range_of(plan)
    return LearntDocument(
        repository=repository,
        builder=builder,
        machine_class=kinds.pop(),
        compiled=plan.search.compiles_each,
        builds=builds,
    )


def lessons(jobs: Jobs) -> Iterator[LearntDocument]:
    """What the last bisections taught, the latest first."""
    for job in reversed(jobs.all()[-_JOBS_BACK:]):
        # Most jobs are no bisections, or have no report yet.
        with suppress(OSError, ValueError, KeyError, TypeError):
            yield LearntDocument.model_validate(json.loads(job.document.read_bytes())["learnt"])


def with_learnt_builds(plan: BisectPlan, taught: Sequence[LearntDocument], machine_class: str) -> BisectPlan:
    """The plan with the prior of what builds differ by that earlier jobs leave, and a note on it."""
    alike = [one.builds for one in taught if one.is_of(plan, machine_class)]
    if not alike:
        return plan
    usual = np.array(usual_builds(plan.search.compiles_each))
    logs = np.log(np.maximum(usual, _POSSIBLE)) + np.array(alike).sum(0)
    likely = np.exp(logs - logs.max())
    weights = (1 - _KEPT) * likely / likely.sum() + _KEPT * usual
    sd = float(weights @ np.array(BUILD_SD))
    told = {"jobs": len(alike), "sd": sd}
    notes = (*plan.notes, *render_sentences("bisect/templates/learnt.jinja", told))
    noise = replace(plan.noise, builds=tuple(map(float, weights)))
    return plan.model_copy(update={"noise": noise, "notes": notes})
