"""Profiles as a job: launches of both sides in turn in which stacks and operators are recorded.

They follow an A/B that measured the slowdown, and are never a measurement themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from perfbisect.changes.git import Repository
from perfbisect.engine.experiment import Experiment, JobStatus
from perfbisect.environments.packages import PACKAGES
from perfbisect.errors import EXIT_OK, PerfbisectError
from perfbisect.experiments.compare import SIDES
from perfbisect.experiments.measure import SidePlan
from perfbisect.explain.attribution import (
    GrowthShares,
    ProfileExplanation,
    SettingDifference,
    TraceComparison,
    explain_profiles,
)
from perfbisect.explain.diff import StackDiff, read_diff
from perfbisect.explain.figures import build_flames, excerpt_diff
from perfbisect.explain.functions import FunctionGrowth, ProfileWindow, SampledLaunch
from perfbisect.explain.stacks import read_folded
from perfbisect.explain.trace import TraceProfile, read_trace
from perfbisect.jobs.documents import (
    Document,
    MeasuredDocument,
    measured_fields,
)
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.loop import Done, JobState, LaunchPolicy, fits_budget
from perfbisect.jobs.plans import BudgetedPlan, plan_cell, require_plan
from perfbisect.jobs.replay import Launch, LaunchRequest, launches
from perfbisect.jobs.sequence import sequential
from perfbisect.measure.profiling import FACT, FOLDER, ProfileFiles
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell, apply_variant
from perfbisect.model.change import Change
from perfbisect.report.diffs import MARK, DiffDocument, marked_part
from perfbisect.report.document import (
    FileLines,
    Report,
)
from perfbisect.report.flames import FlameDocument
from perfbisect.report.template import render_report, render_sentences
from perfbisect.serving.log_facts import combine_launches, fact_differences

MOST_ROWS: Final = 40
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


class ProfileResultDocument(GrowthShares, TraceComparison):
    """What the recordings say. ``place``: ``FILE:LINE FUNCTION``; ``launches``: with stacks, of each side.

    ``problems``: why something was not recorded.
    """

    sentence: str
    place: str = ""
    link: str = ""
    """``FILE:LINE NAME`` of the diff, which the function at ``place`` uses where that is not in it."""
    total_before: float = 0.0
    total_after: float = 0.0
    launches: tuple[int, int] = (0, 0)
    functions: tuple[FunctionGrowth, ...] = ()
    problems: tuple[str, ...] = ()
    flames: FlameDocument | None = None
    """Stacks of both sides; frames below 0.5 % of the slower side are folded together."""
    diff: DiffDocument | None = None
    """The diff between the sides, with the lines marked that ``place`` and ``link`` name."""

    @classmethod
    def of(
        cls,
        explanation: ProfileExplanation | None,
        problems: tuple[str, ...],
        flames: FlameDocument | None = None,
        diff: DiffDocument | None = None,
    ) -> ProfileResultDocument:
        """The comparison as it is kept; None: the sides could not be compared."""
        template = "explain/templates/profile.summary.jinja"
        if explanation is None:
            told = render_sentences(template, {"x": None})
            return cls(kind="not compared", sentence="".join(told), problems=problems)
        conclusion, functions = explanation.conclusion, explanation.functions
        grown = {"grown": functions.grown, "launches": functions.launches, "little": _LITTLE}
        told = render_sentences(template, {"x": conclusion, **grown})
        place, link = conclusion.location, conclusion.link
        # Those that differ beyond chance, then the largest differences.
        ranked = sorted(
            functions.functions, key=lambda row: (not row.significant, -abs(row.difference), row.key)
        )
        return cls(
            **{name: getattr(conclusion, name) for name in GrowthShares.model_fields},
            **dict(explanation.trace) | {"operations": explanation.trace.operations[:MOST_ROWS]},
            sentence="".join(told),
            place=f"{place.path}:{place.line} {place.function}" if place is not None else "",
            link=f"{link.path}:{link.line} {link.name}" if link is not None else "",
            total_before=functions.total.before,
            total_after=functions.total.after,
            launches=functions.launches,
            functions=tuple(sorted(ranked[:MOST_ROWS], key=lambda row: (-row.growth, row.key))),
            problems=problems,
            flames=flames,
            diff=diff,
        )


class ProfileDocument(MeasuredDocument):
    """``perfbisect explain JOB --profile``; ``source``: that job."""

    shown: ClassVar[Mapping[str, int]] = {}
    schema_: Literal["perfbisect.profile/3"] = Field(default="perfbisect.profile/3", alias="schema")
    source: str
    a: Change
    b: Change
    result: ProfileResultDocument | None
    files: tuple[RecordingDocument, ...]

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

    def report(self) -> Report:
        """Functions and operators that differ between the sides, and whether they stand in the diff."""
        diff = self.result.diff if self.result is not None else None
        return render_report(
            "explain/templates/profile.md.jinja",
            {"r": self, "mark": MARK},
            {
                "marked": marked_part(diff, _HUNK_LINES) if diff is not None else None,
                "diff": tuple(map(FileLines, diff.files)) if diff is not None else None,
                "flames": self.result.flames if self.result is not None else None,
            },
        )


MOST_LAUNCHES: Final = 2
"""Profile launches of a side, at most."""

# A B B A: a steady drift of the machine affects both sides alike.
_ORDER: Final = (0, 1, 1, 0)
_FILES: Final = TypeAdapter(ProfileFiles)


class ProfilePlan(BudgetedPlan):
    """Profile launches of two sides, A B B A. ``source``: the job that is explained.

    ``is_slower``: whether that job showed that B is slower; ``cell``: before variants; ``objects``: folder of
    commits that perfbisect made.
    """

    noun: ClassVar[str] = "profile"
    verb: Literal["profile"] = "profile"
    source: str
    a: SidePlan
    b: SidePlan
    is_slower: bool
    launches: int = MOST_LAUNCHES
    budget: float
    objects: str = ""

    @property
    def sides(self) -> tuple[SidePlan, SidePlan]:
        return self.a, self.b

    @property
    def changes(self) -> tuple[Change, ...]:
        return self.a.change, self.b.change

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cell as each side serves it."""
        cell = plan_cell(self)
        return tuple(apply_variant(cell, side.variant) if side.variant else cell for side in self.sides)


