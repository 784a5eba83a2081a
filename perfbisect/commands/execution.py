"""Jobs of any kind: how one begins, and how one that has begun is run to its report."""

from __future__ import annotations

from collections.abc import Callable

from perfbisect.commands import wiring
from perfbisect.commands.session import Desk, keep
from perfbisect.commands.workspace import Place
from perfbisect.environments.base import Builder, Environment
from perfbisect.jobs.folders import Job
from perfbisect.jobs.kind import DocumentT, JobKind
from perfbisect.jobs.plans import JobPlan, PlanT, begin
from perfbisect.system.clock import now
from perfbisect.system.files import write_whole


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


def beginning(job: Job, plan: JobPlan) -> Callable[[], None]:
    """What writes the plan of a new job."""
    return lambda: begin(job, plan, now)


def carry_out(
    here: Place,
    desk: Desk,
    kind: JobKind[PlanT, DocumentT],
    plan: PlanT,
    builder: Builder,
    before: Callable[[Environment | None], None] = lambda _: None,
) -> DocumentT:
    """Runs a job that has begun to its report. Raises what its kind raises, and what the client's build does.

    ``before``: told of the one client of all sides, if there is one, before anything is launched.
    """
    job, setting = desk.job, plan.setting
    limit = desk.tools(builder, None, setting).limits.build
    client = wiring.client_environment(
        here, setting, builder, kind.client_change(plan), job.path / "client-build.log", limit
    )
    before(client)
    document = kind.run(job, desk.tools(builder, client, setting))
    write_report(job, kind, document)
    keep(job, kind.exit_code(document))
    return document
