"""Replays a night's journal and those of its jobs into the night's state."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import mean, median
from typing import Any

from pydantic import TypeAdapter

from perfbisect.errors import EXIT_OK
from perfbisect.jobs.documents import metric_document, reported_value
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.replay import LaunchRecord, launches
from perfbisect.nightly.context import NightlyContext
from perfbisect.nightly.folders import NightFolder
from perfbisect.nightly.model import CellState, Night, NightBisection, NightCell, NightFindings, NightStep
from perfbisect.nightly.plan import CellPlan, NightPlan
from perfbisect.series.detection.fdr import FDR


@dataclass(frozen=True, kw_only=True)
class CellFailure:
    """Why a cell failed."""

    cell: str
    reason: str
    log: str = ""
    next: str = ""
    exit_code: int = EXIT_OK

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class StepRecord(NightStep):
    """A completed step with its effect on later steps and the exit code."""

    files: Mapping[str, str] = field(default_factory=dict)
    exit_code: int = EXIT_OK
    findings: NightFindings | None = None

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = _STEP.dump_python(self, mode="json")
        return data


_FAILURE = TypeAdapter(CellFailure)
_STEP = TypeAdapter(StepRecord)
_BISECTION = TypeAdapter(NightBisection)


def bisection_to_json(bisection: NightBisection) -> dict[str, Any]:
    return {"name": "bisect", "bisection": _BISECTION.dump_python(bisection, mode="json")}


@dataclass(frozen=True)
class NightState:
    """The content of a night's journal.

    ``jobs``: by cell; ``bisection_jobs`` and ``bisections``: by event; ``failed``: by cell; ``steps``: by
    name. ``is_over``: the night has its verdict.
    """

    jobs: Mapping[str, str] = field(default_factory=dict)
    bisection_jobs: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, CellFailure] = field(default_factory=dict)
    steps: Mapping[str, StepRecord] = field(default_factory=dict)
    bisections: Mapping[str, NightBisection] = field(default_factory=dict)
    is_over: bool = False

    @classmethod
    def from_events(cls, events: Sequence[JournalEvent]) -> NightState:
        jobs: dict[str, str] = {}
        bisection_jobs: dict[str, str] = {}
        failed: dict[str, CellFailure] = {}
        steps: dict[str, StepRecord] = {}
        bisections: dict[str, NightBisection] = {}
        is_over = False
        for event in events:
            data = event.data
            if event.kind == "job" and "cell" in data:
                jobs[str(data["cell"])] = str(data["job"])
            elif event.kind == "job":
                bisection_jobs[str(data["event"])] = str(data["job"])
            elif event.kind == "cell":
                failure = _FAILURE.validate_python(data)
                failed[failure.cell] = failure
            elif event.kind == "step" and data["name"] == "bisect":
                bisection = _BISECTION.validate_python(data["bisection"])
                bisections[bisection.event] = bisection
            elif event.kind == "step":
                step = _STEP.validate_python(data)
                steps[step.name] = step
            is_over = is_over or event.kind == "verdict"
        return cls(jobs, bisection_jobs, failed, steps, bisections, is_over)

    @property
    def findings(self) -> NightFindings | None:
        """What the series show; None until they are judged."""
        detected = self.steps.get("detect")
        return None if detected is None else detected.findings

    @property
    def exit_codes(self) -> tuple[int, ...]:
        """The codes of failed cells and steps."""
        codes = [failure.exit_code for failure in self.failed.values()]
        codes += [step.exit_code for step in self.steps.values()]
        return tuple(code for code in codes if code != EXIT_OK)


@dataclass(frozen=True)
class CellLaunches:
    """The launches in a cell's job."""

    launches: tuple[LaunchRecord, ...] = ()

    @property
    def measured(self) -> tuple[LaunchRecord, ...]:
        return tuple(
            launch for launch in self.launches if launch.end == "finished" and launch.attempt is not None
        )

    @property
    def minutes(self) -> float:
        """Minutes of all launches, failed ones included."""
        return sum(launch.minutes for launch in self.launches)

    @property
    def launch_minutes(self) -> float | None:
        """Mean minutes of a measured launch."""
        return mean(launch.minutes for launch in self.measured) if self.measured else None

    def value(self, cell: CellPlan) -> float | None:
        """Median of the cell's headline metric over the launches."""
        reported = [
            reported_value(launch.attempt, cell.headline)
            for launch in self.measured
            if launch.attempt is not None
        ]
        values = [value for value in reported if value is not None]
        return median(values) if values else None

    def versions(self) -> tuple[str, str]:
        """Engine version and machine class of the last measured launch."""
        last = self.measured[-1].attempt if self.measured else None
        return ("", "") if last is None else (last.provenance.engine_version, last.provenance.machine_class)


def read_launches(jobs: Jobs, identity: str | None) -> CellLaunches:
    """Read the launches of a job that may not exist yet.

    Raises:
        LocatedError: its journal was changed.
    """
    return (
        CellLaunches() if identity is None else CellLaunches(launches(Job(jobs.folder / identity).events()))
    )


def read_cell_launches(plan: NightPlan, state: NightState, jobs: Jobs) -> dict[str, CellLaunches]:
    """Read the launches of each wanted cell."""
    return {cell.name: read_launches(jobs, state.jobs.get(cell.name)) for cell in plan.wanted}


def spent_minutes(plan: NightPlan, state: NightState, jobs: Jobs) -> float:
    """Minutes of all launches of the night, bisections included."""
    cells = sum(cell.minutes for cell in read_cell_launches(plan, state, jobs).values())
    return cells + sum(read_launches(jobs, job).minutes for job in state.bisection_jobs.values())


