"""``perfbisect resume``."""

from __future__ import annotations

import click

from perfbisect.cli import options
from perfbisect.cli.durations import Minutes
from perfbisect.cli.invocation import Working


@click.command(short_help="Go on with a job after an interruption.")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--budget", type=Minutes(), help="A larger budget than before: 3h, 90m.")
@click.option("--metric", metavar="M", help="Go on with another metric of the same launches.")
@click.option("--confirm-revert", is_flag=True, help="Measure the later end without the culprit too.")
@click.option(
    "--workers", type=click.IntRange(1), help="Launches at once from here on.  [default: as before]"
)
@options.working
def resume(
    job_id: str | None,
    budget: float | None,
    metric: str | None,
    confirm_revert: bool,
    workers: int | None,
    working: Working,
) -> int:
    """Go on with a job, as if nothing had happened. Without ID: the one unfinished job.

    What a dead perfbisect left running is ended first; an attempt that it had finished is taken
    from its folder. With a larger --budget a bisection that ran out of it goes on too; with another
    --metric the same launches are asked about that, and more are made where they do not settle it.

    \b
    Example:
      perfbisect resume 20260102-030405-ab12
    """
    from perfbisect.cli import wiring
    from perfbisect.cli.desk import at_work, refuse_other_parts, slots_for
    from perfbisect.cli.detach import leave
    from perfbisect.cli.ending import hand_out
    from perfbisect.cli.kinds import kind_of
    from perfbisect.cli.place import place
    from perfbisect.cli.verbs import carry_out
    from perfbisect.errors import UsageError
    from perfbisect.jobs.capabilities import metric_of
    from perfbisect.jobs.fold import launches
    from perfbisect.jobs.kind import Amendment
    from perfbisect.jobs.plan import cell_of
    from perfbisect.store.journal import read

    if working.detach:
        return leave(working)
    here = place(repo=working.repo, state=working.state)
    job = here.jobs.find(job_id) if job_id else here.jobs.the_unfinished("resume")
    events = read(job.journal).events
    kind = kind_of(events)
    plan = kind.read_plan(job, events)
    cell = cell_of(plan)
    slots = slots_for(cell, workers or kind.workers(plan), plan.setting.machine)
    refuse_other_parts(job.id, launches(events), slots, plan.setting.machine)
    builder = wiring.builder_of(here, plan.setting)
    with at_work(job, slots, working) as desk:
        if budget is not None or metric is not None or confirm_revert:
            if kind.amend is None:
                raise UsageError(
                    f"job {job.id} is a {kind.plan.noun}: it has no budget and no other question",
                    next_step=f"perfbisect resume {job.id}, without options",
                )
            judged = metric_of(cell, metric) if metric is not None else None
            plain = desk.tools(builder, None, plan.setting)
            kind.amend(job, plain, Amendment(budget, judged, confirm_revert))
        document = carry_out(here, desk, kind, plan, builder)
    return hand_out(document, kind.lines(document), kind.exit_code(document), working, job)
