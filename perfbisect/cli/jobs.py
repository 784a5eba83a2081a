"""``perfbisect status``, ``resume``, ``stop``, ``report``: existing jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import click

from perfbisect.commands.options import InRepositoryAndState, JobOptions, Minutes
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Argument, Option, prints
from perfbisect.commands.wings import documents
from perfbisect.commands.workspace import Workspace

JobId = Annotated[str | None, Argument("[ID]")]
Timeout = Annotated[Minutes | None, Option("Stop waiting after this time.", default="never")]


@prints("perfbisect.commands.experiments:JOB_DOCUMENTS", *documents())
@dataclass(frozen=True, kw_only=True)
class ResumeRequest(JobOptions):
    """Continue a job after an interruption. Without ID: the only unfinished job.

    Processes that an earlier perfbisect left running are ended first; an attempt that it completed is taken
    from its folder. A larger --budget continues a bisection that ran out of it; another --metric reuses the
    launches of a bisection and adds those that are needed.

    \b
    Example:
      perfbisect resume 20260102-030405-ab12
    """

    job_id: JobId = None
    budget: Annotated[Minutes | None, Option("A larger budget than before: 3h, 90m.")] = None
    metric: Annotated[
        str | None, Option("Continue with another metric of the same launches.", metavar="M")
    ] = None
    confirm_revert: Annotated[bool, Option("Measure the later end without the culprit too.")] = False
    workers: Annotated[
        int | None, Option("Concurrent launches from here on.", default="as before", type=click.IntRange(1))
    ] = None

    def run(self, workspace: Workspace) -> CommandResult:
        from perfbisect.commands import setups
        from perfbisect.commands.experiments import experiment_of, is_readable
        from perfbisect.commands.output import progress_printer
        from perfbisect.commands.session import job_result, open_session, run_job, served_fields
        from perfbisect.commands.slots import find_slots, require_same_machine
        from perfbisect.common.secret_references import references
        from perfbisect.engine.experiment import Amendment
        from perfbisect.errors import UsageError
        from perfbisect.jobs.journal import read, replaying
        from perfbisect.jobs.plans import plan_cell, require_plan, resolve_metric
        from perfbisect.jobs.replay import launches

        job = workspace.jobs.chosen(self.job_id, "resume", is_readable)
        events = read(job.journal).events
        kind = experiment_of(events)
        plan = require_plan(job, events, kind.plan)
        with replaying(job.journal):  # what cannot be reported cannot be continued
            kind.status(kind.result(job, events))
        cell = plan_cell(plan)
        found = find_slots(workspace, cell, plan.setting, self.workers or kind.workers(plan))
        require_same_machine(job.id, launches(events), found.machine_class)
        del events  # the session reads the journal again: of a long job one copy is enough
        builder = setups.build_builder(workspace, plan.setting)
        builder.prepare(plan.changes)
        # A journal keeps no secret, so that none can be compared.
        if names := references(served_fields(plan)):
            progress_printer(self)(
                f"note: {', '.join(names)}: taken from the environment of this command; the job cannot tell "
                "whether the value is the one that it began with"
            )
        with open_session(job, found.slots, self) as session:
            if self.budget is not None or self.metric is not None or self.confirm_revert:
                if kind.amend is None:
                    raise UsageError(
                        f"job {job.id} is a {kind.plan.noun}, which goes on as it was planned: --budget, "
                        "--metric and --confirm-revert change bisections, --budget also searches of hunks",
                        next_step=f"perfbisect resume {job.id}, without options",
                    )
                judged = resolve_metric(cell, self.metric) if self.metric is not None else None
                lack = plan.setting.lacks(cell, judged) if judged is not None else ""
                if lack:
                    raise UsageError(
                        f"{judged} needs {lack}, and job {job.id} was planned without",
                        next_step="start a new job",
                    )
                plain = session.tools(workspace, plan.setting, builder, None)
                kind.amend(job, plain, Amendment(self.budget, judged, self.confirm_revert))
            return job_result(kind, run_job(workspace, session, kind, plan, builder))


@prints("perfbisect.commands.status:StatusDocument", "perfbisect.commands.status:JobsDocument")
def status(
    workspace: InRepositoryAndState,
    *,
    wait: Annotated[bool, Option("Return once no process works on the job.")] = False,
    job_id: JobId = None,
    timeout: Timeout = None,
) -> CommandResult:
    """The progress of a job: running launches, candidates, the next event, the outcome.

    Without ID: the only unfinished job, or a list of all jobs. The document has the exit code and the error
    of a job that ended; this command exits with 0, also after --timeout.

    \b
    Examples:
      perfbisect status
      perfbisect status 20260102-030405-ab12 --wait --timeout 10m --json
    """
    from perfbisect.commands.status import (
        list_jobs,
        open_jobs,
        status_document,
        status_lines,
        wait_until_released,
    )
    from perfbisect.system.clock import now

    jobs = workspace.jobs
    if job_id is None and not open_jobs(jobs):
        return CommandResult(*list_jobs(jobs, now))
    job = jobs.chosen(job_id, "status", open_jobs(jobs).__contains__)
    if wait:
        wait_until_released(job, timeout)
    document = status_document(job, now())
    return CommandResult(document, status_lines(document))


@prints("perfbisect.commands.status:StopDocument")
def stop(
    workspace: InRepositoryAndState,
    *,
    wait: Annotated[bool, Option("Return once all its processes have ended.")] = False,
    job_id: JobId = None,
    timeout: Timeout = None,
) -> CommandResult:
    """Ask the process that works on a job to stop. It ends its servers; the job can be resumed.

    Without ID: the only job that a process works on, or the only unfinished one.
    Where no process works on it any more, what still runs for it on the machines of a fleet is ended.

    \b
    Examples:
      perfbisect stop 20260102-030405-ab12
      perfbisect stop 20260102-030405-ab12 --wait --json
    """
    from perfbisect.commands.status import stop_job

    running = [job for job in workspace.jobs.unfinished() if job.holder is not None]
    one = running[0] if job_id is None and len(running) == 1 else None
    job = one or workspace.jobs.chosen(job_id, "stop")
    return CommandResult(*stop_job(workspace, job, wait=wait, timeout_min=timeout))


@prints("perfbisect.commands.experiments:JOB_DOCUMENTS", *documents(), has_full=True)
def report(
    workspace: InRepositoryAndState,
    *,
    format: Annotated[
        Literal["md", "json", "html"], Option("Format; html is a page that opens from disk.")
    ] = "md",
    metric: Annotated[
        str | None, Option("Evaluate the same launches for another metric; starts nothing.", metavar="M")
    ] = None,
    job_id: JobId = None,
) -> CommandResult:
    """The report of a job, finished or not: Markdown to paste into an issue, JSON or HTML.

    With --metric, a bisection's launches are evaluated for another metric; `inconclusive` comes with the
    cost of the missing launches.

    \b
    Examples:
      perfbisect report 20260102-030405-ab12 --format md > report.md
      perfbisect report 20260102-030405-ab12 --metric ttft:p99
    """
    from perfbisect.commands.experiments import experiment_of, is_readable
    from perfbisect.commands.output import page_result
    from perfbisect.errors import UsageError
    from perfbisect.jobs.journal import read, replaying
    from perfbisect.model.metric import parse_metric

    job = workspace.jobs.chosen(job_id, "report", is_readable)
    events = read(job.journal).events
    kind = experiment_of(events)
    if metric is not None and kind.result_for_metric is None:
        raise UsageError(
            f"job {job.id} is a {kind.plan.noun}: its report has every metric",
            next_step=f"perfbisect report {job.id}",
        )
    with replaying(job.journal):
        if metric is not None and kind.result_for_metric is not None:
            result = kind.result_for_metric(job, events, parse_metric(metric))
        else:
            result = kind.result(job, events)
        if format == "json":
            return CommandResult(result, (), json=True)
        return page_result(result, kind.report(result), format)
