"""Our own launches, one point each: from journals of ``perfbisect run``, or from files published of them.

Launches of bisections and comparisons measure commits of one day on another, so their jobs are left out. A
run that lost requests is no measurement of its load, here as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfbisect.common.json_text import WRONG_SHAPE, PackedObject
from perfbisect.common.quantities import counted, moment, stamp
from perfbisect.errors import UsageError
from perfbisect.jobs.folders import JOURNAL
from perfbisect.jobs.journal import read, replaying
from perfbisect.measure.attempt import from_dict
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.commit_details import Evidence
from perfbisect.model.counters import COUNTERS_FACT
from perfbisect.model.environment import ENVIRONMENT_FACT, portable_environment
from perfbisect.model.launch_facts import facts_of_metrics
from perfbisect.model.metric import find_metric
from perfbisect.series.points import (
    ALONE,
    Build,
    Point,
    RejectedResult,
    RejectionKind,
    Workload,
    known,
    message_of,
)
from perfbisect.series.sources.base import (
    IngestOptions,
    SourceBuild,
    SourceFile,
    UnreadableFileError,
    read_json,
)

NAME = "journals"
ACCEPTS = "a state folder with jobs/, or one job's folder"
IS_REMOTE = False

SOURCE = "journal"
"""The source of builds of ours: their launches are no repetitions of each other."""

PIPELINE = "perfbisect"
SCHEMA = "perfbisect.attempts/1"
BLOCK = "perfbisect"
"""Key of a published file under which its :class:`PublishedRun` is."""

_RUN_FACTS = (
    *("completed", "failed", "input_tokens", "output_tokens", "max_concurrent_requests"),
    COUNTERS_FACT,
)
"""Covariates of a run that are published, and the engine's counters, of which metrics are."""


def takes(place: str) -> bool:
    """Whether it is a state folder, its ``jobs`` or a job."""
    return bool(_journals(Path(place)))


def builds(place: str, options: IngestOptions) -> Iterator[SourceBuild]:
    is_empty = True
    for path in _journals(Path(place)):
        state = path.stat()
        version = f"{state.st_size} {state.st_mtime_ns}"
        try:
            recorded = read_run(path)
        except (UsageError, *WRONG_SHAPE) as error:
            # The other jobs are read; this one is rejected until it changes.
            build, text = Build(SOURCE, PIPELINE, path.parent.name), UnreadableFileError(str(error)).text
        else:
            if recorded is None or recorded[0].fixed[:10] < options.since:
                continue
            build, text = recorded[0], json.dumps(recorded[1], default=PackedObject.unpacked)
        is_empty = False
        yield SourceBuild(build, (SourceFile(JOURNAL, str(path), version, partial(str, text)),))
    if is_empty:
        raise UsageError(
            f"no job of `perfbisect run` in {place}: others measure old commits and are no nights",
            next_step="perfbisect run CELL",
        )


def _journals(root: Path) -> list[Path]:
    if (root / JOURNAL).is_file():
        return [root / JOURNAL]
    return sorted(root.glob(f"jobs/*/{JOURNAL}")) or sorted(root.glob(f"*/{JOURNAL}"))


def read_run(path: Path) -> tuple[Build, Mapping[str, Any]] | None:
    """The build of a journal of ``run``, and its cell and attempts as a JSON document.

    None: it is of another command. Raises LocatedError if it was changed.
    """
    events = read(path).events
    plan = next((event for event in reversed(events) if event.kind == "plan"), None)
    # Comparisons and bisections measure old commits today: in a series they would be nights of today.
    if plan is None or plan.data.get("verb") != "run":
        return None
    with replaying(path):
        change = plan.data["change"]
        # A change with a patch or a revert is named by its commit, which says where it is on the line.
        commit = str(change["id"]).partition("+")[0] if change.get("kind") == "commit" else ""
        document = {
            "schema": SCHEMA,
            "cell": plan.data["cell"],
            "discarded": {
                event.data["attempt"]: event.data["reason"] for event in events if event.kind == "discarded"
            },
            "attempts": [event.data["attempt"] for event in events if event.kind in ("finished", "failed")],
        }
    build = Build(SOURCE, PIPELINE, path.parent.name, commit=commit, fixed=plan.time)
    return build, document


@dataclass(frozen=True)
class RecordedCell:
    """What the points of a launch need of its cell."""

    name: str
    model: str = ""
    num_prompts: int | None = None


