"""``perfbisect check``."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.commands import options
from perfbisect.commands.options import MeasureOptions, MinutesParam, PercentParam


@click.command(short_help="For CI: is a commit worse by more than a limit?")
@options.cell
@click.option("--at", metavar="CHANGE", help="What is checked.  [default: HEAD of --repo]")
@click.option("--against", metavar="REV|baseline", help="A revision, measured in turn, or --baseline.")
@click.option(
    "--max-regression", type=PercentParam(), metavar="PERCENT", help="By how much it may be worse: 5%."
)
@click.option("--baseline", metavar="FILE|JOB", help="Launches of before: of --save-baseline, run or check.")
@click.option(
    "--save-baseline", type=click.Path(path_type=Path), help="Measure the commit and write a baseline."
)
@click.option("--good-value", type=float, metavar="V", help="Level of a good commit, in the metric's unit.")
@click.option("--bad-value", type=float, metavar="V", help="Level of a bad one: the line is in the middle.")
@click.option("--git-bisect", is_flag=True, help="Answer git bisect run: 0 good, 1 bad, 125 skip, 128 stop.")
@click.option(
    "--launches", type=click.IntRange(2), help="Most launches of the commit.  [default: 20; of a baseline: 8]"
)
@click.option("--budget", type=MinutesParam(), help="Measure no longer than this: 3h, 90m.  [default: 15h]")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws which side begins a block.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured; start nothing.")
@options.measuring
def check(
    cell: str | None,
    at: str | None,
    against: str | None,
    max_regression: float | None,
    baseline: str | None,
    save_baseline: Path | None,
    good_value: float | None,
    bad_value: float | None,
    git_bisect: bool,
    launches: int | None,
    budget: float | None,
    seed: int,
    dry_run: bool,
    measuring: MeasureOptions,
) -> int:
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
    from perfbisect.commands.detach import run_detached
    from perfbisect.commands.workspace import workspace_of

    if measuring.detach and not dry_run:
        return run_detached(measuring)
    request = CheckRequest(
        cell, at, against, max_regression, baseline, save_baseline, good_value, bad_value, git_bisect,
        launches, budget, seed, dry_run, measuring,
    )  # fmt: skip
    return run_check(workspace_of(measuring), request)
