"""``perfbisect explain``: why a change is slower."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.commands import options
from perfbisect.commands.output import CommandResult


@click.command(short_help="Why a change is slower.")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "md", "html"]),
    default="text",
    show_default=True,
    help="Format; html is a page that opens from disk.",
)
@options.repo
@options.state
@options.as_json
def explain(job_id: str | None, form: str, repo: Path | None, state: Path | None) -> CommandResult:
    """Say which phase of a request takes longer, from the launches of a bisection or comparison.

    Compares culprit and parent, or A and B: time in the queue, in prefill, a decode step and outside the
    engine core, iterations, cache hits, CPU time of the processes, and what the engines log differently.
    Starts nothing. Without ID: the only unfinished job.

    \b
    Examples:
      perfbisect explain 20260102-030405-ab12
      perfbisect explain 20260102-030405-ab12 --json
    """
    from perfbisect.commands.explain import explain_job
    from perfbisect.commands.workspace import open_workspace
    from perfbisect.explain.report import explain_report
    from perfbisect.report.html import report_html
    from perfbisect.report.markdown import report_markdown
    from perfbisect.report.terminal import report_lines

    jobs = open_workspace(repo=repo, state=state).jobs
    document = explain_job(jobs.find(job_id) if job_id else jobs.the_unfinished("explain"))
    report = explain_report(document)
    if form == "text":
        return CommandResult(document, report_lines(report))
    render = report_html if form == "html" else report_markdown
    return CommandResult(document, [render(report).rstrip("\n")])
