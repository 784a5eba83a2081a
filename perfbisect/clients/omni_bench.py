"""``vllm bench serve --omni``: vLLM-Omni's client for speech, chat with sound, images and videos."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfbisect.clients.bench_serve import (
    STAGE_STATISTICS,
    BenchClient,
    Totals,
    read_totals,
    reporting_options,
)
from perfbisect.clients.result_fields import count, incomplete_warnings, number
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.attempt import RunResult
from perfbisect.model.cell import Cell
from perfbisect.model.metric import STAGE, per_unit
from perfbisect.serving.families.probes import CHAT, EDITS, IMAGES, SPEECH, VIDEOS, audible

_SUFFIX = {
    "audio_rtf": "",
    "audio_duration": "_s",
    "audio_underrun": "_s",
    "video_rtf": "",
    "peak_memory_mb": "",
}
"""Suffix of the client's names; ``_ms`` for all others."""

_AGREE = 0.02
"""Relative tolerance between two dependent numbers of a result."""

_NO_SOUND = 0.02
"""Share of the median duration below which a request counts as silent."""


SILENT = 0.01
"""Percentile that is effectively the minimum: shows requests without sound."""

RAW_SOUND = {"stream_format": "audio", "response_format": "pcm"}
"""Response format of speech: the client counts bytes as 16-bit samples.

Servers stream events by default since #4679, and older clients do not request raw sound.
"""

_TEXT = ("ttft", "tpot", "itl")
_SOUND = ("audio_ttfp", "audio_rtf", "audio_duration")


@dataclass(frozen=True)
class Backend:
    """A backend's endpoint and the contents of its responses."""

    endpoint: str
    text: bool = False
    sound: bool = False
    image: bool = False
    video: bool = False


BACKENDS = {
    "openai-audio-speech": Backend(SPEECH, sound=True),
    "openai-chat-omni": Backend(CHAT, text=True, sound=True),
    "daily-omni": Backend(CHAT, text=True, sound=True),
    "openai-image-edits-omni": Backend(EDITS, image=True),
    IMAGES: Backend(IMAGES, image=True),
    EDITS: Backend(EDITS, image=True),
    VIDEOS: Backend(VIDEOS, video=True),
}
"""Chat responses have sound if the cell asks for it. WebSocket backends are not supported."""


def _values(
    document: Mapping[str, Any], keys: Sequence[str], optional: Sequence[str], totals: Totals
) -> dict[str, float]:
    completed, failed = totals.completed, totals.failed
    known = {"failed": failed / (completed + failed)}
    known["input_tokens"] = count(document, "total_input_tokens") / completed
    known["output_tokens"] = count(document, "total_output_tokens") / completed
    if "images" in keys:
        known["images"] = count(document, "total_images") / completed
        known["image_pixels"] = number(document, "average_pixels_per_image")
    derived = {key for key in keys if "_per_" in key}
    values: dict[str, float] = {}
    missing = []
    for key in keys:
        if key in derived:
            continue
        if key in known:
            value: float | None = known[key]
        elif key.startswith(("tpot", "itl")) and known["output_tokens"] <= 1:
            continue  # One token has no time between tokens.
        else:
            value = _reported(document, key)
        if value is None:
            missing.append(_names(key)[0])
            continue
        may_be_zero = key in known or key.startswith("audio_underrun") or key == "request_goodput"
        if value < 0 or (value == 0 and not may_be_zero):
            raise ClientError(f"{_names(key)[0]} is {value:g}: no measurement")
        values[key] = value
    if missing:
        raise ClientError(f"the result has no {', '.join(missing)}")
    for key in optional:
        value = _reported(document, key)
        if value is not None and math.isfinite(value) and value > 0:
            values[key] = value
    return {**values, **{key: value for key, value in per_unit(values).items() if key in derived}}


def _names(key: str) -> tuple[str, ...]:
    """Names that client versions use for ``audio_ttfp:median``: ``median_audio_ttfp_ms``."""
    name, _, statistic = key.partition(":")
    if not statistic:
        return (name,)
    full = f"{statistic}_{name}{_SUFFIX.get(name, '_ms')}"
    return (full, full.removesuffix("_s") + "_ms") if full.endswith("_s") else (full,)