class PublishedRun(BaseModel):
    """A run of a launch, as the file that was published of it says.

    ``build``: that of the journal, and once it is ingested that of the file. ``attempt``: the launch with
    this run alone, numbered from 1, of ``runs``. ``raw``, ``record``: the file and its record.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    schema_: Literal["perfbisect.published/2"] = Field(default="perfbisect.published/2", alias="schema")
    build: Build
    cell: RecordedCell
    runs: int
    attempt: Attempt
    raw: str = Field(default="", exclude=True)
    record: int = Field(default=0, exclude=True)

    @classmethod
    def of(cls, cell: Cell, attempt: Attempt, place: int, build: Build) -> PublishedRun:
        """The run at ``place`` without what concerns only this machine: paths, messages, commands."""
        facts, run = attempt.provenance.facts, attempt.runs[place]
        machine, launch = facts.get("machine") or {}, facts.get("launch") or {}
        shared = {
            "machine": {
                "host": machine.get("host", ""),
                **{k: machine[k] for k in ("name",) if k in machine},
            },
            ENVIRONMENT_FACT: portable_environment(attempt.provenance),
            "launch": {name: launch.get(name) for name in ("id", "suite")},
            **facts_of_metrics(facts),
        }
        counts = {name: run.facts.get(name) for name in _RUN_FACTS}
        only = replace(run, index=place + 1, raw="", warnings=(), spread={}, facts=counts)
        provenance = replace(attempt.provenance, facts=shared)
        published = replace(attempt, folder="", provenance=provenance, runs=(only,))
        known_of = RecordedCell(cell.name, cell.model, cell.num_prompts)
        return cls(build=build, cell=known_of, runs=len(attempt.runs), attempt=published)

    def rejected(self, kind: RejectionKind, why: Evidence) -> RejectedResult:
        night = stamp(moment(self.attempt.started_at))[:10]
        return RejectedResult(self.build, kind, why, self.raw, self.record, self.cell.name, night)


def read_published(document: object) -> PublishedRun | None:
    """The run of ours that a file or a record of it holds; None: none.

    Raises:
        ValueError: it holds one that cannot be read.
    """
    record = document[0] if isinstance(document, list) and document else document
    if not isinstance(record, Mapping) or BLOCK not in record:
        return None
    try:
        published = PublishedRun.model_validate(record[BLOCK])
        moment(published.attempt.started_at)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ValueError(f"what perfbisect says of its run cannot be read: {field}: {first['msg']}") from None
    if len(published.attempt.runs) != 1:
        raise ValueError(f"what perfbisect says of its run has {counted(len(published.attempt.runs), 'run')}")
    return published


def published_run(path: Path) -> PublishedRun | None:
    """The run of ours that a file was published of; None: none, or it cannot be read."""
    try:
        return read_published(read_json(path))
    except ValueError:
        return None


def read_attempts(document: Mapping[str, Any]) -> Iterator[tuple[Attempt | None, str]]:
    """The attempts of a job's document, each with why it is no measurement: it failed or was discarded.

    None: it cannot be read. One that lost requests was measured.
    """
    for fields in document["attempts"]:
        try:
            attempt = from_dict(fields)
        except ValueError as error:
            yield None, str(error)
            continue
        reason = "" if attempt.runs else "no run ended"
        if attempt.failure:
            reason = attempt.failure.reason or "failed"
        if attempt.id in document["discarded"]:
            reason = document["discarded"][attempt.id] or "discarded"
        yield attempt, reason


def recorded_results(build: Build, document: Mapping[str, Any], raw: str) -> Iterator[Point | RejectedResult]:
    """The points of a job's document, and the attempts that failed or were discarded."""
    try:
        fields = document["cell"]
        cell = RecordedCell(str(fields["name"]), str(fields.get("model", "")), fields.get("num_prompts"))
        attempts = list(read_attempts(document))
    except WRONG_SHAPE as error:
        message = f"cannot be read ({type(error).__name__}: {error})"
        yield RejectedResult(build, "broken", message_of(message), raw)
        return
    for record, (attempt, reason) in enumerate(attempts):
        if attempt is None:
            yield RejectedResult(build, "broken", message_of(reason), raw, record, cell.name)
        elif reason:
            yield RejectedResult(build, "unmeasured", message_of(reason), raw, record, cell.name)
        else:
            yield _launch_result(build, cell, attempt, raw, record)


