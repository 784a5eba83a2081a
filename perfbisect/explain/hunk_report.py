"""The document and the report of a search of hunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import ClassVar, Literal

from pydantic import Field

from perfbisect.explain import hunk_search
from perfbisect.explain.hunk_plan import HunkLines, HunksPlan
from perfbisect.explain.hunk_search import HunkEvent, HunkOutcome, Node, NodeResult, NodeUnusable
from perfbisect.jobs.commands import follow_up_command
from perfbisect.jobs.documents import (
    ChangeDocument,
    Document,
    MeasuredDocument,
    MetricDocument,
    change_document,
    measured_fields,
    metric_document,
)
from perfbisect.jobs.folders import Job
from perfbisect.jobs.plans import plan_cell
from perfbisect.jobs.replay import LaunchRecord
from perfbisect.model.change import Change
from perfbisect.report.document import (
    Report,
)
from perfbisect.report.template import render_report, render_sentences


class HunkGroupDocument(Document):
    """Hunks that are taken back together; ``guilty``: they are named, alone or with others."""

    number: int
    label: str
    hunks: tuple[HunkLines, ...]
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


class HunksDocument(MeasuredDocument):
    """Which hunk of a commit carries its step: ``explain --hunks``, ``resume``, ``report``."""

    shown: ClassVar[Mapping[str, int]] = {"launches": -4, "groups": 20, "excluded": 10}
    schema_: Literal["perfbisect.hunks/2"] = Field(default="perfbisect.hunks/2", alias="schema")
    finished: bool
    verdict: Literal["found", "no single group", "too small", "unfinished"]
    reason: Literal["", "shared", "interaction", "inseparable", "effect", "noise", "budget"]
    summary: tuple[str, ...]
    next: str
    source: str
    """The job whose culprit is explained."""
    culprit: ChangeDocument
    parent: str
    metric: MetricDocument
    environment: str
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


def make_hunks_document(
    job: Job,
    plan: HunksPlan,
    records: Sequence[LaunchRecord],
    outcome: HunkOutcome | None,
    *,
    seen: Sequence[HunkEvent],
    made: Mapping[Node, Change],
    patch: str,
) -> HunksDocument:
    """The document of a search, finished or not.

    ``made``: changes of the nodes; ``patch``: the file that takes the named group back.
    """
    try:
        results = hunk_search.node_results(plan.search, seen)
    except ValueError:  # a value of zero, at which the search ended
        results = {}
    nodes = list(made)
    named = outcome.node if outcome else ()
    asked = tuple(
        _effect_document(node, results.get(node), seen)
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
        culprit=change_document(plan.culprit),
        parent=plan.parent,
        metric=metric_document(plan.ref, plan.smallest_effect),
        environment=plan.setting.environment,
        groups=tuple(
            HunkGroupDocument(
                number=index + 1,
                label=group.label,
                hunks=tuple(HunkLines(**hunk.model_dump(exclude={"index"})) for hunk in group.hunks),
                guilty=index in named and outcome is not None and outcome.verdict == "found",
            )
            for index, group in enumerate(plan.groups)
        ),
        share=by_node.get(_numbers(named)) if named else None,
        whole=by_node.get(_numbers(plan.search.everything)),
        asked=asked,
        excluded=plan.left_out,
        patch=patch,
    )
    whole = results.get(plan.search.everything)
    values = {
        "r": document,
        "named": _numbers(named),
        "group_names": partial(_names_of_numbers, of=len(plan.groups)),
        "step": plan.step,
        "removes_less": whole is not None and _removes_less(plan, whole),
    }
    summary = render_sentences("explain/templates/hunks.summary.jinja", values)
    return document.model_copy(update={"summary": summary})


def _numbers(node: Node) -> tuple[int, ...]:
    return tuple(index + 1 for index in node)


def _effect_document(node: Node, known: NodeResult | None, seen: Sequence[HunkEvent]) -> NodeEffectDocument:
    unusable = next((x.reason for x in seen if isinstance(x, NodeUnusable) and x.node == node), "")
    share = known.share if known and isfinite(known.share.low) else None
    return NodeEffectDocument(
        groups=_numbers(node),
        effect=known.effect.effect if known else None,
        low=known.effect.low if known else None,
        high=known.effect.high if known else None,
        share=share.value if share else None,
        share_low=share.low if share else None,
        share_high=share.high if share else None,
        launches=known.launches if known else 0,
        unusable=unusable,
    )


def _removes_less(plan: HunksPlan, whole: NodeResult) -> bool:
    """Whether all groups together remove less of the step than the other job saw."""
    if plan.step is None or plan.ref.metric.absolute:
        return False
    removed = -plan.step / (1 + plan.step)
    return whole.effect.low > 0.5 * removed if removed < 0 else whole.effect.high < 0.5 * removed


def _next_command(job: Job, plan: HunksPlan, outcome: HunkOutcome | None, patch: str) -> str:
    if outcome is None:
        return f"perfbisect resume {job.id}"
    if outcome.reason == "budget":
        return f"perfbisect resume {job.id} --budget {2 * plan.budget:.0f}m"
    if patch:
        sides = ("--a", plan.culprit.short, "--b", f"{plan.culprit.short}+patch:{patch}")
        return follow_up_command(plan.setting, "compare", plan.cell, plan.metric, *sides)
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


def hunks_report(document: HunksDocument) -> Report:
    """The report of a search."""
    guilty = [group for group in document.groups if group.guilty]
    values = {
        "r": document,
        "group_names": partial(_names_of_numbers, of=len(document.groups)),
        "guilty_diff": "\n".join(line for group in guilty for line in _diff_lines(group)),
        "diff": "\n".join(_marked_lines(document)),
    }
    return render_report("explain/templates/hunks.md.jinja", values)


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


def _marked_lines(document: HunksDocument) -> Iterator[str]:
    """Every group's diff; the lines of the named ones are marked at the left."""
    for group in document.groups:
        mark = ">> " if group.guilty else "   "
        yield f"{mark}# group {group.number}"
        yield from (f"{mark}{text}" for text in _diff_lines(group))
