"""A run of ours as a result file of vLLM-Omni's kanban, and a file that was written so as a run again.

The file is the client's own result without its lists of single requests, its time in UTC, with what the
kanban's originals lack: commit, version of the engine, device. ``perfbisect`` in it says whose run it is, so
that a launch of several runs, which is several files, is one launch again for whoever reads them together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfbisect.clients.base import STAGE_STATISTICS, number
from perfbisect.common.durations import moment, stamp
from perfbisect.errors import ClientError
from perfbisect.model.attempt import Attempt, Provenance, RunResult
from perfbisect.model.cell import Cell
from perfbisect.model.metric import METRICS, PER_UNIT, STAGE
from perfbisect.series.points import Build, Point, RejectedResult, RejectionReason
from perfbisect.series.sources.journals import PIPELINE, point_of

BLOCK = "perfbisect"

_TIME = "%Y%m%d-%H%M%S"
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")
_SUFFIX = {"ms": "_ms", "s": "_s"}
_DRAWN = "diffusion_bench"
_TOTALS = {"input_tokens": "total_input_tokens", "output_tokens": "total_output_tokens"}
_MOST = "max_concurrent_requests"
_BEFORE = ("build", "fetch", "launch", "first_request", "warm")
_FOLLOW = frozenset({*PER_UNIT, "input_tokens", "output_tokens", "images", "image_pixels", "failed"}) - {
    "audio_rtf"
}
"""Values that follow from others in a result, and stand in it under no name of their own."""


class RunOrigin(BaseModel):
    """Whose run a file is: what the client's own names cannot say.

    ``launch`` is the id of the attempt, ``run`` its place among its ``runs``, from 1. ``start`` names the
    server's start, which it may share with other cells of the ``suite``. ``planned``: when the commit was
    chosen, ``began``: when the launch did (ISO 8601). ``seconds`` of the run, with the client's own start.
    ``client``, ``era``: the client's digest and declared era; ``machine``: the machine class.
    ``metrics``: what the run reports, by our names.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    schema_: Literal["perfbisect.published/1"] = Field(default="perfbisect.published/1", alias="schema")
    job: str
    planned: str
    cell: str
    model: str
    digest: str
    launch: str
    start: str
    suite: str = ""
    run: int
    runs: int
    seed: int
    began: str
    seconds: float
    client: str
    era: str
    machine: str
    host: str
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class PublishedRun:
    """A run that was read back. ``commit`` is empty where what was measured is no commit."""

    origin: RunOrigin
    commit: str
    engine: str
    run: RunResult


def origin_of_run(job: str, planned: str, cell: Cell, attempt: Attempt, place: int) -> RunOrigin:
    """Whose run the one at ``place`` of an attempt is."""
    provenance, run = attempt.provenance, attempt.runs[place]
    shared = provenance.facts.get("launch") or {}
    return RunOrigin(
        job=job,
        planned=planned,
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
        metrics=tuple(sorted(filter(_in_series, run.values))),
    )


def result_of_run(
    cell: Cell, attempt: Attempt, origin: RunOrigin, *, commit: str, raw: Mapping[str, Any]
) -> dict[str, Any] | list[dict[str, Any]]:
    """The content of a run's file. ``raw`` is the client's own result, empty where it is not kept any more.

    :raises ClientError: the run does not say how many requests were answered.
    """
    provenance, place = attempt.provenance, origin.run - 1
    gpus = (provenance.facts.get("machine") or {}).get("gpus") or ()
    told = {
        "commit": commit,
        "engine_version": provenance.engine_version,
        "engine_commit": provenance.engine_commit,
        "hardware": provenance.machine_class,
        "gpu": ", ".join(str(gpu.get("name", "")) for gpu in gpus),
        BLOCK: origin.model_dump(mode="json", by_alias=True),
    }
    if cell.client.name == _DRAWN:
        return [{**_drawn(cell, attempt, place, raw), **told}]
    return {**_served(cell, attempt, place, raw), **told}


def file_name(cell: Cell, when: datetime) -> str:
    """The name in the rule of the newest era: test, data set, load, prompts, lengths, start in UTC."""
    test, at = _test(cell), _utc(when)
    if cell.client.name == _DRAWN:
        return f"diffusion_result_{test}_{at}.json"
    load = _rate(cell.request_rate) if cell.max_concurrency is None else str(cell.max_concurrency)
    lengths = [cell.dataset_args.get(f"random-{side}-len") for side in ("input", "output")]
    read, written = (str(length) if isinstance(length, int) else "na" for length in lengths)
    data = _UNSAFE.sub("-", cell.dataset_name)
    return f"result_{test}_{data}_{load}_{cell.num_prompts}_in{read}_out{written}_{at}.json"


def began(attempt: Attempt, place: int) -> datetime:
    """When a run began: the launch's start, its phases before the runs, and the runs before this one."""
    before = [attempt.seconds.get(phase, 0.0) for phase in _BEFORE]
    before += [run.seconds for run in attempt.runs[:place]]
    return moment(attempt.started_at) + timedelta(seconds=math.fsum(before))


