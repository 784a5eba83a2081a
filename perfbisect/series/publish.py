"""What ``perfbisect run`` measured, in the kanban's own file format, in a folder of one's own.

A file is one run; a launch with several runs is several files, which are read as one launch again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from perfbisect.errors import ClientError, MachineError
from perfbisect.jobs.documents import Document
from perfbisect.jobs.folders import Job
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.report.document import Paragraph, Report, Verdict
from perfbisect.series.sources.files import text_of
from perfbisect.series.sources.journals import RecordedRun, measured, run_in
from perfbisect.series.sources.kanban import RAW
from perfbisect.series.sources.published import (
    BLOCK,
    RunOrigin,
    began,
    file_name,
    origin_of,
    origin_of_run,
    result_of_run,
)
from perfbisect.system.files import write_atomic

RESULTS = "tests/dfx/perf/results"
"""Where in a build's folder the kanban's results lie."""

_Key = tuple[str, int]
"""A launch's id and the number of its run."""


class TrackPublishDocument(Document):
    """JSON of ``track publish``.

    ``launches``: how many are in the folder now; ``left_out``: those that are not, and why; ``removed``:
    files of launches that were discarded later.
    """

    schema_: Literal["perfbisect.track-publish/1"] = Field(
        default="perfbisect.track-publish/1", alias="schema"
    )
    folder: str
    launches: int = 0
    written: tuple[str, ...] = ()
    unchanged: int = 0
    removed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass
class _Result:
    """What is done so far."""

    launches: int = 0
    unchanged: int = 0
    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def publish(folder: Path, jobs: Iterable[Job]) -> TrackPublishDocument:
    """Writes new results of these jobs below ``folder``; jobs of other verbs are passed over.

    A file that is there stays as it is; each is written whole or not at all. Safe to do again.

    :raises LocatedError: a journal that was changed. :raises MachineError: the folder cannot be written.
    """
    result = _Result()
    for job in jobs:
        recorded = run_in(job.journal)
        if recorded is not None:
            _publish_job(folder, job, recorded, result)
    return TrackPublishDocument(
        folder=str(folder),
        launches=result.launches,
        written=tuple(result.written),
        unchanged=result.unchanged,
        removed=tuple(result.removed),
        left_out=tuple(result.left_out),
    )


def publish_report(document: TrackPublishDocument) -> Report:
    """Report of ``track publish``."""
    files = f"{len(document.written)} files written, {document.unchanged} were there"
    lines = [f"{document.folder}: {document.launches} launches; {files}"]
    if document.removed:
        lines.append(f"{len(document.removed)} removed: their launches were discarded")
    lines += [f"left out: {why}" for why in document.left_out]
    verdict = Verdict(f"{len(document.written)} files written")
    return Report("Publish", verdict, tuple(map(Paragraph, lines)))


def _publish_job(folder: Path, job: Job, recorded: RecordedRun, result: _Result) -> None:
    place = folder.expanduser() / "data" / RAW / job.id / RESULTS
    try:
        cell = Cell.model_validate_json(json.dumps(recorded.cell))
    except ValidationError as error:
        result.left_out.append(f"{job.id}: its cell cannot be read: {error.errors()[0]['msg']}")
        return
    present = dict(_there(place, job.id))
    kept: set[_Key] = set()
    for attempt in measured(recorded):
        runs = {(attempt.id, run + 1): run for run in range(len(attempt.runs))}
        try:
            new = [
                (run, _content(job, recorded, cell, attempt, run))
                for key, run in runs.items()
                if key not in present
            ]
        except (ClientError, ValueError) as error:
            result.left_out.append(f"{attempt.id}: {error}")
            continue
        result.launches += 1
        kept |= runs.keys() & present.keys()
        for run, content in new:
            path = _free(place, cell, attempt, run)
            write_atomic(path, json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")
            result.written.append(str(path))
    result.unchanged += len(kept)
    for key, path in present.items():
        if key not in kept:
            _remove(path)
            result.removed.append(str(path))


def _content(job: Job, told: RecordedRun, cell: Cell, attempt: Attempt, run: int) -> object:
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


def _origin(path: Path) -> RunOrigin | None:
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
