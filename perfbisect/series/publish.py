"""``track publish``: what ``perfbisect run`` measured, in the kanban's own file format.

A file is one run: the client's own result without its lists of single requests, its time in UTC, with what
the kanban's originals lack. A launch of several runs is several files, which are read as one launch again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from perfbisect.clients.base import STAGE_STATISTICS
from perfbisect.common.quantities import moment
from perfbisect.errors import ClientError, MachineError
from perfbisect.jobs.documents import Document
from perfbisect.jobs.folders import Job
from perfbisect.model.attempt import Attempt, RunResult
from perfbisect.model.cell import Cell
from perfbisect.model.metric import METRICS, PER_UNIT, STAGE
from perfbisect.report.document import Paragraph, Report, Verdict
from perfbisect.series.points import Build
from perfbisect.series.sources.base import read_text
from perfbisect.series.sources.journals import RecordedRun, measured_attempts, read_run
from perfbisect.series.sources.kanban import RAW
from perfbisect.series.sources.published import (
    BLOCK,
    MOST_REQUESTS,
    TOTALS,
    RunOrigin,
    name_of,
    read_origin,
)
from perfbisect.system.files import write_atomic

RESULTS = "tests/dfx/perf/results"
"""Where in a build's folder the kanban's results lie."""

_TIME = "%Y%m%d-%H%M%S"
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")
_DIFFUSION = "diffusion_bench"
_BEFORE_RUNS = ("build", "fetch", "launch", "first_request", "warm")
_DERIVED = frozenset({*PER_UNIT, "input_tokens", "output_tokens", "images", "image_pixels", "failed"}) - {
    "audio_rtf"
}
"""Values that follow from others in a result, and have no name of their own in it."""


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
class _Publication:
    """What was done so far."""

    launches: int = 0
    unchanged: int = 0
    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def publish(folder: Path, jobs: Iterable[Job]) -> TrackPublishDocument:
    """Write new results of these jobs below ``folder``; jobs of other commands are skipped. Idempotent."""
    done = _Publication()
    for job in jobs:
        recorded = read_run(job.journal)
        if recorded is not None:
            _publish_job(folder.expanduser() / "data" / RAW / job.id / RESULTS, job, recorded, done)
    return TrackPublishDocument.model_validate({"folder": str(folder), **vars(done)})


def publish_report(document: TrackPublishDocument) -> Report:
    files = f"{len(document.written)} files written, {document.unchanged} were there"
    lines = [f"{document.folder}: {document.launches} launches; {files}"]
    if document.removed:
        lines.append(f"{len(document.removed)} removed: their launches were discarded")
    lines += [f"left out: {why}" for why in document.left_out]
    verdict = Verdict(f"{len(document.written)} files written")
    return Report("Publish", verdict, tuple(map(Paragraph, lines)))


def _publish_job(results: Path, job: Job, recorded: RecordedRun, done: _Publication) -> None:
    try:
        cell = Cell.model_validate_json(json.dumps(recorded.document["cell"]))
    except ValidationError as error:
        done.left_out.append(f"{job.id}: its cell cannot be read: {error.errors()[0]['msg']}")
        return
    present = _published_files(results, job.id)
    kept = set()
    for attempt in measured_attempts(recorded):
        runs = {(attempt.id, place + 1): place for place in range(len(attempt.runs))}
        try:
            documents = {
                place: result_document(
                    cell, attempt, place, recorded.build, _client_result(job, attempt, place)
                )
                for key, place in runs.items()
                if key not in present
            }
        except (ClientError, ValueError) as error:
            done.left_out.append(f"{attempt.id}: {error}")
            continue
        done.launches += 1
        kept |= runs.keys() & present.keys()
        for place, document in documents.items():
            path = _free_path(results, cell, run_start(attempt, place))
            write_atomic(path, json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")
            done.written.append(str(path))
    done.unchanged += len(kept)
    for key in present.keys() - kept:
        _remove(present[key])
    done.removed += [str(path) for key, path in present.items() if key not in kept]


def _published_files(results: Path, job: str) -> dict[tuple[str, int], Path]:
    """The files of a job in the folder by launch and run; those of others are not touched."""
    files = {}
    for path in sorted(results.glob("*.json")):
        try:
            origin = read_origin(json.loads(read_text(path)))
        except (ValueError, RecursionError):
            continue
        if origin is not None and origin.job == job:
            files[origin.launch, origin.run] = path
    return files


def _client_result(job: Job, attempt: Attempt, place: int) -> Mapping[str, Any]:
    """The client's own result; empty where it was not kept."""
    recorded = attempt.runs[place].raw
    own = job.path / "attempts" / Path(attempt.folder).name / Path(recorded).name
    path = next((path for path in (own, Path(recorded)) if recorded and path.is_file()), None)
    try:
        result = json.loads(read_text(path)) if path else {}
    except (ValueError, RecursionError):
        return {}
    return result if isinstance(result, Mapping) else {}


