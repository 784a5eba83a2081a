"""Result documents that others made -> numbers in our units, with what the document says of the workload.

No cell is known that says what must be in them, so whatever the metric table knows is read, and what makes a
result no measurement is refused with its reason: requests that failed, forms full of zeros, numbers that are
none, numbers that contradict each other. The suffix of a name is its unit, the table says ours.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfbisect.clients.base import CELL, count, number, read_stages
from perfbisect.errors import ClientError
from perfbisect.model.metric import METRICS, per_unit
from perfbisect.series.points import RejectionReason
from perfbisect.series.sources.published import PublishedRun, published_run

SPEECH = "openai-audio-speech"
"""A backend whose TTFT was its TTFP until #3674, and is gone since: never read."""

_AGREE = 0.02
"""How far, relatively, two numbers of a result that follow from each other may lie apart."""

_STATISTIC = r"(?P<statistic>mean|median|p\d{1,2}(?:\.\d+)?)"
_SERVED = re.compile(rf"^{_STATISTIC}_(?P<name>[a-z0-9_]+?)(?P<unit>_ms|_s)?$")
_DRAWN = re.compile(rf"^(?P<name>latency|peak_memory_mb|image_distance)_{_STATISTIC}$")
_FACTORS = {("ms", "s"): 0.001, ("s", "ms"): 1000.0}


@dataclass(frozen=True)
class ParsedResult:
    """One result. ``began``, ``ended``: as the document tells them, with or without a zone; one may be empty.

    ``test``, ``setting``: of a diffusion record; of others the file's name has them. ``lengths``:
    ``in2500-out900`` where the document has them. ``covariates``: of ``core.point.COVARIATES``.
    """

    values: Mapping[str, float]
    covariates: Mapping[str, Any]
    model: str
    backend: str
    prompts: int
    concurrency: int | None
    rate: float
    began: str = ""
    ended: str = ""
    test: str = ""
    setting: str = ""
    lengths: str = ""
    only_text: bool = False
    digest: str = ""
    published: PublishedRun | None = None
    """The run of ours that it is."""


@dataclass(frozen=True)
class UnusableResult:
    """A result that is none, and why."""

    fate: RejectionReason
    reason: str


@dataclass
class _Sorted:
    """Values as they are read, and the names whose unit was another one."""

    values: dict[str, float] = field(default_factory=dict)
    converted: list[str] = field(default_factory=list)


def key_of(name: str) -> tuple[str, float] | None:
    """A result's own name -> ours with its statistic, and what makes its numbers ours.

    ``median_audio_ttfp_ms`` -> (``audio_ttfp:median``, 1.0); None where the metric table has none of it.
    """
    if name in METRICS and not METRICS[name].per_request:
        return name, 1.0
    for pattern in (_SERVED, _DRAWN):
        match = pattern.match(name)
        if match is not None and match["name"] in METRICS and METRICS[match["name"]].per_request:
            unit = (match["unit"] or "")[1:] if "unit" in match.groupdict() else ""
            factor = _FACTORS.get((unit, METRICS[match["name"]].unit), 1.0)
            return f"{match['name']}:{match['statistic']}", factor
    return None


def readings(document: object) -> Iterator[ParsedResult | UnusableResult]:
    """The results of a file: one of a served benchmark, or the records of a diffusion benchmark."""
    records = document if isinstance(document, list) else [document]
    if isinstance(document, list) and not any(_is_diffusion(record) for record in records):
        yield UnusableResult("other", "a list without a result of the diffusion benchmark")
        return
    for record in records:
        try:
            yield _reading(record)
        except (ClientError, ArithmeticError) as error:
            yield UnusableResult("broken", str(error))


def _reading(record: object) -> ParsedResult | UnusableResult:
    if not isinstance(record, Mapping):
        return UnusableResult("other", f"holds {type(record).__name__}, no result of a benchmark")
    if _is_diffusion(record):
        return _diffusion(record, record["result"])
    if {"completed", "duration", "request_throughput"} <= set(record):
        return _served(record)
    return UnusableResult(
        "other", "holds no result of a served benchmark: no completed, duration, request_throughput"
    )


def _is_diffusion(record: object) -> bool:
    return (
        isinstance(record, Mapping)
        and isinstance(record.get("result"), Mapping)
        and "completed_requests" in record["result"]
    )


def _served(document: Mapping[str, Any]) -> ParsedResult | UnusableResult:
    if not document.get("date") and not document.get("num_prompts"):
        return UnusableResult(
            "template", "the form of zeros that the harness writes where the benchmark left none"
        )
    prompts = count(document, "num_prompts")
    completed = count(document, "completed")
    failed = count(document, "failed") if "failed" in document else prompts - completed
    refused = _unfinished(prompts, completed, failed)
    if refused is not None:
        return refused
    duration = _duration(document)
    backend = str(document.get("backend") or document.get("endpoint_type") or "")
    found = _Sorted()
    for name in document:
        if not (backend == SPEECH and name.endswith("_ttft_ms")):
            _keep(found, document, name)
    if "spec_decode_acceptance_rate" in found.values:
        found.values["spec_decode_acceptance_rate"] /= 100  # The client tells per cent.
    spoken = any(key.startswith("audio_") and key != "audio_throughput" for key in found.values)
    if spoken or backend == SPEECH:
        silent = _silent(document, duration, found)
        if silent is not None:
            return silent
    found.values |= _per_request(document, completed)
    found.values |= {**per_unit(found.values), **read_stages(document)}
    audio = found.values.get("audio_duration:median")
    return ParsedResult(
        values=found.values,
        covariates={
            **_common(document, duration, completed, failed, prompts, found.converted),
            "input_tokens": found.values.get("input_tokens"),
            "output_tokens": found.values.get("output_tokens"),
            "audio_duration": audio,
            "max_concurrent_requests": document.get("max_concurrent_requests"),
            "warmups": document.get("num_warmups"),
            "baseline": _mapping(document.get("baseline")),
            "hardware": str(document.get("Hardware") or document.get("hardware") or ""),
        },
        model=str(document.get("model_id") or ""),
        backend=backend,
        prompts=prompts,
        concurrency=count(document, "max_concurrency") if document.get("max_concurrency") else None,
        rate=_rate(document.get("request_rate")),
        ended=str(document.get("date") or ""),
        lengths=_lengths(document),
        only_text=backend.endswith("-omni") and backend != SPEECH and not spoken,
        digest=str(document.get(CELL) or ""),
        published=published_run(document, found.values),
    )


