"""``perfbisect status``, ``stop``, ``report``: jobs that are there already."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.cli import options


@click.command(short_help="How far a job is.")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--wait", is_flag=True, help="Return once nobody works on the job any more.")
@options.timeout
@options.repo
@options.state
@options.as_json
def status(
    job_id: str | None,
    wait: bool,
    timeout: float | None,
    repo: Path | None,
    state: Path | None,
    as_json: bool,
) -> int:
    """How far a job is: what runs since when, what comes next, how it ended.

    Without ID: the one unfinished job, or a list where none is. Of a job that ended the exit code and the
    error stand in the document; that of this verb is 0, also where --timeout ended the waiting.

    \b
    Examples:
      perfbisect status
      perfbisect status 20260102-030405-ab12 --wait --timeout 10m --json
    """
    from perfbisect.cli.job_documents import JobsDocument
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.cli.state import job_line, listed_line, status_document, status_lines
    from perfbisect.cli.waiting import until_left
    from perfbisect.system.clock import now

    jobs = place(repo=repo, state=state).jobs
    if job_id is None and not jobs.unfinished():
        listed = JobsDocument(jobs=tuple(job_line(job, now()) for job in jobs.all()))
        lines = [listed_line(one) for one in listed.jobs]
        emit(listed, lines or [f"no jobs in {jobs.state}"], as_json=as_json)
        return 0
    job = jobs.find(job_id) if job_id else jobs.the_unfinished("status")
    if wait:
        until_left(job, timeout)
    document = status_document(job, now())
    emit(document, status_lines(document), as_json=as_json)
    return 0


@click.command(short_help="Ask a job to stop.")
@click.argument("job_id", metavar="ID")
@click.option("--wait", is_flag=True, help="Return once it has stopped all that it started.")
@options.timeout
@options.repo
@options.state
@options.as_json
def stop(
    job_id: str, wait: bool, timeout: float | None, repo: Path | None, state: Path | None, as_json: bool
) -> int:
    """Ask the perfbisect that works on a job to stop: it ends what it started and can be resumed.

    \b
    Examples:
      perfbisect stop 20260102-030405-ab12
      perfbisect stop 20260102-030405-ab12 --wait --json
    """
    from perfbisect.cli.job_documents import StopDocument
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.cli.waiting import until_left

    job = place(repo=repo, state=state).jobs.find(job_id)
    holder = job.ask_stop()
    ended = until_left(job, timeout) if wait else job.holder is None
    after = "report" if job.finished else "resume"
    document = StopDocument(
        job=job.id,
        asked=holder is not None,
        pid=holder.pid if holder else None,
        ended=ended,
        next=f"perfbisect {after} {job.id}" if ended else f"perfbisect status {job.id} --wait",
    )
    told = f"process {holder.pid} was asked to stop" if holder else "nobody works on it"
    if holder and ended:
        told = f"process {holder.pid} has stopped"
    emit(document, [f"job {job.id}: {told}", f"  next: {document.next}"], as_json=as_json)
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
@options.full
@options.as_json
def report(
    job_id: str | None,
    form: str,
    metric: str | None,
    repo: Path | None,
    state: Path | None,
    full: bool,
    as_json: bool,
) -> int:
    """The report of a job, finished or not, from its journal: Markdown to paste into an issue, JSON, HTML.

    With --metric of a bisection: what its launches support of another metric, else `inconclusive`,
    with what the rest would cost.

    \b
    Examples:
      perfbisect report 20260102-030405-ab12 --format md > report.md
      perfbisect report 20260102-030405-ab12 --metric ttft:p99
    """
    from perfbisect.cli.kinds import read_document
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.errors import UsageError

    jobs = place(repo=repo, state=state).jobs
    job = jobs.find(job_id) if job_id else jobs.the_unfinished("report")
    kind, document = read_document(job, metric)
    text = kind.markdown(document)
    if form == "html":
        if kind.page is None:
            raise UsageError(
                f"job {job.id} is a {kind.plan.noun}: its report has no page", next_step="--format md"
            )
        text = kind.page(document)
    emit(document, [text.rstrip("\n")], as_json=as_json or form == "json", full=full or form == "json")
    return 0
