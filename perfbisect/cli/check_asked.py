"""From what was typed of a check to its verdict: against a revision, a baseline, values, or two ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from perfbisect.cli import changes
from perfbisect.cli.check_ends import ends
from perfbisect.cli.check_level import level_plan, measured, planned_level, save
from perfbisect.cli.check_options import How, TypedCheck
from perfbisect.cli.contest import TypedContest, contest, planned
from perfbisect.cli.ending import hand_out
from perfbisect.cli.invocation import Measuring
from perfbisect.cli.output import emit
from perfbisect.cli.place import Place
from perfbisect.cli.settle import settle
from perfbisect.cli.wiring import new_job, refuse_another, the_cell
from perfbisect.errors import (
    EXIT_OK,
    BuildError,
    PerfbisectError,
    ServerError,
    UntestableError,
    UsageError,
)
from perfbisect.jobs.capabilities import metric_of
from perfbisect.jobs.check import Level
from perfbisect.jobs.check_kind import exit_code
from perfbisect.jobs.compare import NothingDiffersError, SideRefusedError
from perfbisect.jobs.fold import launches
from perfbisect.jobs.next_command import git
from perfbisect.jobs.recorded import Recorded
from perfbisect.jobs.recordings import read_recorded, recorded_by
from perfbisect.jobs.views import cell_document, change_document, metric_document
from perfbisect.render.check_documents import CheckedDocument
from perfbisect.render.check_lines import check_plan_lines, checked_lines, checked_of
from perfbisect.render.compare_lines import plan_lines
from perfbisect.render.documents import MinutesDocument
from perfbisect.store.jobs import Job
from perfbisect.store.journal import read
from perfbisect.system.git_bisect import under_test

MOST = 20
"""Launches of the commit, at most."""
SAVED = 8
"""Launches of a baseline."""


def decide(here: Place, typed: TypedCheck, measuring: Measuring) -> int:
    """Measures and hands out the verdict, or the plan; returns the exit code.

    :raises UntestableError: of a step of git's bisection: the commit cannot be built or served.
    """
    how = typed.how
    at = typed.at or (under_test(here.needed_repository()).id if typed.git_bisect else "HEAD")
    typed = replace(typed, at=at)
    if measuring.as_in is not None:
        refuse_another(the_cell(here, typed.cell, None), measuring.as_in)
    if how == "rev":
        return _against_rev(here, typed, measuring)
    if how == "save":
        return save(here, typed, measuring, launches=typed.launches or SAVED)
    level = _level(here, typed, measuring, how)
    job: Job | None = None
    try:
        asked = level_plan(here, typed, measuring, level, launches=typed.launches or MOST)
        if typed.dry_run:
            shown = planned_level(asked)
            emit(shown, check_plan_lines(shown), as_json=measuring.as_json, full=measuring.full)
            return EXIT_OK
        job = new_job(here)
        document = measured(here, asked, measuring, job)
    except (BuildError, ServerError) as error:
        raise _untestable(error, typed, job, position=0) from error
    return hand_out(document, checked_lines(document), exit_code(document), measuring, job)


def _against_rev(here: Place, typed: TypedCheck, measuring: Measuring) -> int:
    blocks = max(1, (typed.launches or MOST) // 2)
    asked_of = TypedContest(
        typed.cell, typed.against, str(typed.at), None, blocks, typed.budget, typed.seed, measuring,
        fail_over=typed.fail_over, dry=typed.dry_run,
    )  # fmt: skip
    job: Job | None = None
    try:
        asked = contest(here, asked_of)
        if typed.dry_run:
            shown = planned(asked)
            emit(shown, plan_lines(shown), as_json=measuring.as_json, full=measuring.full)
            return EXIT_OK
        job = new_job(here)
        compared = settle(here, asked, measuring, job)
    except NothingDiffersError as error:
        nothing = _nothing(here, typed, measuring, error)
        emit(nothing, checked_lines(nothing), as_json=measuring.as_json, full=measuring.full)
        return EXIT_OK
    except (BuildError, ServerError) as error:
        raise _untestable(error, typed, job, position=1) from error
    document = checked_of(compared)
    return hand_out(document, checked_lines(document), exit_code(document), measuring, job)


def _level(here: Place, typed: TypedCheck, measuring: Measuring, how: How) -> Level:
    if how == "values":
        assert typed.good_value is not None and typed.bad_value is not None
        return Level(values=(typed.good_value, typed.bad_value))
    if how == "ends":
        return Level(ends=ends(here, typed, measuring, launches=typed.launches or MOST))
    return Level(baseline=_baseline(here, str(typed.baseline)), fail_over=typed.fail_over or 0.0)


def _baseline(here: Place, name: str) -> Recorded:
    """A file, else a job. :raises UsageError: neither, or one without a level."""
    path = Path(name).expanduser()
    return (
        read_recorded(path) if path.is_file() or path.suffix == ".json" else recorded_by(here.jobs.find(name))
    )


def _nothing(here: Place, typed: TypedCheck, measuring: Measuring, error: UsageError) -> CheckedDocument:
    """The check of a commit that changes nothing that runs: there is nothing to measure."""
    cell = the_cell(here, typed.cell, measuring.variant)
    metric = metric_of(cell, here.setting("metric", measuring.metric))
    change = changes.the_change(here, str(typed.at))
    return CheckedDocument(
        job="",
        finished=True,
        word="passed",
        how="rev",
        limit=typed.fail_over or 0.0,
        sentences=(f"{error.message}: nothing that runs differs, and nothing was measured.",),
        next=git(str(here.needed_repository().path), "show", "--stat", change.short),
        effect=0.0,
        low=None,
        high=None,
        value=None,
        line=None,
        change=change_document(change),
        metric=metric_document(metric),
        cell=cell_document(cell, metric),
        minutes=MinutesDocument(total=0.0, budget=0.0, lost=0.0, by_phase={}),
        folder="",
    )


def _untestable(
    error: PerfbisectError, typed: TypedCheck, job: Job | None, *, position: int
) -> PerfbisectError:
    """The error as it is, or as the skip that it is to git: where the checked commit itself is at fault.

    ``position``: that of the checked commit in its job.
    """
    if typed.git_bisect and (
        (isinstance(error, SideRefusedError) and error.side == "b") or (job and _at_fault(job, position))
    ):
        return UntestableError(error.message, where=error.where, next_step="git bisect goes on without it")
    return error


def _at_fault(job: Job, position: int) -> bool:
    """True if the job ended with a failure of the commit at this position, and of no other."""
    if not job.journal.exists():
        return False
    seen = launches(read(job.journal).events)
    if not seen:
        return False
    last = max(seen, key=lambda launch: launch.ended)
    return last.refused and last.position == position