def _reported(document: Mapping[str, Any], key: str) -> float | None:
    """The value under the first known name, in the unit of the metric table."""
    for place, name in enumerate(_names(key)):
        if name in document:
            return number(document, name) / (1000.0 if place else 1.0)
    return None


def _sound(document: Mapping[str, Any], duration: float) -> float:
    """Total seconds of sound. :raises ClientError: total and throughput contradict each other."""
    if "total_audio_duration_s" in document:
        total = number(document, "total_audio_duration_s")
    elif "total_audio_duration_ms" in document:
        total = number(document, "total_audio_duration_ms") / 1000.0
    else:
        raise ClientError("the result has no total_audio_duration_s")
    implied = number(document, "audio_throughput") * duration
    if abs(implied - total) > _AGREE * max(implied, total):
        raise ClientError(
            f"the result contradicts itself: {total:g} s of sound, but audio_throughput implies {implied:g} s"
        )
    return total


def _silent(document: Mapping[str, Any], values: Mapping[str, float]) -> list[str]:
    median = values.get("audio_duration:median")
    shortest = _reported(document, f"audio_duration:p{SILENT:g}")
    if median is None or shortest is None or shortest > _NO_SOUND * median:
        return []
    return [f"at least one request has no sound: the shortest is {shortest:.2f} s, the median {median:.2f} s"]


def _short(cell: Cell, completed: int, tokens: int) -> list[str]:
    asked = cell.dataset_args.get("random-output-len")
    ranged = cell.dataset_args.get("random-range-ratio")
    if not cell.ignore_eos or not isinstance(asked, int) or ranged or tokens >= asked * completed:
        return []
    return [f"outputs are shorter than requested: {tokens / completed:.1f} of {asked} tokens per request"]


def stages(document: Mapping[str, Any]) -> dict[str, float]:
    """Stage durations from the engine's profiler."""
    found: dict[str, float] = {}
    for statistic, suffix in STAGE_STATISTICS.items():
        reported = document.get(f"stage_durations_{suffix}")
        for stage, value in reported.items() if isinstance(reported, Mapping) else ():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if is_number and math.isfinite(value) and value > 0:
                found[f"{STAGE}{stage}:{statistic}"] = float(value)
    return found