def _free_path(results: Path, cell: Cell, start: datetime) -> Path:
    """Named by the start; a second later for each run that began in the same second."""
    while (path := results / file_name(cell, start)).exists():
        start += timedelta(seconds=1)
    return path


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise MachineError(f"a file cannot be taken back: {error.strerror or error}", where=path) from error


def file_name(cell: Cell, start: datetime) -> str:
    """The name in the rule of the newest era: test, data set, load, prompts, lengths, start in UTC."""
    if cell.client.name == _DIFFUSION:
        return f"diffusion_result_{_test_name(cell)}_{_utc(start)}.json"
    load = _rate_text(cell.request_rate) if cell.max_concurrency is None else str(cell.max_concurrency)
    lengths = [cell.dataset_args.get(f"random-{side}-len") for side in ("input", "output")]
    tokens_in, tokens_out = (str(length) if isinstance(length, int) else "na" for length in lengths)
    parts = (_test_name(cell), _UNSAFE.sub("-", cell.dataset_name), load, cell.num_prompts)
    return f"result_{'_'.join(map(str, parts))}_in{tokens_in}_out{tokens_out}_{_utc(start)}.json"


def run_start(attempt: Attempt, place: int) -> datetime:
    """When a run began: the launch's start, its phases before the runs, and the runs before this one."""
    before = [attempt.seconds.get(phase, 0.0) for phase in _BEFORE_RUNS]
    before += [run.seconds for run in attempt.runs[:place]]
    return moment(attempt.started_at) + timedelta(seconds=math.fsum(before))


def result_document(
    cell: Cell, attempt: Attempt, place: int, build: Build, client_result: Mapping[str, Any]
) -> dict[str, Any] | list[dict[str, Any]]:
    """The content of the file of the run at ``place`` of an attempt; ``build``: that of its journal.

    Raises:
        ClientError: the run does not say how many requests were answered.
    """
    provenance = attempt.provenance
    gpus = (provenance.facts.get("machine") or {}).get("gpus") or ()
    additions = {
        "commit": build.commit,
        "engine_version": provenance.engine_version,
        "engine_commit": provenance.engine_commit,
        "hardware": provenance.machine_class,
        "gpu": ", ".join(str(gpu.get("name", "")) for gpu in gpus),
        BLOCK: _origin(cell, attempt, place, build).model_dump(mode="json", by_alias=True),
    }
    run, start = attempt.runs[place], run_start(attempt, place)
    if cell.client.name == _DIFFUSION:
        return [{**_diffusion_record(cell, run, start, client_result), **additions}]
    return {**_served_result(cell, run, start, client_result), **additions}


def _origin(cell: Cell, attempt: Attempt, place: int, build: Build) -> RunOrigin:
    provenance, run = attempt.provenance, attempt.runs[place]
    shared = provenance.facts.get("launch") or {}
    return RunOrigin(
        job=build.name,
        planned=build.fixed,
        cell=cell.name,
        model=cell.model,
        digest=provenance.cell_digest,
        launch=attempt.id,
        start=str(shared.get("id") or attempt.id),
        suite=str(shared.get("suite") or ""),
        run=place + 1,
        runs=len(attempt.runs),
        seed=run.seed,
        began=attempt.started_at,
        seconds=run.seconds,
        client=provenance.client_digest,
        era=provenance.client_era,
        machine=provenance.machine_class,
        host=str((provenance.facts.get("machine") or {}).get("host", "")),
        metrics=tuple(sorted(filter(_is_in_series, run.values))),
    )


