"""What differs between jobs by their verb: how they go on, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable

from perfbisect.cli import finish, wiring
from perfbisect.cli.desk import Desk
from perfbisect.cli.finish import JobDocument
from perfbisect.cli.place import Place
from perfbisect.core.change import Change
from perfbisect.environments import Builder, Environment
from perfbisect.jobs.bisect import begin, bisect
from perfbisect.jobs.compare import compare
from perfbisect.jobs.plan import BisectPlan, ComparePlan, JobPlan
from perfbisect.jobs.run import run
from perfbisect.jobs.work import Tools
from perfbisect.render.compare_documents import CompareDocument
from perfbisect.render.compare_lines import compare_lines
from perfbisect.render.console import report_lines, run_lines
from perfbisect.render.documents import ReportDocument
from perfbisect.store.jobs import Job


def carry_out(
    here: Place,
    desk: Desk,
    plan: JobPlan,
    builder: Builder,
    before: Callable[[Environment | None], None] = lambda _: None,
) -> JobDocument:
    """A new job from its plan to its report. Raises what its verb raises, and what the client's build does.

    ``before``: told of the one client of all sides, if there is one, before anything is launched.
    """
    plain = desk.tools(builder, None, plan.setting)
    begin(desk.job, plan, plain)
    return go_on(here, desk, plan, builder, plain, before)


def go_on(
    here: Place,
    desk: Desk,
    plan: JobPlan,
    builder: Builder,
    plain: Tools,
    before: Callable[[Environment | None], None] = lambda _: None,
) -> JobDocument:
    """A job that has begun, to its report; as :func:`carry_out`. ``plain``: its tools, without the client."""
    job, setting = desk.job, plan.setting
    client = wiring.client_environment(
        here, setting, builder, newest_of(plan), job.path / "client-build.log", plain.limits.build
    )
    before(client)
    document = _measured(job, plan, desk.tools(builder, client, setting))
    finish.write_report(job, document)
    return document


def _measured(job: Job, plan: JobPlan, tools: Tools) -> JobDocument:
    if isinstance(plan, BisectPlan):
        return bisect(job, tools)
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
    return compare_lines(document) if isinstance(document, CompareDocument) else run_lines(document)