def name_of(key: str, *, drawn: bool = False) -> str:
    """The name in a result for one of ours; ``drawn``: in that of the diffusion benchmark.

    ``ttft:median`` -> ``median_ttft_ms``, ``latency_median``: what :func:`reported.key_of` reads.
    """
    name, _, statistic = key.partition(":")
    if not statistic:
        return name
    if drawn:
        return f"{name}_{statistic}"
    return f"{statistic}_{name}{_SUFFIX.get(METRICS[name].unit, '')}"


def published_run(record: Mapping[str, Any], values: Mapping[str, float]) -> PublishedRun | None:
    """The run that a result holds; ``values`` as they are read of any result. None: it is not ours.

    :raises ClientError: what it says of itself cannot be read, or a metric is not there that it names.
    """
    if BLOCK not in record:
        return None
    origin = origin_of(record)
    drawn = "result" in record
    told = record["result"] if drawn else record
    found = dict(values)
    for key in origin.metrics:
        if key not in found:
            # A value of nothing is none for others; of a run of ours it was believed.
            found[key] = number(told, name_of(key, drawn=drawn))
    facts = {
        "completed": told.get("completed_requests" if drawn else "completed"),
        "failed": told.get("failed_requests" if drawn else "failed"),
        _MOST: told.get(_MOST),
        **{name: told.get(total) for name, total in _TOTALS.items()},
    }
    run = RunResult(
        index=origin.run,
        seed=origin.seed,
        values={key: found[key] for key in origin.metrics},
        seconds=origin.seconds,
        facts=facts,
    )
    return PublishedRun(origin, str(record.get("commit") or ""), str(record.get("engine_version") or ""), run)


def origin_of(record: Mapping[str, Any]) -> RunOrigin:
    """:raises ClientError: it cannot be read: a later perfbisect's, or it was changed."""
    try:
        return RunOrigin.model_validate(record[BLOCK])
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ClientError(
            f"what perfbisect says of its run cannot be read: {place}: {first['msg']}"
        ) from None


def _served(cell: Cell, attempt: Attempt, place: int, raw: Mapping[str, Any]) -> dict[str, Any]:
    run = attempt.runs[place]
    ended = began(attempt, place) + timedelta(seconds=run.seconds)
    document: dict[str, Any] = {"date": _utc(ended)}
    document |= {"endpoint_type": cell.backend, "backend": cell.backend, "label": None}
    document |= {name: value for name, value in raw.items() if name != "date" and _kept(value)}
    facts = run.facts
    document |= {
        "model_id": cell.model,
        "tokenizer_id": cell.tokenizer or cell.model,
        "num_prompts": cell.num_prompts,
        "request_rate": "inf" if math.isinf(cell.request_rate) else cell.request_rate,
        "burstiness": cell.burstiness,
        "max_concurrency": cell.max_concurrency,
        "num_warmups": cell.num_warmups,
        "duration": facts.get("duration", run.seconds),
        "completed": _completed(run),
        "failed": facts.get("failed") or 0,
    }
    for name, total in {**_TOTALS, _MOST: _MOST}.items():
        if facts.get(name) is not None:
            document[total] = facts[name]
    if "images" in run.values:
        document["total_images"] = round(run.values["images"] * document["completed"])
    if "image_pixels" in run.values:
        document["average_pixels_per_image"] = run.values["image_pixels"]
    # Whoever reads results knows one of a served benchmark by this name.
    document.setdefault("request_throughput", document["completed"] / document["duration"])
    return document | _named(run, document, drawn=False)


def _drawn(cell: Cell, attempt: Attempt, place: int, raw: Mapping[str, Any]) -> dict[str, Any]:
    run = attempt.runs[place]
    plain = cell.model_dump(mode="json", by_alias=True)
    told = raw["result"] if isinstance(raw.get("result"), Mapping) else raw
    result = {name: value for name, value in told.items() if _kept(value)}
    result |= {
        "model": cell.model,
        "duration": run.facts.get("duration", run.seconds),
        "completed_requests": _completed(run),
        "failed_requests": run.facts.get("failed") or 0,
    }
    return {
        "test_name": _test(cell),
        "endpoint": cell.endpoint,
        "timestamp": _utc(began(attempt, place)),
        "server_params": {"model": cell.model, "serve_args": plain["serve_args"]},
        "benchmark_params": {
            **plain["dataset_args"],
            "name": cell.name,
            "dataset": cell.dataset_name,
            "task": cell.task,
            "num-prompts": cell.num_prompts,
            "max-concurrency": cell.max_concurrency,
            "request-rate": None if math.isinf(cell.request_rate) else cell.request_rate,
        },
        "result": result | _named(run, result, drawn=True),
    }


