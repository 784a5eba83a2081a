"""``track publish``: what ``perfbisect run`` measured, in the kanban's own file format.

A file is one run: the client's own result without its lists of single requests, its time in UTC, with what
the kanban's originals lack. A launch of several runs is several files, which are read as one launch again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from perfbisect.common.quantities import moment
from perfbisect.common.secret_references import hide_literals
from perfbisect.common.text import json_text
from perfbisect.errors import ClientError, MachineError
from perfbisect.jobs.documents import Document
from perfbisect.jobs.folders import Job
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.series.points import Build
from perfbisect.series.sources.base import read_json
from perfbisect.series.sources.folders import RAW
from perfbisect.series.sources.journals import BLOCK, PublishedRun, read_attempts, read_published, read_run
from perfbisect.system.files import write_atomic

RESULTS = "tests/dfx/perf/results"
"""Where in a build's folder the kanban's results lie."""

_DIFFUSION = "diffusion_bench"
_BEFORE_RUNS = ("build", "fetch", "launch", "first_request", "warm")


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


def publish(folder: Path, jobs: Iterable[Job]) -> TrackPublishDocument:
    """Write new results of these jobs below ``folder``; jobs of other commands are skipped. Idempotent."""
    launches, unchanged = 0, 0
    written, removed, left_out = list[str](), list[str](), list[str]()
    for job, recorded in ((job, read_run(job.journal)) for job in jobs):
        if recorded is None:
            continue
        try:
            cell = Cell.model_validate_json(json.dumps(recorded.document["cell"]))
        except ValidationError as error:
            left_out.append(f"{job.id}: its cell cannot be read: {error.errors()[0]['msg']}")
            continue
        results = folder.expanduser() / "data" / RAW / job.id / RESULTS
        outdated = _published_files(results, job.id)
        for attempt, reason in read_attempts(recorded.document):
            if attempt is None or reason:
                continue
            there = [outdated.get((attempt.id, place)) for place, _ in enumerate(attempt.runs, 1)]
            missing = [place for place, path in enumerate(there) if path is None]
            try:
                files = [
                    (run_start(attempt, place), result_document(cell, attempt, place, recorded.build, raw))
                    for place in missing
                    for raw in [_client_result(job, attempt, place)]
                ]
            except (ClientError, ValueError) as error:
                left_out.append(f"{attempt.id}: {error}")
                continue
            launches, unchanged = launches + 1, unchanged + len(there) - len(missing)
            outdated = {run: path for run, path in outdated.items() if path not in there}
            for start, document in files:
                # Runs that began in the same second differ in nothing else of the kanban's names.
                while (path := results / file_name(cell, start)).exists():
                    start += timedelta(seconds=1)
                text = json.dumps(document, ensure_ascii=False, allow_nan=False)
                write_atomic(path, json_text(text) + "\n")
                written.append(str(path))
        for path in outdated.values():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                problem = f"a file cannot be taken back: {error.strerror or error}"
                raise MachineError(problem, where=path) from error
            removed.append(str(path))
    return TrackPublishDocument(
        folder=str(folder), launches=launches, written=tuple(written), unchanged=unchanged,
        removed=tuple(removed), left_out=tuple(left_out),
    )  # fmt: skip


def _published_files(results: Path, job: str) -> dict[tuple[str, int], Path]:
    """The files of a job in the folder by launch and run; those of others are not touched."""
    files = {}
    for path in sorted(results.glob("*.json")):
        try:
            run = read_published(read_json(path))
        except ValueError:
            continue
        if run is not None and run.build.name == job:
            files[run.attempt.id, run.attempt.runs[0].index] = path
    return files


def _client_result(job: Job, attempt: Attempt, place: int) -> Mapping[str, Any]:
    """The client's own result. :raises ClientError: it was not kept."""
    # By its name, below the job: a journal names no file outside it.
    recorded = Path(attempt.runs[place].raw).name
    path = job.path / "attempts" / Path(attempt.folder).name / recorded
    result = read_json(path) if recorded and path.is_file() else None
    if not isinstance(result, Mapping):
        raise ClientError("the client's own result was not kept")
    return result