def profile_policy(plan: ProfilePlan) -> LaunchPolicy:
    """The launches of a profile; there is nothing to admit."""
    cells = plan.cells

    def next_launch(state: JobState) -> LaunchRequest | Done:
        count = sum(launch.outcome == "measured" for launch in state.launches)
        # The budget never ends it before each side has a launch: nothing could be compared.
        if count >= 2 * plan.launches or (count >= 2 and not fits_budget(state.launches, plan.budget)):
            return Done({"verdict": "recorded"})
        side = _ORDER[count % len(_ORDER)]
        change, name = plan.sides[side].change, f"side {SIDES[side]} ({plan.sides[side].typed})"
        why = f"profile of {SIDES[side].upper()}, {count + 1} of {2 * plan.launches}"
        return LaunchRequest(side, change, "profile", 1, why, cells[side], name)

    return sequential(next_launch, plan.ref, budget=plan.budget, advice="name another job")


def _conclude(job: Job, plan: ProfilePlan, _verdict: Mapping[str, object]) -> Mapping[str, object]:
    """The sides are compared once: recordings may be removed later."""
    result = compare_sides(plan, job, launches(job.events()))
    return {"verdict": result.kind, "result": result.model_dump(mode="json")}


def compare_sides(plan: ProfilePlan, job: Job, records: Sequence[Launch]) -> ProfileResultDocument:
    """Compare what was recorded of both sides."""
    attempts: tuple[list[Attempt], list[Attempt]] = ([], [])
    sampled: tuple[list[SampledLaunch], list[SampledLaunch]] = ([], [])
    traces: tuple[list[TraceProfile], list[TraceProfile]] = ([], [])
    problems: list[str] = []
    for record in sorted(records, key=lambda record: record.position):
        side, attempt, folder = record.position, record.attempt, job.path / record.folder / FOLDER
        if record.outcome != "measured" or attempt is None:
            continue
        files = recorded_files(attempt)
        attempts[side].append(attempt)
        problems += files.problems
        if launch := read_launch(files, folder, engine_root(attempt)):
            sampled[side].append(launch)
        traces[side].extend(_read_traces(files, folder, problems))
    found = _diff(plan)
    diff, failure = (None, found) if isinstance(found, str) else (found, "")
    incomparable = ""
    explanation: ProfileExplanation | None = None
    flames: FlameDocument | None = None
    try:
        explanation = explain_profiles(
            *sampled,
            diff,
            is_slower=plan.is_slower,
            traces=traces,
            settings=setting_differences(*attempts),
        )
        flames = build_flames(*sampled, diff)
    except ValueError as error:
        incomparable = str(error)
    shown = excerpt_diff(diff, explanation.conclusion) if diff is not None and explanation else None
    values = {
        "recorded": problems,
        "has_diff": diff is not None,
        "failure": failure,
        "incomparable": incomparable,
    }
    told = render_sentences("explain/templates/profile.problems.jinja", values)
    return ProfileResultDocument.of(explanation, tuple(dict.fromkeys(told)), flames, shown)


def recorded_files(attempt: Attempt) -> ProfileFiles:
    """What a profile launch recorded."""
    try:
        return _FILES.validate_python(attempt.provenance.facts.get(FACT, {}))
    except ValidationError:
        return ProfileFiles(problems=("what was recorded cannot be read",))


