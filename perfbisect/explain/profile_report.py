"""The document and the report of a profile: the conclusion, and functions and counts that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal

from pydantic import Field

from perfbisect.common.quantities import counted
from perfbisect.explain.attribution import (
    IN_DIFF,
    ConclusionKind,
    GrowthLocation,
    OperationGrowth,
    ProfileConclusion,
    ProfileExplanation,
)
from perfbisect.explain.functions import FunctionGrowth
from perfbisect.explain.trace import CountDifference
from perfbisect.jobs.documents import ChangeDocument, Document, MeasuredDocument, MetricDocument
from perfbisect.report.diffs import MARK, DiffDocument, marked_part
from perfbisect.report.document import (
    Block,
    Command,
    FileLines,
    FlameGraph,
    Inline,
    Items,
    KeyValues,
    Paragraph,
    Report,
    Section,
    Tone,
    Verdict,
    code,
    make_table,
)
from perfbisect.report.flames import FlameDocument
from perfbisect.report.sections import (
    cell_section,
    change_text,
    launch_section,
    minutes_section,
    version_section,
)

MOST_ROWS: Final = 40
_TOP: Final = 12
_NAMED: Final = 3
_LITTLE: Final = 0.05
_HUNK_LINES: Final = 20
"""Of the marked hunk that stands beside the conclusion."""


RecordingFormat = Literal["collapsed stacks", "Chrome trace"]


class RecordingDocument(Document):
    """A file that a launch recorded, by its path in the job's folder."""

    side: str
    launch: int
    format: RecordingFormat
    path: str


class ProfileResultDocument(Document):
    """What the recordings say. ``shares``: of the growth by place; ``place``: ``FILE:LINE FUNCTION``.

    ``launches``: with stacks, of each side; ``settings``: name, value before, value after; ``problems``: why
    something was not recorded.
    """

    kind: ConclusionKind | Literal["not compared"]
    sentence: str
    growth_ms: float = 0.0
    shares: dict[str, float] = Field(default_factory=dict)
    place: str = ""
    link: str = ""
    """``FILE:LINE NAME`` of the diff, which the function at ``place`` uses where that is not in it."""
    total_before: float = 0.0
    total_after: float = 0.0
    launches: tuple[int, int] = (0, 0)
    step: str = ""
    functions: tuple[FunctionGrowth, ...] = ()
    operations: tuple[OperationGrowth, ...] = ()
    counts: tuple[CountDifference, ...] = ()
    settings: tuple[tuple[str, str, str], ...] = ()
    problems: tuple[str, ...] = ()
    flames: FlameDocument | None = None
    """Stacks of both sides; frames below 0.5 % of the slower side are folded together."""
    diff: DiffDocument | None = None
    """The diff between the sides, with the lines marked that ``place`` and ``link`` name."""


class ProfileDocument(MeasuredDocument):
    """``perfbisect explain JOB --profile``; ``source``: that job."""

    shown: ClassVar[Mapping[str, int]] = {}
    schema_: Literal["perfbisect.profile/2"] = Field(default="perfbisect.profile/2", alias="schema")
    source: str
    finished: bool
    a: ChangeDocument
    b: ChangeDocument
    metric: MetricDocument
    result: ProfileResultDocument | None
    files: tuple[RecordingDocument, ...]
    next: str

    def brief(self) -> ProfileDocument:
        """Without stacks, and with the marked hunk alone of the diff."""
        brief = super().brief()
        result = self.result
        if result is None:
            return brief
        part = marked_part(result.diff, _HUNK_LINES) if result.diff is not None else None
        diff = DiffDocument(files=(part,)) if part is not None else None
        left = {"result.flames": int(result.flames is not None), "result.diff": int(result.diff is not None)}
        return brief.model_copy(
            update={
                "result": result.model_copy(update={"flames": None, "diff": diff}),
                "left_out": {**brief.left_out, **{name: count for name, count in left.items() if count}},
            }
        )


def result_document(
    explanation: ProfileExplanation | None,
    problems: tuple[str, ...],
    flames: FlameDocument | None = None,
    diff: DiffDocument | None = None,
) -> ProfileResultDocument:
    """The comparison as it is kept; None: the sides could not be compared."""
    if explanation is None:
        sentence = "Nothing is known of functions: a side has no recording."
        return ProfileResultDocument(kind="not compared", sentence=sentence, problems=problems)
    conclusion, functions = explanation.conclusion, explanation.functions
    place, link = conclusion.location, conclusion.link
    return ProfileResultDocument(
        kind=conclusion.kind,
        sentence=profile_sentence(explanation),
        growth_ms=conclusion.growth_ms,
        shares=dict(conclusion.shares),
        place=f"{place.path}:{place.line} {place.function}" if place is not None else "",
        link=f"{link.path}:{link.line} {link.name}" if link is not None else "",
        total_before=functions.total.before,
        total_after=functions.total.after,
        launches=functions.launches,
        step=explanation.step,
        functions=_notable(functions.functions),
        operations=explanation.operations[:MOST_ROWS],
        counts=explanation.counts,
        settings=conclusion.settings,
        problems=problems,
        flames=flames,
        diff=diff,
    )


