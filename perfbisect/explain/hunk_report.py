"""The document and the report of a search of hunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import ClassVar, Final, Literal

from pydantic import Field

from perfbisect.common.quantities import counted, minutes, percent, spent_text
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
from perfbisect.jobs.replay import LaunchRecord, lost_minutes
from perfbisect.model.change import Change
from perfbisect.report.document import (
    Block,
    Code,
    Command,
    Inline,
    Items,
    Paragraph,
    Report,
    Section,
    Verdict,
    code,
    make_table,
)
from perfbisect.report.sections import cell_section, launch_section, minutes_section, version_section


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


@dataclass(frozen=True)
class HunksResult:
    """A search as its journal has it. ``changes``: of the nodes that were made."""

    job: Job
    plan: HunksPlan
    records: Sequence[LaunchRecord]
    outcome: HunkOutcome | None
    seen: Sequence[HunkEvent]
    changes: Mapping[Node, Change]
    patch: str = ""

    @property
    def named(self) -> Node:
        return self.outcome.node if self.outcome else ()

    @cached_property
    def results(self) -> dict[Node, NodeResult]:
        try:
            return hunk_search.node_results(self.plan.search, self.seen)
        except ValueError:  # a value of zero, at which the search ended
            return {}


def make_hunks_document(result: HunksResult) -> HunksDocument:
    """The document of a search, finished or not."""
    plan, outcome = result.plan, result.outcome
    nodes = list(result.changes)

    def change_of(launch: LaunchRecord) -> Change:
        return result.changes[nodes[launch.position]]

    seen = dict.fromkeys((*nodes, *(event.node for event in result.seen)))
    asked = tuple(_effect_document(result, node) for node in seen if node)
    by_node = {document.groups: document for document in asked}
    everything = _numbers(plan.search.everything)
    return HunksDocument(
        **measured_fields(result.job, plan, plan_cell(plan), result.records, change_of),
        finished=outcome is not None,
        verdict=outcome.verdict if outcome else "unfinished",
        reason=outcome.reason if outcome else "",
        summary=tuple(_summary(result)),
        next=_next_command(result),
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
                guilty=index in result.named and outcome is not None and outcome.verdict == "found",
            )
            for index, group in enumerate(plan.groups)
        ),
        share=by_node.get(_numbers(result.named)) if result.named else None,
        whole=by_node.get(everything),
        asked=asked,
        excluded=plan.left_out,
        patch=result.patch,
    )


def _numbers(node: Node) -> tuple[int, ...]:
    return tuple(index + 1 for index in node)


def _effect_document(result: HunksResult, node: Node) -> NodeEffectDocument:
    known = result.results.get(node)
    unusable = next((x.reason for x in result.seen if isinstance(x, NodeUnusable) and x.node == node), "")
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


def _summary(result: HunksResult) -> Iterator[str]:
    """What was found, in sentences."""
    plan, outcome, results = result.plan, result.outcome, result.results
    whole = results.get(plan.search.everything)
    if outcome is None:
        yield f"{counted(len(plan.groups), 'group')} of hunks; the search goes on."
    elif outcome.verdict == "found":
        yield from _found_sentences(result, outcome)
    else:
        yield _REASONS[outcome.reason].format(
            all=_all(plan), node=group_names(outcome.node, len(plan.groups)) if outcome.node else _all(plan)
        )
        if outcome.node:
            name = group_names(outcome.node, len(plan.groups)).capitalize()
            yield f"{name}: {_labels(plan, outcome.node)}{_effect(results.get(outcome.node))}."
    if whole is not None and len(plan.groups) > 1:
        yield f"{_all(plan).capitalize()} taken back{_effect(whole, False)}."
        if plan.step is not None and _removes_less(plan, whole):
            yield (
                f"Job {plan.source} saw {percent(plan.step)} between parent and culprit: a part of the step "
                "is in what was left out, or the machine is not as it was."
            )
    total, lost = sum(launch.minutes for launch in result.records), lost_minutes(result.records)
    measured = sum(launch.end == "finished" for launch in result.records)
    yield f"{counted(measured, 'launch')}, {spent_text(total, plan.budget, lost)}."


_REASONS: Final[Mapping[str, str]] = {
    "shared": "No single group carries the step: several have a part of it.",
    "interaction": "No single group carries the step: {node} brings it, and so do others.",
    "inseparable": "No single group can be named: {all} do not run without each other.",
    "effect": "{all} taken back together change the metric by less than the smallest relevant effect.",
    "noise": "The launches differ by too much to say which group carries the step.",
    "budget": "The budget ended before a group could be named.",
}


def _found_sentences(result: HunksResult, outcome: HunkOutcome) -> Iterator[str]:
    plan, node = result.plan, outcome.node
    known = result.results.get(node)
    yield f"The step is in {_labels(plan, node)}{_effect(known)}."
    if len(node) > 1:
        yield f"{group_names(node, len(plan.groups)).capitalize()} cannot be told apart."


def _labels(plan: HunksPlan, node: Node) -> str:
    labels = [plan.groups[index].label for index in node]
    more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
    return "; ".join(labels[:_NAMED]) + more


_NAMED = 4


def _all(plan: HunksPlan) -> str:
    return "the one group" if len(plan.groups) == 1 else f"all {len(plan.groups)} groups"


def _removes_less(plan: HunksPlan, whole: NodeResult) -> bool:
    """Whether all groups together remove less of the step than the other job saw."""
    if plan.step is None or plan.ref.metric.absolute:
        return False
    removed = -plan.step / (1 + plan.step)
    return whole.effect.low > 0.5 * removed if removed < 0 else whole.effect.high < 0.5 * removed


def _effect(known: NodeResult | None, with_share: bool = True) -> str:
    """``: without it -8.9 % (95 % CI -10.2 % to -7.5 %), 97 % of the step (88 to 106 %)``."""
    if known is None:
        return ""
    effect = known.effect
    text = f": {percent(effect.effect)} (95 % CI {percent(effect.low)} to {percent(effect.high)})"
    if with_share and isfinite(known.share.low):
        share = known.share
        text += f" without it, {share.value:.0%} of the step ({share.low:.0%} to {share.high:.0%})".replace(
            "%", " %"
        )
    return text


def _next_command(result: HunksResult) -> str:
    plan, outcome = result.plan, result.outcome
    if outcome is None:
        return f"perfbisect resume {result.job.id}"
    if outcome.reason == "budget":
        return f"perfbisect resume {result.job.id} --budget {2 * plan.budget:.0f}m"
    if result.patch:
        sides = ("--a", plan.culprit.short, "--b", f"{plan.culprit.short}+patch:{result.patch}")
        return follow_up_command(plan.setting, "compare", plan.cell, plan.metric, *sides)
    return f"perfbisect report {result.job.id}"


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
    verdict = document.verdict
    if verdict == "found" and len(guilty) == 1:
        verdict_text = f"found, {guilty[0].label}"
    else:
        verdict_text = f"{verdict}, {document.reason}" if document.reason else verdict
    subject = document.culprit.subject
    blocks: list[Block] = [Paragraph((code(document.culprit.short), " ", code(subject)))] if subject else []
    blocks += [Paragraph(text) for text in document.summary]
    if guilty:
        blocks.append(Code("\n".join(line for group in guilty for line in _diff_lines(group)), "diff"))
    blocks.append(Command(document.next))
    return Report(
        title=f"Hunks of {document.culprit.short}",
        verdict=Verdict(verdict_text, "bad" if guilty else "neutral" if verdict == "unfinished" else "open"),
        blocks=tuple(blocks),
        sections=tuple(_sections(document)),
        highlights=_highlights(document),
    )


def _highlights(document: HunksDocument) -> tuple[tuple[str, str], ...]:
    share = document.share
    found = []
    if document.verdict == "found" and share is not None and share.effect is not None:
        found.append((percent(share.effect), f"{document.metric.display} without the named lines"))
        if share.share is not None and len(document.groups) > 1:
            found.append((percent(share.share, False), "of the step"))
    return (*found, (minutes(document.minutes.total), counted(len(document.launches), "launch")))


def _sections(document: HunksDocument) -> Iterator[Section]:
    rows: list[tuple[Inline, ...]] = []
    for asked in document.asked:
        groups = group_names([number - 1 for number in asked.groups], len(document.groups))
        if asked.effect is None or asked.low is None or asked.high is None:
            rows.append((groups, asked.unusable or "-", "", "", str(asked.launches)))
            continue
        interval = f"{percent(asked.low)} to {percent(asked.high)}"
        share = "-"
        if asked.share is not None and asked.share_low is not None and asked.share_high is not None:
            share = (
                f"{100 * asked.share:.0f} % ({100 * asked.share_low:.0f} to {100 * asked.share_high:.0f} %)"
            )
        rows.append((groups, percent(asked.effect), interval, share, str(asked.launches)))
    named = document.share.groups if document.share and document.verdict == "found" else ()
    marked = [index for index, asked in enumerate(document.asked) if asked.groups == named]
    titles = ("taken back", "effect*", "95 % CI", "share of the step", "launches*")
    if rows:
        yield Section("What was asked", (make_table(titles, rows, marked),))
    listed = [
        (str(group.number), code(group.label), "this one" if group.guilty else "")
        for group in document.groups
    ]
    guilty = [index for index, group in enumerate(document.groups) if group.guilty]
    yield Section("Groups of hunks", (make_table(("#*", "where", "carries the step"), listed, guilty),))
    if document.excluded:
        yield Section("Left out", (Items(tuple(code(text) for text in document.excluded)),))
    yield Section("The commit's diff", (Code("\n".join(_marked_lines(document)), "text"),), detail=True)
    yield launch_section(document.launches, document.metric.unit)
    yield minutes_section(document.minutes)
    yield cell_section(document.cell, document.notes, (("environment", code(document.environment)),))
    yield version_section(document.versions)


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
