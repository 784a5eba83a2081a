"""The document of a bisection, from its journal: of a finished one, or of one under way."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter, ValidationError

from perfbisect.bisect.decision import decide
from perfbisect.bisect.documents import (
    EffectDocument,
    ReportDocument,
    SkipDocument,
    StepDocument,
    belief_document,
    position_document,
    search_beliefs,
    shown_probability,
)
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.projection import SEARCHING, project
from perfbisect.bisect.rebase import of_rebase
from perfbisect.bisect.revert import Reverted, reverted
from perfbisect.bisect.sentences import advice, of_revert, summary
from perfbisect.errors import UsageError
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import (
    GuardDocument,
    cell_document,
    change_document,
    compare_guards,
    launch_document,
    metric_document,
    minutes_document,
    versions,
)
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.measurement import guard_metrics
from perfbisect.jobs.plans import plan_cell, require_plan
from perfbisect.jobs.replay import LaunchRecord, launches, minutes_saved
from perfbisect.model.attempt import Attempt
from perfbisect.serving.log_facts import combine_launches, fact_differences

_OUTCOME = TypeAdapter(decide.SearchOutcome)


def outcome_of(events: Sequence[JournalEvent]) -> decide.SearchOutcome | None:
    """The verdict in a journal; None while there is none.

    :raises UsageError: it is not one that can be read.
    """
    if not finished(events):
        return None
    data = next(event.data for event in reversed(events) if event.kind == "verdict")
    try:
        return _OUTCOME.validate_json(json.dumps(data))
    except ValidationError as error:
        raise UsageError(f"the job's verdict cannot be read: {error}") from error


def bisect_document(job: Job, events: Sequence[JournalEvent]) -> ReportDocument:
    """The document of a bisection.

    :raises UsageError: the journal holds no bisection, or one that cannot be read.
    """
    plan = require_plan(job, events, BisectPlan, next_step=f"perfbisect status {job.id}")
    seen = launches(events)
    return build_document(job, plan, seen, outcome_of(events), events)


def build_document(
    job: Job,
    plan: BisectPlan,
    seen: Sequence[LaunchRecord],
    outcome: decide.SearchOutcome | None,
    events: Sequence[JournalEvent],
    more: Sequence[str] = (),
    open_question: str = "",
) -> ReportDocument:
    """The document of a plan, its launches and its outcome; ``more`` is said behind the outcome.

    ``open_question``: said in its place where there is none; empty: how far the job is.
    """
    cell, less = plan_cell(plan), reverted(events, plan, seen)
    told = outcome.beliefs if outcome else search_beliefs(plan, seen)
    changes = {c.id: c for position in plan.positions for c in position.changes}
    shown_changes = changes | ({less.change.id: less.change} if less.change else {})
    ends = (plan.positions[0].changes[0], plan.positions[-1].changes[-1])
    good, bad = ends if plan.extras.direction == "regression" else (ends[1], ends[0])
    aside = bool(outcome and outcome.word == "found" and plan.merge_base in outcome.culprits)
    culprit = plan.positions[outcome.culprits[0]] if outcome and outcome.word == "found" else None
    sides = _sides(outcome, plan)
    measured = {x.position for x in seen if x.end == "finished" and x.purpose in SEARCHING}
    skips = _skips(plan, seen, measured)
    skipped = {skip.change.id for skip in skips}
    each = [x.minutes for x in seen if x.end == "finished"]
    per_launch = sum(each) / len(each) if each else 0.0
    shown = culprit.change if culprit else plan.positions[-1].change
    return ReportDocument(
        job=job.id,
        outcome=outcome.word if outcome else "unfinished",
        summary=(
            *(summary(outcome, plan, per_launch) if outcome else (open_question or _under_way(seen),)),
            *of_rebase(plan, outcome, seen),
            *of_revert(less, plan),
            *more,
        ),
        next=advice(outcome, plan, job.id) if outcome else f"perfbisect resume {job.id}",
        probability=shown_probability(outcome.probability) if outcome else 0.0,
        culprit=change_document(culprit.change)
        if culprit and outcome and len(outcome.culprits) == 1 and not aside
        else None,
        culprits=tuple(
            position_document(i, plan.positions[i]) for i in (outcome.culprits if outcome else ())
        ),
        parent=change_document(plan.positions[sides[0]].change) if culprit else None,
        confirmed=_effect(outcome.confirmed if outcome else None, plan),
        whole=_effect(outcome.whole if outcome else None, plan),
        share=outcome.share if outcome else None,
        guards=_guards(seen, sides, plan),
        beliefs=belief_document(told),
        cell=cell_document(cell, plan.ref),
        metric=metric_document(plan.ref),
        repository=plan.setting.repository,
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        good=change_document(good),
        bad=change_document(bad),
        changes=len(changes),
        positions=len(plan.positions),
        history=tuple(position_document(i, p) for i, p in enumerate(plan.positions)),
        launches=tuple(launch_document(x, shown_changes[x.change_id], plan.ref) for x in seen),
        skips=skips,
        merged=tuple(position_document(i, p) for i, p in enumerate(plan.positions) if len(p.changes) > 1),
        not_tested=tuple(
            change_document(p.change)
            for i, p in enumerate(plan.positions)
            if i not in measured and p.change.id not in skipped
        ),
        minutes=minutes_document(seen, plan.budget, minutes_saved(events, seen)),
        reproduce=commands_document(cell, plan.setting, shown, _attempt(seen, shown.id)),
        versions=versions(plan.setting, seen),
        notes=plan.notes,
        steps=tuple(_step(step, plan) for step in outcome.steps) if outcome else (),
        log_differences=_log_differences(seen, sides) if culprit else (),
        revert=_of_revert(less, plan),
        revert_note=less.note,
        cherry_picks=tuple(change_document(c) for c in plan.aside.own) if aside and plan.aside else (),
        folder=str(job.path),
    )


def _sides(outcome: decide.SearchOutcome | None, plan: BisectPlan) -> tuple[int, int]:
    """The positions that are held against each other: parent and culprit, else the ends."""
    if outcome and outcome.confirmed:
        return outcome.confirmed.parent, outcome.confirmed.culprit
    return 0, plan.last


def _effect(comparison: decide.Comparison | None, plan: BisectPlan) -> EffectDocument | None:
    if comparison is None:
        return None
    return EffectDocument(
        left=change_document(plan.positions[comparison.parent].change),
        right=change_document(plan.positions[comparison.culprit].change),
        effect=comparison.effect,
        low=comparison.low,
        high=comparison.high,
        launches=comparison.launches,
    )


def _guards(
    seen: Sequence[LaunchRecord], sides: tuple[int, int], plan: BisectPlan
) -> tuple[GuardDocument, ...]:
    def side(position: int) -> list[Attempt]:
        there = [x for x in seen if x.position == position and x.end == "finished" and x.purpose in SEARCHING]
        confirming = [x for x in there if x.purpose == "confirm"]
        return [x.attempt for x in confirming or there if x.attempt is not None]

    return compare_guards(guard_metrics(plan_cell(plan)), side(sides[0]), side(sides[1]))


def _step(step: decide.NamedStep, plan: BisectPlan) -> StepDocument:
    confirmed = _effect(step.confirmed, plan)
    assert confirmed is not None
    return StepDocument(
        culprits=tuple(position_document(i, plan.positions[i]) for i in step.culprits),
        probability=shown_probability(step.probability),
        confirmed=confirmed,
    )


def _log_differences(
    seen: Sequence[LaunchRecord], sides: tuple[int, int]
) -> tuple[tuple[str, str, str], ...]:
    """What the engines' own logs say differently on the two sides."""

    def side(position: int) -> Mapping[str, str]:
        facts = [
            x.attempt.provenance.facts.get("engine_log")
            for x in seen
            if x.position == position and x.attempt and x.end == "finished" and x.purpose in SEARCHING
        ]
        return combine_launches(fact for fact in facts if isinstance(fact, Mapping))

    return fact_differences(side(sides[0]), side(sides[1]))


