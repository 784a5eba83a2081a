"""A run of ours that was published as a result file of vLLM-Omni's kanban, read back as a run.

The key ``perfbisect`` of a file says whose run it is, so that the files of a launch become a launch again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfbisect.clients.base import number
from perfbisect.common.quantities import moment, stamp
from perfbisect.errors import ClientError
from perfbisect.model.attempt import Attempt, Provenance, RunResult
from perfbisect.model.metric import METRICS
from perfbisect.series.points import Build, Point, RejectedResult, RejectionKind
from perfbisect.series.sources.journals import PIPELINE, SOURCE, point_of_attempt

BLOCK = "perfbisect"
TOTALS = {"input_tokens": "total_input_tokens", "output_tokens": "total_output_tokens"}
"""Facts of a run, and their names in a result."""

MOST_REQUESTS = "max_concurrent_requests"
_SUFFIXES = {"ms": "_ms", "s": "_s"}


class RunOrigin(BaseModel):
    """Whose run a file is: what the client's own names cannot say.

    ``launch``: id of the attempt; ``run``: its place among its ``runs``, from 1. ``start``: the server start,
    which other cells of the ``suite`` may share. ``planned``: when the commit was chosen; ``began``: when the
    launch did (ISO 8601). ``seconds`` of the run with the client's own start. ``client``, ``era``: the
    client's digest and declared era; ``machine``: the machine class. ``metrics``: what the run reports, by
    our names.
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
    """A run that was read back, of the build in which its file lies."""

    build: Build
    origin: RunOrigin
    engine: str
    run: RunResult
    raw: str = ""
    record: int = 0

    def rejected(self, kind: RejectionKind, reason: str) -> RejectedResult:
        night = stamp(moment(self.origin.began))[:10]
        return RejectedResult(self.build, kind, reason, self.raw, self.record, self.origin.cell, night)


def name_of(key: str, *, diffusion: bool = False) -> str:
    """The name in a result for one of ours: ``ttft:median`` -> ``median_ttft_ms``; see :func:`key_of`.

    ``diffusion``: in a result of the diffusion benchmark, ``latency_median``.
    """
    name, _, statistic = key.partition(":")
    if not statistic:
        return name
    if diffusion:
        return f"{name}_{statistic}"
    return f"{statistic}_{name}{_SUFFIXES.get(METRICS[name].unit, '')}"


def published_run(
    record: Mapping[str, Any], result: Mapping[str, Any], values: Mapping[str, float]
) -> PublishedRun | None:
    """The run that a record holds; ``result``: the part with the numbers; None: it is not ours.

    ``values`` as they are read of any result.

    Raises:
        ClientError: its origin cannot be read, or a metric is missing that it names.
    """
    if BLOCK not in record:
        return None
    try:
        origin = RunOrigin.model_validate(record[BLOCK])
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ClientError(
            f"what perfbisect says of its run cannot be read: {field}: {first['msg']}"
        ) from None
    is_diffusion = result is not record
    suffix = "_requests" if is_diffusion else ""
    reported = {
        # A value of zero is not read of other results; of a run of ours it counts.
        key: values[key] if key in values else number(result, name_of(key, diffusion=is_diffusion))
        for key in origin.metrics
    }
    facts = {
        "completed": result.get(f"completed{suffix}"),
        "failed": result.get(f"failed{suffix}"),
        MOST_REQUESTS: result.get(MOST_REQUESTS),
        **{name: result.get(total) for name, total in TOTALS.items()},
    }
    run = RunResult(origin.run, origin.seed, reported, seconds=origin.seconds, facts=facts)
    return PublishedRun(_build(origin, record), origin, str(record.get("engine_version") or ""), run)


def read_origin(document: object) -> RunOrigin | None:
    """The origin in a result file or a record of one; None: it is not ours or cannot be read."""
    record = document[0] if isinstance(document, list) and document else document
    if not isinstance(record, Mapping) or BLOCK not in record:
        return None
    try:
        origin = RunOrigin.model_validate(record[BLOCK])
        moment(origin.began)
    except ValueError:
        return None
    return origin


def published_build(document: object) -> Build | None:
    """The build of ours that a result is of: the one that its journal is. None: it is none of ours."""
    origin = read_origin(document)
    if origin is None:
        return None
    return _build(origin, document[0] if isinstance(document, list) else document)


def _build(origin: RunOrigin, record: Any) -> Build:
    """``commit`` is empty where what was measured is no commit."""
    return Build(SOURCE, PIPELINE, origin.job, commit=str(record.get("commit") or ""), fixed=origin.planned)


def published_points(
    runs: Iterable[PublishedRun], recorded: Collection[str] = ()
) -> Iterator[Point | RejectedResult]:
    """The launches of a build from their runs. ``recorded``: server starts that the journal itself has.

    A launch of which a run is missing is rejected: its value would be another one.
    """
    launches: dict[str, dict[int, PublishedRun]] = {}
    for run in runs:
        launch = launches.setdefault(run.origin.launch, {})
        if run.origin.start in recorded:
            yield run.rejected("twin", "the same run of the same launch is in the journal")
        elif run.origin.run in launch:
            reason = f"the same run of the same launch is {launch[run.origin.run].raw}"
            yield run.rejected("twin", reason)
        else:
            launch[run.origin.run] = run
    for launch in filter(None, launches.values()):
        ordered = [launch[number] for number in sorted(launch)]
        last, expected = ordered[-1], ordered[-1].origin.runs
        if len(ordered) == expected:
            origin = last.origin
            attempt = _attempt_of(ordered)
            yield point_of_attempt(last.build, origin.cell, origin.model, attempt, last.raw, last.record)
        else:
            reason = f"{len(ordered)} of the {expected} runs of its launch are there"
            yield last.rejected("unmeasured", reason)


def _attempt_of(runs: Sequence[PublishedRun]) -> Attempt:
    last, origin = runs[-1], runs[-1].origin
    provenance = Provenance(
        cell_digest=origin.digest,
        machine_class=origin.machine,
        client_digest=origin.client,
        client_era=origin.era,
        engine_version=last.engine,
        facts={
            "machine": {"host": origin.host},
            "launch": {"id": origin.start, "suite": origin.suite or None},
        },
    )
    results, change = tuple(run.run for run in runs), last.build.commit
    return Attempt(origin.launch, change, "run", provenance, results, started_at=origin.began)
