"""``perfbisect track reproduce``: the ends of an alert's window, compared on this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from perfbisect.cli.track import FDR, rank_window
from perfbisect.commands import options
from perfbisect.commands.options import MeasureOptions
from perfbisect.commands.output import CommandResult

if TYPE_CHECKING:
    from perfbisect.commands.workspace import Workspace


@click.command(short_help="Does this machine show an alert's step at all?")
@click.argument("alert")
@click.option("--cell", metavar="CELL", help="Cell of ours to measure.  [default: the one that agrees]")
@options.blocks
@options.budget
@options.seed
@options.dry_run
@FDR
@options.measuring
def reproduce(
    workspace: Workspace, alert: str, cell: str | None, fdr: float, measuring: MeasureOptions, **typed: Any
) -> CommandResult:
    """Compare the ends of ALERT's window on this machine, before anything is bisected.

    A is the last commit that the night before may have run, B the last that the first slow night may have
    run. A nightly's machine may show what this one does not: then a bisection here finds nothing.

    \b
    Examples:
      perfbisect track reproduce 20260412-3f1a --repo vllm-omni --cell my_cell.yaml --dry-run
      perfbisect track reproduce 20260412-product --repo vllm-omni --cell qwen3_tts --machine cuda

    Exit code: 3 it is there (a regression), 0 it is not, 4 inconclusive.
    """
    from perfbisect.commands.comparisons import CompareRequest, run_comparison
    from perfbisect.common.text import line
    from perfbisect.errors import UsageError
    from perfbisect.series.suspects.job import cell_of_ours

    found, _ = rank_window(workspace, alert, fdr)
    ours = found.alert
    chosen = cell or cell_of_ours(found.finding) or workspace.setting("cell", None)
    if not chosen:
        raise UsageError(
            f"no cell of ours is known to be {ours.cell}",
            next_step="--cell CELL; perfbisect cells import makes cells of vLLM-Omni's specifications",
        )
    measuring = replace(measuring, metrics=measuring.metrics or (ours.metric,))
    request = CompareRequest(measuring=measuring, cell=chosen, a=found.good, b=found.bad, **typed)
    direction = "worse" if ours.worse else "better"
    question = f"alert {ours.id}: {ours.metric} of {ours.cell} became {direction} there; does it here?"
    return run_comparison(workspace, request, line(question, 400))