def _diffusion(record: Mapping[str, Any], result: Mapping[str, Any]) -> ParsedResult | UnusableResult:
    asked, server = _mapping(record.get("benchmark_params")), _mapping(record.get("server_params"))
    prompts = asked.get("num-prompts") or 0
    if not record.get("timestamp") and not prompts:
        return UnusableResult(
            "template", "the form of zeros that the harness writes where the benchmark left none"
        )
    completed, failed = count(result, "completed_requests"), count(result, "failed_requests")
    refused = _unfinished(prompts, completed, failed)
    if refused is not None:
        return refused
    duration = _duration(result)
    found = _Sorted()
    for name in result:
        _keep(found, result, name)
    found.values |= {"failed": 0.0, **read_stages(result)}
    served = {key: value for key, value in server.items() if key != "model"}
    return ParsedResult(
        values=found.values,
        covariates={
            **_common(result, duration, completed, failed, prompts, found.converted),
            "server": _digest(served),
            "baseline": _mapping(asked.get("baseline")),
            "hardware": str(record.get("Hardware") or record.get("hardware") or ""),
        },
        model=str(server.get("model") or result.get("model") or ""),
        backend=str(record.get("endpoint") or record.get("backend") or ""),
        prompts=prompts,
        concurrency=asked.get("max-concurrency"),
        rate=_rate(asked.get("request-rate")),
        began=str(record.get("timestamp") or ""),
        test=str(record.get("test_name") or "").removeprefix("test_"),
        setting=str(asked.get("name") or asked.get("task") or ""),
        published=published_run(record, found.values),
    )


def _unfinished(prompts: int, completed: int, failed: int) -> UnusableResult | None:
    if completed == 0:
        return UnusableResult("failed", f"none of {prompts} requests completed ({failed} failed)")
    if failed:
        return UnusableResult("failed", f"{failed} of {completed + failed} requests failed")
    if completed != prompts:
        return UnusableResult("failed", f"{completed} requests completed where {prompts} were asked for")
    return None


def _duration(document: Mapping[str, Any]) -> float:
    duration = number(document, "duration")
    if duration <= 0:
        raise ClientError(f"duration is {duration:g} s")
    return duration


def _keep(found: _Sorted, document: Mapping[str, Any], name: str) -> None:
    """A value in the table's unit; one of nothing is not reported, but where nothing is a value.

    :raises ClientError: it is no number, or less than nothing.
    """
    ours = key_of(name)
    if ours is None or document[name] is None:
        return
    key, factor = ours
    value = number(document, name) * factor
    if value < 0:
        raise ClientError(f"{name} is {document[name]}: no measurement")
    if value == 0 and not METRICS[key.partition(":")[0]].guard:
        return
    if factor != 1.0:
        found.converted.append(name)
    found.values[key] = value


def _silent(document: Mapping[str, Any], duration: float, found: _Sorted) -> UnusableResult | None:
    """Sound that must be there: some of it, and as much as the throughput says.

    :raises ClientError: total and throughput contradict each other, so a unit is not what its name says.
    """
    if "total_audio_duration_s" in document:
        total = number(document, "total_audio_duration_s")
    elif "total_audio_duration_ms" in document:
        total = number(document, "total_audio_duration_ms") / 1000.0
        found.converted.append("total_audio_duration_ms")
    else:
        return None
    if total <= 0:
        return UnusableResult("silent", "sound was asked for, and not one second of it came")
    told = number(document, "audio_throughput") * duration if "audio_throughput" in document else total
    if abs(told - total) > _AGREE * max(told, total):
        raise ClientError(f"contradicts itself: {total:g} s of sound, and by its audio_throughput {told:g} s")
    return None


def _per_request(document: Mapping[str, Any], completed: int) -> dict[str, float]:
    found = {"failed": 0.0}
    for name, key in (("input_tokens", "total_input_tokens"), ("output_tokens", "total_output_tokens")):
        if total := count(document, key) if document.get(key) is not None else 0:
            found[name] = total / completed
    if document.get("total_images"):
        found["images"] = count(document, "total_images") / completed
    if document.get("average_pixels_per_image"):
        found["image_pixels"] = number(document, "average_pixels_per_image")
    return found


def _common(
    document: Mapping[str, Any],
    duration: float,
    completed: int,
    failed: int,
    prompts: int,
    converted: Sequence[str],
) -> dict[str, Any]:
    return {
        "duration": duration,
        "completed": completed,
        "failed": failed,
        "prompts": prompts,
        "keys": _digest(sorted(document)),
        "converted": list(converted),
        "engine": str(document.get("engine_version") or ""),
    }


def _rate(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.inf


def _lengths(document: Mapping[str, Any]) -> str:
    parts = [
        f"{short}{document[key]}"
        for short, key in (("in", "random_input_len"), ("out", "random_output_len"))
        if isinstance(document.get(key), int) and document[key] > 0
    ]
    return "-".join(parts)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