def _named(run: RunResult, document: Mapping[str, Any], *, drawn: bool) -> dict[str, Any]:
    """The run's values under the client's names."""
    found: dict[str, Any] = {}
    for key, value in run.values.items():
        name, _, statistic = key.partition(":")
        if not _in_series(key):
            continue
        if name.startswith(STAGE):
            of = f"stage_durations_{STAGE_STATISTICS[statistic]}"
            found.setdefault(of, dict(document.get(of) or {}))[name.removeprefix(STAGE)] = value
        elif name == "spec_decode_acceptance_rate":
            found[name] = document.get(name, value * 100)  # The client tells per cent.
        elif name not in _FOLLOW:
            found[name_of(key, drawn=drawn)] = value
    return found


def _in_series(key: str) -> bool:
    """False for standard deviations, and for what a later version knew and this one does not."""
    name = key.partition(":")[0]
    return not key.endswith(":std") and (name in METRICS or name.startswith(STAGE))


def _completed(run: RunResult) -> int:
    completed = run.facts.get("completed")
    if not isinstance(completed, int):
        raise ClientError("the run does not say how many requests were answered")
    return completed


def _kept(value: object) -> bool:
    """Numbers that are numbers, text, and tables of numbers: no lists of single requests."""
    if isinstance(value, Mapping):
        return all(isinstance(item, (int, float)) and _kept(item) for item in value.values())
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, (int, str))


def _test(cell: Cell) -> str:
    return "test_" + _UNSAFE.sub("_", cell.name.partition("@")[0])


def _utc(when: datetime) -> str:
    return when.astimezone(timezone.utc).strftime(_TIME)


def _rate(rate: float) -> str:
    """``2.0``, ``0.1``, ``inf``: a load with a point is a rate, also a whole one."""
    if math.isinf(rate):
        return "inf"
    text = f"{rate:.12f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text


SOURCE = "journal"
"""As of what kind builds of ours are kept: their launches are no repetitions of each other."""


@dataclass(frozen=True)
class PublishedPart:
    """A run that was read from a file of a build."""

    published: PublishedRun
    place: str
    record: int

    @property
    def origin(self) -> RunOrigin:
        return self.published.origin

    def rejected(self, build: Build, fate: RejectionReason, reason: str) -> RejectedResult:
        """As no point. :raises ValueError: its launch began at no time."""
        night = stamp(moment(self.origin.began))[:10]
        return RejectedResult(build, fate, reason, self.place, self.record, self.origin.cell, night)


def build_in(document: object) -> Build | None:
    """The build of ours that a result is of: the one that its journal is. None: it is none of ours."""
    record = document[0] if isinstance(document, list) and document else document
    if not isinstance(record, Mapping) or BLOCK not in record:
        return None
    try:
        origin = origin_of(record)
    except ClientError:
        return None
    return Build(SOURCE, PIPELINE, origin.job, commit=str(record.get("commit") or ""), fixed=origin.planned)


def launches(
    build: Build, parts: Sequence[PublishedPart], told: Collection[str] = ()
) -> Iterator[Point | RejectedResult]:
    """The launches of a build from their runs. ``told``: server starts of which the journal itself told.

    A launch of which a run is missing is none: its mean would be another one.
    """
    found: dict[str, dict[int, PublishedPart]] = {}
    for part in parts:
        origin = part.origin
        runs = found.setdefault(origin.launch, {})
        if origin.start in told or origin.run in runs:
            where = "in the journal" if origin.start in told else runs[origin.run].place
            yield part.rejected(build, "twin", f"the same run of the same launch is {where}")
        else:
            runs[origin.run] = part
    for runs in found.values():
        if not runs:
            continue
        last = runs[max(runs)]
        origin = last.origin
        if len(runs) == origin.runs:
            ordered = [runs[run] for run in sorted(runs)]
            attempt = _attempt(ordered)
            yield point_of(build, origin.cell, origin.model, attempt, last.place, last.record)
        else:
            there = f"{len(runs)} of the {origin.runs} runs of its launch are there"
            yield last.rejected(build, "unmeasured", there)


def cell_and_night(record: object) -> tuple[str, str]:
    """Of a result of ours that is none: its cell and its night; empty of others."""
    if not isinstance(record, Mapping) or BLOCK not in record:
        return "", ""
    try:
        origin = origin_of(record)
        return origin.cell, stamp(moment(origin.began))[:10]
    except (ClientError, ValueError):
        return "", ""


def _attempt(parts: Sequence[PublishedPart]) -> Attempt:
    origin, last = parts[-1].origin, parts[-1].published
    return Attempt(
        id=origin.launch,
        change_id=last.commit,
        purpose="run",
        provenance=Provenance(
            cell_digest=origin.digest,
            machine_class=origin.machine,
            client_digest=origin.client,
            client_era=origin.era,
            engine_version=last.engine,
            facts={
                "machine": {"host": origin.host},
                "launch": {"id": origin.start, "suite": origin.suite or None},
            },
        ),
        runs=tuple(part.published.run for part in parts),
        started_at=origin.began,
    )
