"""Our own journals: what ``perfbisect run`` measured, one point for each launch.

Launches of a bisection or a comparison are no nights: they measure commits of one day on another, so their
jobs are left aside. An attempt knows more than a result from elsewhere: its digest, commit and machine.
A run that lost requests is no measurement of its load, here as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from perfbisect.common.durations import moment, stamp
from perfbisect.errors import UsageError
from perfbisect.jobs.folders import JOURNAL
from perfbisect.jobs.journal import read
from perfbisect.measure.attempt import from_dict
from perfbisect.model.attempt import Attempt
from perfbisect.model.metric import parse_metric
from perfbisect.series.points import ALONE, Build, Point, RejectedResult, Workload, known
from perfbisect.series.sources import IngestOptions, SourceBuild, SourceFile

PIPELINE = "perfbisect"


class Journals:
    """See :class:`perfbisect.series.sources.Source`."""

    name = "journals"
    what = "a state folder with jobs/, or one job's folder"
    remote = False

    def takes(self, argument: str) -> bool:
        """True for a state folder, its ``jobs`` and a job."""
        return "://" not in argument and any(True for _ in _journals(Path(argument).expanduser()))

    def batches(self, argument: str, asked: IngestOptions) -> Iterator[SourceBuild]:
        """A batch for every ``run``.

        :raises UsageError: no run among the jobs.
        :raises LocatedError: a journal that was changed.
        """
        root, found = Path(argument).expanduser().absolute(), False
        for path in _journals(root):
            seen = path.stat()
            told = run_in(path)
            if told is None or told.build.fixed[:10] < asked.since:
                continue
            found = True
            texts = partial(_texts, json.dumps(told.document))
            yield SourceBuild(
                told.build, (SourceFile(JOURNAL, str(path), seen.st_size, str(seen.st_mtime_ns), texts),)
            )
        if not found:
            raise UsageError(
                f"no job of `perfbisect run` in {root}: others measure old commits and are no nights",
                next_step="perfbisect run CELL",
            )


def _texts(text: str) -> tuple[str, str]:
    return text, ""


def _journals(root: Path) -> Iterator[Path]:
    if (root / JOURNAL).is_file():
        yield root / JOURNAL
        return
    for folder in (root / "jobs", root):
        if folder.is_dir():
            found = sorted(folder.glob(f"*/{JOURNAL}"))
            yield from found
            if found:
                return


@dataclass(frozen=True)
class RecordedRun:
    """What the journal of a ``run`` tells: its build, its cell as data, and the document of its attempts."""

    build: Build
    cell: Mapping[str, Any]
    document: Mapping[str, Any]


def run_in(path: Path) -> RecordedRun | None:
    """What a journal tells; None: it is of no ``run``. :raises LocatedError: it was changed."""
    events = read(path).events
    plan = next((event for event in reversed(events) if event.kind == "plan"), None)
    if plan is None or plan.data.get("verb") != "run":
        return None
    cell, change = plan.data["cell"], plan.data["change"]
    commit = str(change["id"]).partition("+")[0] if change.get("kind") == "commit" else ""
    document = {
        "schema": "perfbisect.attempts/1",
        "cell": cell["name"],
        "model": cell.get("model", ""),
        "prompts": cell.get("num_prompts"),
        "voided": {
            event.data["attempt"]: event.data["reason"] for event in events if event.kind == "discarded"
        },
        "attempts": [event.data["attempt"] for event in events if event.kind in ("finished", "failed")],
    }
    build = Build("journal", PIPELINE, path.parent.name, commit=commit, fixed=plan.time)
    return RecordedRun(build, cell, document)


def measured(told: RecordedRun) -> Iterator[Attempt]:
    """The launches that were measured and stand, whether or not they lost requests."""
    for record in told.document["attempts"]:
        try:
            attempt = from_dict(record)
        except ValueError:
            continue
        if attempt.runs and attempt.failure is None and attempt.id not in told.document["voided"]:
            yield attempt


def points_of(build: Build, document: Mapping[str, Any], raw: str) -> Iterator[Point | RejectedResult]:
    """The attempts of a job's document: points, and those that failed or were void."""
    discarded = document["voided"]
    for record, told in enumerate(document["attempts"]):
        try:
            attempt = from_dict(told)
        except ValueError as error:
            yield RejectedResult(build, "broken", str(error), raw, record, str(document["cell"]))
            continue
        reason = discarded.get(attempt.id) or (attempt.failure.reason if attempt.failure else "")
        lost = _lost(attempt, document.get("prompts"))
        if reason or not attempt.runs:
            yield RejectedResult(
                build, "unmeasured", reason or "no run ended", raw, record, str(document["cell"])
            )
        elif lost:
            yield RejectedResult(build, "failed", lost, raw, record, str(document["cell"]))
        else:
            place = attempt.folder or raw
            yield point_of(build, str(document["cell"]), str(document["model"]), attempt, place, record)


def point_of(build: Build, cell: str, model: str, attempt: Attempt, raw: str, record: int) -> Point:
    """The point of a launch that was measured: of its runs what all of them report."""
    began = moment(attempt.started_at)
    names = set.intersection(*(set(run.values) for run in attempt.runs))
    facts = attempt.runs[-1].facts
    completed = facts.get("completed") or 0
    machine = attempt.provenance.facts.get("machine") or {}
    shared = attempt.provenance.facts.get("launch") or {}
    return Point(
        build=build,
        workload=Workload(test=cell, model=model, digest=attempt.provenance.cell_digest),
        began=stamp(began),
        ended=stamp(began),
        values={
            name: attempt.value(parse_metric(name)) for name in sorted(names) if not name.endswith(":std")
        },
        covariates=known(
            {
                "duration": sum(run.seconds for run in attempt.runs),
                "completed": completed,
                "failed": facts.get("failed"),
                "input_tokens": _each(facts.get("input_tokens"), completed),
                "output_tokens": _each(facts.get("output_tokens"), completed),
                "max_concurrent_requests": facts.get("max_concurrent_requests"),
                "client": attempt.provenance.client_era or attempt.provenance.client_digest,
                "host": str(machine.get("host", "")),
                "hardware": attempt.provenance.machine_class,
                "engine": attempt.provenance.engine_version,
                "suite": shared.get("suite") or ALONE,
            }
        ),
        start=str(shared.get("id") or attempt.id),
        raw=raw,
        record=record,
    )


def _lost(attempt: Attempt, prompts: object) -> str:
    """Which requests a run lost, in words; empty where all were answered or nothing says how many were."""
    for run in attempt.runs:
        completed, failed = run.facts.get("completed"), run.facts.get("failed") or 0
        if failed:
            return f"{failed} of {(completed or 0) + failed} requests failed"
        if isinstance(prompts, int) and isinstance(completed, int) and completed != prompts:
            return f"{completed} requests completed where {prompts} were asked for"
    return ""


def _each(total: object, completed: int) -> float | None:
    return total / completed if isinstance(total, (int, float)) and completed else None


SOURCE = Journals()
