"""``perfbisect resume``."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.cli import options
from perfbisect.cli.durations import Minutes


@click.command(short_help="Go on with a job after an interruption.")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--budget", type=Minutes(), help="A larger budget than before: 3h, 90m.")
@options.repo
@options.state
@options.verbose
@options.as_json
def resume(
    job_id: str | None,
    budget: float | None,
    repo: Path | None,
    state: Path | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """Go on with a job, as if nothing had happened. Without ID: the one unfinished job.

    What a dead perfbisect left running is ended first; an attempt that it had finished is taken
    from its folder. With a larger --budget a bisection that ran out of it goes on too.

    \b
    Example:
      perfbisect resume 20260102-030405-ab12
    """
    from perfbisect.cli import finish, wiring
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.jobs.bisect import bisect as search
    from perfbisect.jobs.bisect import extend
    from perfbisect.jobs.plan import BisectPlan, plan_of
    from perfbisect.jobs.run import run as measure
    from perfbisect.render.console import report_lines, run_lines
    from perfbisect.render.documents import ReportDocument, RunDocument
    from perfbisect.store.journal import read

    here = place(repo=repo, state=state)
    job = here.jobs.find(job_id) if job_id else here.jobs.the_unfinished("resume")
    with wiring.interruptible(job), job.held():
        plan = plan_of(read(job.journal).events)
        builder = wiring.builder_of(here, plan.setting)
        newest = plan.positions[-1].change if isinstance(plan, BisectPlan) else plan.change
        plain = wiring.tools_of(job, builder, None, verbose=verbose)
        if budget is not None:
            extend(job, budget, plain)
        client = wiring.client_environment(
            here, plan.setting, builder, newest, job.path / "client-build.log", plain.limits.build
        )
        tools = wiring.tools_of(job, builder, client, verbose=verbose)
        document: ReportDocument | RunDocument
        document = search(job, tools) if isinstance(plan, BisectPlan) else measure(job, tools)
        finish.write_report(job, document)
    shown = report_lines(document) if isinstance(document, ReportDocument) else run_lines(document)
    emit(document, shown, as_json=as_json)
    return finish.exit_code(document)