def published_results(
    runs: Iterable[PublishedRun], recorded: Collection[str] = ()
) -> Iterator[Point | RejectedResult]:
    """The launches of a build from their runs. ``recorded``: server starts that the journal itself has.

    A launch of which a run is missing is rejected: its value would be another one.
    """
    launches: dict[str, dict[int, PublishedRun]] = {}
    for run in runs:
        launch, number = launches.setdefault(run.attempt.id, {}), run.attempt.runs[0].index
        # The files and the journal of one job may both be read: a launch counts once.
        if server_start(run.attempt) in recorded:
            yield run.rejected("twin", Evidence("in the journal"))
        elif number in launch:
            yield run.rejected("twin", Evidence("same run", {"file": launch[number].raw}))
        else:
            launch[number] = run
    for launch in filter(None, launches.values()):
        ordered = [launch[number] for number in sorted(launch)]
        last = ordered[-1]
        # If a run is missing, the median of a launch differs from that of the journal.
        if len(ordered) == last.runs:
            attempt = replace(last.attempt, runs=tuple(run.attempt.runs[0] for run in ordered))
            yield _launch_result(last.build, last.cell, attempt, last.raw, last.record)
        else:
            missing = Evidence("runs missing", {"runs": len(ordered), "of": last.runs})
            yield last.rejected("unmeasured", missing)


def _launch_result(
    build: Build, cell: RecordedCell, attempt: Attempt, raw: str, record: int
) -> Point | RejectedResult:
    try:
        return _launch_point(build, cell, attempt, raw, record)
    except WRONG_SHAPE as error:
        message = f"cannot be read ({type(error).__name__}: {error})"
        return RejectedResult(build, "broken", message_of(message), raw, record, cell.name)


def _launch_point(
    build: Build, cell: RecordedCell, attempt: Attempt, raw: str, record: int
) -> Point | RejectedResult:
    """The point of a measured launch, with the metrics that the table knows and all of its runs report."""
    began = stamp(moment(attempt.started_at))
    prompts = cell.num_prompts
    for run in attempt.runs:
        completed, failed = run.facts.get("completed"), run.facts.get("failed") or 0
        lost = None
        if failed:
            lost = Evidence("requests failed", {"failed": failed, "of": (completed or 0) + failed})
        # A number that is not known proves no loss.
        elif isinstance(prompts, int) and isinstance(completed, int) and completed != prompts:
            lost = Evidence("requests missing", {"completed": completed, "prompts": prompts})
        if lost:
            return RejectedResult(build, "failed", lost, raw, record, cell.name, began[:10])
    # A metric that one run lacks has no value of the launch.
    names = set(attempt.reported)
    facts, provenance = attempt.runs[-1].facts, attempt.provenance
    machine = provenance.facts.get("machine") or {}
    completed = facts.get("completed") or 0

    def each(total: object) -> float | None:
        return total / completed if isinstance(total, (int, float)) and completed else None

    covariates = {
        "duration": sum(run.seconds for run in attempt.runs),
        "completed": completed,
        "failed": facts.get("failed"),
        "input_tokens": each(facts.get("input_tokens")),
        "output_tokens": each(facts.get("output_tokens")),
        "max_concurrent_requests": facts.get("max_concurrent_requests"),
        # An era holds over versions of the client that measure alike; a digest changes with each of them.
        "client": provenance.client_era or provenance.client_digest,
        "host": str(machine.get("host", "")),
        "machine": str(machine.get("name", "")),
        "hardware": provenance.machine_class,
        "engine": provenance.engine_version,
        "torch": str((provenance.facts.get("torch") or {}).get("version", "")),
        "suite": (provenance.facts.get("launch") or {}).get("suite") or ALONE,
        "commits": known({"engine_commit": provenance.engine_commit.partition("+")[0]}),
    }
    return Point(
        build=build,
        workload=Workload(test=cell.name, model=cell.model, digest=provenance.cell_digest),
        began=began,
        ended=began,
        values={
            name: attempt.value(ref)
            for name in sorted(names)
            if not name.endswith(":std") and (ref := find_metric(name)) is not None
        },
        covariates=known(covariates),
        start=server_start(attempt),
        raw=attempt.folder or raw,
        record=record,
    )


def server_start(attempt: Attempt) -> str:
    """The server start of a launch."""
    # Until cells had servers of their own, a nightly could let several share the starts of one.
    return str((attempt.provenance.facts.get("launch") or {}).get("id") or attempt.id)
