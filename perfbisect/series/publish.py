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
from typing import Literal

from pydantic import Field, ValidationError

from perfbisect.common.quantities import moment
from perfbisect.common.secret_references import hide_literals
from perfbisect.common.text import json_text
from perfbisect.errors import MachineError
from perfbisect.jobs.documents import Document
from perfbisect.jobs.folders import Job
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.series.points import Build
from perfbisect.series.sources.base import read_json
from perfbisect.series.sources.journals import BLOCK, PublishedRun, published_run, read_attempts, read_run
from perfbisect.series.sources.kanban import RAW
from perfbisect.system.files import write_atomic

_DIFFUSION = "diffusion_bench"


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
        build, document = recorded
        try:
            cell = Cell.model_validate_json(json.dumps(document["cell"]))
        except ValidationError as error:
            left_out.append(f"{job.id}: its cell cannot be read: {error.errors()[0]['msg']}")
            continue
        results = folder.expanduser() / "data" / RAW / job.id / "tests/dfx/perf/results"
        # Files of other jobs are not touched.
        found = ((published_run(path), path) for path in sorted(results.glob("*.json")))
        outdated = {
            (run.attempt.id, run.attempt.runs[0].index): path
            for run, path in found
            if run is not None and run.build.name == job.id
        }
        for attempt, reason in read_attempts(document):
            if attempt is None or reason:
                continue
            there = [outdated.get((attempt.id, place)) for place, _ in enumerate(attempt.runs, 1)]
            missing = [place for place, path in enumerate(there) if path is None]
            try:
                files = [_result(job, cell, attempt, place, build) for place in missing]
            except ValueError as error:
                left_out.append(f"{attempt.id}: {error}")
                continue
            launches, unchanged = launches + 1, unchanged + len(there) - len(missing)
            outdated = {run: path for run, path in outdated.items() if path not in there}
            for start, content in files:
                # Runs that began in the same second differ in nothing else of the kanban's names.
                while (path := results / file_name(cell, start)).exists():
                    start += timedelta(seconds=1)
                text = json.dumps(content, ensure_ascii=False, allow_nan=False)
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


def _result(job: Job, cell: Cell, attempt: Attempt, place: int, build: Build) -> tuple[datetime, object]:
    """When the run at ``place`` of an attempt began, and the content of its file.

    Raises:
        ValueError: the client's own result was not kept, or does not say how many requests were answered.
    """
    provenance, run = attempt.provenance, attempt.runs[place]
    # By its name, below the job: a journal names no file outside it.
    recorded = job.path / "attempts" / Path(attempt.folder).name / Path(run.raw).name
    client_result = read_json(recorded) if recorded.is_file() else None
    if not isinstance(client_result, Mapping):
        raise ValueError("the client's own result was not kept")
    before = [seconds for phase, seconds in attempt.seconds.items() if phase not in ("bench", "stop")]
    before += [earlier.seconds for earlier in attempt.runs[:place]]
    start = moment(attempt.started_at) + timedelta(seconds=math.fsum(before))
    duration, answered = run.facts.get("duration", run.seconds), run.facts.get("completed")
    lost = run.facts.get("failed") or 0
    if not isinstance(answered, int):
        raise ValueError("the run does not say how many requests were answered")
    gpus = (provenance.facts.get("machine") or {}).get("gpus") or ()
    added = {
        "commit": build.commit,
        "engine_version": provenance.engine_version,
        "engine_commit": provenance.engine_commit,
        "hardware": provenance.machine_class,
        "gpu": ", ".join(str(gpu.get("name", "")) for gpu in gpus),
        BLOCK: PublishedRun.of(cell, attempt, place, build).model_dump(mode="json", by_alias=True),
    }
    is_diffusion, inner = cell.client.name == _DIFFUSION, client_result.get("result")
    own = inner if is_diffusion and isinstance(inner, Mapping) else client_result
    kept = {name: value for name, value in own.items() if _is_kept(value)}
    if is_diffusion:
        fields = cell.model_dump(mode="json", by_alias=True)
        load = ("name", "task", "num_prompts", "max_concurrency")
        totals = {"duration": duration, "completed_requests": answered, "failed_requests": lost}
        record = {
            "test_name": _test_name(cell),
            "endpoint": cell.endpoint,
            "timestamp": _utc(start),
            "server_params": {"model": cell.model, "serve_args": hide_literals(fields["serve_args"])},
            "benchmark_params": {
                **fields["dataset_args"],
                **{name.replace("_", "-"): fields[name] for name in load},
                "dataset": cell.dataset_name,
                "request-rate": None if math.isinf(cell.request_rate) else cell.request_rate,
            },
            "result": {**kept, "model": cell.model, **totals},
        }
        return start, [{**record, **added}]
    # The client writes the name that one launch's server had, and the time of this machine's clock.
    named = {"model_id": cell.model, "tokenizer_id": cell.tokenizer or cell.model}
    ended = {"date": _utc(start + timedelta(seconds=run.seconds)), "duration": duration}
    counts = {"num_prompts": cell.num_prompts, "completed": answered, "failed": lost}
    return start, {**kept, **named, **ended, **counts, "num_warmups": cell.num_warmups, **added}


def _is_kept(value: object) -> bool:
    """No list of single requests, and no NaN, which JSON does not know."""
    if isinstance(value, Mapping):
        return all(isinstance(item, int | float) and _is_kept(item) for item in value.values())
    return value is None or (
        math.isfinite(value) if isinstance(value, float) else isinstance(value, int | str)
    )


def _test_name(cell: Cell) -> str:
    return "test_" + re.sub(r"[^A-Za-z0-9.-]+", "_", cell.name.partition("@")[0])


def _utc(time: datetime) -> str:
    return time.astimezone(timezone.utc).strftime("%Y%m%d-%H%M%S")
