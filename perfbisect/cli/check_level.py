"""A check against a level: its plan, the launches, and a level that is measured to be kept."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfbisect.cli import changes, ranges, wiring
from perfbisect.cli.desk import at_work, slots_for
from perfbisect.cli.ending import hand_out
from perfbisect.cli.options import Measuring
from perfbisect.cli.output import emit, teller
from perfbisect.cli.place import Place
from perfbisect.cli.verbs import beginning, carry_out
from perfbisect.clients import CLIENTS
from perfbisect.core.cell import Cell
from perfbisect.core.difference import Scale
from perfbisect.core.level import LEAST, STEP
from perfbisect.environments import Builder, Environment
from perfbisect.errors import EXIT_OK, UsageError
from perfbisect.executors.provenance import instrument
from perfbisect.jobs.check import Level, make_check_plan
from perfbisect.jobs.check_plan import CheckPlan
from perfbisect.jobs.check_report import recorded_document, recorded_documents
from perfbisect.jobs.compare import RUNS
from perfbisect.jobs.expect import learnt_costs
from perfbisect.jobs.planned import earlier_attempts
from perfbisect.jobs.prepare import metric_of, runs_per_launch
from perfbisect.jobs.recorded import refuse_other_place
from perfbisect.jobs.recordings import recorded_by, write_recorded
from perfbisect.jobs.run import make_run_plan
from perfbisect.jobs.setting import Setting
from perfbisect.jobs.views import cell_document, change_document, commands_document, metric_document
from perfbisect.render.check_documents import BaselineDocument, CheckedDocument, CheckPlanDocument
from perfbisect.render.check_lines import baseline_lines, check_plan_lines
from perfbisect.store.jobs import Job
from perfbisect.system import environ
from perfbisect.system.machine import machine
from perfbisect.system.slots import Slot

if TYPE_CHECKING:
    from perfbisect.cli.check_asked import TypedCheck

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
        budget=ranges.budget(here, typed.budget),
        machine_class=machine({**os.environ, **slots[0].env}, profile).kind,
        told=(*ranges.told(here, setting), *ranges.told_of_slots(slots)),
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
        document = carry_out(here, desk, plan, asked.builder, known)
    assert isinstance(document, CheckedDocument)
    return document


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
        told=(*ranges.told(here, setting), *ranges.told_of_slots(slots)),
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
        carry_out(here, desk, plan, builder)
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
