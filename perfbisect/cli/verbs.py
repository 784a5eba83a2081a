"""What differs between jobs by their verb: how they go on, and how they are shown."""

from __future__ import annotations

from perfbisect.cli.finish import JobDocument
from perfbisect.core.change import Change
from perfbisect.jobs.bisect import bisect
from perfbisect.jobs.compare import compare
from perfbisect.jobs.plan import BisectPlan, ComparePlan, JobPlan
from perfbisect.jobs.run import run
from perfbisect.jobs.work import Tools
from perfbisect.render.compare_documents import CompareDocument
from perfbisect.render.compare_lines import compare_lines
from perfbisect.render.console import report_lines, run_lines
from perfbisect.render.documents import ReportDocument
from perfbisect.store.jobs import Job


def go_on(job: Job, plan: JobPlan, tools: Tools) -> JobDocument:
    """Measures until the job has its verdict. Raises what its verb raises."""
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
