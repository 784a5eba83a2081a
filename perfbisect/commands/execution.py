"""Runs jobs of any kind to their reports."""

from __future__ import annotations

from collections.abc import Callable

from perfbisect.commands import wiring
from perfbisect.commands.session import JobSession, record_exit
from perfbisect.commands.workspace import Workspace
from perfbisect.environments.base import Builder, Environment
from perfbisect.jobs.folders import Job
from perfbisect.jobs.kind import DocumentT, JobKind
from perfbisect.jobs.plans import JobPlan, PlanT, write_plan
from perfbisect.system.clock import now
from perfbisect.system.files import write_atomic


def write_report(job: Job, kind: JobKind[PlanT, DocumentT], document: DocumentT) -> None:
    """Write ``report.md``, ``report.json`` and, if the kind has a page, ``report.html``, each atomically.

    Raises:
        MachineError: the disk failed; ``perfbisect report`` recreates them from the journal.
    """
    again = f"make room on the disk, then: perfbisect report {job.id}"
    write_atomic(job.report, kind.markdown(document), what="the report", next_step=again)
    write_atomic(job.document, document.text() + "\n", what="the report", next_step=again)
    if kind.page is not None:
        write_atomic(job.page, kind.page(document), what="the report", next_step=again)


def plan_writer(job: Job, plan: JobPlan) -> Callable[[], None]:
    """Return the function that writes a new job's plan."""
    return lambda: write_plan(job, plan, now)


def run_job(
    here: Workspace,
    desk: JobSession,
    kind: JobKind[PlanT, DocumentT],
    plan: PlanT,
    builder: Builder,
    before: Callable[[Environment | None], None] = lambda _: None,
) -> DocumentT:
    """Run a started job to its report; raises what its kind and the client's build raise.

    ``before``: called with the shared client environment, if any, before the first launch.
    """
    job, setting = desk.job, plan.setting
    limit = desk.tools(builder, None, setting).limits.build
    client = wiring.client_environment(
        here, setting, builder, kind.client_change(plan), job.path / "client-build.log", limit
    )
    before(client)
    document = kind.run(job, desk.tools(builder, client, setting))
    write_report(job, kind, document)
    record_exit(job, kind.exit_code(document))
    return document