def profile_sentence(explanation: ProfileExplanation) -> str:
    """Where the growth is; says how much of it where it is not all in one place."""
    conclusion = explanation.conclusion
    place = conclusion.location
    if conclusion.kind == "no stacks":
        return "No stacks were sampled on both sides." + _settings(conclusion)
    if conclusion.kind == "no growth seen":
        if grown := explanation.functions.grown:
            return f"The sides do not differ beyond noise; {_most(grown[0])}." + _settings(conclusion)
        before, after = explanation.functions.launches
        noise = f"{counted(before, 'profile launch')} before and {after} after"
        return f"No function grew beyond the noise of {noise}." + _settings(conclusion)
    if conclusion.kind == "no diff":
        return f"No diff between the sides is known; {_most(explanation.functions.grown[0])}."
    if conclusion.kind == "in the diff" and place is not None:
        changed = f"in {_at(place)}, which this commit {_verb(place)}"
        if conclusion.basis == "operations":
            return (
                f"{_percent(place.share)} of the growth of kernels and operators beyond noise is {changed}."
            )
        more = [
            f"{_percent(share)} {words}"
            for share, words in (
                (conclusion.share(*IN_DIFF) - place.share, "in other lines of the diff"),
                (conclusion.share("called from the diff"), "in what the diff calls"),
            )
            if share > _LITTLE
        ]
        rest = f"; {' and '.join(more)}" if more else ""
        return f"{_percent(place.share)} of the growth beyond noise is {changed}{rest}."
    if conclusion.kind == "called from the diff" and place is not None:
        share = conclusion.share(*IN_DIFF, "called from the diff")
        where = f"{_at(place)}, which this commit {_verb(place)}"
        return f"{_percent(share)} of the growth beyond noise is called from {where}."
    share = conclusion.share(*IN_DIFF, "called from the diff")
    start = "None" if share < _LITTLE else f"Only {_percent(share)}"
    most = f"; most is in {_at(place)}" if place is not None else ""
    link = conclusion.link
    if link is not None:
        where = f"{link.path}:{link.line}" if link.line else link.path
        most += f", which uses the {link.kind} {link.name} that this commit changed at {where}"
        return f"{start} of the growth beyond noise stands in the diff{most}."
    return f"{start} of the growth beyond noise stands in the diff{most}." + _settings(conclusion)


def _settings(conclusion: ProfileConclusion) -> str:
    """What differs beside code: values that the engine reports, else the files that may set them."""
    if conclusion.settings:
        shown = [f"{name} {before} -> {after}" for name, before, after in conclusion.settings[:_NAMED]]
        more = len(conclusion.settings) - _NAMED
        return f" The sides differ in {', '.join(shown)}{f' and {more} more' if more > 0 else ''}."
    if conclusion.configuration:
        return f" The diff changes {', '.join(conclusion.configuration[:_NAMED])}."
    return ""


def _most(row: FunctionGrowth) -> str:
    return f"{row.path} {row.function} grew most, by {row.growth:.2f} ms a step"


def _at(place: GrowthLocation) -> str:
    line = f":{place.line}" if place.line else ""
    return f"{place.path}{line} {place.function}"


def _verb(place: GrowthLocation) -> str:
    return "added" if place.is_added else "changed"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _notable(rows: Sequence[FunctionGrowth]) -> tuple[FunctionGrowth, ...]:
    """Those that differ beyond chance, then the largest differences."""
    ranked = sorted(rows, key=lambda row: (not row.significant, -abs(row.difference), row.key))
    return tuple(sorted(ranked[:MOST_ROWS], key=lambda row: (-row.growth, row.key)))


_TONES: Final[dict[str, Tone]] = {
    "in the diff": "bad",
    "called from the diff": "bad",
    "not in the diff": "open",
    "no growth seen": "open",
    "no diff": "open",
    "no stacks": "open",
    "not compared": "open",
}


def profile_report(document: ProfileDocument) -> Report:
    """Functions and operators that differ between the sides, and whether they stand in the diff."""
    result = document.result
    title = f"Profile of {document.b.short} against {document.a.short} on {document.cell.name}"
    if result is None:
        blocks: list[Block] = [Paragraph("Unfinished: the sides are compared after the last launch.")]
        verdict = Verdict("unfinished", "open")
    else:
        blocks, verdict = _blocks(result), Verdict(result.kind, _TONES[result.kind])
    sides = KeyValues((("A", change_text(document.a)), ("B", change_text(document.b))))
    return Report(
        title,
        verdict,
        (*blocks, Command(document.next)),
        (
            Section("Sides", (sides,), detail=True),
            *(_details(result) if result is not None else ()),
            *_files_section(document.files),
            cell_section(document.cell, document.notes),
            launch_section(document.launches, document.metric.unit),
            minutes_section(document.minutes),
            version_section(document.versions),
        ),
    )


