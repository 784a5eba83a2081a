"""Searches a commit's hunks as a job: launches of the culprit with groups of hunks taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, replace
from functools import partial
from typing import Any, Final

from pydantic import TypeAdapter

from perfbisect.bisect.search_events import measured_event
from perfbisect.common.quantities import percent
from perfbisect.engine.experiment import Amendment, Experiment, JobStatus
from perfbisect.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_REGRESSION,
    BuildError,
    PerfbisectError,
    ServerError,
    UsageError,
)
from perfbisect.explain import hunk_search
from perfbisect.explain.hunk_plan import HunksPlan
from perfbisect.explain.hunk_report import (
    HunksDocument,
    group_names,
    hunks_report,
    make_hunks_document,
)
from perfbisect.explain.hunk_search import HunkEvent, HunkOutcome, Node, NodeLaunch, NodeUnusable
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal, JournalEvent
from perfbisect.jobs.loop import Done, Fact, JobState, LaunchPolicy, fits_budget
from perfbisect.jobs.plans import read_verdict, require_more_budget, require_plan
from perfbisect.jobs.replay import LaunchRecord, ended_launches, launches, require_comparable
from perfbisect.jobs.runner import JobContext, LaunchRequest, RevertHunks
from perfbisect.jobs.sequence import sequential
from perfbisect.model.attempt import Purpose
from perfbisect.model.change import Change
from perfbisect.system.files import write_atomic

PATCH = "guilty.patch"
"""In the job's folder: what takes the named group back."""

_WHY: Final[Mapping[Purpose, str]] = {
    "end": "is the step there",
    "search": "where it is likely to be told",
    "confirm": "A/B of the suspect",
    "revert": "the suspect taken back",
}

_CHANGE = TypeAdapter(Change)
_OUTCOME = TypeAdapter(HunkOutcome)


def made_changes(plan: HunksPlan, events: Sequence[JournalEvent]) -> dict[Node, Change]:
    """The nodes with their changes: the culprit, and those that were made, in that order.

    The position of a launch is the place of its node.
    """
    made: dict[Node, Change] = {(): plan.culprit}
    for event in events:
        if event.kind == "node":
            made[_node(event.data)] = _CHANGE.validate_python(dict(event.data["change"]))
    return made


def _node(data: Mapping[str, Any]) -> Node:
    return tuple(int(group) for group in data["groups"])


def search_events(
    plan: HunksPlan, events: Sequence[JournalEvent], records: Sequence[LaunchRecord]
) -> list[HunkEvent]:
    """What the search has seen, from a journal."""
    nodes = list(made_changes(plan, events))
    found: list[HunkEvent] = [
        NodeLaunch(nodes[launch.position], measured_event(launch, launch.attempt, plan.ref))
        for launch in ended_launches(records)
        if launch.end == "finished" and launch.attempt is not None
    ]
    unusable = (event.data for event in events if event.kind == "unusable")
    return [*found, *(NodeUnusable(_node(data), str(data["reason"])) for data in unusable)]


def hunk_policy(job: Job, plan: HunksPlan, revert: RevertHunks | None) -> LaunchPolicy:
    """The launches of a search. A node that cannot be built or served is noted, and the search goes on."""
    policy = sequential(
        partial(_next_launch, job, plan, revert),
        plan.ref,
        admit=partial(require_comparable, metric=plan.ref, advice="measure all of a search"),
        budget=plan.budget,
        advice="read the log; choose another --env",
    )
    return replace(policy, recover=partial(_give_up, plan))


def _next_launch(
    job: Job, plan: HunksPlan, revert: RevertHunks | None, state: JobState
) -> LaunchRequest | Fact | Done:
    events = search_events(plan, state.events, state.launches)
    try:
        action = hunk_search.next_launch(plan.search, events)
        if not isinstance(action, HunkOutcome) and not fits_budget(state.launches, plan.budget):
            action = hunk_search.out_of_budget(plan.search, events)
    except ValueError as error:
        raise ServerError(
            f"these hunks cannot be searched: {error}",
            where=job.path,
            next_step=f"perfbisect explain {plan.source} --profile",
        ) from error
    if isinstance(action, HunkOutcome):
        return Done(asdict(action))
    made = made_changes(plan, state.events)
    change = made.get(action.node)
    if change is None:
        return _reverted(job, plan, revert, action.node)
    what = (
        f"the culprit without {group_names(action.node, len(plan.groups))}" if action.node else "the culprit"
    )
    return LaunchRequest(
        list(made).index(action.node),
        change,
        action.purpose,
        action.runs,
        f"{_WHY[action.purpose]}: {what}",
        side=f"{change.short}, {what},",
        trial=astuple(action.trial) if action.trial else (),
    )