def _served_result(
    cell: Cell, run: RunResult, start: datetime, client_result: Mapping[str, Any]
) -> dict[str, Any]:
    facts, completed = run.facts, _completed(run)
    document: dict[str, Any] = {
        "date": _utc(start + timedelta(seconds=run.seconds)),
        "endpoint_type": cell.backend,
        "backend": cell.backend,
        "label": None,
    }
    document |= {name: value for name, value in client_result.items() if name != "date" and _is_kept(value)}
    document |= {
        "model_id": cell.model,
        "tokenizer_id": cell.tokenizer or cell.model,
        "num_prompts": cell.num_prompts,
        "request_rate": "inf" if math.isinf(cell.request_rate) else cell.request_rate,
        "burstiness": cell.burstiness,
        "max_concurrency": cell.max_concurrency,
        "num_warmups": cell.num_warmups,
        "duration": facts.get("duration", run.seconds),
        "completed": completed,
        "failed": facts.get("failed") or 0,
    }
    for name, total in {**TOTALS, MOST_REQUESTS: MOST_REQUESTS}.items():
        if facts.get(name) is not None:
            document[total] = facts[name]
    if "images" in run.values:
        document["total_images"] = round(run.values["images"] * completed)
    if "image_pixels" in run.values:
        document["average_pixels_per_image"] = run.values["image_pixels"]
    # Readers of results recognise one of a served benchmark by this name.
    document.setdefault("request_throughput", completed / document["duration"])
    return document | _client_values(run, document, diffusion=False)


def _diffusion_record(
    cell: Cell, run: RunResult, start: datetime, client_result: Mapping[str, Any]
) -> dict[str, Any]:
    fields = cell.model_dump(mode="json", by_alias=True)
    inner = client_result.get("result")
    reported = inner if isinstance(inner, Mapping) else client_result
    result = {name: value for name, value in reported.items() if _is_kept(value)}
    result |= {
        "model": cell.model,
        "duration": run.facts.get("duration", run.seconds),
        "completed_requests": _completed(run),
        "failed_requests": run.facts.get("failed") or 0,
    }
    return {
        "test_name": _test_name(cell),
        "endpoint": cell.endpoint,
        "timestamp": _utc(start),
        "server_params": {"model": cell.model, "serve_args": fields["serve_args"]},
        "benchmark_params": {
            **fields["dataset_args"],
            "name": cell.name,
            "dataset": cell.dataset_name,
            "task": cell.task,
            "num-prompts": cell.num_prompts,
            "max-concurrency": cell.max_concurrency,
            "request-rate": None if math.isinf(cell.request_rate) else cell.request_rate,
        },
        "result": result | _client_values(run, result, diffusion=True),
    }


def _client_values(run: RunResult, document: Mapping[str, Any], *, diffusion: bool) -> dict[str, Any]:
    """The run's values under the client's names."""
    values: dict[str, Any] = {}
    for key, value in run.values.items():
        name, _, statistic = key.partition(":")
        if not _is_in_series(key):
            continue
        if name.startswith(STAGE):
            stages = f"stage_durations_{STAGE_STATISTICS[statistic]}"
            values.setdefault(stages, dict(document.get(stages) or {}))[name.removeprefix(STAGE)] = value
        elif name == "spec_decode_acceptance_rate":
            values[name] = document.get(name, value * 100)  # The client reports per cent.
        elif name not in _DERIVED:
            values[name_of(key, diffusion=diffusion)] = value
    return values


def _is_in_series(key: str) -> bool:
    """False for standard deviations and for metrics that the table does not know."""
    name = key.partition(":")[0]
    return not key.endswith(":std") and (name in METRICS or name.startswith(STAGE))


def _completed(run: RunResult) -> int:
    completed = run.facts.get("completed")
    if not isinstance(completed, int):
        raise ClientError("the run does not say how many requests were answered")
    return completed


def _is_kept(value: object) -> bool:
    """Numbers that are numbers, text, and tables of numbers: no lists of single requests."""
    if isinstance(value, Mapping):
        return all(isinstance(item, (int, float)) and _is_kept(item) for item in value.values())
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, (int, str))


def _test_name(cell: Cell) -> str:
    return "test_" + _UNSAFE.sub("_", cell.name.partition("@")[0])


def _utc(time: datetime) -> str:
    return time.astimezone(timezone.utc).strftime(_TIME)


def _rate_text(rate: float) -> str:
    """``2.0``, ``0.1``, ``inf``: a load with a point is a rate, also a whole one."""
    if math.isinf(rate):
        return "inf"
    text = f"{rate:.12f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text
