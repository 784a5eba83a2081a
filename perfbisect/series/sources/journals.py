"""Our own journals: what ``perfbisect run`` measured, one point for each launch.

Launches of bisections and comparisons measure commits of one day on another, so their jobs are left out. A
run that lost requests is no measurement of its load, here as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from perfbisect.common.quantities import moment, stamp
from perfbisect.errors import UsageError
from perfbisect.jobs.folders import JOURNAL
from perfbisect.jobs.journal import read
from perfbisect.measure.attempt import from_dict
from perfbisect.model.attempt import Attempt
from perfbisect.model.metric import parse_metric
from perfbisect.series.points import ALONE, Build, Point, RejectedResult, Workload, known
from perfbisect.series.sources.base import IngestOptions, SourceBuild, SourceFile

SOURCE = "journal"
"""The source of builds of ours: their launches are no repetitions of each other."""

PIPELINE = "perfbisect"
SCHEMA = "perfbisect.attempts/1"


class Journals:
    """See :class:`ResultSource`."""

    name = "journals"
    accepts = "a state folder with jobs/, or one job's folder"
    is_remote = False

    def takes(self, place: str) -> bool:
        """Whether it is a state folder, its ``jobs`` or a job."""
        return any(True for _ in _journals(Path(place)))

    def builds(self, place: str, options: IngestOptions) -> Iterator[SourceBuild]:
        is_empty = True
        for path in _journals(Path(place)):
            state, recorded = path.stat(), read_run(path)
            if recorded is None or recorded.build.fixed[:10] < options.since:
                continue
            is_empty = False
            read_texts = partial(_document_texts, recorded)
            version = f"{state.st_size} {state.st_mtime_ns}"
            yield SourceBuild(recorded.build, (SourceFile(JOURNAL, str(path), version, read_texts),))
        if is_empty:
            raise UsageError(
                f"no job of `perfbisect run` in {place}: others measure old commits and are no nights",
                next_step="perfbisect run CELL",
            )


def _journals(root: Path) -> list[Path]:
    if (root / JOURNAL).is_file():
        return [root / JOURNAL]
    return sorted(root.glob(f"jobs/*/{JOURNAL}")) or sorted(root.glob(f"*/{JOURNAL}"))


@dataclass(frozen=True)
class RecordedRun:
    """The journal of a ``run``: its build, and its cell and attempts as a JSON document."""

    build: Build
    document: Mapping[str, Any]


def read_run(path: Path) -> RecordedRun | None:
    """Read a journal; None: it is of another command. Raises LocatedError if it was changed."""
    events = read(path).events
    plan = next((event for event in reversed(events) if event.kind == "plan"), None)
    if plan is None or plan.data.get("verb") != "run":
        return None
    change = plan.data["change"]
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
    return RecordedRun(build, document)


def _document_texts(recorded: RecordedRun) -> tuple[str, str]:
    return json.dumps(recorded.document), ""


def measured_attempts(recorded: RecordedRun) -> Iterator[Attempt]:
    """The attempts that were measured and not discarded, whether or not they lost requests."""
    for fields in recorded.document["attempts"]:
        try:
            attempt = from_dict(fields)
        except ValueError:
            continue
        if attempt.runs and attempt.failure is None and attempt.id not in recorded.document["discarded"]:
            yield attempt


def recorded_points(build: Build, document: Mapping[str, Any], raw: str) -> Iterator[Point | RejectedResult]:
    """The points of a job's document, and the attempts that failed or were discarded."""
    cell, discarded = document["cell"], document["discarded"]
    name, model = str(cell["name"]), str(cell.get("model", ""))
    for record, fields in enumerate(document["attempts"]):
        try:
            attempt = from_dict(fields)
        except ValueError as error:
            yield RejectedResult(build, "broken", str(error), raw, record, name)
            continue
        reason = discarded.get(attempt.id) or (attempt.failure.reason if attempt.failure else "")
        lost = _lost_requests(attempt, cell.get("num_prompts"))
        if reason or not attempt.runs:
            yield RejectedResult(build, "unmeasured", reason or "no run ended", raw, record, name)
        elif lost:
            yield RejectedResult(build, "failed", lost, raw, record, name)
        else:
            yield point_of_attempt(build, name, model, attempt, attempt.folder or raw, record)


def point_of_attempt(build: Build, cell: str, model: str, attempt: Attempt, raw: str, record: int) -> Point:
    """The point of a measured launch: the metrics that all of its runs report."""
    began = stamp(moment(attempt.started_at))
    names = set.intersection(*(set(run.values) for run in attempt.runs))
    facts, provenance = attempt.runs[-1].facts, attempt.provenance
    completed = facts.get("completed") or 0
    shared = provenance.facts.get("launch") or {}

    def each(total: object) -> float | None:
        return total / completed if isinstance(total, (int, float)) and completed else None

    covariates = {
        "duration": sum(run.seconds for run in attempt.runs),
        "completed": completed,
        "failed": facts.get("failed"),
        "input_tokens": each(facts.get("input_tokens")),
        "output_tokens": each(facts.get("output_tokens")),
        "max_concurrent_requests": facts.get("max_concurrent_requests"),
        "client": provenance.client_era or provenance.client_digest,
        "host": str((provenance.facts.get("machine") or {}).get("host", "")),
        "hardware": provenance.machine_class,
        "engine": provenance.engine_version,
        "suite": shared.get("suite") or ALONE,
    }
    return Point(
        build=build,
        workload=Workload(test=cell, model=model, digest=provenance.cell_digest),
        began=began,
        ended=began,
        values={
            name: attempt.value(parse_metric(name)) for name in sorted(names) if not name.endswith(":std")
        },
        covariates=known(covariates),
        start=str(shared.get("id") or attempt.id),
        raw=raw,
        record=record,
    )


def _lost_requests(attempt: Attempt, prompts: object) -> str:
    """Which requests a run lost; empty where all were answered or their number is not known."""
    for run in attempt.runs:
        completed, failed = run.facts.get("completed"), run.facts.get("failed") or 0
        if failed:
            return f"{failed} of {(completed or 0) + failed} requests failed"
        if isinstance(prompts, int) and isinstance(completed, int) and completed != prompts:
            return f"{completed} requests completed where {prompts} were asked for"
    return ""
