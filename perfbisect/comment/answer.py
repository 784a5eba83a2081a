"""The answer to a comment: plan, job and result, each written to the same comment of ours."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

from pydantic import Field

from perfbisect.changes.git import fetch_remote
from perfbisect.commands.detach import START
from perfbisect.commands.experiments import experiment_of
from perfbisect.commands.workspace import Workspace
from perfbisect.comment.github import GitHub
from perfbisect.comment.ledger import admit, count_refusal, note_request, read_request
from perfbisect.comment.request import CommentEvent, command_words, typed_line
from perfbisect.comment.rules import CommentRules
from perfbisect.common.json_text import parse_json
from perfbisect.common.quantities import minutes, moment
from perfbisect.common.text import code, line
from perfbisect.errors import (
    EXIT_OK,
    EXIT_OUTSIDE,
    MachineError,
    PerfbisectError,
    RevisionError,
    UsageError,
)
from perfbisect.jobs.documents import Document
from perfbisect.jobs.folders import Job, hold_folder, read_holder
from perfbisect.jobs.plans import plan_event
from perfbisect.jobs.requests import STARTER_VARIABLE
from perfbisect.redaction import holds_secret
from perfbisect.report.markdown import prose
from perfbisect.report.summary import summary_markdown
from perfbisect.system.clock import now

_SHA = re.compile(r"[0-9a-f]{40}")
_CI_VARIABLES: Final = ("ACTIONS_", "BUILDKITE_", "GITHUB_", "PERFBISECT_WEBHOOK_")
_HUB_VARIABLES: Final = ("HF_", "HUGGING_FACE_")
"""A model may be gated. Of the other secrets of a CI, code of a pull request gets none."""
_NEWEST_JOBS = 100
_WAIT: Final = "--wait=60m"
"""For the machine, as a nightly's cells wait."""


class CommentDocument(Document):
    """``perfbisect comment``. ``body``: what the comment says; ``comment``: its id, 0: none was written."""

    schema_: Literal["perfbisect.comment/1"] = Field(default="perfbisect.comment/1", alias="schema")
    repository: str
    number: int
    state: Literal["ignored", "planned", "answered"]
    why: str = ""
    comment: int = 0
    job: str = ""
    body: str = ""


def job_page(job: Job, link: str) -> tuple[str, str]:
    """What a comment says of a job, finished or not, and the question: its command and cell."""
    events = job.events()
    kind = experiment_of(events)
    result = kind.result(job, events)
    asked = re.sub(r"[^A-Za-z0-9._@ -]", "-", f"{plan_event(events).data.get('verb')} {result.cell.name}")
    return summary_markdown(kind.report(result), result, link), asked


