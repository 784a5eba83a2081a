"""``perfbisect status``, ``stop``, ``report``: jobs that are there already."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.cli import options


@click.command(short_help="How far a job is.")
@click.argument("job_id", metavar="[ID]", required=False)
@options.repo
@options.state
@options.as_json
def status(job_id: str | None, repo: Path | None, state: Path | None, as_json: bool) -> int:
    """How far a job is. Without ID: the one unfinished job, or a list where none is.

    \b
    Example:
      perfbisect status
    """
    from perfbisect.cli.documents import JobsDocument
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.cli.state import job_line, status_document, status_lines

    jobs = place(repo=repo, state=state).jobs
    if job_id is None and not jobs.unfinished():
        listed = JobsDocument(jobs=tuple(job_line(job) for job in jobs.all()))
        lines = [f"{x.job}  {x.state:<10} {x.verb:<6} {x.cell}  {x.launches} launches" for x in listed.jobs]
        emit(listed, lines or [f"no jobs in {jobs.state}"], as_json=as_json)
        return 0
    document = status_document(jobs.find(job_id) if job_id else jobs.the_unfinished("status"))
    emit(document, status_lines(document), as_json=as_json)
    return 0


@click.command(short_help="Ask a job to stop.")
@click.argument("job_id", metavar="ID")
@options.repo
@options.state
@options.as_json
def stop(job_id: str, repo: Path | None, state: Path | None, as_json: bool) -> int:
    """Ask the perfbisect that works on a job to stop: it ends what it started and can be resumed.

    \b
    Example:
      perfbisect stop 20260102-030405-ab12
    """
    from perfbisect.cli.documents import StopDocument
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place

    job = place(repo=repo, state=state).jobs.find(job_id)
    holder = job.ask_stop()
    document = StopDocument(job=job.id, asked=holder is not None, pid=holder.pid if holder else None)
    told = f"process {holder.pid} was asked to stop" if holder else "nobody works on it"
    emit(document, [f"job {job.id}: {told}"], as_json=as_json)
    return 0


@click.command(short_help="The report of a job.")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["md", "json", "html"]),
    default="md",
    show_default=True,
    help="Form; html of a bisection only: one page that opens from disk.",
)
@click.option(
    "--metric", metavar="M", help="What the same launches say of another metric; nothing is launched."
)
@options.repo
@options.state
@options.as_json
def report(
    job_id: str | None, form: str, metric: str | None, repo: Path | None, state: Path | None, as_json: bool
) -> int:
    """The report of a job, finished or not, from its journal: Markdown to paste into an issue, JSON, HTML.

    With --metric of a bisection: what its launches support of another metric, else `inconclusive`,
    with what the rest would cost.

    \b
    Examples:
      perfbisect report 20260102-030405-ab12 --format md > report.md
      perfbisect report 20260102-030405-ab12 --metric ttft:p99
    """
    from perfbisect.cli import finish
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.cli.state import document_of
    from perfbisect.render.documents import ReportDocument

    jobs = place(repo=repo, state=state).jobs
    job = jobs.find(job_id) if job_id else jobs.the_unfinished("report")
    document = document_of(job, metric)
    text = finish.text_of(document)
    if form == "html":
        from perfbisect.errors import UsageError
        from perfbisect.render.html_report import html

        if not isinstance(document, ReportDocument):
            raise UsageError(f"job {job.id} is no bisection: its report has no page", next_step="--format md")
        text = html(document)
    emit(document, [text.rstrip("\n")], as_json=as_json or form == "json")
    return 0
