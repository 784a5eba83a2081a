"""Where recorded levels come from and go to: a job's journal, a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from perfbisect.compare.check_plan import CheckPlan, Recorded
from perfbisect.compare.plan import ComparePlan, cells_of
from perfbisect.compare.run import RunPlan
from perfbisect.compare.sides import attempts_of, in_turn
from perfbisect.errors import LocatedError, UsageError
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read
from perfbisect.jobs.plans import JobPlan, cell_data, cell_of, find_plan, plan_data, require_plan
from perfbisect.jobs.replay import launches
from perfbisect.measure.attempt import to_dict
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.stats.threshold import LEAST
from perfbisect.system.files import write_whole

SCHEMA = "perfbisect.baseline/1"


def recorded(job: str, plan: JobPlan, change: Change, cell: Cell, attempts: Sequence[Attempt]) -> Recorded:
    """What a job measured of one change, as it can be kept."""
    bare = [
        replace(
            attempt,
            provenance=replace(attempt.provenance, facts={}),
            runs=tuple(replace(run, facts={}, raw="") for run in attempt.runs),
            folder="",
        )
        for attempt in attempts
    ]
    return Recorded(
        job=job,
        change=change,
        cell=cell_data(cell),
        environment=plan.setting.environment,
        exclude_newer=plan.setting.exclude_newer,
        constraints=plan.setting.constraints,
        attempts=tuple(map(to_dict, bare)),
    )


def recorded_by(job: Job) -> Recorded:
    """The level that a ``run`` or a ``check`` measured.

    :raises UsageError: it measured several changes, or its journal cannot be read.
    """
    events = read(job.journal).events
    plan = find_plan(events, RunPlan) or find_plan(events, CheckPlan)
    if plan is None:
        verb = plan_data(events).get("verb")
        raise UsageError(
            f"job {job.id} is a {verb}: it measured several changes, and a baseline is one",
            next_step="name a job of perfbisect run or check, or a file of --save-baseline",
        )
    made = [x.attempt for x in in_turn(launches(events)) if x.attempt is not None]
    return enough(recorded(job.id, plan, plan.change, cell_of(plan), made), f"job {job.id}")


def ends_of(job: Job) -> tuple[Recorded, Recorded]:
    """Both sides of a comparison, with as many launches each.

    :raises UsageError: the job is none, or its journal cannot be read.
    """
    events = read(job.journal).events
    plan = require_plan(job, events, ComparePlan)
    seen, cells = launches(events), cells_of(plan)
    sides = (attempts_of(seen, "a"), attempts_of(seen, "b"))
    count = min(map(len, sides))
    good, bad = (
        recorded(job.id, plan, side.change, cell, attempts[:count])
        for side, cell, attempts in zip(plan.sides, cells, sides, strict=True)
    )
    return good, bad


def write_recorded(path: Path, level: Recorded) -> None:
    """Writes a level into a file, whole or not at all. :raises MachineError: it cannot be written."""
    write_whole(
        path,
        level.model_dump_json(by_alias=True, indent=1) + "\n",
        what="the baseline",
        next_step=f"the launches are kept: --against baseline --baseline {level.job}",
    )


def read_recorded(path: Path) -> Recorded:
    """The level in a file. :raises LocatedError: it holds none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise LocatedError(f"no JSON: {error.msg}", file=path, line=error.lineno) from None
    except (OSError, UnicodeDecodeError) as error:
        raise LocatedError(f"it cannot be read: {error}", file=path) from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise LocatedError(
            f"{schema!r} is no baseline",
            file=path,
            field="schema",
            allowed=SCHEMA,
            next_step="perfbisect check CELL --save-baseline FILE writes one",
        )
    try:
        found = Recorded.model_validate(document)
        _ = found.launches
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise LocatedError(str(first["msg"]), file=path, field=field) from None
    except ValueError as error:
        raise LocatedError(str(error), file=path, field="attempts") from None
    return enough(found, str(path))


def enough(level: Recorded, name: str) -> Recorded:
    """:raises UsageError: it has too few launches to be a level."""
    if len(level.attempts) < LEAST:
        raise UsageError(
            f"{name} has {len(level.attempts)} launches of {level.change.short}: "
            f"a baseline has {LEAST} at least",
            next_step="perfbisect check CELL --save-baseline FILE",
        )
    return level
