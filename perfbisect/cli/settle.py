"""One comparison as a job, from its plan to its document."""

from __future__ import annotations

from perfbisect.cli import finish, wiring
from perfbisect.cli.contest import Contest, planned
from perfbisect.cli.desk import at_work
from perfbisect.cli.output import say
from perfbisect.cli.place import Place
from perfbisect.jobs.bisect import begin
from perfbisect.jobs.compare import compare
from perfbisect.render.compare_documents import CompareDocument
from perfbisect.render.compare_lines import plan_lines


def settle(
    here: Place, asked: Contest, *, wait: float | None, verbose: bool, as_json: bool
) -> CompareDocument:
    """Measures a comparison in a job of its own, until its verdict. Raises what the job raises."""
    job, setting, shown = wiring.new_job(here), asked.plan.setting, planned(asked)
    with at_work(job, asked.slots, wait=wait, verbose=verbose, as_json=as_json) as desk:
        for text in (*plan_lines(shown), f"job {job.id}", ""):
            say(text)
        tools = desk.tools(asked.builder, None, setting)
        begin(job, asked.plan, tools)
        log = job.path / "client-build.log"
        pinned = wiring.client_environment(
            here, setting, asked.builder, asked.plan.b.change, log, tools.limits.build
        )
        document = compare(job, desk.tools(asked.builder, pinned, setting))
        finish.write_report(job, document)
    return document
