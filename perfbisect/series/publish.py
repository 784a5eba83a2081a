"""What ``perfbisect run`` measured, in the kanban's own file format, in a folder of one's own.

A file is one run; a launch with several runs is several files, which are read as one launch again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perfbisect.errors import ClientError, MachineError
from perfbisect.jobs.folders import Job
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.series.sources.files import text_of
from perfbisect.series.sources.journals import Told, measured, run_in
from perfbisect.series.sources.kanban import RAW
from perfbisect.series.sources.published import (
    BLOCK,
    Origin,
    began,
    file_name,
    origin_of,
    origin_of_run,
    result_of_run,
)
from perfbisect.system.files import write_whole

RESULTS = "tests/dfx/perf/results"
"""Where in a build's folder the kanban's results lie."""

_Key = tuple[str, int]
"""A launch's id and the number of its run."""


@dataclass(frozen=True)
class Published:
    """``launches`` of the jobs that stand in the folder now. ``left_out``: those that do not, and why;
    ``removed``: files of launches that turned out to be void."""

    launches: int = 0
    unchanged: int = 0
    written: tuple[Path, ...] = ()
    removed: tuple[Path, ...] = ()
    left_out: tuple[str, ...] = ()


def publish(folder: Path, jobs: Iterable[Job]) -> Published:
    """Writes what is new of these jobs below ``folder``; jobs of other verbs are passed over.

    A file that is there stays as it is; each is written whole or not at all. Safe to do again.

    :raises LocatedError: a journal that was changed. :raises MachineError: the folder cannot be written.
    """
    done = Published()
    for job in jobs:
        told = run_in(job.journal)
        if told is not None:
            done = _with(done, _one(folder, job, told))
    return done


def _with(a: Published, b: Published) -> Published:
    return Published(
        a.launches + b.launches,
        a.unchanged + b.unchanged,
        a.written + b.written,
        a.removed + b.removed,
        a.left_out + b.left_out,
    )


def _one(folder: Path, job: Job, told: Told) -> Published:
    place = folder.expanduser() / "data" / RAW / job.id / RESULTS
    try:
        cell = Cell.model_validate_json(json.dumps(told.cell))
    except ValidationError as error:
        return Published(left_out=(f"{job.id}: its cell cannot be read: {error.errors()[0]['msg']}",))
    there = dict(_there(place, job.id))
    written: list[Path] = []
    left_out: list[str] = []
    kept: set[_Key] = set()
    launches = 0
    for attempt in measured(told):
        wanted = {(attempt.id, run + 1): run for run in range(len(attempt.runs))}
        try:
            new = [
                (run, _content(job, told, cell, attempt, run))
                for key, run in wanted.items()
                if key not in there
            ]
        except (ClientError, ValueError) as error:
            left_out.append(f"{attempt.id}: {error}")
            continue
        launches += 1
        kept |= wanted.keys() & there.keys()
        for run, content in new:
            written.append(_free(place, cell, attempt, run))
            write_whole(written[-1], json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")
    removed = tuple(path for key, path in there.items() if key not in kept)
    for path in removed:
        _remove(path)
    return Published(launches, len(kept), tuple(written), removed, tuple(left_out))


def _content(job: Job, told: Told, cell: Cell, attempt: Attempt, run: int) -> object:
    origin = origin_of_run(job.id, told.build.fixed, cell, attempt, run)
    raw = _raw(job, attempt, run)
    return result_of_run(cell, attempt, origin, commit=told.build.commit, raw=raw)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise MachineError(f"a file cannot be taken back: {error.strerror or error}", where=path) from error


def _raw(job: Job, attempt: Attempt, run: int) -> Mapping[str, Any]:
    """The client's own result; empty where it is not kept any more."""
    told = attempt.runs[run].raw
    own = job.path / "attempts" / Path(attempt.folder).name / Path(told).name
    path = next((p for p in (own, Path(told)) if told and p.is_file()), None)
    try:
        found = json.loads(text_of(path)) if path else {}
    except (ValueError, RecursionError):
        found = {}
    return found if isinstance(found, Mapping) else {}


def _there(place: Path, job: str) -> Iterator[tuple[_Key, Path]]:
    """The files of a job that lie there: those of others in the folder are not ours to touch."""
    for path in sorted(place.glob("*.json")) if place.is_dir() else ():
        origin = _origin(path)
        if origin is not None and origin.job == job:
            yield (origin.launch, origin.run), path


def _origin(path: Path) -> Origin | None:
    try:
        document = json.loads(text_of(path))
        record = document[0] if isinstance(document, list) and document else document
        return origin_of(record) if isinstance(record, Mapping) and BLOCK in record else None
    except (ValueError, RecursionError, ClientError):
        return None


def _free(place: Path, cell: Cell, attempt: Attempt, run: int) -> Path:
    """The name by its start; a second later for each that began in the same second."""
    when = began(attempt, run)
    while (path := place / file_name(cell, when)).exists():
        when += timedelta(seconds=1)
    return path