def engine_root(attempt: Attempt) -> str:
    """The folder that holds the engine's package, as its frames name it."""
    engine: Mapping[str, Any] = attempt.provenance.facts.get("engine", {})
    file = str(engine.get("file", ""))
    return str(Path(file).parent.parent) if file else ""


def read_launch(files: ProfileFiles, folder: Path, root: str) -> SampledLaunch:
    """The windows of a profile launch; a file that is gone is left out."""
    windows = []
    for window in files.windows:
        try:
            text = (folder / window.file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        samples = read_folded(text, (root,) if root else (), _modules())
        sampled = ProfileWindow(samples, window.seconds, window.steps)
        if sampled.milliseconds > 0:
            windows.append(sampled)
    return tuple(windows)


def _read_traces(files: ProfileFiles, folder: Path, problems: list[str]) -> list[TraceProfile]:
    """The trace of the first worker; the others do the same."""
    for name in files.traces[:1]:
        try:
            trace = read_trace(folder / name)
        except (OSError, ValueError) as error:
            problems.append(f"{name}: {error}")
        else:
            return [trace] if trace.steps else []
    return []


def _modules() -> tuple[str, ...]:
    return tuple(dict.fromkeys(package.module for package in PACKAGES.values()))


def _diff(plan: ProfilePlan) -> StackDiff | str | None:
    """The diff between the sides, git's error, or None where they are no two commits of one repository."""
    a, b = plan.changes
    if a.kind != "commit" or b.kind != "commit" or not plan.setting.repository:
        return None
    try:
        repository = Repository.open(plan.setting.repository)
        if plan.objects:
            repository = replace(repository, objects=Path(plan.objects))
        return read_diff(repository, a.source, b.source, _modules())
    except PerfbisectError as error:
        return error.message


def setting_differences(a: Sequence[Attempt], b: Sequence[Attempt]) -> tuple[SettingDifference, ...]:
    """What the engines say of themselves, and packages, where the sides differ."""
    logs, packages = [], []
    for side in (a, b):
        facts = [attempt.provenance.facts for attempt in side]
        logs.append(combine_launches([fact.get("engine_log", {}) for fact in facts]))
        rows = facts[-1].get("engine", {}).get("packages", ()) if facts else ()
        pinned = (str(row).partition("==") for row in rows)
        packages.append({name: version for name, _, version in pinned})
    # Versions of the distributions under test differ between any two changes.
    names = sorted(packages[0].keys() & packages[1].keys() - set(PACKAGES))
    changed = [(name, packages[0][name], packages[1][name]) for name in names]
    return (
        *fact_differences(logs[0], logs[1]),
        *((name, before, after) for name, before, after in changed if before != after),
    )


def profile_document(job: Job, events: Sequence[JournalEvent]) -> ProfileDocument:
    """The document of a profile, finished or not."""
    plan, records = require_plan(job, events, ProfilePlan), launches(events)
    stored = next((event.data.get("result") for event in reversed(events) if event.kind == "verdict"), None)
    result = None if stored is None else ProfileResultDocument.model_validate(stored)
    files: list[RecordingDocument] = []
    for record in records:
        if record.outcome != "measured" or record.attempt is None:
            continue
        side, folder = SIDES[record.position], f"{record.folder}/{FOLDER}"
        recorded = recorded_files(record.attempt)
        named: list[tuple[str, RecordingFormat]] = [(w.file, "collapsed stacks") for w in recorded.windows]
        named += [(name, "Chrome trace") for name in recorded.traces]
        files += [
            RecordingDocument(side=side, launch=record.number, format=form, path=f"{folder}/{name}")
            for name, form in named
        ]
    return ProfileDocument(
        **measured_fields(
            job, plan, plan_cell(plan), records, lambda launch: plan.sides[launch.position].change
        ),
        source=plan.source,
        finished=finished(events),
        a=plan.a.change,
        b=plan.b.change,
        result=result,
        files=tuple(files),
        next=_next_command(job, plan, result),
    )


def _next_command(job: Job, plan: ProfilePlan, result: ProfileResultDocument | None) -> str:
    """The price of the proof where something grew in a commit."""
    if result is None:
        return f"perfbisect resume {job.id}"
    if result.growth_ms > 0 and plan.b.change.kind == "commit":
        return f"perfbisect explain {plan.source} --hunks --dry-run"
    return f"perfbisect report {job.id}"


def _status(document: ProfileDocument) -> JobStatus:
    result = document.result
    return JobStatus(
        outcome="unfinished" if result is None else result.kind,
        exit_code=EXIT_OK,
        verdict=result.place if result is not None else "",
        next=document.next,
    )


PROFILE: Final = Experiment(
    plan=ProfilePlan,
    result=profile_document,
    status=_status,
    report=ProfileDocument.report,
    client_change=lambda plan: plan.b.change,
    policy=lambda _job, plan, _tools: profile_policy(plan),
    conclude=_conclude,
)