def replay_night(
    context: NightlyContext,
    plan: NightPlan,
    events: Sequence[JournalEvent],
    folder: NightFolder,
    *,
    ended: str = "",
) -> Night:
    """Build the night from its journal and those of its jobs."""
    state, jobs = NightState.from_events(events), context.jobs
    measured = read_cell_launches(plan, state, jobs)
    findings = state.findings or NightFindings((), ())
    versions = [cell.versions() for cell in measured.values() if cell.measured]
    head = _plan_fields(context, plan)
    night = Night(
        **{**head, "notes": (*head["notes"], *findings.notes)},
        id=folder.id,
        dry_run=False,
        began=events[0].time,
        ended=ended,
        hardware=", ".join(dict.fromkeys(hardware for _, hardware in versions)),
        engine_version=", ".join(dict.fromkeys(version for version, _ in versions)),
        minutes=spent_minutes(plan, state, jobs),
        cells=tuple(
            _cell(
                cell,
                state,
                measured.get(cell.name, CellLaunches()),
                too_few_nights=findings.unjudged.get(cell.name),
            )
            for cell in plan.cells
        ),
        alerts=findings.alerts,
        bisections=tuple(state.bisections.values()),
        rows=findings.rows,
        steps=tuple(
            NightStep(
                name=step.name, state=step.state, reported=step.reported, where=step.where, next=step.next
            )
            for step in state.steps.values()
        ),
        files={kind: path for step in state.steps.values() for kind, path in step.files.items()},
        failures=state.exit_codes,
        next="",
        folder=str(folder.path),
    )
    return replace(night, next=next(_next_commands(context, plan, state, night), ""))


def planned_night(context: NightlyContext, plan: NightPlan, now: str, note: str = "") -> Night:
    """Build the night that a dry run shows."""
    fitting = plan.fitting()
    cells = tuple(_planned_cell(cell, cell.name in fitting) for cell in plan.cells)
    head = _plan_fields(context, plan)
    return Night(
        **{**head, "notes": (*head["notes"], *filter(None, [note]))},
        id="",
        dry_run=True,
        began=now,
        ended="",
        hardware="",
        engine_version="",
        minutes=sum(cell.expected for cell in cells if cell.state == "planned"),
        cells=cells,
        alerts=(),
        bisections=(),
        rows=(),
        steps=(),
        files={},
        failures=(),
        next=shlex.join(["perfbisect", "nightly", plan.file]),
        folder=str(context.nights.folder),
    )


def _plan_fields(context: NightlyContext, plan: NightPlan) -> dict[str, Any]:
    fitting = plan.fitting()
    first_round = [name for scheduled in plan.order if scheduled.launch == 1 for name in scheduled.cells]
    return {
        "name": plan.name,
        "commit": plan.commit,
        "branch": plan.branch,
        "repository": str(context.repository.path),
        "environment": plan.setting.environment,
        "client": plan.setting.instrument,
        "machine": plan.setting.machine,
        "seed": plan.seed,
        "budget_minutes": plan.budget,
        "order": tuple(name for name in first_round if name in fitting),
        "notes": plan.notes,
    }


def _cell_fields(cell: CellPlan) -> dict[str, Any]:
    metric = metric_document(cell.headline)
    return {
        "name": cell.name,
        "digest": cell.digest,
        "wanted": cell.launches,
        "expected": 0.0 if cell.skip else cell.launches * cell.launch_minutes,
        "forecast_basis": "" if cell.skip else cell.forecast_basis,
        "metric": metric.name,
        "unit": metric.unit,
    }


def _planned_cell(cell: CellPlan, fits: bool) -> NightCell:
    state: CellState = "skipped" if cell.skip else "planned" if fits else "not reached"
    reason = cell.skip or ("" if fits else "does not fit the budget beside the shorter cells")
    return NightCell(**_cell_fields(cell), state=state, reason=reason)


def _cell(
    cell: CellPlan, state: NightState, measured: CellLaunches, *, too_few_nights: int | None
) -> NightCell:
    failure = state.failed.get(cell.name)
    count = len(measured.measured)
    cell_state, reason = _cell_state(cell, count, failure)
    return NightCell(
        **_cell_fields(cell),
        state=cell_state,
        reason=reason,
        launches=count,
        minutes=measured.minutes,
        value=measured.value(cell),
        too_few_nights=too_few_nights,
        job=state.jobs.get(cell.name, ""),
        log=failure.log if failure else "",
        next=failure.next if failure else "",
    )


def _cell_state(cell: CellPlan, launches: int, failure: CellFailure | None) -> tuple[CellState, str]:
    if cell.skip:
        return "skipped", cell.skip
    if failure:
        return "failed", failure.reason
    if not launches:
        return "not reached", "budget exhausted"
    if launches < cell.launches:
        return "measured", f"{launches} of {cell.launches} launches: budget exhausted"
    return "measured", ""


def _next_commands(
    context: NightlyContext, plan: NightPlan, state: NightState, night: Night
) -> Iterator[str]:
    """The next commands, the most urgent first."""
    rules, repository = context.file.nightly, str(context.repository.path)
    state_folder = ("--state", str(context.state)) if rules.state else ()
    rate = ("--fdr", f"{rules.alerts.fdr:g}") if rules.alerts.fdr != FDR else ()
    for bisection in night.bisections:
        if bisection.culprit is not None and bisection.job:
            yield shlex.join(("perfbisect", "report", bisection.job, *state_folder))
    for alert in night.regressions:
        words = ("perfbisect", "track", "suspects", alert.event, "--repo", repository, *rate)
        yield shlex.join((*words, *state_folder))
    yield from (failure.next for failure in state.failed.values() if failure.next)
    yield from (step.next for step in state.steps.values() if step.next)
    if plan.cells and not plan.wanted and context.fetch is None:
        yield shlex.join(("git", "-C", repository, "fetch"))
