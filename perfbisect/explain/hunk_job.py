"""Searches a commit's hunks as a job: launches of the culprit with groups of hunks taken back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from functools import partial
from math import isfinite
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, TypeAdapter

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
from perfbisect.explain.hunk_plan import HunkPart, HunksPlan
from perfbisect.explain.hunk_search import HunkEvent, HunkOutcome, Node, NodeLaunch, NodeResult, NodeUnusable
from perfbisect.jobs.commands import follow_up_command
from perfbisect.jobs.documents import (
    Document,
    MeasuredDocument,
    measured_fields,
)
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal, JournalEvent
from perfbisect.jobs.loop import Done, Fact, JobState, LaunchPolicy, fits_budget
from perfbisect.jobs.plans import plan_cell, read_verdict, require_more_budget, require_plan
from perfbisect.jobs.replay import Launch, LaunchRequest, ended_launches, launches, require_comparable
from perfbisect.jobs.runner import JobContext, RevertHunks
from perfbisect.jobs.sequence import sequential
from perfbisect.model.attempt import Purpose
from perfbisect.model.change import Change
from perfbisect.report.document import Report
from perfbisect.report.template import render_report, render_sentences
from perfbisect.system.files import write_atomic


class HunkGroupDocument(Document):
    """Hunks that are taken back together; ``guilty``: they are named, alone or with others."""

    number: int
    label: str
    hunks: tuple[HunkPart, ...]
    guilty: bool


class NodeEffectDocument(Document):
    """What taking groups back does: the relative effect and its share of the step, with 95 % intervals.

    ``share`` and its bounds are None where the step itself is not known well enough. ``unusable``: why the
    groups were not measured.
    """

    groups: tuple[int, ...]
    effect: float | None
    low: float | None
    high: float | None
    share: float | None
    share_low: float | None
    share_high: float | None
    launches: int
    unusable: str = ""

    @classmethod
    def of(cls, node: Node, known: NodeResult | None, seen: Sequence[HunkEvent]) -> NodeEffectDocument:
        share = known.share if known and isfinite(known.share.low) else None
        return cls(
            groups=_numbers(node),
            effect=known.effect.effect if known else None,
            low=known.effect.low if known else None,
            high=known.effect.high if known else None,
            share=share.value if share else None,
            share_low=share.low if share else None,
            share_high=share.high if share else None,
            launches=known.launches if known else 0,
            unusable=next((x.reason for x in seen if isinstance(x, NodeUnusable) and x.node == node), ""),
        )


class HunksDocument(MeasuredDocument):
    """Which hunk of a commit carries its step: ``explain --hunks``, ``resume``, ``report``."""

    shown: ClassVar[Mapping[str, int]] = {"launches": -4, "groups": 20, "excluded": 10}
    schema_: Literal["perfbisect.hunks/3"] = Field(default="perfbisect.hunks/3", alias="schema")
    verdict: Literal["found", "no single group", "too small", "unfinished"]
    reason: Literal["", "shared", "interaction", "inseparable", "effect", "noise", "budget"]
    source: str
    """The job whose culprit is explained."""
    culprit: Change
    parent: str
    groups: tuple[HunkGroupDocument, ...]
    share: NodeEffectDocument | None
    """Of the named groups; None while there are none."""
    whole: NodeEffectDocument | None
    """Of all groups together."""
    asked: tuple[NodeEffectDocument, ...]
    """Every set of groups that was asked, in that order."""
    excluded: tuple[str, ...]
    patch: str
    """The file that takes the named group back: ``CULPRIT+patch:FILE``."""

    def report(self) -> Report:
        """The verdict with its numbers, and the diff with the named groups marked."""
        guilty = [group for group in self.groups if group.guilty]
        marked = [
            f"{'>> ' if group.guilty else '   '}{text}"
            for group in self.groups
            for text in (f"# group {group.number}", *_diff_lines(group))
        ]
        values = {
            "r": self,
            "group_names": partial(_names_of_numbers, of=len(self.groups)),
            "guilty_diff": "\n".join(line for group in guilty for line in _diff_lines(group)),
            "diff": "\n".join(marked),
        }
        return render_report("explain/templates/hunks.md.jinja", values)


def hunks_document(job: Job, events: Sequence[JournalEvent]) -> HunksDocument:
    """The document of a search, finished or not."""
    plan, records, outcome = require_plan(job, events, HunksPlan), launches(events), outcome_of(events)
    seen, made = search_events(plan, events, records), made_changes(plan, events)
    patch = str(job.path / PATCH) if (job.path / PATCH).exists() else ""
    try:
        results = hunk_search.node_results(plan.search, seen)
    except ValueError:  # a value of zero, at which the search ended
        results = {}
    nodes = list(made)
    named = outcome.node if outcome else ()
    asked = tuple(
        NodeEffectDocument.of(node, results.get(node), seen)
        for node in dict.fromkeys((*nodes, *(event.node for event in seen)))
        if node
    )
    by_node = {document.groups: document for document in asked}
    document = HunksDocument(
        **measured_fields(job, plan, plan_cell(plan), records, lambda launch: made[nodes[launch.position]]),
        finished=outcome is not None,
        verdict=outcome.verdict if outcome else "unfinished",
        reason=outcome.reason if outcome else "",
        summary=(),
        next=_next_command(job, plan, outcome, patch),
        source=plan.source,
        culprit=plan.culprit,
        parent=plan.parent,
        groups=tuple(
            HunkGroupDocument(
                number=index + 1,
                label=group.label,
                hunks=group.hunks,
                guilty=index in named and outcome is not None and outcome.verdict == "found",
            )
            for index, group in enumerate(plan.groups)
        ),
        share=by_node.get(_numbers(named)) if named else None,
        whole=by_node.get(_numbers(hunk_search.everything(plan.search))),
        asked=asked,
        excluded=plan.left_out,
        patch=patch,
    )
    whole = results.get(hunk_search.everything(plan.search))
    removes_less = False
    if whole is not None and plan.step is not None and not plan.ref.metric.absolute:
        # From culprit / parent - 1 to parent / culprit - 1: what taking all of it back should show.
        removed = -plan.step / (1 + plan.step)
        removes_less = whole.effect.low > 0.5 * removed if removed < 0 else whole.effect.high < 0.5 * removed
    values = {
        "r": document,
        "named": _numbers(named),
        "group_names": partial(_names_of_numbers, of=len(plan.groups)),
        "step": plan.step,
        "removes_less": removes_less,
    }
    summary = render_sentences("explain/templates/hunks.summary.jinja", values)
    return document.model_copy(update={"summary": summary})


def _numbers(node: Node) -> tuple[int, ...]:
    return tuple(index + 1 for index in node)


def _next_command(job: Job, plan: HunksPlan, outcome: HunkOutcome | None, patch: str) -> str:
    if outcome is None:
        return f"perfbisect resume {job.id}"
    if outcome.reason == "budget":
        return f"perfbisect resume {job.id} --budget {2 * plan.budget:.0f}m"
    if patch:
        sides = {"a": plan.culprit.short, "b": f"{plan.culprit.short}+patch:{patch}"}
        return follow_up_command(plan.setting, "compare", plan.cell, (plan.metric,), **sides)
    return f"perfbisect report {job.id}"


def _names_of_numbers(numbers: Sequence[int], of: int) -> str:
    return group_names([number - 1 for number in numbers], of)


def group_names(node: Sequence[int], of: int) -> str:
    """``group 3``, ``groups 1 to 4``, counted from 1."""
    if len(node) == of and of > 1:
        return f"all {of} groups"
    numbers = [index + 1 for index in node]
    if len(numbers) == 1:
        return f"group {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"groups {numbers[0]} to {numbers[-1]}"
    return f"groups {', '.join(map(str, numbers))}"


def _diff_lines(group: HunkGroupDocument) -> Iterator[str]:
    """A group's hunks as a diff without context."""
    path = ""
    for hunk in group.hunks:
        if hunk.path != path:
            path = hunk.path
            yield f"--- {path}"
        yield f"@@ line {hunk.lines} @@ {hunk.function}".rstrip()
        yield from (f"-{text}" for text in hunk.removed)
        yield from (f"+{text}" for text in hunk.added)
        if hunk.more:
            yield f" ({hunk.more} more lines)"


