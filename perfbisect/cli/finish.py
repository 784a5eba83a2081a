"""The end of a job: its report beside its journal."""

from __future__ import annotations

from perfbisect.jobs.kind import DocumentT, JobKind
from perfbisect.jobs.plan import PlanT
from perfbisect.store.jobs import Job
from perfbisect.system.whole_file import write_whole


def write_report(job: Job, kind: JobKind[PlanT, DocumentT], document: DocumentT) -> None:
    """``report.md``, ``report.json`` and, where the kind has a page, ``report.html`` in the job's folder,
    each whole or not there.

    :raises MachineError: the disk; the journal has everything, and ``perfbisect report`` makes them again.
    """
    again = f"make room on the disk, then: perfbisect report {job.id}"
    write_whole(job.report, kind.markdown(document), what="the report", next_step=again)
    write_whole(job.document, document.text() + "\n", what="the report", next_step=again)
    if kind.page is not None:
        write_whole(job.page, kind.page(document), what="the report", next_step=again)
