"""The report document of a bisection, from its journal: of a finished one, or of one under way."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter, ValidationError

from perfbisect.bisect.decision.model import Comparison, SearchOutcome, Skipped
from perfbisect.bisect.documents import (
    EffectDocument,
    ReportDocument,
    SkipDocument,
    StepDocument,
    belief_document,
    position_documents,
    shown_probability,
    skip_documents,
)
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.revert import RevertCheck, revert_check
from perfbisect.bisect.search_events import SEARCHING, beliefs_after, search_launches, to_search_events
from perfbisect.bisect.summary import next_command, outcome_sentences, rebase_sentences, revert_sentence
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
from perfbisect.serving.log_facts import combine_launches, fact_differences

_OUTCOME = TypeAdapter(SearchOutcome)


def outcome_of(events: Sequence[JournalEvent]) -> SearchOutcome | None:
    """The verdict in a journal; None while there is none.

    Raises:
        UsageError: it cannot be read.
    """
    if not finished(events):
        return None
    data = next(event.data for event in reversed(events) if event.kind == "verdict")
    try:
        return _OUTCOME.validate_json(json.dumps(data))
    except ValidationError as error:
        raise UsageError(f"the job's verdict cannot be read: {error}") from error


def bisect_document(job: Job, events: Sequence[JournalEvent]) -> ReportDocument:
    """The report; UsageError if the journal holds no readable bisection."""
    plan = require_plan(job, events, BisectPlan, next_step=f"perfbisect status {job.id}")
    return build_document(job, plan, launches(events), outcome_of(events), events)


def build_document(
    job: Job,
    plan: BisectPlan,
    records: Sequence[LaunchRecord],
    outcome: SearchOutcome | None,
    events: Sequence[JournalEvent],
) -> ReportDocument:
    """The report of launches and their outcome; without one, of how far the job is."""
    cell, check = plan_cell(plan), revert_check(events, plan, records)
    positions = position_documents(plan)
    found = outcome is not None and outcome.verdict == "found"
    culprits = outcome.culprits if outcome else ()
    on_branch = found and plan.merge_base in culprits
    confirmed = outcome.confirmed if outcome else None
    sides = (confirmed.parent, confirmed.culprit) if confirmed else (0, plan.last)
    shown = plan.positions[culprits[0] if found else -1].change
    ends = plan.positions[0].changes[0], plan.positions[-1].changes[-1]
    good, bad = map(change_document, ends if plan.direction == "regression" else ends[::-1])
    changes = {change.id: change for position in plan.positions for change in position.changes}
    launched = changes | ({check.change.id: check.change} if check.change else {})
    finished_launches = [x for x in records if x.end == "finished"]
    measured = {x.position for x in finished_launches if x.purpose in SEARCHING}
    skips = _skips(plan, records, measured)
    skipped = {skip.change.id for skip in skips}
    beliefs = outcome.beliefs if outcome else beliefs_after(plan, records)
    example = next((x.attempt for x in reversed(finished_launches) if x.change_id == shown.id), None)
    return ReportDocument(
        job=job.id,
        outcome=outcome.verdict if outcome else "unfinished",
        summary=(
            *_outcome_summary(outcome, plan, finished_launches),
            *rebase_sentences(plan, outcome, records),
            *revert_sentence(check, plan),
        ),
        next=next_command(outcome, plan, job.id) if outcome else f"perfbisect resume {job.id}",
        probability=shown_probability(outcome.probability) if outcome else 0.0,
        culprit=change_document(shown) if found and len(culprits) == 1 and not on_branch else None,
        culprits=tuple(positions[index] for index in culprits),
        parent=change_document(plan.positions[sides[0]].change) if found else None,
        confirmed=_effect(confirmed, plan) if confirmed else None,
        whole=_effect(outcome.whole, plan) if outcome and outcome.whole else None,
        share=outcome.share if outcome else None,
        guards=_guards(plan, records, sides),
        beliefs=belief_document(beliefs) if beliefs else None,
        cell=cell_document(cell, plan.ref),
        metric=metric_document(plan.ref),
        repository=plan.setting.repository,
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        good=good,
        bad=bad,
        changes=len(changes),
        positions=len(positions),
        history=positions,
        launches=tuple(launch_document(x, launched[x.change_id], plan.ref) for x in records),
        skips=skips,
        merged=tuple(position for position in positions if len(position.changes) > 1),
        not_tested=tuple(
            position.changes[0]
            for position in positions
            if position.index not in measured and position.changes[0].id not in skipped
        ),
        minutes=minutes_document(records, plan.budget, minutes_saved(events, records)),
        reproduce=commands_document(cell, plan.setting, shown, example),
        versions=versions(plan.setting, records),
        notes=plan.notes,
        steps=tuple(
            StepDocument(
                culprits=tuple(positions[index] for index in step.culprits),
                probability=shown_probability(step.probability),
                confirmed=_effect(step.confirmed, plan),
            )
            for step in (outcome.steps if outcome else ())
        ),
        log_differences=_log_differences(records, sides) if found else (),
        revert=_revert_effect(check, plan),
        revert_note=check.note,
        cherry_picks=tuple(map(change_document, plan.branch.own)) if on_branch and plan.branch else (),
        folder=str(job.path),
    )


def _outcome_summary(
    outcome: SearchOutcome | None, plan: BisectPlan, finished_launches: Sequence[LaunchRecord]
) -> tuple[str, ...]:
    count = len(finished_launches)
    if outcome is None:
        return (f"Not finished: {count} launches measured so far; there is no verdict yet.",)
    minutes = sum(x.minutes for x in finished_launches)
    return outcome_sentences(outcome, plan, minutes / count if count else 0.0)


def _effect(comparison: Comparison, plan: BisectPlan) -> EffectDocument:
    return EffectDocument(
        left=change_document(plan.positions[comparison.parent].change),
        right=change_document(plan.positions[comparison.culprit].change),
        effect=comparison.effect,
        low=comparison.low,
        high=comparison.high,
        launches=comparison.launches,
    )


def _revert_effect(check: RevertCheck, plan: BisectPlan) -> EffectDocument | None:
    """The later end (left) against itself without the culprit (right); None before there is a whole block."""
    verdict = check.verdict
    if check.change is None or verdict is None or math.isnan(verdict.effect):
        return None
    return EffectDocument(
        left=change_document(plan.positions[-1].change),
        right=change_document(check.change),
        effect=verdict.effect,
        low=verdict.low,
        high=verdict.high,
        launches=verdict.launches // 2,
    )


def _guards(
    plan: BisectPlan, records: Sequence[LaunchRecord], sides: tuple[int, int]
) -> tuple[GuardDocument, ...]:
    """Compared in the A/B, or without one over all launches."""
    left, right = (search_launches(records, position) for position in sides)
    attempts = []
    for side in (left, right):
        confirming = [attempt for launch, attempt in side if launch.purpose == "confirm"]
        attempts.append(confirming or [attempt for _, attempt in side])
    return compare_guards(guard_metrics(plan_cell(plan)), *attempts)


def _log_differences(
    records: Sequence[LaunchRecord], sides: tuple[int, int]
) -> tuple[tuple[str, str, str], ...]:
    """What the engines' own logs say differently on the two sides."""
    left, right = (
        [attempt.provenance.facts.get("engine_log") for _, attempt in search_launches(records, position)]
        for position in sides
    )
    return fact_differences(
        combine_launches(fact for fact in left if isinstance(fact, Mapping)),
        combine_launches(fact for fact in right if isinstance(fact, Mapping)),
    )


def _skips(plan: BisectPlan, records: Sequence[LaunchRecord], measured: set[int]) -> tuple[SkipDocument, ...]:
    skips = list(skip_documents(plan))
    events = to_search_events(records, plan)
    for index in dict.fromkeys(event.index for event in events if isinstance(event, Skipped)):
        last = [x for x in records if x.position == index and x.refused][-1]
        failure = last.attempt.failure if last.attempt else None
        reason = f"{failure.phase}: {failure.reason}" if failure else last.reason
        skips.append(
            SkipDocument(
                change=change_document(plan.positions[index].change),
                reason=reason + (" (it was served at other times)" if index in measured else ""),
                known="measured",
                log=failure.log if failure else "",
            )
        )
    return tuple(skips)
