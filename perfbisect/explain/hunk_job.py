"""Searches a commit's hunks as a job: launches of the culprit with groups of hunks taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from typing import Any, Final

from pydantic import TypeAdapter

from perfbisect.bisect.search_events import measured_event
from perfbisect.common.quantities import percent
from perfbisect.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_REGRESSION,
    BuildError,
    ServerError,
    UsageError,
)
from perfbisect.explain import hunk_search
from perfbisect.explain.hunk_plan import HunksPlan
from perfbisect.explain.hunk_report import (
    HunksDocument,
    HunksResult,
    group_names,
    hunks_report,
    make_hunks_document,
)
from perfbisect.explain.hunk_search import HunkEvent, HunkOutcome, Node, NodeLaunch, NodeUnusable
from perfbisect.jobs.events import JobEnded, JobNote
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import Journal, JournalEvent
from perfbisect.jobs.loop import LaunchPolicy, fits_budget, run_sequentially
from perfbisect.jobs.plans import plan_cell, read_verdict, require_more_budget, require_plan
from perfbisect.jobs.replay import LaunchRecord, ended_launches, launches, require_comparable
from perfbisect.jobs.runner import JobContext, LaunchRequest, recover_interrupted
from perfbisect.jobs.workers import WorkerPool
from perfbisect.model.attempt import Purpose
from perfbisect.model.change import Change
from perfbisect.report.kind import Amendment, JobKind, JobStatus
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


def find_hunks(job: Job, tools: JobContext) -> HunksDocument:
    """Run a job, new or resumed, until its verdict is in the journal; the caller holds the job's lock.

    Raises:
        BuildError, ServerError: the culprit itself cannot be built or served.
        ClientError, MachineError: they failed too often; the job can be resumed.
        UsageError: the client does not report the metric.
        Interrupted: Ctrl-C or a stop request.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        plan = require_plan(job, journal.events, HunksPlan)
        if not finished(journal.events):
            recover_interrupted(job, journal, tools.sink, tools.stop_leftovers, tools.reclaim)
            with WorkerPool(job, journal, tools, plan_cell(plan)) as pool:
                outcome = _HunkJob(job, journal, plan, tools).run(pool)
            _write_patch(job, plan, outcome)
            journal.append("verdict", asdict(outcome))
        document = hunks_document(job, journal.events)
    tools.sink(JobEnded(document))
    return document


@dataclass
class _HunkJob:
    """The loop over launches. A node that cannot be built or served is noted, and the search goes on."""

    job: Job
    journal: Journal
    plan: HunksPlan
    tools: JobContext
    _outcome: HunkOutcome = field(default_factory=lambda: HunkOutcome("too small", "budget"), init=False)

    def run(self, pool: WorkerPool) -> HunkOutcome:
        plan = self.plan
        policy = LaunchPolicy(
            self._next_launch,
            partial(require_comparable, metric=plan.ref, advice="measure all of a search"),
            plan.ref,
            plan.budget,
            "read the log; choose another --env",
        )
        while True:
            try:
                run_sequentially(self.job, self.journal, self.tools, pool, policy)
                return self._outcome
            except (BuildError, ServerError) as error:
                last = ended_launches(launches(self.journal.events))[-1]
                if last.position == 0:
                    raise
                self._give_up(last, error.message)
            except ValueError as error:
                raise ServerError(
                    f"these hunks cannot be searched: {error}",
                    where=self.job.path,
                    next_step=f"perfbisect explain {plan.source} --profile",
                ) from error

    def _next_launch(self, records: Sequence[LaunchRecord]) -> LaunchRequest | str:
        plan = self.plan
        while True:
            events = search_events(plan, self.journal.events, records)
            action = hunk_search.next_launch(plan.search, events)
            if isinstance(action, HunkOutcome):
                self._outcome = action
                return ""
            if not fits_budget(records, plan.budget):
                self._outcome = hunk_search.out_of_budget(plan.search, events)
                return f"the budget of {plan.budget:.0f} minutes is spent"
            change = self._reverted(action.node)
            if change is not None:
                break
        return LaunchRequest(
            list(made_changes(plan, self.journal.events)).index(action.node),
            change,
            action.purpose,
            action.runs,
            f"{_WHY[action.purpose]}: {self._name(action.node)}",
            side=f"{change.short}, {self._name(action.node)},",
            trial=astuple(action.trial) if action.trial else (),
        )

    def _name(self, node: Node) -> str:
        return f"the culprit without {group_names(node, len(self.plan.groups))}" if node else "the culprit"

    def _reverted(self, node: Node) -> Change | None:
        """The culprit with groups taken back; None where there is none, which is noted."""
        known = made_changes(self.plan, self.journal.events).get(node)
        if known is not None:
            return known
        if self.tools.revert_hunks is None:
            raise UsageError(
                "the commit's repository is not there any more: its hunks cannot be taken back",
                next_step=f"perfbisect resume {self.job.id} --repo PATH",
            )
        change = self.tools.revert_hunks(self.plan.culprit, self.plan.hunks_of(node))
        if isinstance(change, str):
            self.journal.append("unusable", {"groups": list(node), "reason": change})
            return None
        self.journal.append(
            "node", {"groups": list(node), "change": _CHANGE.dump_python(change, mode="json")}
        )
        return change

    def _give_up(self, last: LaunchRecord, reason: str) -> None:
        """Note a node that does not run; its launches do not count."""
        node = list(made_changes(self.plan, self.journal.events))[last.position]
        for launch in launches(self.journal.events):
            if launch.position == last.position and launch.end == "finished":
                why = f"it belongs to {group_names(node, len(self.plan.groups))}, which does not run"
                self.journal.append("discarded", {"attempt": launch.attempt_id, "reason": why})
        self.journal.append("unusable", {"groups": list(node), "reason": reason})
        self.tools.sink(JobNote(f"{group_names(node, len(self.plan.groups))}: {reason}: not asked by itself"))


def _write_patch(job: Job, plan: HunksPlan, outcome: HunkOutcome) -> None:
    patch = plan.groups[outcome.node[0]].patch if len(outcome.node) == 1 else ""
    if outcome.verdict == "found" and patch:
        write_atomic(job.path / PATCH, patch)


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
        HunksResult(
            job=job,
            plan=plan,
            records=records,
            outcome=outcome_of(events),
            seen=search_events(plan, events, records),
            changes=made_changes(plan, events),
            patch=str(patch) if patch.exists() else "",
        )
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


def exit_code(document: HunksDocument) -> int:
    """3 a group is named, 4 otherwise."""
    return EXIT_REGRESSION if document.verdict == "found" else EXIT_INCONCLUSIVE


def _status(document: HunksDocument) -> JobStatus:
    guilty = [group for group in document.groups if group.guilty]
    named = guilty[0].label if len(guilty) == 1 else ""
    known = document.share.share if document.share else None
    share = f", {percent(known, False)} of the step" if named and known is not None else ""
    return JobStatus(
        outcome=document.verdict,
        verdict=named + share,
        metric=document.metric,
        next=document.next,
    )


HUNKS: Final[JobKind[HunksPlan, HunksDocument]] = JobKind(
    plan=HunksPlan,
    run=find_hunks,
    document=hunks_document,
    exit_code=exit_code,
    status=_status,
    report=hunks_report,
    client_change=lambda plan: plan.culprit,
    amend=amend,
)