def _reverted(job: Job, plan: HunksPlan, revert: RevertHunks | None, node: Node) -> Fact:
    """The culprit with groups taken back, or that there is none."""
    if revert is None:
        raise UsageError(
            "the commit's repository is not there any more: its hunks cannot be taken back",
            next_step=f"perfbisect resume {job.id} --repo PATH",
        )
    change = revert(plan.culprit, plan.hunks_of(node))
    if isinstance(change, str):
        return Fact("unusable", {"groups": list(node), "reason": change})
    return Fact("node", {"groups": list(node), "change": _CHANGE.dump_python(change, mode="json")})


def _give_up(plan: HunksPlan, error: PerfbisectError, last: LaunchRecord, state: JobState) -> Sequence[Fact]:
    """Note a node that does not run; its launches do not count."""
    if last.position == 0 or not isinstance(error, BuildError | ServerError):
        return ()
    node = list(made_changes(plan, state.events))[last.position]
    names = group_names(node, len(plan.groups))
    why = f"it belongs to {names}, which does not run"
    told = f"{names}: {error.message}: not asked by itself"
    return (
        *(
            Fact("discarded", {"attempt": launch.attempt_id, "reason": why})
            for launch in state.launches
            if launch.position == last.position and launch.end == "finished"
        ),
        Fact("unusable", {"groups": list(node), "reason": error.message}, told),
    )


def _write_patch(job: Job, plan: HunksPlan, verdict: Mapping[str, object]) -> Mapping[str, object]:
    outcome = _OUTCOME.validate_python(verdict)
    patch = plan.groups[outcome.node[0]].patch if len(outcome.node) == 1 else ""
    if outcome.verdict == "found" and patch:
        write_atomic(job.path / PATCH, patch)
    return verdict


def outcome_of(events: Sequence[JournalEvent]) -> HunkOutcome | None:
    """The verdict in a journal; None while there is none.

    Raises:
        UsageError: it cannot be read.
    """
    return read_verdict(events, _OUTCOME)


def hunks_document(job: Job, events: Sequence[JournalEvent]) -> HunksDocument:
    """The document of a search, finished or not."""
    plan, records = require_plan(job, events, HunksPlan), launches(events)
    patch = job.path / PATCH
    return make_hunks_document(
        job,
        plan,
        records,
        outcome_of(events),
        seen=search_events(plan, events, records),
        made=made_changes(plan, events),
        patch=str(patch) if patch.exists() else "",
    )


def amend(job: Job, tools: JobContext, amendment: Amendment) -> None:
    """Give a search more minutes; what was measured stays.

    Raises:
        UsageError: the job is no search of hunks, has another verdict, or something else was asked.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = require_plan(job, journal.events, HunksPlan)
        if amendment.metric is not None or amendment.confirm_revert or amendment.budget is None:
            raise UsageError(
                f"job {job.id} is a {plan.noun}: only its budget can be changed",
                next_step=f"perfbisect resume {job.id} --budget 3h",
            )
        outcome, budget = outcome_of(journal.events), amendment.budget
        is_settled = outcome is not None and outcome.reason != "budget"
        require_more_budget(job, plan, budget, outcome.verdict if outcome and is_settled else "")
        journal.append("plan", plan.model_copy(update={"budget": budget}).model_dump(mode="json"))


def _status(document: HunksDocument) -> JobStatus:
    guilty = [group for group in document.groups if group.guilty]
    named = guilty[0].label if len(guilty) == 1 else ""
    known = document.share.share if document.share else None
    share = f", {percent(known, False)} of the step" if named and known is not None else ""
    return JobStatus(
        outcome=document.verdict,
        exit_code=EXIT_REGRESSION if document.verdict == "found" else EXIT_INCONCLUSIVE,
        verdict=named + share,
        metric=document.metric,
        next=document.next,
    )


HUNKS: Final = Experiment(
    plan=HunksPlan,
    result=hunks_document,
    status=_status,
    report=hunks_report,
    client_change=lambda plan: plan.culprit,
    policy=lambda job, plan, tools: hunk_policy(job, plan, tools.revert_hunks),
    conclude=_write_patch,
    amend=amend,
)
