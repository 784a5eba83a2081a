"""``perfbisect explain``: why a change is slower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import click

from perfbisect.commands.options import Budget, DryRun, JobOptions, MinEffect
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Argument, Option, prints
from perfbisect.commands.workspace import Workspace


@prints(
    "perfbisect.explain.report:ExplainDocument",
    "perfbisect.explain.failure:FailureExplanation",
    "perfbisect.explain.profile_job:ProfileDocument",
    "perfbisect.explain.plans:ProfilePlanDocument",
    "perfbisect.explain.hunk_job:HunksDocument",
    "perfbisect.explain.hunk_plan:HunksPlanDocument",
)
@dataclass(frozen=True, kw_only=True)
class ExplainRequest(JobOptions):
    """Say which phase of a request takes longer, from the launches of a bisection or comparison.

    Compares culprit and parent, or A and B: time in the queue, in prefill, a decode step and outside the
    engine core, iterations, cache hits, CPU time of the processes, and what the engines log differently.
    Starts nothing. Without ID: the only unfinished job. Of a search for a failure: the end of the log, and
    the lines of the commit that its traceback names.

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

    job_id: Annotated[str | None, Argument("[ID]")] = None
    profile: Annotated[bool, Option("Launch both sides under profilers: which functions and operators.")] = (
        False
    )
    hunks: Annotated[bool, Option("Measure the commit with parts of it taken back: which hunk it is.")] = (
        False
    )
    launches: Annotated[
        int | None, Option("Of --profile, of each side.", default="2", type=click.IntRange(1, 2))
    ] = None
    min_effect: MinEffect = None
    budget: Budget = 900.0
    dry_run: DryRun = False
    format: Annotated[
        Literal["text", "md", "html"], Option("Format of the phases; html is a page that opens from disk.")
    ] = "text"

    def run(self, workspace: Workspace) -> CommandResult:
        from perfbisect.commands.output import report_result
        from perfbisect.commands.session import run_planned
        from perfbisect.explain.hunk_job import HUNKS
        from perfbisect.explain.plans import explain_launches, plan_hunks, plan_profile
        from perfbisect.explain.profile_job import MOST_LAUNCHES, PROFILE
        from perfbisect.report.html import report_html
        from perfbisect.report.markdown import report_markdown

        self._require_compatible()
        job, dry_run = workspace.jobs.chosen(self.job_id, "explain"), self.dry_run
        if self.profile:
            launches = self.launches or MOST_LAUNCHES
            profile = plan_profile(
                workspace, job, self.record, launches=launches, budget=self.budget, dry_run=dry_run
            )
            return run_planned(workspace, PROFILE, profile, self, dry_run=dry_run)
        if self.hunks:
            hunks = plan_hunks(
                workspace, job, self.record, min_effect=self.min_effect, budget=self.budget, dry_run=dry_run
            )
            return run_planned(workspace, HUNKS, hunks, self, dry_run=dry_run)
        document = explain_launches(job)
        report = document.report()
        if self.format == "text":
            return report_result(document, report)
        render = report_html if self.format == "html" else report_markdown
        return CommandResult(document, [render(report).rstrip("\n")])

    def _require_compatible(self) -> None:
        """:raises UsageError: options that do not go together."""
        from perfbisect.errors import UsageError

        starts = self.profile or self.hunks
        refused = (
            (self.profile and self.hunks, "--profile", "without --hunks: each is a job of its own"),
            (self.launches is not None and not self.profile, "--launches", "with --profile"),
            (self.min_effect is not None and not self.hunks, "--min-effect", "with --hunks"),
            ("budget" in self.record.options and not starts, "--budget", "with --profile or --hunks"),
            (self.dry_run and not starts, "--dry-run", "with --profile or --hunks; nothing else is started"),
            (self.format != "text" and starts, "--format", "without them; perfbisect report has the formats"),
        )
        for is_refused, option, place in refused:
            if is_refused:
                raise UsageError(f"{option} goes {place}", next_step="perfbisect explain --help")
