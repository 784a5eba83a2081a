"""The two ends of git's bisection: measured by its first step, found again in the state folder."""

from __future__ import annotations

from datetime import datetime, timedelta

from perfbisect.cli import wiring
from perfbisect.cli.check_options import TypedCheck
from perfbisect.cli.contest import Contest, TypedContest, contest
from perfbisect.cli.invocation import Measuring
from perfbisect.cli.place import Place
from perfbisect.cli.settle import settle
from perfbisect.core.compare import BLOCK
from perfbisect.errors import MachineError, PerfbisectError, UsageError
from perfbisect.jobs.compare_plan import ComparePlan
from perfbisect.jobs.compare_report import compare_document
from perfbisect.jobs.plan import find_plan
from perfbisect.jobs.recorded import Recorded
from perfbisect.jobs.recordings import ends_of
from perfbisect.store.jobs import Job, finished
from perfbisect.store.journal import read
from perfbisect.system.git_bisect import bisect_ends

DAY = timedelta(days=1)
"""Ends that were measured longer ago are measured again: a machine drifts."""


def ends(here: Place, typed: TypedCheck, measuring: Measuring, *, launches: int) -> tuple[Recorded, Recorded]:
    """The good and the bad end as they were measured: by an earlier step, or by this one, with so many
    launches of both together at most.

    :raises UsageError: no bisection is under way, or its ends do not differ: there is nothing to look for.
    :raises MachineError: the budget did not tell whether they do.
    """
    found = bisect_ends(here.needed_repository())
    asked = contest(
        here,
        TypedContest(
            typed.cell,
            found.good.id,
            found.bad.id,
            None,
            max(1, launches // BLOCK),
            typed.budget,
            typed.seed,
            measuring,
        ),
    )
    known = _known(here, asked)
    job = known or wiring.new_job(here)
    document = (
        compare_document(known, read(known.journal).events) if known else settle(here, asked, measuring, job)
    )
    if document.headline == "inconclusive":
        raise MachineError(
            f"the ends of git's bisection cannot be told apart yet: {document.sentences[0]}",
            where=job.path,
            next_step="a larger --budget; or --good-value and --bad-value",
        )
    if document.headline != "regression":
        raise UsageError(
            f"git's bad end is not worse than its good end, so there is nothing to look for: "
            f"{document.sentences[0]}",
            where=job.path,
            next_step="git bisect reset",
        )
    return ends_of(job)


def _known(here: Place, asked: Contest) -> Job | None:
    """The last comparison of these ends, asked alike, that told them apart or alike within the last day."""
    for job in reversed(here.jobs.all()):
        try:
            events = read(job.journal).events
            theirs = find_plan(events, ComparePlan)
        except PerfbisectError:
            continue
        told = finished(events) and events[-1].data.get("word") != "inconclusive"
        if theirs is not None and told and _alike(theirs, asked.plan):
            old = wiring.now() - datetime.fromisoformat(events[0].time) > DAY
            return None if old else job
    return None


def _alike(theirs: ComparePlan, ours: ComparePlan) -> bool:
    """True if one question was asked, on one kind of machine and with one client, whatever its budget."""
    free = {"seed": 0, "budget": 0.0, "blocks": 1, "told": (), "min_effect": None}
    same_day = {"exclude_newer": "", "typed": ""}
    left, right = (
        plan.model_copy(update={**free, "setting": plan.setting.model_copy(update=same_day)})
        for plan in (theirs, ours)
    )
    texts = {"a": theirs.a, "b": theirs.b}
    sides = (theirs.a.change.id, theirs.b.change.id) == (ours.a.change.id, ours.b.change.id)
    return sides and left == right.model_copy(update=texts)
