"""``perfbisect explain``: why a change is slower."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfbisect.commands import options
from perfbisect.commands.output import CommandResult

if TYPE_CHECKING:
    from perfbisect.commands.workspace import Workspace


@click.command(short_help="Why a change is slower: its phase, functions, hunk.")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option(
    "--profile", is_flag=True, help="Launch both sides under profilers: which functions and operators."
)
@click.option(
    "--hunks", is_flag=True, help="Measure the commit with parts of it taken back: which hunk it is."
)
@click.option("--launches", type=click.IntRange(1, 2), help="Of --profile, of each side.  [default: 2]")
@options.min_effect
@options.budget
@options.dry_run
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "md", "html"]),
    default="text",
    show_default=True,
    help="Format of the phases; html is a page that opens from disk.",
)
@options.working
def explain(workspace: Workspace, job_id: str | None, **typed: Any) -> CommandResult:
    """Say which phase of a request takes longer, from the launches of a bisection or comparison.

    Compares culprit and parent, or A and B: time in the queue, in prefill, a decode step and outside the
    engine core, iterations, cache hits, CPU time of the processes, and what the engines log differently.
    Starts nothing. Without ID: the only unfinished job.

    --profile and --hunks start a job of their own, which resume, status, stop and report know. --profile
    launches each side under load with py-spy and the torch profiler, and says whether what grew stands in the
    commit's diff; these launches are no measurements. --hunks searches the commit's hunks as bisect searches
    commits, takes the suspected ones back alone, and names the group that carries the step, or none.

    \b
    Examples:
      perfbisect explain 20260102-030405-ab12
      perfbisect explain 20260102-030405-ab12 --profile --dry-run
      perfbisect explain 20260102-030405-ab12 --hunks --budget 3h
    """
    from perfbisect.commands.explain import ExplainRequest, explain_job

    return explain_job(workspace, job_id, ExplainRequest(**typed))