PATCH = "guilty.patch"
"""In the job's folder: what takes the named group back."""

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
    plan: HunksPlan, events: Sequence[JournalEvent], records: Sequence[Launch]
) -> list[HunkEvent]:
    """What the search has seen, from a journal."""
    nodes = list(made_changes(plan, events))
    found: list[HunkEvent] = [
        NodeLaunch(nodes[launch.position], measured_event(launch, plan.ref))
        for launch in ended_launches(records)
        if launch.outcome == "measured"
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
        if revert is None:
            raise UsageError(
                "the commit's repository is not there any more: its hunks cannot be taken back",
                next_step=f"perfbisect resume {job.id} --repo PATH",
            )
        reverted = revert(plan.culprit, plan.hunks_of(action.node))
        groups = {"groups": list(action.node)}
        if isinstance(reverted, str):
            return Fact("unusable", {**groups, "reason": reverted})
        return Fact("node", {**groups, "change": _CHANGE.dump_python(reverted, mode="json")})
    what = (
        f"the culprit without {group_names(action.node, len(plan.groups))}" if action.node else "the culprit"
    )
    return LaunchRequest(
        list(made).index(action.node),
        change,
        action.purpose,
        action.runs,
        _reason(purpose=action.purpose, what=what),
        side=f"{change.short}, {what},",
        trial=astuple(action.trial) if action.trial else (),
    )


def _reason(purpose: Purpose | None = None, **values: str) -> str:
    (reason,) = render_sentences("explain/templates/hunks.reason.jinja", {"purpose": purpose, **values})
    return reason


def _give_up(plan: HunksPlan, error: PerfbisectError, last: Launch, state: JobState) -> Sequence[Fact]:
    """Note a node that does not run; its launches do not count."""
    # Position 0 is the culprit: where it does not run there is nothing to compare with.
    if last.position == 0 or not isinstance(error, BuildError | ServerError):
        return ()
    node = list(made_changes(plan, state.events))[last.position]
    names = group_names(node, len(plan.groups))
    why = _reason(names=names, problem="")
    told = _reason(names=names, problem=error.message)
    return (
        *(
            Fact("discarded", {"attempt": launch.id, "reason": why})
            for launch in state.launches
            if launch.position == last.position and launch.outcome == "measured"
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
        # More minutes can change no other verdict than that of an ended budget.
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
        next=document.next,
    )


HUNKS: Final = Experiment(
    plan=HunksPlan,
    result=hunks_document,
    status=_status,
    report=HunksDocument.report,
    client_change=lambda plan: plan.culprit,
    policy=lambda job, plan, tools: hunk_policy(job, plan, tools.revert_hunks),
    conclude=_write_patch,
    amend=amend,
)
