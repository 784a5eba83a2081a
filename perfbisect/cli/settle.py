"""One comparison as a job, from its plan to its document."""

from __future__ import annotations

from perfbisect.cli import wiring
from perfbisect.cli.contest import Contest, planned
from perfbisect.cli.desk import at_work
from perfbisect.cli.imports import check_client
from perfbisect.cli.options import Working
from perfbisect.cli.output import say
from perfbisect.cli.place import Place
from perfbisect.cli.verbs import carry_out
from perfbisect.environments import Environment
from perfbisect.jobs.imports import take_in
from perfbisect.render.compare_documents import CompareDocument
from perfbisect.render.compare_lines import plan_lines


def settle(here: Place, asked: Contest, working: Working) -> CompareDocument:
    """Measures a comparison in a job of its own, until its verdict. Raises what the job raises."""
    job, shown = wiring.new_job(here), planned(asked)

    def imported(client: Environment | None) -> None:
        check_client(asked.imported, asked.cell, client, job)
        take_in(job, asked.imported, wiring.now)

    with at_work(job, asked.slots, working) as desk:
        for text in (*plan_lines(shown), f"job {job.id}", ""):
            say(text)
        document = carry_out(here, desk, asked.plan, asked.builder, imported)
    assert isinstance(document, CompareDocument)
    return document
