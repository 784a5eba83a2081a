"""``perfbisect check``: options, the level that a commit is checked against, and the measurement."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from perfbisect.changes.history import bisect_ends, commit_under_test
from perfbisect.clients import CLIENTS
from perfbisect.commands import changes, ranges, wiring
from perfbisect.commands.compare_request import (
    CompareOptions,
    CompareRequest,
    build_compare_request,
    plan_document,
)
from perfbisect.commands.comparisons import measure_comparison
from perfbisect.commands.invocation import MeasureOptions
from perfbisect.commands.measurement import ChangeRequest, build_change_request, measure
from perfbisect.commands.output import print_document
from perfbisect.commands.session import print_result
from perfbisect.commands.workspace import Workspace
from perfbisect.compare.baseline import RecordedLevel, read_baseline, require_same_machine, write_baseline
from perfbisect.compare.documents import (
    CheckDocument,
    CheckPlanDocument,
    ComparePlanDocument,
    SavedBaselineDocument,
    recorded_document,
)
from perfbisect.compare.job import (
    CheckLevel,
    NothingDiffersError,
    level_of_job,
    levels_of_comparison,
    make_check_plan,
)
from perfbisect.compare.kinds import CHECK, RUN, exit_code
from perfbisect.compare.launches import RUNS, SideRefusedError
from perfbisect.compare.plan import CheckPlan, ComparePlan, RunPlan
from perfbisect.compare.report import plan_lines, result_lines
from perfbisect.compare.results import check_of_comparison, compare_document
from perfbisect.compare.run import make_run_plan
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
from perfbisect.jobs.estimates import earlier_attempts, learnt_costs
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import read
from perfbisect.jobs.measurement import resolve_metric, runs_per_launch
from perfbisect.jobs.plans import find_plan
from perfbisect.jobs.replay import launches
from perfbisect.machine.profile import machine
from perfbisect.measure.record import identify_client
from perfbisect.model.cell import Cell
from perfbisect.stats.ab_test import BLOCK_SIZE
from perfbisect.stats.threshold import LEAST, STEP
from perfbisect.stats.two_sample import Scale
from perfbisect.system import environ
from perfbisect.system.clock import now

MOST = 20
"""Launches of the commit, at most."""
SAVED = 8
"""Launches of a baseline."""
DAY = timedelta(days=1)
"""Ends that were measured longer ago are measured again: a machine drifts."""
_PLAIN = " plain"
"""How the digest of a client ends that was told to print no table."""

How = Literal["rev", "baseline", "values", "ends", "save"]


@dataclass(frozen=True)
class CheckOptions:
    """The options of ``perfbisect check``; ``max_regression`` is a share."""

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

    @property
    def how(self) -> How:
        """What the commit is checked against.

        :raises UsageError: nothing, several things, or something of which a part is missing.
        """
        asked: list[How] = []
        asked += ["baseline" if self.against == "baseline" else "rev"] if self.against else []
        asked += ["values"] if self.good_value is not None or self.bad_value is not None else []
        asked += ["save"] if self.save_baseline else []
        if not asked and self.git_bisect:
            asked = ["ends"]
        if len(asked) != 1:
            raise UsageError(
                "a check takes one of --against REV, --against baseline, --good-value with --bad-value, or "
                "--save-baseline",
                next_step="perfbisect check CELL --against REV --max-regression 5%",
            )
        how = asked[0]
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


def decide(here: Workspace, options: CheckOptions, measuring: MeasureOptions) -> int:
    """Measures and prints the verdict, or the plan; returns the exit code.

    :raises UntestableError: in a step of git's bisection the commit cannot be built or served.
    """
    how = options.how
    at = options.at or (commit_under_test(here.needed_repository()).id if options.git_bisect else "HEAD")
    options = replace(options, at=at)
    if measuring.expect_workload is not None:
        wiring.require_workload(wiring.resolve_cell(here, options.cell, None), measuring.expect_workload)
    if how == "rev":
        return _check_revision(here, options, measuring)
    if how == "save":
        return _save_baseline(here, options, measuring)
    return _check_level(here, options, measuring, how)


def _check_level(here: Workspace, options: CheckOptions, measuring: MeasureOptions, how: How) -> int:
    level = _level(here, options, measuring, how)
    job: Job | None = None
    try:
        day = level.ends[0].exclude_newer if level.ends else None
        request = build_change_request(here, options.cell, str(options.at), measuring, exclude_newer=day)
        profile = wiring.load_profile(request.setting.machine)
        plan = make_check_plan(
            cell=request.cell,
            change=request.change,
            level=level,
            builder=request.builder,
            metric=request.metric,
            setting=request.setting,
            launches=options.launches or MOST,
            budget=ranges.budget_minutes(here, options.budget),
            machine_class=machine({**os.environ, **request.slots[0].env}, profile).kind,
            notes=request.notes,
        )
        shown = _check_plan_document(here, request, plan)
        if options.dry_run:
            return _show_plan(shown, measuring)
        job = wiring.new_job(here)
        document = _measure_check(here, request, plan, shown, measuring, job)
    except (BuildError, ServerError) as error:
        raise _untestable(error, options, job, position=0) from error
    return print_result(document, result_lines(document), exit_code(document), measuring, job)


def _measure_check(
    here: Workspace,
    request: ChangeRequest,
    plan: CheckPlan,
    shown: CheckPlanDocument,
    measuring: MeasureOptions,
    job: Job,
) -> CheckDocument:
    def require_same_client(client: Environment | None) -> None:
        if client is None:
            return
        for level in plan.recorded:
            plain = level.provenance.client_digest.endswith(_PLAIN)
            require_same_machine(level, client=_client_here(request.cell, client, job, plain=plain))

    return measure(
        here,
        job,
        CHECK,
        plan,
        request.builder,
        request.slots,
        measuring,
        plan_lines(shown),
        before=require_same_client,
    )


def _check_revision(here: Workspace, options: CheckOptions, measuring: MeasureOptions) -> int:
    compared = CompareOptions(
        options.cell,
        options.against,
        str(options.at),
        None,
        max(1, (options.launches or MOST) // 2),
        options.budget,
        options.seed,
        measuring,
        max_regression=options.max_regression,
        dry=options.dry_run,
    )
    job: Job | None = None
    try:
        request = build_compare_request(here, compared)
        if options.dry_run:
            return _show_plan(plan_document(request), measuring)
        job = wiring.new_job(here)
        comparison = measure_comparison(here, request, measuring, job)
    except NothingDiffersError as error:
        nothing = _nothing_differs(here, options, measuring, error)
        print_document(nothing, result_lines(nothing), as_json=measuring.as_json, full=measuring.full)
        return EXIT_OK
    except (BuildError, ServerError) as error:
        raise _untestable(error, options, job, position=1) from error
    document = check_of_comparison(comparison)
    return print_result(document, result_lines(document), exit_code(document), measuring, job)


def _save_baseline(here: Workspace, options: CheckOptions, measuring: MeasureOptions) -> int:
    """Measures a commit and writes its launches as a baseline; returns the exit code.

    :raises UsageError: too few launches for a level.
    """
    assert options.save_baseline is not None
    count = options.launches or SAVED
    if count < LEAST:
        raise UsageError(f"--launches {count} is too few: a baseline needs at least {LEAST}")
    request = build_change_request(here, options.cell, str(options.at), measuring)
    plan = make_run_plan(
        cell=request.cell,
        change=request.change,
        builder=request.builder,
        metric=request.metric,
        setting=request.setting,
        launches=count,
        runs=min(RUNS, runs_per_launch(request.cell)),
        notes=request.notes,
    )
    shown = _check_plan_document(here, request, plan)
    if options.dry_run:
        return _show_plan(shown, measuring)
    job = wiring.new_job(here)
    measure(here, job, RUN, plan, request.builder, request.slots, measuring, plan_lines(shown))
    level = level_of_job(job)
    write_baseline(options.save_baseline, level)
    document = SavedBaselineDocument(
        file=str(options.save_baseline),
        recorded=recorded_document(level, request.metric),
        metric=shown.metric,
        cell=shown.cell,
        folder=str(job.path),
    )
    return print_result(document, result_lines(document), EXIT_OK, measuring, job)


def _show_plan(shown: CheckPlanDocument | ComparePlanDocument, measuring: MeasureOptions) -> int:
    print_document(shown, plan_lines(shown), as_json=measuring.as_json, full=measuring.full)
    return EXIT_OK


def _check_plan_document(
    here: Workspace, request: ChangeRequest, plan: CheckPlan | RunPlan
) -> CheckPlanDocument:
    """What will be measured, as it is shown before anything starts."""
    earlier = earlier_attempts(here.jobs, request.cell.digest)
    costs = learnt_costs(earlier, ranges.costs(plan.setting.environment))
    each = costs.launch + plan.runs * costs.run
    most = plan.launches * each
    shown = CheckPlanDocument(
        cell=cell_document(request.cell, plan.ref),
        metric=metric_document(plan.ref),
        change=change_document(plan.change),
        how="save",
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        runs_per_launch=plan.runs,
        most_launches=plan.launches,
        minutes_low=most,
        minutes_high=most,
        budget_minutes=most,
        commands=commands_document(request.cell, plan.setting, plan.change, None),
        notes=plan.notes,
    )
    if isinstance(plan, RunPlan):
        return shown
    return shown.model_copy(
        update={
            "how": plan.how,
            "limit": plan.max_regression,
            "line": Scale.of(plan.ref.metric).value(plan.threshold.at),
            "recorded": tuple(recorded_document(level, plan.ref) for level in plan.recorded),
            "minutes_low": STEP * each,
            "minutes_high": min(plan.budget, most),
            "budget_minutes": plan.budget,
        }
    )


def _client_here(cell: Cell, pinned: Environment, job: Job, *, plain: bool) -> tuple[str, str]:
    """Digest and era of the client with which a job will measure.

    :raises ClientError: its sources cannot be read.
    """
    client = CLIENTS[cell.client.name]
    env = environ.for_interpreter(dict(os.environ), pinned.interpreter, pinned.env, client.env(cell))
    ours = replace(identify_client(client, pinned, env, job.path), forced_plain=plain)
    return ours.digest, ours.era


def _level(here: Workspace, options: CheckOptions, measuring: MeasureOptions, how: How) -> CheckLevel:
    if how == "values":
        assert options.good_value is not None and options.bad_value is not None
        return CheckLevel(values=(options.good_value, options.bad_value))
    if how == "ends":
        return CheckLevel(ends=ends(here, options, measuring, launches=options.launches or MOST))
    name = str(options.baseline)
    path = Path(name).expanduser()
    is_file = path.is_file() or path.suffix == ".json"
    baseline = read_baseline(path) if is_file else level_of_job(here.jobs.find(name))
    return CheckLevel(baseline=baseline, max_regression=options.max_regression or 0.0)


def ends(
    here: Workspace, options: CheckOptions, measuring: MeasureOptions, *, launches: int
) -> tuple[RecordedLevel, RecordedLevel]:
    """The levels of git's good and bad end: known, or measured now with at most so many launches.

    :raises UsageError: no bisection is under way, or its ends do not differ.
    :raises MachineError: the budget was too small for a verdict on the ends.
    """
    good, bad = bisect_ends(here.needed_repository())
    request = build_compare_request(
        here,
        CompareOptions(
            options.cell,
            good.id,
            bad.id,
            None,
            max(1, launches // BLOCK_SIZE),
            options.budget,
            options.seed,
            measuring,
        ),
    )
    known = _known_comparison(here, request)
    job = known or wiring.new_job(here)
    document = (
        compare_document(known, read(known.journal).events)
        if known
        else measure_comparison(here, request, measuring, job)
    )
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


def _known_comparison(here: Workspace, asked: CompareRequest) -> Job | None:
    """The last comparison of these ends with the same options that had a verdict within the last day."""
    for job in reversed(here.jobs.all()):
        try:
            events = read(job.journal).events
            theirs = find_plan(events, ComparePlan)
        except PerfbisectError:
            continue
        decided = finished(events) and events[-1].data.get("verdict") != "inconclusive"
        if theirs is not None and decided and _asks_the_same(theirs, asked.plan):
            old = now() - datetime.fromisoformat(events[0].time) > DAY
            return None if old else job
    return None


def _asks_the_same(theirs: ComparePlan, ours: ComparePlan) -> bool:
    """True if both have the same options on one kind of machine, whatever their budget."""
    free = {"seed": 0, "budget": 0.0, "blocks": 1, "notes": (), "min_effect": None}
    same_day = {"exclude_newer": "", "typed": ""}
    left, right = (
        plan.model_copy(update={**free, "setting": plan.setting.model_copy(update=same_day)})
        for plan in (theirs, ours)
    )
    texts = {"a": theirs.a, "b": theirs.b}
    sides = (theirs.a.change.id, theirs.b.change.id) == (ours.a.change.id, ours.b.change.id)
    return sides and left == right.model_copy(update=texts)


def _nothing_differs(
    here: Workspace, options: CheckOptions, measuring: MeasureOptions, error: UsageError
) -> CheckDocument:
    """The check of a commit that changes nothing that runs: there is nothing to measure."""
    cell = wiring.resolve_cell(here, options.cell, measuring.variant)
    metric = resolve_metric(cell, here.setting("metric", measuring.metric))
    change = changes.resolve_change(here, str(options.at))
    return CheckDocument(
        job="",
        finished=True,
        verdict="passed",
        how="rev",
        limit=options.max_regression or 0.0,
        summary=(f"{error.message}. Nothing was measured.",),
        next=git_command(str(here.needed_repository().path), "show", "--stat", change.short),
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
    error: PerfbisectError, options: CheckOptions, job: Job | None, *, position: int
) -> PerfbisectError:
    """The error, or a skip for git where the checked commit, at ``position`` of its job, is at fault."""
    if options.git_bisect and (
        (isinstance(error, SideRefusedError) and error.side == "b") or (job and _at_fault(job, position))
    ):
        return UntestableError(error.message, where=error.where, next_step="git bisect skips it")
    return error


def _at_fault(job: Job, position: int) -> bool:
    """True if the job ended with a failure of the commit at this position, and of no other."""
    if not job.journal.exists():
        return False
    seen = launches(read(job.journal).events)
    if not seen:
        return False
    last = max(seen, key=lambda launch: launch.ended)
    return last.refused and last.position == position
