"""Jobs of any kind: how one begins, and how one that has begun is run to its report."""

from __future__ import annotations

from collections.abc import Callable

from perfbisect.cli import wiring
from perfbisect.cli.desk import Desk
from perfbisect.cli.ending import keep
from perfbisect.cli.finish import write_report
from perfbisect.cli.place import Place
from perfbisect.environments import Builder, Environment
from perfbisect.jobs.kind import DocumentT, JobKind
from perfbisect.jobs.plan import JobPlan, PlanT, begin
from perfbisect.store.jobs import Job


def beginning(job: Job, plan: JobPlan) -> Callable[[], None]:
    """What writes the plan of a new job."""
    return lambda: begin(job, plan, wiring.now)


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