def file_name(cell: Cell, start: datetime) -> str:
    """The name in the rule of the newest era: test, data set, load, prompts, lengths, start in UTC."""
    if cell.client.name == _DIFFUSION:
        return f"diffusion_result_{_test_name(cell)}_{_utc(start)}.json"
    load = float(cell.request_rate) if cell.max_concurrency is None else cell.max_concurrency
    lengths = [cell.dataset_args.get(f"random-{side}-len") for side in ("input", "output")]
    tokens_in, tokens_out = (length if isinstance(length, int) else "na" for length in lengths)
    data_set = re.sub(r"[^A-Za-z0-9.-]+", "-", cell.dataset_name)
    loaded = f"{_test_name(cell)}_{data_set}_{load}_{cell.num_prompts}"
    return f"result_{loaded}_in{tokens_in}_out{tokens_out}_{_utc(start)}.json"


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
    provenance, run, start = attempt.provenance, attempt.runs[place], run_start(attempt, place)
    duration, answered = run.facts.get("duration", run.seconds), run.facts.get("completed")
    lost = run.facts.get("failed") or 0
    if not isinstance(answered, int):
        raise ClientError("the run does not say how many requests were answered")
    gpus = (provenance.facts.get("machine") or {}).get("gpus") or ()
    added = {
        "commit": build.commit,
        "engine_version": provenance.engine_version,
        "engine_commit": provenance.engine_commit,
        "hardware": provenance.machine_class,
        "gpu": ", ".join(str(gpu.get("name", "")) for gpu in gpus),
        BLOCK: PublishedRun.of(cell, attempt, place, build).model_dump(mode="json", by_alias=True),
    }
    if cell.client.name == _DIFFUSION:
        fields, inner = cell.model_dump(mode="json", by_alias=True), client_result.get("result")
        load = {name: fields[name] for name in ("name", "task", "num_prompts", "max_concurrency")}
        own = _kept(inner if isinstance(inner, Mapping) else client_result)
        totals = {"duration": duration, "completed_requests": answered, "failed_requests": lost}
        record = {
            "test_name": _test_name(cell),
            "endpoint": cell.endpoint,
            "timestamp": _utc(start),
            "server_params": {"model": cell.model, "serve_args": hide_literals(fields["serve_args"])},
            "benchmark_params": {
                **fields["dataset_args"],
                **{name.replace("_", "-"): value for name, value in load.items()},
                "dataset": cell.dataset_name,
                "request-rate": None if math.isinf(cell.request_rate) else cell.request_rate,
            },
            "result": {**own, "model": cell.model, **totals},
        }
        return [{**record, **added}]
    # The client writes the name that one launch's server had, and the time of this machine's clock.
    named = {"model_id": cell.model, "tokenizer_id": cell.tokenizer or cell.model}
    ended = {"date": _utc(start + timedelta(seconds=run.seconds)), "duration": duration}
    counts = {"num_prompts": cell.num_prompts, "completed": answered, "failed": lost}
    return {**_kept(client_result), **named, **ended, **counts, "num_warmups": cell.num_warmups, **added}


def _kept(result: Mapping[str, Any]) -> dict[str, Any]:
    """A client's result without its lists of single requests, and without NaN, which JSON does not know."""

    def is_kept(value: object) -> bool:
        if isinstance(value, Mapping):
            return all(isinstance(item, (int, float)) and is_kept(item) for item in value.values())
        if isinstance(value, float):
            return math.isfinite(value)
        return value is None or isinstance(value, (int, str))

    return {name: value for name, value in result.items() if is_kept(value)}


def _test_name(cell: Cell) -> str:
    return "test_" + re.sub(r"[^A-Za-z0-9.-]+", "_", cell.name.partition("@")[0])


def _utc(time: datetime) -> str:
    return time.astimezone(timezone.utc).strftime("%Y%m%d-%H%M%S")