def _of_revert(less: Reverted, plan: BisectPlan) -> EffectDocument | None:
    """The later end (left) against itself less the culprit (right); None before there is a whole block."""
    told = less.verdict
    if less.change is None or told is None or math.isnan(told.effect):
        return None
    return EffectDocument(
        left=change_document(plan.positions[-1].change),
        right=change_document(less.change),
        effect=told.effect,
        low=told.low,
        high=told.high,
        launches=told.launches // 2,
    )


def _skips(plan: BisectPlan, seen: Sequence[LaunchRecord], measured: set[int]) -> tuple[SkipDocument, ...]:
    skips = [
        SkipDocument(change=change_document(p.change), reason=p.skip, known="before")
        for p in plan.positions
        if p.skip
    ]
    events = project(seen, plan)
    for index in dict.fromkeys(e.index for e in events if isinstance(e, decide.Skipped)):
        last = [x for x in seen if x.position == index and x.refused][-1]
        failure = last.attempt.failure if last.attempt else None
        skips.append(
            SkipDocument(
                change=change_document(plan.positions[index].change),
                reason=(f"{failure.phase}: {failure.reason}" if failure else last.reason)
                + (" (it was served at other times)" if index in measured else ""),
                known="measured",
                log=failure.log if failure else "",
            )
        )
    return tuple(skips)


def _attempt(seen: Sequence[LaunchRecord], change_id: str) -> Attempt | None:
    """The last attempt that measured the change."""
    there = [x.attempt for x in seen if x.change_id == change_id and x.end == "finished"]
    return there[-1] if there else None


def _under_way(seen: Sequence[LaunchRecord]) -> str:
    done = sum(x.end == "finished" for x in seen)
    return f"Not finished: {done} launches measured so far; there is no verdict yet."
