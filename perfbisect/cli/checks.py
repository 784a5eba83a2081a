"""``perfbisect check``: what a commit is checked against, and the measurement."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perfbisect.cells.match import differing
from perfbisect.cells.reports import ReportedWorkload
from perfbisect.cells.reports.results import read_record
from perfbisect.changes.history import commit_under_test
from perfbisect.commands import changes, setups
from perfbisect.commands.output import CommandResult, print_progress, report_result
from perfbisect.commands.session import PlannedJob, job_result, measure
from perfbisect.commands.workspace import Workspace
from perfbisect.common.json_text import WRONG_SHAPE
from perfbisect.engine.experiment import Experiment, ResultT
from perfbisect.errors import (
    BuildError,
    LocatedError,
    MachineError,
    PerfbisectError,
    ServerError,
    UntestableError,
    UsageError,
)
from perfbisect.experiments.baseline import (
    RecordedLevel,
    ReportedLevel,
    read_baseline,
    write_baseline,
)
from perfbisect.experiments.check import (
    CHECK,
    BaselineResult,
    CheckPlan,
    CheckResult,
    level_of_job,
    recorded_document,
)
from perfbisect.experiments.compare import COMPARE
from perfbisect.experiments.dry_run import (
    ChangePlanDocument,
    change_plan_document,
    plan_lines,
)
from perfbisect.experiments.measure import RUNS, MetricResult, metric_fields
from perfbisect.experiments.run import RUN
from perfbisect.experiments.setup import (
    MeasurementSetup,
    NothingDiffersError,
    SideRefusedError,
    build_check_plan,
    build_run_plan,
)
from perfbisect.jobs.commands import git_command
from perfbisect.jobs.documents import MinutesDocument, cell_document, metric_document
from perfbisect.jobs.folders import Job
from perfbisect.jobs.plans import PlanT, runs_per_launch
from perfbisect.jobs.replay import launches, require_ratio
from perfbisect.model.attempt import key
from perfbisect.report.summary import (
    MAX_COMMENT_BYTES,
    append_summary,
    job_link,
    summary_markdown,
    truncate,
)
from perfbisect.stats.threshold import LEAST
from perfbisect.system.files import write_atomic

if TYPE_CHECKING:
    from perfbisect.cli.compare import CheckRequest
    from perfbisect.series.points import ReportedResult

SAVED_LAUNCHES = 8
"""Launches of a baseline."""

_OTHER_LENGTH, _TEMPLATE_TOKENS = 0.25, 64
"""From which share on lengths are those of another workload, beside the tokens of a chat's template."""

How = Literal["rev", "baseline", "values", "save"]


def checked_against(request: CheckRequest) -> How:
    """What the commit is checked against. :raises UsageError: options that do not go together."""
    given: list[How] = []
    given += ["baseline" if request.against == "baseline" else "rev"] if request.against else []
    given += ["values"] if request.good_value is not None or request.bad_value is not None else []
    given += ["save"] if request.save_baseline else []
    if len(given) != 1:
        raise UsageError(
            "a check takes one of --against REV, --against baseline, --good-value with --bad-value, or "
            "--save-baseline",
            next_step="perfbisect check CELL --against REV --max-regression 5%",
        )
    how = given[0]
    if (request.baseline is not None) != (how == "baseline"):
        raise UsageError(
            "--against baseline and --baseline FILE|JOB require each other",
            next_step="perfbisect check CELL --save-baseline FILE writes one; status lists jobs",
        )
    if (request.max_regression is not None) != (how in ("rev", "baseline")):
        raise UsageError(
            "--against and --max-regression require each other",
            next_step="--against REV --max-regression 5%",
        )
    if how == "values" and (request.good_value is None or request.bad_value is None):
        raise UsageError("--good-value and --bad-value require each other")
    if how == "values" and len(request.metrics) > 1:
        raise UsageError(
            "two values are the threshold of one metric",
            next_step="one --metric; or --against REV --max-regression 5%",
        )
    if request.git_bisect and request.at is not None:
        raise UsageError("--git-bisect cannot be combined with --at: git chooses the commit")
    return how


def run_check(workspace: Workspace, request: CheckRequest) -> CommandResult:
    """Measure a check, or show its plan."""
    how = checked_against(request)
    at = request.at or (commit_under_test(workspace.needed_repository()).id if request.git_bisect else "HEAD")
    if request.expect_workload is not None:
        setups.resolve_cell(workspace, request)
    if how == "save":
        return _save_baseline(workspace, request, at)
    job: Job | None = None
    try:
        if how == "rev":
            comparison = request.comparison(str(request.against), at).plan(workspace)
            if request.dry_run:
                return replace(comparison, commands=()).show()
            job = workspace.new_job()
            return _told(request, COMPARE, measure(workspace, job, COMPARE, comparison, request))
        planned = _plan_check(workspace, request, at)
        if request.dry_run:
            return planned.show()
        job = workspace.new_job()
        return _told(request, CHECK, measure(workspace, job, CHECK, planned, request))
    except NothingDiffersError as error:
        return _told(request, CHECK, _nothing_differs(workspace, request, at, error))
    except (BuildError, ServerError) as error:
        raise _untestable(error, request, job, position=1 if how == "rev" else 0) from error


