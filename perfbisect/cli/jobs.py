"""``perfbisect status``, ``stop``, ``report``: jobs that are there already."""

from __future__ import annotations

import math
import time
from pathlib import Path

import click

from perfbisect.commands import options
from perfbisect.commands.invocation import Working
from perfbisect.commands.options import Minutes
from perfbisect.jobs.folders import Job

_TICK = 0.5


def until_left(job: Job, minutes: float | None) -> bool:
    """Waits until nobody works on a job, at most so long; True if nobody does."""
    deadline = time.monotonic() + (math.inf if minutes is None else 60 * minutes)
    while job.holder is not None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_TICK)
    return True


@click.command(short_help="Go on with a job after an interruption.")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--budget", type=Minutes(), help="A larger budget than before: 3h, 90m.")
@click.option("--metric", metavar="M", help="Go on with another metric of the same launches.")
@click.option("--confirm-revert", is_flag=True, help="Measure the later end without the culprit too.")
@click.option(
    "--workers", type=click.IntRange(1), help="Launches at once from here on.  [default: as before]"
)
@options.working
def resume(
    job_id: str | None,
    budget: float | None,
    metric: str | None,
    confirm_revert: bool,
    workers: int | None,
    working: Working,
) -> int:
    """Go on with a job, as if nothing had happened. Without ID: the one unfinished job.

    What a dead perfbisect left running is ended first; an attempt that it had finished is taken
    from its folder. With a larger --budget a bisection that ran out of it goes on too; with another
    --metric the same launches are asked about that, and more are made where they do not settle it.

    \b
    Example:
      perfbisect resume 20260102-030405-ab12
    """
    from perfbisect.commands import wiring
    from perfbisect.commands.detach import leave
    from perfbisect.commands.execution import carry_out
    from perfbisect.commands.kinds import kind_of
    from perfbisect.commands.session import at_work, hand_out, refuse_other_parts, slots_for
    from perfbisect.commands.workspace import place
    from perfbisect.errors import UsageError
    from perfbisect.jobs.capabilities import metric_of
    from perfbisect.jobs.journal import read
    from perfbisect.jobs.kind import Amendment
    from perfbisect.jobs.plans import cell_of
    from perfbisect.jobs.replay import launches

    if working.detach:
        return leave(working)
    here = place(repo=working.repo, state=working.state)
    job = here.jobs.find(job_id) if job_id else here.jobs.the_unfinished("resume")
    events = read(job.journal).events
    kind = kind_of(events)
    plan = kind.read_plan(job, events)
    cell = cell_of(plan)
    slots = slots_for(cell, workers or kind.workers(plan), plan.setting.machine)
    refuse_other_parts(job.id, launches(events), slots, plan.setting.machine)
    builder = wiring.builder_of(here, plan.setting)
    with at_work(job, slots, working) as desk:
        if budget is not None or metric is not None or confirm_revert:
            if kind.amend is None:
                raise UsageError(
                    f"job {job.id} is a {kind.plan.noun}: it has no budget and no other question",
                    next_step=f"perfbisect resume {job.id}, without options",
                )
            judged = metric_of(cell, metric) if metric is not None else None
            plain = desk.tools(builder, None, plan.setting)
            kind.amend(job, plain, Amendment(budget, judged, confirm_revert))
        document = carry_out(here, desk, kind, plan, builder)
    return hand_out(document, kind.lines(document), kind.exit_code(document), working, job)


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
    from perfbisect.commands.documents import JobsDocument
    from perfbisect.commands.output import emit
    from perfbisect.commands.status import job_line, listed_line, status_document, status_lines
    from perfbisect.commands.workspace import place
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
    from perfbisect.commands.documents import StopDocument
    from perfbisect.commands.output import emit
    from perfbisect.commands.workspace import place

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
    from perfbisect.commands.kinds import read_document
    from perfbisect.commands.output import emit
    from perfbisect.commands.workspace import place
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
