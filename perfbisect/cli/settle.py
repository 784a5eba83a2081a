"""Comparisons as jobs, from their plans to their documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from perfbisect.cli import wiring
from perfbisect.cli.contest import Contest, planned
from perfbisect.cli.desk import at_work
from perfbisect.cli.ending import keep, remembered
from perfbisect.cli.options import Working
from perfbisect.cli.output import teller
from perfbisect.cli.place import Place
from perfbisect.cli.verbs import beginning, carry_out
from perfbisect.render.compare_documents import CompareDocument
from perfbisect.render.compare_lines import plan_lines
from perfbisect.render.documents import Document
from perfbisect.store.jobs import Job

_Document = TypeVar("_Document", bound=Document)


def settle_all(
    here: Place,
    asked: Sequence[Contest],
    working: Working,
    conclude: Callable[[list[CompareDocument]], tuple[_Document, int]],
) -> tuple[_Document, int, Job]:
    """Measures comparisons one after another, each in a job of its own. Raises what a job raises.

    Returns what ``conclude`` makes of them, the document and the exit code, and the first job. That one is
    held until the last has ended, and keeps the result: who waits for it waits for all.
    """
    first = wiring.new_job(here)
    with first.held(), remembered(first):
        told = [settle(here, asked[0], working, first, held=True)]
        told += [settle(here, one, working, wiring.new_job(here)) for one in asked[1:]]
        document, code = conclude(told)
        keep(first, code, document)
    return document, code, first


def settle(here: Place, asked: Contest, working: Working, job: Job, *, held: bool = False) -> CompareDocument:
    """Measures a comparison in a new job, until its verdict. ``held``: this process has the job already."""
    shown, say = planned(asked), teller(working)
    with at_work(job, asked.slots, working, begin=beginning(job, asked.plan), held=held) as desk:
        for text in (*plan_lines(shown), f"job {job.id}", ""):
            say(text)
        document = carry_out(here, desk, asked.plan, asked.builder)
    assert isinstance(document, CompareDocument)
    return document
