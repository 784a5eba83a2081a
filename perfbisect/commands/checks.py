"""A check against a level: its plan, the launches, and a level that is measured to be kept."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from perfbisect.bisect.estimates import earlier_attempts
from perfbisect.changes.history import bisect_ends, under_test
from perfbisect.clients import CLIENTS
from perfbisect.commands import changes, plan_notes, ranges, wiring
from perfbisect.commands.check_options import How, TypedCheck
from perfbisect.commands.compare_request import Contest, TypedContest, contest, planned
from perfbisect.commands.comparisons import settle
from perfbisect.commands.execution import beginning, carry_out
from perfbisect.commands.invocation import Measuring
from perfbisect.commands.output import emit, teller
from perfbisect.commands.session import at_work, hand_out, slots_for
from perfbisect.commands.wiring import new_job, refuse_another, the_cell
from perfbisect.commands.workspace import Place
from perfbisect.compare.baseline import ends_of, read_recorded, recorded_by, write_recorded
from perfbisect.compare.check import Level, make_check_plan
from perfbisect.compare.check_documents import BaselineDocument, CheckedDocument, CheckPlanDocument
from perfbisect.compare.check_plan import CheckPlan, Recorded, refuse_other_place
from perfbisect.compare.check_render import baseline_lines, check_plan_lines, checked_lines, checked_of
from perfbisect.compare.check_report import recorded_document, recorded_documents
from perfbisect.compare.job import RUNS, NothingDiffersError, SideRefusedError
from perfbisect.compare.kinds import CHECK, RUN, exit_code
from perfbisect.compare.plan import ComparePlan
from perfbisect.compare.render import plan_lines
from perfbisect.compare.report import compare_document
from perfbisect.compare.run import make_run_plan
from perfbisect.environments.base import Builder, Environment
from perfbisect.errors import (
    EXIT_OK,
    BuildError,
    MachineError,
    PerfbisectError,
    ServerError,
    UntestableError,
    UsageError,
)
from perfbisect.jobs.capabilities import metric_of, runs_per_launch
from perfbisect.jobs.documents import (
    MinutesDocument,
    cell_document,
    change_document,
    commands_document,
    metric_document,
)
from perfbisect.jobs.estimates import learnt_costs
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import read
from perfbisect.jobs.next_command import git
from perfbisect.jobs.plans import find_plan
from perfbisect.jobs.replay import launches
from perfbisect.jobs.settings import Setting
from perfbisect.machine.profile import machine
from perfbisect.machine.slots import Slot
from perfbisect.measure.record import instrument
from perfbisect.model.cell import Cell
from perfbisect.stats.ab_test import BLOCK
from perfbisect.stats.threshold import LEAST, STEP
from perfbisect.stats.two_sample import Scale
from perfbisect.system import environ
from perfbisect.system.clock import now

_PLAIN = " plain"
"""How the digest of a client ends that was told to print no table."""


@dataclass(frozen=True)
class LevelCheck:
    """What will be checked, and where; ``minutes``: what a launch is expected to take."""

    cell: Cell
    plan: CheckPlan
    builder: Builder
    slots: tuple[Slot, ...]
    minutes: float


def level_plan(
    here: Place, typed: TypedCheck, measuring: Measuring, level: Level, *, launches: int
) -> LevelCheck:
    """The plan of a check against a level, with nothing started.

    :raises UsageError: something that was typed is wrong, or the level cannot be compared.
    :raises SideRefusedError: the commit cannot be built.
    """
    cell = wiring.the_cell(here, typed.cell, measuring.variant)
    judged = metric_of(cell, here.setting("metric", measuring.metric))
    change, setting = changes.the_change(here, str(typed.at)), _setting(here, typed, measuring)
    if level.ends is not None and measuring.exclude_newer is None:
        setting = setting.model_copy(update={"exclude_newer": level.ends[0].exclude_newer})
    builder, slots = _where(here, cell, setting)
    profile = wiring.profile_named(setting.machine)
    plan = make_check_plan(
        cell=cell,
        change=change,
        level=level,
        builder=builder,
        metric=judged,
        setting=setting,
        launches=launches,
        budget=ranges.budget_minutes(here, typed.budget),
        machine_class=machine({**os.environ, **slots[0].env}, profile).kind,
        told=(*plan_notes.repository_notes(here, setting), *plan_notes.slot_notes(slots)),
    )
    earlier = earlier_attempts(here.jobs, cell.digest)
    costs = learnt_costs(earlier, ranges.costs(setting.environment))
    return LevelCheck(cell, plan, builder, slots, costs.launch + plan.runs * costs.run)


def measured(here: Place, asked: LevelCheck, measuring: Measuring, job: Job) -> CheckedDocument:
    """Measures until the verdict. Raises what the job raises."""
    plan, say = asked.plan, teller(measuring)

    def known(client: Environment | None) -> None:
        if client is None:
            return
        for one in plan.recorded:
            plain = one.provenance.client_digest.endswith(_PLAIN)
            refuse_other_place(one, client=_client_here(asked.cell, client, job, plain=plain))

    with at_work(job, asked.slots, measuring, begin=beginning(job, plan)) as desk:
        for text in (*check_plan_lines(planned_level(asked)), f"job {job.id}", ""):
            say(text)
        return carry_out(here, desk, CHECK, plan, asked.builder, known)


def planned_level(asked: LevelCheck) -> CheckPlanDocument:
    """What will be measured, as it is shown before anything starts."""
    plan = asked.plan
    return CheckPlanDocument(
        cell=cell_document(asked.cell, plan.ref),
        metric=metric_document(plan.ref),
        change=change_document(plan.change),
        how=plan.how,
        limit=plan.fail_over,
        line=Scale.of(plan.ref.metric).value(plan.line.at),
        recorded=recorded_documents(plan),
        environment=plan.setting.environment,
        client=plan.setting.instrument,
        runs_per_launch=plan.runs,
        most_launches=plan.launches,
        minutes_low=STEP * asked.minutes,
        minutes_high=min(plan.budget, plan.launches * asked.minutes),
        budget_minutes=plan.budget,
        commands=commands_document(asked.cell, plan.setting, plan.change, None),
        told=plan.told,
    )


def save(here: Place, typed: TypedCheck, measuring: Measuring, *, launches: int) -> int:
    """Measures a commit and writes its launches as a baseline; returns the exit code.

    :raises UsageError: too few launches for a level.
    """
    assert typed.save_baseline is not None
    if launches < LEAST:
        raise UsageError(f"--launches {launches}: a baseline has {LEAST} at least")
    cell = wiring.the_cell(here, typed.cell, measuring.variant)
    judged = metric_of(cell, here.setting("metric", measuring.metric))
    change, setting = changes.the_change(here, str(typed.at)), _setting(here, typed, measuring)
    builder, slots = _where(here, cell, setting)
    plan = make_run_plan(
        cell=cell,
        change=change,
        builder=builder,
        metric=judged,
        setting=setting,
        launches=launches,
        runs=min(RUNS, runs_per_launch(cell)),
        told=(*plan_notes.repository_notes(here, setting), *plan_notes.slot_notes(slots)),
    )
    costs = learnt_costs(earlier_attempts(here.jobs, cell.digest), ranges.costs(setting.environment))
    minutes = launches * (costs.launch + plan.runs * costs.run)
    shown = CheckPlanDocument(
        cell=cell_document(cell, judged),
        metric=metric_document(judged),
        change=change_document(change),
        how="save",
        environment=setting.environment,
        client=setting.instrument,
        runs_per_launch=plan.runs,
        most_launches=launches,
        minutes_low=minutes,
        minutes_high=minutes,
        budget_minutes=minutes,
        commands=commands_document(cell, setting, change, None),
        told=plan.told,
    )
    if typed.dry_run:
        emit(shown, check_plan_lines(shown), as_json=measuring.as_json, full=measuring.full)
        return EXIT_OK
    job, say = wiring.new_job(here), teller(measuring)
    with at_work(job, slots, measuring, begin=beginning(job, plan)) as desk:
        for text in (*check_plan_lines(shown), f"job {job.id}", ""):
            say(text)
        carry_out(here, desk, RUN, plan, builder)
    level = recorded_by(job)
    write_recorded(typed.save_baseline, level)
    document = BaselineDocument(
        file=str(typed.save_baseline),
        recorded=recorded_document(level, judged),
        metric=metric_document(judged),
        cell=cell_document(cell, judged),
        folder=str(job.path),
    )
    return hand_out(document, baseline_lines(document), EXIT_OK, measuring, job)


def _setting(here: Place, typed: TypedCheck, measuring: Measuring) -> Setting:
    at = str(typed.at)
    return wiring.the_setting(
        here,
        environment=changes.environment_of(here, measuring.env, at),
        client=measuring.client,
        constraints=measuring.constraints,
        exclude_newer=measuring.exclude_newer,
        needs_repository=changes.the_change(here, at).kind == "commit",
    )


def _where(here: Place, cell: Cell, setting: Setting) -> tuple[Builder, tuple[Slot, ...]]:
    return wiring.builder_of(here, setting), slots_for(cell, 1, wiring.the_machine(here))


def _client_here(cell: Cell, pinned: Environment, job: Job, *, plain: bool) -> tuple[str, str]:
    """Digest and era of the client with which a job will measure.

    :raises ClientError: its sources cannot be read.
    """
    client = CLIENTS[cell.client.name]
    env = environ.for_interpreter(dict(os.environ), pinned.interpreter, pinned.env, client.env(cell))
    ours = replace(instrument(client, pinned, env, job.path), forced_plain=plain)
    return ours.digest, ours.era


DAY = timedelta(days=1)
"""Ends that were measured longer ago are measured again: a machine drifts."""


def ends(here: Place, typed: TypedCheck, measuring: Measuring, *, launches: int) -> tuple[Recorded, Recorded]:
    """The good and the bad end as they were measured: by an earlier step, or by this one, with so many
    launches of both together at most.

    :raises UsageError: no bisection is under way, or its ends do not differ: there is nothing to look for.
    :raises MachineError: the budget did not tell whether they do.
    """
    found = bisect_ends(here.needed_repository())
    asked = contest(
        here,
        TypedContest(
            typed.cell,
            found.good.id,
            found.bad.id,
            None,
            max(1, launches // BLOCK),
            typed.budget,
            typed.seed,
            measuring,
        ),
    )
    known = _known(here, asked)
    job = known or wiring.new_job(here)
    document = (
        compare_document(known, read(known.journal).events) if known else settle(here, asked, measuring, job)
    )
    if document.headline == "inconclusive":
        raise MachineError(
            f"the ends of git's bisection cannot be told apart yet: {document.sentences[0]}",
            where=job.path,
            next_step="a larger --budget; or --good-value and --bad-value",
        )
    if document.headline != "regression":
        raise UsageError(
            f"git's bad end is not worse than its good end, so there is nothing to look for: "
            f"{document.sentences[0]}",
            where=job.path,
            next_step="git bisect reset",
        )
    return ends_of(job)


def _known(here: Place, asked: Contest) -> Job | None:
    """The last comparison of these ends, asked alike, that told them apart or alike within the last day."""
    for job in reversed(here.jobs.all()):
        try:
            events = read(job.journal).events
            theirs = find_plan(events, ComparePlan)
        except PerfbisectError:
            continue
        told = finished(events) and events[-1].data.get("word") != "inconclusive"
        if theirs is not None and told and _alike(theirs, asked.plan):
            old = now() - datetime.fromisoformat(events[0].time) > DAY
            return None if old else job
    return None


def _alike(theirs: ComparePlan, ours: ComparePlan) -> bool:
    """True if one question was asked, on one kind of machine and with one client, whatever its budget."""
    free = {"seed": 0, "budget": 0.0, "blocks": 1, "told": (), "min_effect": None}
    same_day = {"exclude_newer": "", "typed": ""}
    left, right = (
        plan.model_copy(update={**free, "setting": plan.setting.model_copy(update=same_day)})
        for plan in (theirs, ours)
    )
    texts = {"a": theirs.a, "b": theirs.b}
    sides = (theirs.a.change.id, theirs.b.change.id) == (ours.a.change.id, ours.b.change.id)
    return sides and left == right.model_copy(update=texts)


MOST = 20
"""Launches of the commit, at most."""
SAVED = 8
"""Launches of a baseline."""


def decide(here: Place, typed: TypedCheck, measuring: Measuring) -> int:
    """Measures and hands out the verdict, or the plan; returns the exit code.

    :raises UntestableError: of a step of git's bisection: the commit cannot be built or served.
    """
    how = typed.how
    at = typed.at or (under_test(here.needed_repository()).id if typed.git_bisect else "HEAD")
    typed = replace(typed, at=at)
    if measuring.as_in is not None:
        refuse_another(the_cell(here, typed.cell, None), measuring.as_in)
    if how == "rev":
        return _against_rev(here, typed, measuring)
    if how == "save":
        return save(here, typed, measuring, launches=typed.launches or SAVED)
    level = _level(here, typed, measuring, how)
    job: Job | None = None
    try:
        asked = level_plan(here, typed, measuring, level, launches=typed.launches or MOST)
        if typed.dry_run:
            shown = planned_level(asked)
            emit(shown, check_plan_lines(shown), as_json=measuring.as_json, full=measuring.full)
            return EXIT_OK
        job = new_job(here)
        document = measured(here, asked, measuring, job)
    except (BuildError, ServerError) as error:
        raise _untestable(error, typed, job, position=0) from error
    return hand_out(document, checked_lines(document), exit_code(document), measuring, job)


def _against_rev(here: Place, typed: TypedCheck, measuring: Measuring) -> int:
    blocks = max(1, (typed.launches or MOST) // 2)
    asked_of = TypedContest(
        typed.cell, typed.against, str(typed.at), None, blocks, typed.budget, typed.seed, measuring,
        fail_over=typed.fail_over, dry=typed.dry_run,
    )  # fmt: skip
    job: Job | None = None
    try:
        asked = contest(here, asked_of)
        if typed.dry_run:
            shown = planned(asked)
            emit(shown, plan_lines(shown), as_json=measuring.as_json, full=measuring.full)
            return EXIT_OK
        job = new_job(here)
        compared = settle(here, asked, measuring, job)
    except NothingDiffersError as error:
        nothing = _nothing(here, typed, measuring, error)
        emit(nothing, checked_lines(nothing), as_json=measuring.as_json, full=measuring.full)
        return EXIT_OK
    except (BuildError, ServerError) as error:
        raise _untestable(error, typed, job, position=1) from error
    document = checked_of(compared)
    return hand_out(document, checked_lines(document), exit_code(document), measuring, job)


def _level(here: Place, typed: TypedCheck, measuring: Measuring, how: How) -> Level:
    if how == "values":
        assert typed.good_value is not None and typed.bad_value is not None
        return Level(values=(typed.good_value, typed.bad_value))
    if how == "ends":
        return Level(ends=ends(here, typed, measuring, launches=typed.launches or MOST))
    return Level(baseline=_baseline(here, str(typed.baseline)), fail_over=typed.fail_over or 0.0)


def _baseline(here: Place, name: str) -> Recorded:
    """A file, else a job. :raises UsageError: neither, or one without a level."""
    path = Path(name).expanduser()
    return (
        read_recorded(path) if path.is_file() or path.suffix == ".json" else recorded_by(here.jobs.find(name))
    )


def _nothing(here: Place, typed: TypedCheck, measuring: Measuring, error: UsageError) -> CheckedDocument:
    """The check of a commit that changes nothing that runs: there is nothing to measure."""
    cell = the_cell(here, typed.cell, measuring.variant)
    metric = metric_of(cell, here.setting("metric", measuring.metric))
    change = changes.the_change(here, str(typed.at))
    return CheckedDocument(
        job="",
        finished=True,
        word="passed",
        how="rev",
        limit=typed.fail_over or 0.0,
        sentences=(f"{error.message}: nothing that runs differs, and nothing was measured.",),
        next=git(str(here.needed_repository().path), "show", "--stat", change.short),
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
    error: PerfbisectError, typed: TypedCheck, job: Job | None, *, position: int
) -> PerfbisectError:
    """The error as it is, or as the skip that it is to git: where the checked commit itself is at fault.

    ``position``: that of the checked commit in its job.
    """
    if typed.git_bisect and (
        (isinstance(error, SideRefusedError) and error.side == "b") or (job and _at_fault(job, position))
    ):
        return UntestableError(error.message, where=error.where, next_step="git bisect goes on without it")
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