def _blocks(result: ProfileResultDocument) -> list[Block]:
    blocks: list[Block] = [Paragraph(result.sentence)]
    rows = [row for row in result.functions if row.significant] or list(result.functions[:3])
    if rows:
        blocks.append(_function_table(rows[:_TOP]))
        blocks.append(
            Paragraph(
                "Own time in ms a step without waiting; that of a library is its caller's. Sampling slows "
                f"the engine down: compare the sides, not with a benchmark. {_interval_note(result)}",
                quiet=True,
            )
        )
    part = marked_part(result.diff, _HUNK_LINES) if result.diff is not None else None
    if part is not None:
        blocks.append(FileLines(part))
    if result.counts:
        blocks.append(Paragraph(f"A step calls more or less often ({result.step}):"))
        blocks.append(_count_table(result.counts[:_TOP]))
    if result.problems:
        blocks.append(Items(tuple(code(problem) for problem in result.problems)))
    return blocks


def _interval_note(result: ProfileResultDocument) -> str:
    a, b = result.launches
    if min(a, b) > 1:
        return f"Intervals (95 %) are over {a} and {b} launches, whose noise is shared by all functions."
    return "One launch of a side shows nothing of its own noise: intervals (95 %) rest on a usual one."


def _function_table(rows: Sequence[FunctionGrowth]) -> Block:
    titles = ("function", "before*", "after*", "difference*", "in the diff?")
    return make_table(titles, [_function_cells(row) for row in rows])


def _function_cells(row: FunctionGrowth) -> tuple[Inline, ...]:
    interval = f"{row.difference:+.2f} ({row.low:+.2f} to {row.high:+.2f})"
    place: str = row.place or "-"
    if row.moved_from and row.growth < 0.5 * row.difference:
        place = f"moved from {', '.join(row.moved_from[:2])}"
    elif row.new:
        place = f"{place}, new"
    name = f"{row.path} {row.function}"
    return code(name), f"{row.before:.2f}", f"{row.after:.2f}", interval, place


def _count_table(rows: Sequence[CountDifference]) -> Block:
    cells: list[tuple[Inline, ...]] = [
        (row.kind, code(row.name[:120]), _range(row.before), _range(row.after)) for row in rows
    ]
    return make_table(("what", "name", "before*", "after*"), cells)


def _range(counts: tuple[int, int]) -> str:
    least, most = counts
    return str(least) if least == most else f"{least} to {most}"


def _flame_section(root: FlameDocument) -> Section:
    caption = (
        "Working time by stack, callers above what they call. The width is the time in a step on the slower "
        f"side ({max(root.before, root.after):.2f} ms in all). Red with + grew, blue with - shrank, in ms a "
        "step; grey differs by less than 1 % of the whole. Frames that are smaller than 0.5 % are folded "
        "together; those of the other side alone are in the text below. Differences of stacks are not tested "
        "for chance: the table of functions is."
    )
    return Section("Time by stack, ms a step", (FlameGraph(caption, root),))


def _diff_section(diff: DiffDocument) -> Section:
    blocks: list[Block] = [Paragraph(f"{MARK} marks lines of what the conclusion names.", quiet=True)]
    blocks += [FileLines(file) for file in diff.files]
    if diff.omitted_files:
        blocks.append(Paragraph(f"{diff.omitted_files} more files are not shown."))
    return Section("Diff", tuple(blocks), detail=True)


_VIEWERS: Final[dict[RecordingFormat, str]] = {"collapsed stacks": "speedscope", "Chrome trace": "Perfetto"}


def _files_section(files: Sequence[RecordingDocument]) -> tuple[Section, ...]:
    rows: list[tuple[Inline, ...]] = [
        (str(file.launch), file.side.upper(), file.format, _VIEWERS[file.format], code(file.path))
        for file in files
    ]
    table = make_table(("launch*", "side", "format", "opens in", "path in the job's folder"), rows)
    return (Section("Files", (table,), detail=True),) if rows else ()


def _details(result: ProfileResultDocument) -> tuple[Section, ...]:
    sections = []
    if result.flames is not None:
        sections.append(_flame_section(result.flames))
    if result.diff is not None and result.diff.files:
        sections.append(_diff_section(result.diff))
    if result.functions:
        sections.append(Section("Functions", (_function_table(result.functions),), detail=True))
    if result.operations:
        rows: list[tuple[Inline, ...]] = [
            (
                row.family,
                code(row.name[:120]),
                f"{row.before:.3f}",
                f"{row.after:.3f}",
                f"{row.difference:+.3f} ({row.low:+.3f} to {row.high:+.3f})",
            )
            for row in result.operations
        ]
        table = make_table(("family", "operator or kernel", "before*", "after*", "difference*"), rows)
        text = Paragraph(f"Own time in ms of a step {result.step}.", quiet=True)
        sections.append(Section("Operators and kernels", (text, table), detail=True))
    if result.settings:
        differing: list[tuple[Inline, ...]] = [
            (code(name), code(before), code(after)) for name, before, after in result.settings
        ]
        sections.append(
            Section("Settings", (make_table(("setting", "before", "after"), differing),), detail=True)
        )
    return tuple(sections)
