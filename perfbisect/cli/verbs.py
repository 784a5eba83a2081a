"""What differs between jobs by their verb: how they go on, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable

from perfbisect.cli import finish, wiring
from perfbisect.cli.desk import Desk
from perfbisect.cli.ending import keep
from perfbisect.cli.finish import JobDocument
from perfbisect.cli.place import Place
from perfbisect.core.change import Change
from perfbisect.environments import Builder, Environment
from perfbisect.jobs.bisect import begin, bisect
from perfbisect.jobs.check import check
from perfbisect.jobs.compare import compare
from perfbisect.jobs.plan import BisectPlan, CheckPlan, ComparePlan, JobPlan
from perfbisect.jobs.run import run
from perfbisect.jobs.work import Tools
from perfbisect.render.check_documents import CheckedDocument
from perfbisect.render.check_lines import checked_lines
from perfbisect.render.compare_documents import CompareDocument
from perfbisect.render.compare_lines import compare_lines
from perfbisect.render.console import report_lines, run_lines
from perfbisect.render.documents import ReportDocument
from perfbisect.store.jobs import Job


def beginning(job: Job, plan: JobPlan) -> Callable[[], None]:
    """What writes the plan of a new job."""
    return lambda: begin(job, plan, wiring.now)


def carry_out(
    here: Place,
    desk: Desk,
    plan: JobPlan,
    builder: Builder,
    before: Callable[[Environment | None], None] = lambda _: None,
) -> JobDocument:
    """A job that has begun, to its report. Raises what its verb raises, and what the client's build does.

    ``before``: told of the one client of all sides, if there is one, before anything is launched.
    """
    job, setting = desk.job, plan.setting
    limit = desk.tools(builder, None, setting).limits.build
    client = wiring.client_environment(
        here, setting, builder, newest_of(plan), job.path / "client-build.log", limit
    )
    before(client)
    document = _measured(job, plan, desk.tools(builder, client, setting))
    finish.write_report(job, document)
    keep(job, finish.exit_code(document))
    return document


def _measured(job: Job, plan: JobPlan, tools: Tools) -> JobDocument:
    if isinstance(plan, BisectPlan):
        return bisect(job, tools)
    if isinstance(plan, CheckPlan):
        return check(job, tools)
    return compare(job, tools) if isinstance(plan, ComparePlan) else run(job, tools)


def newest_of(plan: JobPlan) -> Change:
    """The change whose engine brings the client, where no other does."""
    if isinstance(plan, BisectPlan):
        return plan.positions[-1].change
    return plan.b.change if isinstance(plan, ComparePlan) else plan.change


def lines_of(document: JobDocument) -> list[str]:
    """The document for a person."""
    if isinstance(document, ReportDocument):
        return report_lines(document)
    if isinstance(document, CheckedDocument):
        return checked_lines(document)
    return compare_lines(document) if isinstance(document, CompareDocument) else run_lines(document)
