"""The end of a job: its report beside its journal, its document, its exit code."""

from __future__ import annotations

from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION
from perfbisect.render.check_documents import CheckedDocument
from perfbisect.render.check_lines import checked_markdown, checked_of
from perfbisect.render.compare_documents import CompareDocument
from perfbisect.render.compare_report import compare_markdown
from perfbisect.render.documents import ReportDocument, RunDocument
from perfbisect.render.html_report import html
from perfbisect.render.report import markdown, run_markdown
from perfbisect.store.jobs import Job
from perfbisect.system.whole_file import write_whole

JobDocument = ReportDocument | RunDocument | CompareDocument | CheckedDocument
"""What a job that measures hands out."""


def text_of(document: JobDocument) -> str:
    """The report in Markdown."""
    if isinstance(document, ReportDocument):
        return markdown(document)
    if isinstance(document, CompareDocument) and document.limit is not None:
        document = checked_of(document)
    if isinstance(document, CheckedDocument):
        return checked_markdown(document)
    return compare_markdown(document) if isinstance(document, CompareDocument) else run_markdown(document)


def write_report(job: Job, document: JobDocument) -> None:
    """``report.md``, ``report.json`` and, of a bisection, ``report.html`` in the job's folder, each whole or
    not there.

    :raises MachineError: the disk; the journal has everything, and ``perfbisect report`` makes them again.
    """
    again = f"make room on the disk, then: perfbisect report {job.id}"
    write_whole(job.report, text_of(document), what="the report", next_step=again)
    write_whole(job.document, document.text() + "\n", what="the report", next_step=again)
    if isinstance(document, ReportDocument):
        write_whole(job.page, html(document), what="the report", next_step=again)


def exit_code(document: JobDocument) -> int:
    """0 done, not reproduced, passed, holds; 3 a culprit is named, a regression, failed, refuted; 4 it is not
    settled."""
    if isinstance(document, RunDocument):
        return EXIT_OK
    if isinstance(document, CheckedDocument):
        return {"passed": EXIT_OK, "failed": EXIT_REGRESSION}.get(document.word, EXIT_INCONCLUSIVE)
    if isinstance(document, CompareDocument):
        if document.limit is not None:
            return exit_code(checked_of(document))
        worse, open_ = ("regression", "refuted"), "inconclusive"
        told = document.claim or document.word
        return EXIT_REGRESSION if told in worse else EXIT_INCONCLUSIVE if told == open_ else EXIT_OK
    return {"found": EXIT_REGRESSION, "not reproduced": EXIT_OK}.get(document.outcome, EXIT_INCONCLUSIVE)
