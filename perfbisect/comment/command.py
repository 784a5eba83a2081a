"""``perfbisect comment``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from perfbisect.commands.options import DryRun, InRepositoryAndState
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Option, prints

_TOKENS = ("PERFBISECT_GITHUB_TOKEN", "GITHUB_TOKEN")


@prints("perfbisect.comment.answer:CommentDocument")
def comment(
    workspace: InRepositoryAndState,
    *,
    event: Annotated[Path, Option("Payload of GitHub's event: $GITHUB_EVENT_PATH.", metavar="FILE")],
    rules: Annotated[Path, Option("Who may start what, and for how many minutes.", metavar="FILE")],
    job: Annotated[
        str, Option("Write the result of this job, or of the `last`; start nothing.", metavar="ID|last")
    ] = "",
    signature: Annotated[
        str, Option("The event's X-Hub-Signature-256, for $PERFBISECT_WEBHOOK_SECRET.", metavar="TEXT")
    ] = "",
    page: Annotated[
        Path | None, Option("Write the job's report as a page, for an artifact.", metavar="FILE")
    ] = None,
    dry_run: DryRun = False,
) -> CommandResult:
    """Answer a comment on a pull request: plan with price, then result, in one comment that is edited.

    A line of it that begins with /perfbisect and names compare, check or bisect, a cell and few options
    starts that for the head of the pull request, if --rules lets its author. Every other event, an edited
    comment and one that was answered start nothing. What is refused is told in one line, and ends with 2.
    The token is read from $PERFBISECT_GITHUB_TOKEN or $GITHUB_TOKEN.

    \b
    Examples:
      perfbisect comment --event "$GITHUB_EVENT_PATH" --rules .github/perfbisect-comments.yaml
      perfbisect comment --event "$GITHUB_EVENT_PATH" --rules .github/perfbisect-comments.yaml --job last

    Exit code: that of the job; 0 where there is nothing to do.
    """
    import os

    from perfbisect.commands.session import interruptible
    from perfbisect.comment.answer import CommentAnswer, job_page
    from perfbisect.comment.github import GitHub
    from perfbisect.comment.request import read_event
    from perfbisect.comment.rules import CommentRules
    from perfbisect.common.yaml_source import load, validate
    from perfbisect.errors import EXIT_OK, Interrupted, MachineError, UsageError
    from perfbisect.report.summary import append_summary, job_link
    from perfbisect.system.files import write_atomic

    found = read_event(event, signature, os.environ.get("PERFBISECT_WEBHOOK_SECRET", ""))
    allowed = validate(load(rules), CommentRules)
    if found.repository not in allowed.repositories:
        raise UsageError(
            "the event is of a repository that the rules do not name",
            where=rules,
            next_step=f"repositories: [{', '.join(allowed.repositories)}]",
        )
    token = next(filter(None, (os.environ.get(name, "").strip() for name in _TOKENS)), "")
    github = GitHub(allowed.api, found.repository, token, allowed.author)
    answer = CommentAnswer(workspace, found, allowed, github, job_link(os.environ), dry_run)
    why = "" if job else found.why_ignored
    if why:
        return CommandResult(answer.document("ignored", why=why), [f"nothing to do: {why}"])
    if not token and not dry_run:
        raise UsageError(
            "no token to write comments with",
            next_step="env: {GITHUB_TOKEN: ${{ github.token }}} in the workflow",
        )
    if job:
        jobs = workspace.jobs
        chosen = jobs.all()[-1] if job == "last" and jobs.all() else jobs.find(job)
        body, asked = job_page(chosen, answer.link)
        own = 0 if dry_run else github.write(found.number, f"<!-- perfbisect:{asked} -->", body)
        document, exit_code = answer.document("answered", comment=own, job=chosen.id, body=body), EXIT_OK
    else:
        with interruptible(
            lambda what: Interrupted(f"{what}; what was measured is kept", next_step="run the CI job again")
        ):
            document, exit_code = answer.give()
    if page is not None and document.job and (made := workspace.jobs.find(document.job).page).exists():
        write_atomic(page, made.read_text(encoding="utf-8"))
    if (summary := os.environ.get("GITHUB_STEP_SUMMARY")) and document.body and not dry_run:
        try:
            append_summary(Path(summary), document.body)
        except MachineError as error:
            from perfbisect.commands.output import print_progress

            print_progress(f"note: {error.message}")
    return CommandResult(document, document.body.splitlines() or [document.why], exit_code)
