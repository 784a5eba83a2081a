"""``perfbisect check``: what a commit is checked against, and the measurement."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from perfbisect.changes.history import bisect_ends, commit_under_test
from perfbisect.clients import CLIENTS
from perfbisect.commands import changes, ranges, wiring
from perfbisect.commands.comparisons import CompareRequest, build_plan, measure_comparison
from perfbisect.commands.measurement import build_change_setup, measure, plan_fields
from perfbisect.commands.options import MeasureOptions
from perfbisect.commands.output import print_document
from perfbisect.commands.session import print_result
from perfbisect.commands.workspace import Workspace
from perfbisect.compare.baseline import RecordedLevel, read_baseline, require_same_machine, write_baseline
from perfbisect.compare.documents import (
    CheckDocument,
    CheckPlanDocument,
    ComparePlanDocument,
    SavedBaselineDocument,
    check_of_comparison,
    compare_document,
    recorded_document,
)
from perfbisect.compare.job import CHECK, RUN, exit_code, level_of_job, levels_of_comparison
from perfbisect.compare.plan import (
    RUNS,
    CheckPlan,
    ComparePlan,
    MeasurementSetup,
    NothingDiffersError,
    RunPlan,
    SideRefusedError,
    build_check_plan,
    build_run_plan,
)
from perfbisect.compare.report import plan_lines, result_lines
from perfbisect.environments.base import Environment
from perfbisect.errors import (
    EXIT_OK,
    BuildError,
    MachineError,
    PerfbisectError,
    ServerError,
    UntestableError,
    UsageError,
)
from perfbisect.jobs.commands import commands_document, git_command
from perfbisect.jobs.documents import MinutesDocument, cell_document, change_document, metric_document
from perfbisect.jobs.estimates import earlier_attempts
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import read
from perfbisect.jobs.measurement import resolve_metric, runs_per_launch
from perfbisect.jobs.plans import find_plan
from perfbisect.jobs.replay import launches
from perfbisect.machine.profile import machine
from perfbisect.measure.record import identify_client
from perfbisect.model.cell import Cell
from perfbisect.stats.ab_test import BLOCK_SIZE
from perfbisect.stats.threshold import LEAST
from perfbisect.stats.two_sample import Scale
from perfbisect.system import environ
from perfbisect.system.clock import now

MAX_LAUNCHES = 20
"""Launches of the commit, at most."""
SAVED_LAUNCHES = 8
"""Launches of a baseline."""
_DAY = timedelta(days=1)
"""Ends that were measured longer ago are measured again: a machine drifts."""
_PLAIN = " plain"
"""The end of the digest of a client that prints no table."""

How = Literal["rev", "baseline", "values", "ends", "save"]


@dataclass(frozen=True)
class CheckRequest:
    """A check as it was typed; ``max_regression`` is a share."""

    cell: str | None
    at: str | None
    against: str | None
    max_regression: float | None
    baseline: str | None
    save_baseline: Path | None
    good_value: float | None
    bad_value: float | None
    git_bisect: bool
    launches: int | None
    budget: float | None
    seed: int
    dry_run: bool
    measuring: MeasureOptions

    @property
    def how(self) -> How:
        """What the commit is checked against.

        Raises:
            UsageError: nothing, several things, or something of which a part is missing.
        """
        given: list[How] = []
        given += ["baseline" if self.against == "baseline" else "rev"] if self.against else []
        given += ["values"] if self.good_value is not None or self.bad_value is not None else []
        given += ["save"] if self.save_baseline else []
        if not given and self.git_bisect:
            given = ["ends"]
        if len(given) != 1:
            raise UsageError(
                "a check takes one of --against REV, --against baseline, --good-value with --bad-value, or "
                "--save-baseline",
                next_step="perfbisect check CELL --against REV --max-regression 5%",
            )
        how = given[0]
        if (self.baseline is not None) != (how == "baseline"):
            raise UsageError(
                "--against baseline and --baseline FILE|JOB require each other",
                next_step="perfbisect check CELL --save-baseline FILE writes one; status lists jobs",
            )
        if (self.max_regression is not None) != (how in ("rev", "baseline")):
            raise UsageError(
                "--against and --max-regression require each other",
                next_step="--against REV --max-regression 5%",
            )
        if how == "values" and (self.good_value is None or self.bad_value is None):
            raise UsageError("--good-value and --bad-value require each other")
        if self.git_bisect and self.at is not None:
            raise UsageError("--git-bisect cannot be combined with --at: git chooses the commit")
        return how

    def compare_request(self, a: str, b: str, blocks: int) -> CompareRequest:
        """The comparison of two commits with the options of this check, without its limit."""
        return CompareRequest(
            self.cell, a, b, max(1, blocks), self.budget, self.seed, self.measuring, dry_run=self.dry_run
        )


def run_check(workspace: Workspace, request: CheckRequest) -> int:
    """Measure and print the verdict, or the plan; return the exit code.

    Raises:
        UntestableError: in a step of git's bisection the commit cannot be built or served.
    """
    how, measuring = request.how, request.measuring
    at = request.at or (commit_under_test(workspace.needed_repository()).id if request.git_bisect else "HEAD")
    if measuring.expect_workload is not None:
        wiring.require_workload(wiring.resolve_cell(workspace, request.cell, None), measuring.expect_workload)
    if how == "rev":
        return _check_revision(workspace, request, at)
    if how == "save":
        return _save_baseline(workspace, request, at)
    return _check_level(workspace, request, at, how)


def _check_level(workspace: Workspace, request: CheckRequest, at: str, how: How) -> int:
    measuring = request.measuring
    recorded, values = _resolve_levels(workspace, request, how)
    job: Job | None = None
    try:
        day = recorded[0].exclude_newer if how == "ends" else None
        setup, change = build_change_setup(workspace, request.cell, at, measuring, exclude_newer=day)
        profile = wiring.load_profile(setup.setting.machine)
        plan = build_check_plan(
            setup,
            change=change,
            recorded=recorded,
            values=values,
            max_regression=request.max_regression or 0.0,
            launches=request.launches or MAX_LAUNCHES,
            budget=ranges.budget_minutes(workspace, request.budget),
            machine_class=machine({**os.environ, **setup.slots[0].env}, profile).kind,
        )
        shown = _plan_document(workspace, setup, plan)
        if request.dry_run:
            return _show_plan(shown, measuring)
        job = wiring.new_job(workspace)
        document = _measure_check(workspace, setup, plan, shown, measuring, job)
    except (BuildError, ServerError) as error:
        raise _untestable(error, request, job, position=0) from error
    return print_result(document, result_lines(document), exit_code(document), measuring, job)


def _measure_check(
    workspace: Workspace,
    setup: MeasurementSetup,
    plan: CheckPlan,
    shown: CheckPlanDocument,
    measuring: MeasureOptions,
    job: Job,
) -> CheckDocument:
    def require_same_client(client: Environment | None) -> None:
        for level in plan.recorded:
            if client is None:
                return
            plain = level.attempts[0].provenance.client_digest.endswith(_PLAIN)
            require_same_machine(level, client=_client_here(setup.cell, client, job, plain=plain))

    lines = plan_lines(shown)
    return measure(
        workspace, job, CHECK, plan, setup.builder, setup.slots, measuring, lines, before=require_same_client
    )


def _client_here(cell: Cell, pinned: Environment, job: Job, *, plain: bool) -> tuple[str, str]:
    """Digest and era of the client with which a job will measure."""
    client = CLIENTS[cell.client.name]
    env = environ.for_interpreter(dict(os.environ), pinned.interpreter, pinned.env, client.env(cell))
    ours = replace(identify_client(client, pinned, env, job.path), forced_plain=plain)
    return ours.digest, ours.era


def _check_revision(workspace: Workspace, request: CheckRequest, at: str) -> int:
    measuring, launches = request.measuring, request.launches or MAX_LAUNCHES
    compared = request.compare_request(str(request.against), at, launches // 2)
    job: Job | None = None
    try:
        planned = build_plan(workspace, replace(compared, max_regression=request.max_regression))
        if request.dry_run:
            return _show_plan(planned.shown, measuring)
        job = wiring.new_job(workspace)
        document = check_of_comparison(measure_comparison(workspace, planned, measuring, job))
    except NothingDiffersError as error:
        document = _nothing_differs(workspace, request, at, error)
        print_document(document, result_lines(document), as_json=measuring.as_json, full=measuring.full)
        return EXIT_OK
    except (BuildError, ServerError) as error:
        raise _untestable(error, request, job, position=1) from error
    return print_result(document, result_lines(document), exit_code(document), measuring, job)


def _save_baseline(workspace: Workspace, request: CheckRequest, at: str) -> int:
    """Measure a commit and write its launches as a baseline; return the exit code."""
    file, count, measuring = request.save_baseline, request.launches or SAVED_LAUNCHES, request.measuring
    assert file is not None
    if count < LEAST:
        raise UsageError(f"--launches {count} is too few: a baseline needs at least {LEAST}")
    setup, change = build_change_setup(workspace, request.cell, at, measuring)
    plan = build_run_plan(setup, change=change, launches=count, runs=min(RUNS, runs_per_launch(setup.cell)))
    shown = _plan_document(workspace, setup, plan)
    if request.dry_run:
        return _show_plan(shown, measuring)
    job = wiring.new_job(workspace)
    measure(workspace, job, RUN, plan, setup.builder, setup.slots, measuring, plan_lines(shown))
    level = level_of_job(job)
    write_baseline(file, level)
    document = SavedBaselineDocument(
        file=str(file),
        recorded=recorded_document(level, setup.metric),
        metric=shown.metric,
        cell=shown.cell,
        folder=str(job.path),
    )
    return print_result(document, result_lines(document), EXIT_OK, measuring, job)


def _show_plan(shown: CheckPlanDocument | ComparePlanDocument, measuring: MeasureOptions) -> int:
    print_document(shown, plan_lines(shown), as_json=measuring.as_json, full=measuring.full)
    return EXIT_OK


def _plan_document(
    workspace: Workspace, setup: MeasurementSetup, plan: CheckPlan | RunPlan
) -> CheckPlanDocument:
    level: dict[str, Any] = {"how": "save"}
    if isinstance(plan, CheckPlan):
        level = {
            "how": plan.how,
            "limit": plan.max_regression,
            "line": Scale.of(plan.ref.metric).value(plan.threshold().at),
            "recorded": tuple(recorded_document(recorded, plan.ref) for recorded in plan.recorded),
        }
    return CheckPlanDocument(
        **plan_fields(plan, setup.cell, earlier_attempts(workspace.jobs, plan.digest)),
        **level,
        change=change_document(plan.change),
        commands=commands_document(setup.cell, plan.setting, plan.change, None),
    )


def _resolve_levels(
    workspace: Workspace, request: CheckRequest, how: How
) -> tuple[tuple[RecordedLevel, ...], tuple[float, float] | None]:
    """The recorded levels or the values to check against."""
    if how == "values":
        assert request.good_value is not None and request.bad_value is not None
        return (), (request.good_value, request.bad_value)
    if how == "ends":
        return measure_ends(workspace, request), None
    name = str(request.baseline)
    path = Path(name).expanduser()
    is_file = path.is_file() or path.suffix == ".json"
    return (read_baseline(path) if is_file else level_of_job(workspace.jobs.find(name)),), None


def measure_ends(workspace: Workspace, request: CheckRequest) -> tuple[RecordedLevel, ...]:
    """The levels of git's good and bad end: known, or measured now.

    Raises:
        UsageError: no bisection is under way, or its ends do not differ.
        MachineError: the budget was too small for a verdict on the ends.
    """
    good, bad = bisect_ends(workspace.needed_repository())
    blocks = (request.launches or MAX_LAUNCHES) // BLOCK_SIZE
    planned = build_plan(workspace, request.compare_request(good.id, bad.id, blocks))
    job = _known_comparison(workspace, planned.plan)
    if job is not None:
        document = compare_document(job, read(job.journal).events)
    else:
        job = wiring.new_job(workspace)
        document = measure_comparison(workspace, planned, request.measuring, job)
    if document.headline == "inconclusive":
        raise MachineError(
            f"the comparison of git's good and bad end is inconclusive: {document.summary[0]}",
            where=job.path,
            next_step="a larger --budget; or --good-value and --bad-value",
        )
    if document.headline != "regression":
        raise UsageError(
            f"git's bad end is not worse than its good end: {document.summary[0]}",
            where=job.path,
            next_step="git bisect reset",
        )
    return levels_of_comparison(job)


def _known_comparison(workspace: Workspace, plan: ComparePlan) -> Job | None:
    """The last comparison of these ends with the same options that had a verdict within the last day."""
    for job in reversed(workspace.jobs.all()):
        try:
            events = read(job.journal).events
            earlier = find_plan(events, ComparePlan)
        except PerfbisectError:
            continue
        decided = finished(events) and events[-1].data.get("verdict") != "inconclusive"
        if earlier is not None and decided and _question(earlier) == _question(plan):
            is_old = now() - datetime.fromisoformat(events[0].time) > _DAY
            return None if is_old else job
    return None


def _question(plan: ComparePlan) -> dict[str, object]:
    """What two comparisons have in common if one answers for the other, whatever their budget and day."""
    left_out = ("seed", "budget", "blocks", "notes", "min_effect")
    typed = {"a": {"typed"}, "b": {"typed"}, "setting": {"exclude_newer", "typed"}}
    return plan.model_dump(exclude={**dict.fromkeys(left_out, True), **typed})


def _nothing_differs(
    workspace: Workspace, request: CheckRequest, at: str, error: UsageError
) -> CheckDocument:
    """The check of a commit that changes nothing that runs: there is nothing to measure."""
    cell = wiring.resolve_cell(workspace, request.cell, request.measuring.variant)
    metric = resolve_metric(cell, workspace.setting("metric", request.measuring.metric))
    change = changes.resolve_change(workspace, at)
    return CheckDocument(
        job="",
        finished=True,
        verdict="passed",
        how="rev",
        limit=request.max_regression or 0.0,
        summary=(f"{error.message}. Nothing was measured.",),
        next=git_command(str(workspace.needed_repository().path), "show", "--stat", change.short),
        effect=0.0,
        low=None,
        high=None,
        value=None,
        line=None,
        change=change_document(change),
        metric=metric_document(metric),
        cell=cell_document(cell, metric),
        minutes=MinutesDocument(total=0.0, budget=0.0, lost=0.0, by_phase={}),
        folder="",
    )


def _untestable(
    error: PerfbisectError, request: CheckRequest, job: Job | None, *, position: int
) -> PerfbisectError:
    """The error, or a skip for git where the checked commit, at ``position`` of its job, is at fault."""
    refused = isinstance(error, SideRefusedError) and error.side == "b"
    if request.git_bisect and (refused or (job and _at_fault(job, position))):
        return UntestableError(error.message, where=error.where, next_step="git bisect skips it")
    return error


def _at_fault(job: Job, position: int) -> bool:
    """True if the job ended with a failure of the commit at this position, and of no other."""
    seen = launches(job.events())
    last = max(seen, key=lambda launch: launch.ended, default=None)
    return last is not None and last.refused and last.position == position