def _told(request: CheckRequest, kind: Experiment[PlanT, ResultT], result: ResultT) -> CommandResult:
    """What the command prints; the same in short for the CI job's summary and the file of --markdown."""
    text = summary_markdown(kind.report(result), result, job_link(os.environ))
    # A disk that is full takes no verdict away: it is in the journal, and in the exit code.
    try:
        if request.markdown is not None:
            write_atomic(request.markdown, truncate(text, MAX_COMMENT_BYTES))
        if path := os.environ.get("GITHUB_STEP_SUMMARY"):
            append_summary(Path(path), text)
    except MachineError as error:
        print_progress(f"note: {error.message}")
    return job_result(kind, result)


def _plan_check(
    workspace: Workspace, request: CheckRequest, at: str
) -> PlannedJob[CheckPlan, ChangePlanDocument]:
    """The plan of a check; on a fleet with the machine of the recorded launches.

    Raises:
        UsageError: they are of several machines, or of one that is not in the fleet.
    """
    good, bad = request.good_value, request.bad_value
    setup, change = setups.build_change_setup(workspace, at, request)
    recorded: tuple[RecordedLevel, ...] = ()
    reported, notes = None, tuple[str, ...]()
    if request.baseline is not None:
        path = Path(request.baseline).expanduser()
        # A missing file must be reported as one, not as an unknown job.
        if path.is_file() or path.suffix == ".json":
            reported, notes = _reported_level(path, setup)
            recorded = () if reported else (read_baseline(path),)
        else:
            recorded = (level_of_job(workspace.jobs.find(str(path))),)
    setup = replace(setup, notes=(*setup.notes, *notes))
    if machines := setup.placed.machines:
        names = {attempt.slot.partition("/")[0] for level in recorded for attempt in level.attempts}
        slots = tuple(slot for slot in setup.placed.slots if not recorded or {slot.machine} == names)
        if not slots:
            raise UsageError(
                f"the launches to compare with were made on {', '.join(sorted(names)) or 'this machine'}, "
                f"and the fleet can use {', '.join(machine.name for machine in machines)}: machines differ",
                next_step="record a baseline on one machine of the fleet, or: perfbisect check --against REV",
            )
        kind = next(machine.machine_class for machine in machines if machine.name == slots[0].machine)
        setup = replace(setup, placed=replace(setup.placed, slots=slots, machine_class=kind))
    plan = build_check_plan(
        setup,
        change=change,
        recorded=recorded,
        reported=reported,
        values=(good, bad) if good is not None and bad is not None else None,
        max_regression=request.max_regression or 0.0,
        launches=request.most_launches,
        budget=request.budget,
        machine_class=setup.placed.machine_class or None,
    )
    shown = change_plan_document(plan, setup)
    return PlannedJob(plan, setup.builder, setup.placed.slots, shown, plan_lines(shown))