class OmniBench(BenchClient):
    """``vllm bench serve --omni``.

    Sampling is the deploy YAML's unless the cell sets it: greedy speech does not end. Nothing is preloaded:
    its modules patch those of vLLM in the order of their import.
    """

    name = "omni_bench"
    package = "vllm_omni"
    sources: tuple[str, ...] = ("benchmarks", "entrypoints/cli/benchmark", "metrics/definitions.py")
    reports_stages = True

    def options(self, cell: Cell) -> dict[str, object]:
        """See :class:`BenchClient`. :raises UsageError: the backend or the response format does not fit."""
        return {
            "omni": True,
            "extra-body": _extra_body(cell) or None,
            "ready-check-timeout-sec": 60,
            **reporting_options(_percentile_metrics(cell), _percentiles(cell)),
        }

    def metrics(self, cell: Cell) -> tuple[str, ...]:
        """See :class:`BenchClient`; never standard deviations. :raises UsageError: an unknown backend."""
        backend = look_up_backend(cell)
        statistics = ["median", "mean", *(f"p{percentile:g}" for percentile in cell.metric_percentiles)]
        asked = _percentile_metrics(cell)
        names = [name for name in asked if name not in _TEXT or backend.text]
        keys = [f"{name}:{part}" for name in names for part in statistics]
        keys += ["request_throughput", "failed"]
        keys += ["request_goodput"] if "goodput" in cell.client.args else []
        if backend.text:
            keys += ["output_throughput", "total_token_throughput", "output_tokens", "input_tokens"]
            keys += ["e2el_per_token"]
        if set(_SOUND) & set(asked):
            keys += ["audio_throughput"]
        if "audio_duration" in asked:
            keys += ["e2el_per_audio_s"]
            keys += ["audio_ttfp_per_audio_s"] if "audio_ttfp" in asked else []
        if backend.image:
            keys += ["image_throughput", "images", "image_pixels"]
        if backend.video:
            keys += ["video_throughput"]
        return tuple(keys)

    def may_report(self, cell: Cell) -> tuple[str, ...]:
        """Metrics of servers that report their stages, and peak memory."""
        backend = look_up_backend(cell)
        keys = ["peak_memory_mb:median", "peak_memory_mb:mean"] if backend.image or backend.video else []
        keys += ["denoise_step_latency:mean"] if backend.image else []
        if backend.video:
            keys += [
                f"{name}:{part}" for name in ("video_generation", "video_rtf") for part in ("median", "mean")
            ]
        return tuple(keys)

    def parse(
        self,
        cell: Cell,
        document: Mapping[str, Any],
        *,
        index: int,
        seed: int,
        expected: Mapping[str, object] | None = None,
    ) -> RunResult:
        """See :meth:`perfbisect.clients.Client.parse`."""
        if not document.get("date") and not document.get("num_prompts"):
            raise ClientError("the result is the zero-filled form that the harness writes after a failed run")
        totals = read_totals(cell, document, seed, expected or {})
        has_sound = "audio_duration" in _percentile_metrics(cell)
        is_speech = look_up_backend(cell).endpoint == SPEECH
        sound = _sound(document, totals.duration) if has_sound or is_speech else 0.0
        if has_sound and sound <= 0:
            raise ClientError(f"{totals.completed} requests completed without one second of sound")
        values = _values(document, self.metrics(cell), self.may_report(cell), totals)
        warnings = [
            *incomplete_warnings(cell.num_prompts, totals.completed, totals.failed, totals.errors),
            *_silent(document, values),
            *_short(cell, totals.completed, count(document, "total_output_tokens")),
        ]
        return RunResult(
            index=index,
            seed=seed,
            values={**values, **stages(document)},
            warnings=tuple(warnings),
            seconds=totals.duration,
            facts={**totals.facts(document), "audio_seconds": sound},
        )


def look_up_backend(cell: Cell) -> Backend:
    """:raises UsageError: the backend is unknown or does not fit the endpoint."""
    found = BACKENDS.get(cell.backend)
    if found is None:
        raise UsageError(
            f"cell {cell.name}: client omni_bench has no backend {cell.backend}: {', '.join(BACKENDS)}",
            field="backend",
        )
    if found.endpoint != cell.endpoint:
        raise UsageError(
            f"cell {cell.name}: backend {cell.backend} uses {found.endpoint}, but the cell's endpoint is "
            f"{cell.endpoint}",
            field="backend",
        )
    return found


def _percentile_metrics(cell: Cell) -> tuple[str, ...]:
    """The requested percentile metrics.

    Speech always has those of sound (its TTFT was its TTFP until #3674); a chat with sound has the duration;
    all have the latency of the request.
    """
    backend = look_up_backend(cell)
    names = [name for name in cell.percentile_metrics if name in _TEXT and backend.text]
    if backend.sound and (not backend.text or audible(cell)):
        asked = [name for name in cell.percentile_metrics if name.startswith("audio_")]
        names += dict.fromkeys((*asked, *(_SOUND if not backend.text else ("audio_duration",))))
    return (*names, "e2el")


def _percentiles(cell: Cell) -> tuple[float, ...]:
    return (*((SILENT,) if "audio_duration" in _percentile_metrics(cell) else ()), *cell.metric_percentiles)


def _extra_body(cell: Cell) -> dict[str, object]:
    """The cell's extra body, with raw sound for speech. :raises UsageError: another response format."""
    if look_up_backend(cell).endpoint != SPEECH:
        return dict(cell.extra_body)
    for name, value in {**RAW_SOUND, "stream": True}.items():
        if cell.extra_body.get(name, value) != value:
            raise UsageError(
                f"cell {cell.name}: extra_body sets {name} to {cell.extra_body[name]!r}, but the client "
                f"counts raw sound: {name} must be {value!r} or left out",
                field="extra_body",
            )
    return {**cell.extra_body, "stream_format": RAW_SOUND["stream_format"]}


CLIENT = OmniBench()
