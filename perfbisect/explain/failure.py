"""Why an engine fails: the end of its log, and what its traceback names of the culprit's diff."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field

from perfbisect.bisect.failure.result import FailureFinding, FailureResult
from perfbisect.changes.git import Repository
from perfbisect.changes.hunks import CommitDiff, HunkId, read_files
from perfbisect.errors import PerfbisectError
from perfbisect.explain.hunk_plan import HunkPart
from perfbisect.jobs.documents import CellDocument, ConclusionDocument, Document, NotedDocument
from perfbisect.model.change import Change
from perfbisect.model.trace import TraceLine
from perfbisect.report.document import Report
from perfbisect.report.template import render_report, render_sentences
from perfbisect.system import logs

_LINES = 40
_HUNKS = 10

HunkMatch = Literal["line", "function", "file"]
"""What a frame has in common with a hunk, the closest first."""


class TracedHunk(Document):
    """A hunk of the culprit that a frame of the traceback names."""

    frame: TraceLine
    match: HunkMatch
    hunk: HunkPart

    @classmethod
    def find(cls, diff: CommitDiff, frames: Sequence[TraceLine]) -> tuple[TracedHunk, ...]:
        """Each hunk once, with the frame closest to it: at its lines, else in its function, else its file."""
        closest: dict[HunkId, TracedHunk] = {}
        # The innermost frame first: it is where the error came up.
        for wanted, frame, file in product(get_args(HunkMatch), reversed(frames), diff.files):
            # One path is the end of the other: a package's folder is at the root of a repository or below it.
            shorter, longer = sorted((file.path, frame.file), key=len)
            if file.path != frame.file and not ("/" in shorter and longer.endswith(f"/{shorter}")):
                continue
            for hunk in file.hunks:
                is_named = frame.function == hunk.function.rpartition(".")[2] != ""
                match = "line" if frame.line in hunk.added else "function" if is_named else "file"
                if match == wanted:
                    found = cls(frame=frame, match=wanted, hunk=HunkPart.of(diff, hunk))
                    closest.setdefault(hunk.id, found)
        return tuple(closest.values())[:_HUNKS]


class FailureExplanation(ConclusionDocument, NotedDocument):
    """Why an engine fails. ``log_lines``: up to its error; ``hunks``: named by its traceback, best first."""

    schema_: Literal["perfbisect.explain-failure/1"] = Field(
        default="perfbisect.explain-failure/1", alias="schema"
    )
    verdict: str
    cell: CellDocument
    fails: Change
    serves: Change | None
    """Before the culprit; None where none is named."""
    failure: FailureFinding | None
    log_lines: tuple[str, ...]
    hunks: tuple[TracedHunk, ...]

    def report(self) -> Report:
        return render_report("explain/templates/failure.md.jinja", {"r": self})


def explain_failure(result: FailureResult) -> FailureExplanation:
    """The failure that a search is for; without its repository the log alone."""
    failure, parent = result.failure, result.parent
    last = result.culprits[-1].changes[-1] if result.culprits else None
    lines: Sequence[str] = ()
    hunks: tuple[TracedHunk, ...] = ()
    if failure is not None:
        # Secrets and control characters are taken out of each line.
        text = [logs.excerpt(line) for line in logs.text_of(Path(failure.log)).splitlines() if line.strip()]
        error = logs.excerpt(failure.error)
        ends = [number for number, line in enumerate(text, 1) if error and error in line]
        lines = text[: ends[-1] if ends else len(text)][-_LINES:]
    if failure and parent and last and result.repository and last.kind == "commit":
        with suppress(PerfbisectError):
            files = read_files(Repository.open(Path(result.repository)), parent.source, last.source)
            hunks = TracedHunk.find(CommitDiff(last.source, parent.source, files), failure.frames)
    told = {"failure": failure, "parent": parent, "hunks": hunks}
    return FailureExplanation(
        job=result.job,
        next=result.next if result.outcome == "unfinished" else f"perfbisect report {result.job}",
        summary=result.summary,
        notes=render_sentences("explain/templates/failure.notes.jinja", told),
        verdict=result.outcome,
        cell=result.cell,
        fails=last or result.bad,
        serves=parent,
        failure=failure,
        log_lines=tuple(lines),
        hunks=hunks,
    )