def _reported_level(path: Path, setup: MeasurementSetup) -> tuple[ReportedLevel | None, tuple[str, ...]]:
    """What a client's result file says of the judged metrics, and a plan's notes on what it does not say.

    None: it is no result file; a baseline of our own is none.

    Raises:
        LocatedError: it has no result of the cell's workload, or several, or not one of the metrics.
    """
    # A store of series is what reads them all, and what few checks need.
    from perfbisect.series.sources.base import UnreadableFileError, night_in, parse_records, read_text
    from perfbisect.series.sources.results import parse_result, reason_of, result_records

    document: object = None
    with suppress(UnreadableFileError):
        document = parse_records(read_text(path)) if path.is_file() else None
    if document is None or (isinstance(document, Mapping) and "schema" in document):
        return None, ()
    cell, another = setup.cell, "perfbisect check CELL --save-baseline FILE measures one of this cell"
    found: list[tuple[ReportedWorkload, ReportedResult[float]]] = []
    unusable: list[str] = []
    for record in result_records(document):
        try:
            said, result = read_record(record), parse_result(record)
        except UsageError as error:
            unusable.append(error.message)
        except WRONG_SHAPE as error:
            unusable.append(reason_of(error))
        else:
            if not result.workload.prompts:
                # It measured for a time: how many requests that were is no part of its workload.
                fields = {name: value for name, value in said.fields.items() if name != "num_prompts"}
                said = replace(said, fields=fields, missing=(*said.missing, "prompts"))
            found.append((said, result))
    alike = [pair for pair in found if not differing(pair[0], cell)]
    if unusable and not alike:
        raise LocatedError(unusable[0], file=path, next_step=another)
    said, result = (alike or found)[0]
    try:
        notes = [*setups.compare_workload(cell, said), *(f"the report: {name}" for name in said.unread)]
    except UsageError as error:
        raise LocatedError(error.message, file=path, next_step=another) from None
    problem = "" if len(alike) == 1 else f"{len(alike)} results in it are of the workload of cell {cell.name}"
    if cell.dataset_args.keys() <= {"random-input-len", "random-output-len", "random-range-ratio"}:
        for side in ("input", *(("output",) if cell.ignore_eos else ())):
            mean, asked = result.values.get(f"{side}_tokens"), cell.dataset_args.get(f"random-{side}-len")
            if (
                mean
                and isinstance(asked, int)
                and abs(mean - asked) > _OTHER_LENGTH * asked + _TEMPLATE_TOKENS
            ):
                problem = f"its requests have {mean:.0f} {side} tokens, those of cell {cell.name} {asked}"
    if missing := [str(metric) for metric in setup.metrics if key(metric) not in result.values]:
        problem = f"it does not have {missing[0]}; it has: {', '.join(sorted(result.values))}"
    if problem:
        raise LocatedError(problem, file=path, next_step=another)
    for metric in setup.metrics:
        require_ratio((result.values[key(metric)],), metric, where=str(path))
    level = ReportedLevel(
        file=str(path),
        client=str(result.covariates.get("client") or "vllm bench serve"),
        day=night_in(result.began or result.ended or path.name),
        values={str(metric): result.values[key(metric)] for metric in setup.metrics},
    )
    return level, tuple(notes)


def _save_baseline(workspace: Workspace, request: CheckRequest, at: str) -> CommandResult:
    """Measure a commit and write its launches as a baseline."""
    file, count = request.save_baseline, request.launches or SAVED_LAUNCHES
    assert file is not None
    if count < LEAST:
        raise UsageError(f"--launches {count} is too few: a baseline needs at least {LEAST}")
    setup, change = setups.build_change_setup(workspace, at, request)
    plan = build_run_plan(
        setup, change=change, launches=count, runs=min(RUNS, runs_per_launch(setup.cell, setup.metrics))
    )
    shown = change_plan_document(plan, setup, "save")
    planned = PlannedJob(plan, setup.builder, setup.placed.slots, shown, plan_lines(shown))
    if request.dry_run:
        return planned.show()
    job = workspace.new_job()
    run = measure(workspace, job, RUN, planned, request)
    level = level_of_job(job)
    write_baseline(file, level)
    result = BaselineResult(file=str(file), recorded=recorded_document(level, setup.metric), run=run)
    return report_result(result, result.report())


def _nothing_differs(workspace: Workspace, request: CheckRequest, at: str, error: UsageError) -> CheckResult:
    """The check of a commit that changes nothing that runs: there is nothing to measure."""
    cell = setups.resolve_cell(workspace, request, request.variant)
    metrics = setups.resolve_metrics(cell, request.metrics)
    change = changes.resolve_change(workspace, at)
    headline = MetricResult(
        **metric_fields(metrics[0]),
        absolute=metrics[0].metric.absolute,
        judged=True,
        guard=False,
        verdict="within",
        claim="holds",
        effect=0.0,
        launches=0,
    )
    return CheckResult(
        job="",
        finished=True,
        outcome="passed",
        how="rev",
        limit=request.max_regression or 0.0,
        summary=(f"{error.message}. Nothing was measured.",),
        next=git_command(str(workspace.needed_repository().path), "show", "--stat", change.short),
        metrics=(headline,),
        change=change,
        metric=metric_document(metrics[0]),
        cell=cell_document(cell, metrics[0]),
        minutes=MinutesDocument(total=0.0, budget=0.0, lost=0.0, by_phase={}),
        folder="",
        environment="",
        client="",
        reproduce=(),
    )


def _untestable(
    error: PerfbisectError, request: CheckRequest, job: Job | None, *, position: int
) -> PerfbisectError:
    """The error, or a skip for git where the checked commit, at ``position`` of its job, alone failed."""
    # Only the commit under test may be skipped: a good end that does not build would skip every step.
    refused = isinstance(error, SideRefusedError) and error.side == "b"
    last = max(launches(job.events()) if job else (), key=lambda launch: launch.ended, default=None)
    failed = last is not None and last.refused and last.position == position
    if request.git_bisect and (refused or failed):
        return UntestableError(error.message, where=error.where, next_step="git bisect skips it")
    return error