@dataclass(frozen=True)
class CommentAnswer:
    """One comment, what it may start, and where it is answered. ``link``: the page of the CI job.

    ``dry_run``: nothing is written or started, and no limit is counted.
    """

    workspace: Workspace
    event: CommentEvent
    rules: CommentRules
    github: GitHub
    link: str
    dry_run: bool = False

    @property
    def folder(self) -> Path:
        """What is kept of the request."""
        name = f"{self.event.repository.replace('/', '+')}+{self.event.comment}"
        return self.workspace.state / "comments" / name

    @property
    def starter(self) -> str:
        """Who starts the job, as its journal says it: it is found by it again."""
        event = self.event
        return line(f"github: {event.user}, {event.repository}#{event.number}, comment {event.comment}")

    def give(self) -> tuple[CommentDocument, int]:
        """Answer the comment; returns the document, and the exit code of the job.

        Raises:
            UsageError: the request was refused, which the comment says.
            MachineError: GitHub or git failed, or another process answers it.
            KeyboardInterrupt: the job was stopped; the comment says so.
        """
        if self.dry_run:
            return self._answer()
        if holder := read_holder(self.folder):
            return self.document("ignored", why=f"process {holder.pid} is answering it"), EXIT_OK
        with hold_folder(self.folder, f"comment {self.event.comment}", "wait for it"):
            if read_request(self.folder).get("ended"):
                return self.document("ignored", why="it was answered before"), EXIT_OK
            return self._answer()

    def document(self, state: Literal["ignored", "planned", "answered"], **facts: Any) -> CommentDocument:
        """The document of the command."""
        return CommentDocument(
            repository=self.event.repository, number=self.event.number, state=state, **facts
        )

    def _answer(self) -> tuple[CommentDocument, int]:
        event, rules = self.event, self.rules
        known = read_request(self.folder)
        try:
            verb, cell, options = event.parse()
            grant = rules.grant(event.user, event.association, verb)
            rules.require_cell(cell)
            budget = grant.budget(verb, options.get("budget"))
            if not self.dry_run and "minutes" not in known:
                admit(self.folder, event.user, now(), rules, grant, budget)
        except UsageError as error:
            self._refuse(error, is_told=self.dry_run or count_refusal(self.folder, event.user, now(), rules))
        job = self._begun()
        if job is None:
            try:
                base, head = self._ends()
                options = {"max-regression": rules.max_regression} | options
                words = command_words(verb, cell, options, budget, (base, head))
                price = self._price(words, budget)
            except UsageError as error:
                self._refuse(error)
            sides = (
                f"{code(head[:12])}, the head of the pull request, from {code(base[:12])}, its merge base."
            )
            plan = f"**Expected**: {price}. {sides}"
        else:
            plan = f"Job {code(job.id)} goes on."
            words = ["status", "--wait", "--", job.id] if job.holder else ["resume", _WAIT, "--", job.id]
        if self.dry_run:
            return self.document("planned", body=self._body(plan)), EXIT_OK
        own = self._write(plan, int(known.get("comment") or 0))
        try:
            exit_code, told = self._type(words if job else [words[0], _WAIT, *words[1:]])
        except KeyboardInterrupt:
            self._write(
                "**Stopped**: what was measured is kept. Running the CI job again goes on with it.", own
            )
            raise
        job = self._begun()
        page = self._page(job, told)
        own = self._write(page, own)
        spent = told.get("minutes")
        used = {"minutes": float(spent["total"])} if isinstance(spent, Mapping) and "total" in spent else {}
        note_request(self.folder, ended=True, **used)
        name = job.id if job else ""
        # Of a job that was waited for it is in the status.
        exit_code = int(told.get("exit_code") or exit_code)
        return self.document("answered", comment=own, job=name, body=self._body(page)), exit_code

    def _refuse(self, error: UsageError, *, is_told: bool = True) -> NoReturn:
        """Say in the comment why nothing is started, and end so."""
        if not self.dry_run:
            if is_told:
                self._write(f"**Not started**: {prose(error.message)}. Next: {code(error.next)}")
            note_request(self.folder, ended=True)
        raise error

    def _body(self, text: str) -> str:
        event = self.event
        asked = f"{code(event.user)} asked for {code(typed_line(event.body))}"
        asked += f" in [this comment](#issuecomment-{event.comment})."
        return f"{asked}\n\n{text}" + (f"\n\n[The CI job]({self.link})" if self.link not in text else "")

    def _write(self, text: str, known: int = 0) -> int:
        """Write our comment; returns its id."""
        marker = f"<!-- perfbisect:{self.event.comment} -->"
        own = self.github.write(self.event.number, marker, self._body(text), known)
        note_request(self.folder, comment=own)
        return own

    def _ends(self) -> tuple[str, str]:
        """Merge base and head of the pull request, which are fetched where they are missing.

        Raises:
            UsageError: the fork was pushed to after the comment, or the commits are unrelated.
        """
        event, repository = self.event, self.workspace.needed_repository()
        pull = self.github.pull(event.number)
        try:
            head, base = str(pull["head"]["sha"]), str(pull["base"]["sha"])
            fork = pull["head"]["repo"] or {}
            pushed = fork.get("pushed_at") if fork.get("full_name") != event.repository else None
            # What was asked for is what could be read then, not what its author put there since.
            is_newer = bool(pushed) and moment(str(pushed)) > moment(event.created_at)
            is_usable = bool(_SHA.fullmatch(head) and _SHA.fullmatch(base))
        except (AttributeError, KeyError, TypeError, ValueError):
            is_usable = False
        if not is_usable:
            raise MachineError(f"GitHub's pull request {event.number} has no head and base")
        if is_newer:
            raise UsageError(
                "the fork was pushed to after the comment", next_step="read it, then comment again"
            )
        log = self.folder / "fetch.log" if not self.dry_run else self.workspace.cache / "fetch.log"
        number = event.number
        for sha, refspec in ((base, ""), (head, f"+refs/pull/{number}/head:refs/pull/{number}/head")):
            try:
                repository.resolve(sha)
            except RevisionError:
                fetch_remote(repository, "origin", log, refspec=refspec)
        return repository.merge_base(base, head) or base, repository.resolve(head).id

    def _price(self, words: Sequence[str], budget: float) -> str:
        """What a plan is expected to take. :raises UsageError: it cannot start, or not within its budget."""
        exit_code, told = self._type([*words[:1], "--dry-run", *words[1:]])
        if told.get("error"):
            raise UsageError(str(told["error"]), next_step=str(told.get("next") or "") or None)
        if exit_code == EXIT_OUTSIDE:
            raise UsageError(
                "this machine cannot run it", next_step=f"perfbisect {' '.join(words)} --dry-run"
            )
        expected = told.get("expected") or told
        low, high = (expected.get(f"minutes_{end}") for end in ("low", "high"))
        if not isinstance(low, float) or not isinstance(high, float):
            return "nothing that runs differs, so that nothing is measured"
        if low > budget:
            raise UsageError(
                f"it takes {minutes(low)} at least, and may take {minutes(budget)}",
                next_step="a larger --budget",
            )
        return f"{minutes(low)} to {minutes(min(high, budget))}, at most {minutes(budget)}"

    def _page(self, job: Job | None, told: Mapping[str, Any]) -> str:
        """How it ended."""
        if told.get("error"):
            return f"**Failed**: {prose(str(told['error']))}. Next: {code(str(told.get('next') or ''))}"
        if job is not None:
            return job_page(job, self.link)[0]
        return "\n\n".join(prose(str(sentence)) for sentence in told.get("summary", ()))

    def _begun(self) -> Job | None:
        """The job that this comment has started."""
        for job in reversed(self.workspace.jobs.all()[-_NEWEST_JOBS:]):
            with suppress(PerfbisectError, AttributeError):
                setting: Any = plan_event(job.events()).data.get("setting")
                if setting.get("request", {}).get("started_by") == self.starter:
                    return job
        return None

    def _type(self, words: Sequence[str]) -> tuple[int, Mapping[str, Any]]:
        """Type a command in a process without the secrets of the CI; returns exit code and document.

        Raises:
            MachineError: it ended without a document.
            KeyboardInterrupt: it was stopped, and has ended.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_CI_VARIABLES)
            and (not holds_secret(name) or name.startswith(_HUB_VARIABLES))
        }
        repository = self.workspace.repository
        options = ["--json", f"--state={self.workspace.state}"]
        if repository is not None and words[0] != "status":
            options.append(f"--repo={repository.path}")
        process = subprocess.Popen(
            [sys.executable, "-c", START, words[0], *options, *words[1:]],
            env=kept | {STARTER_VARIABLE: self.starter},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # A signal reaches it once, from here.
            start_new_session=True,
        )
        try:
            out, _ = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.communicate()
            raise
        try:
            told = parse_json(out)
        except ValueError:
            told = None
        if not isinstance(told, Mapping):
            raise MachineError(
                f"perfbisect {words[0]} ended with {process.returncode} and printed no document"
            )
        return process.returncode, told
