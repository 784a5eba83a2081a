"""From a job to why one of its sides is slower."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from perfbisect.commands.hunks import HunksRequest, search_hunks
from perfbisect.commands.kinds import kind_of
from perfbisect.commands.options import JobOptions
from perfbisect.commands.output import CommandResult
from perfbisect.commands.profiles import ProfileRequest, profile_sides
from perfbisect.commands.workspace import Workspace
from perfbisect.errors import UsageError
from perfbisect.explain.documents import ExplainDocument, explain_bisection, explain_comparison
from perfbisect.explain.profile_job import MOST_LAUNCHES
from perfbisect.explain.report import explain_report
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read
from perfbisect.jobs.plans import plan_data
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from perfbisect.report.terminal import report_lines

_EXPLAINED: Final[Mapping[str, Callable[[Any], ExplainDocument]]] = {
    "bisect": explain_bisection,
    "compare": explain_comparison,
}


@dataclass(frozen=True)
class ExplainRequest:
    """``explain JOB`` as it was typed; ``min_effect`` is a share, ``budget`` in minutes."""

    working: JobOptions
    profile: bool = False
    hunks: bool = False
    launches: int | None = None
    min_effect: float | None = None
    budget: float | None = None
    seed: int = 0
    dry_run: bool = False
    form: Literal["text", "md", "html"] = "text"


def explain_job(workspace: Workspace, job_id: str | None, request: ExplainRequest) -> CommandResult:
    """Say what the launches of a job show, or profile its sides, or search its culprit's hunks.

    Raises:
        UsageError: the job has no two sides, or options do not go together.
    """
    _check(request)
    job = workspace.jobs.find(job_id) if job_id else workspace.jobs.the_unfinished("explain")
    if request.profile:
        launches = request.launches or MOST_LAUNCHES
        return profile_sides(
            workspace, job, ProfileRequest(request.working, launches, request.budget, request.dry_run)
        )
    if request.hunks:
        wanted = HunksRequest(
            request.working, request.min_effect, request.budget, request.seed, request.dry_run
        )
        return search_hunks(workspace, job, wanted)
    document = phases_of(job)
    report = explain_report(document)
    if request.form == "text":
        return CommandResult(document, report_lines(report))
    render = report_html if request.form == "html" else report_markdown
    return CommandResult(document, [render(report).rstrip("\n")])


def _check(request: ExplainRequest) -> None:
    """:raises UsageError: options that do not go together."""
    starts = request.profile or request.hunks
    refused = (
        (request.profile and request.hunks, "--profile", "without --hunks: each is a job of its own"),
        (request.launches is not None and not request.profile, "--launches", "with --profile"),
        (request.min_effect is not None and not request.hunks, "--min-effect", "with --hunks"),
        (request.budget is not None and not starts, "--budget", "with --profile or --hunks"),
        (request.dry_run and not starts, "--dry-run", "with --profile or --hunks; nothing else is started"),
        (request.form != "text" and starts, "--format", "without them; perfbisect report has the formats"),
    )
    for is_refused, option, place in refused:
        if is_refused:
            raise UsageError(f"{option} goes {place}", next_step="perfbisect explain --help")


def phases_of(job: Job) -> ExplainDocument:
    """What the launches of a job say, finished or not.

    Raises:
        UsageError: the job has no two sides.
    """
    events = read(job.journal).events
    kind = kind_of(events)
    explained = _EXPLAINED.get(str(plan_data(events).get("verb")))
    if explained is None:
        raise UsageError(
            f"job {job.id} is a {kind.plan.noun}: it has no two sides to explain",
            next_step="perfbisect compare CELL --a REV --b REV",
        )
    return explained(kind.document(job, events))
