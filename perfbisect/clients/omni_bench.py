"""``vllm bench serve --omni``: vLLM-Omni's client for speech, chat with sound, images and videos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfbisect.clients.base import (
    NO_VALUES,
    Client,
    Document,
    bench_facts,
    check_bench_identity,
    count,
    number,
    read_stages,
    read_totals,
    reporting_options,
    token_values,
)
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.attempt import RunResult
from perfbisect.model.cell import Cell
from perfbisect.serving.families.probes import CHAT, EDITS, IMAGES, SPEECH, VIDEOS, audible
from perfbisect.serving.first_chunks import FIRST_CHUNK, LEAST_PERCENT

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

_RAW_SOUND = {"stream_format": "audio", "response_format": "pcm"}
"""Response format of speech: the client counts bytes as 16-bit samples.

Servers stream events by default since #4679, and older clients do not request raw sound.
"""

_IMPORTED = (
    # Its package imports the client, the server and their patches of vLLM, as for every command.
    *(f"vllm_omni.entrypoints.cli.{name}" for name in ("main", "benchmark.main", "serve")),
    *("vllm_omni.utils.tracking_parser", "vllm_omni.benchmarks.serve"),
)
"""In the order of a run: modules of vLLM-Omni patch those of vLLM. What a version lacks is skipped."""

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


class OmniBench(Client):
    """``vllm bench serve --omni``.

    Sampling is the deploy YAML's unless the cell sets it: greedy speech does not end.
    """

    name = "omni_bench"
    package = "vllm_omni"
    sources: tuple[str, ...] = ("benchmarks", "entrypoints/cli/benchmark", "metrics/definitions.py")
    reports_stages = True

    def options(self, cell: Cell) -> dict[str, object]:
        """See :class:`Client`. :raises UsageError: the backend or the response format does not fit."""
        requested = _percentile_metrics(cell)
        lowest = (LEAST_PERCENT,) if "audio_duration" in requested else ()
        body = dict(cell.extra_body)
        if look_up_backend(cell).endpoint == SPEECH:
            for name, value in {**_RAW_SOUND, "stream": True}.items():
                if body.get(name, value) != value:
                    raise UsageError(
                        f"cell {cell.name}: extra_body sets {name} to {body[name]!r}, but the client "
                        f"counts raw sound: {name} must be {value!r} or left out",
                        field="extra_body",
                    )
            body["stream_format"] = _RAW_SOUND["stream_format"]
        # A pipeline of diffusers has its tokenizer in a folder of its own. A hub's name is not looked up,
        # and the client takes no folder within a repository.
        model, tokenizer = Path(cell.model), Path(cell.model) / "tokenizer"
        is_pipeline = model.is_absolute() and (model / "model_index.json").is_file() and tokenizer.is_dir()
        return {
            "omni": True,
            "tokenizer": cell.tokenizer or (str(tokenizer) if is_pipeline else cell.model),
            "extra-body": body or None,
            "ready-check-timeout-sec": 60,
            **reporting_options(requested, (*lowest, *cell.percentiles)),
        }

    def preload(self, env: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002
        """The imports of ``vllm bench serve --omni``."""
        return _IMPORTED

    def metrics(self, cell: Cell) -> tuple[str, ...]:
        """See :class:`Client`; never standard deviations. :raises UsageError: an unknown backend."""
        backend = look_up_backend(cell)
        parts = ("median", "mean", *(f"p{percentile:g}" for percentile in cell.percentiles))
        requested = _percentile_metrics(cell)
        keys = [f"{name}:{part}" for name in requested for part in parts]
        keys += ["request_throughput", "failed"]
        keys += ["request_goodput"] if "goodput" in cell.client.args else []
        if backend.text:
            keys += ["output_throughput", "total_token_throughput", "output_tokens", "input_tokens"]
            keys += ["e2el_per_token"]
        if set(_SOUND) & set(requested):
            keys += ["audio_throughput"]
        if "audio_duration" in requested:
            keys += ["e2el_per_audio_s"]
            keys += ["audio_ttfp_per_audio_s"] if "audio_ttfp" in requested else []
        if backend.image:
            keys += ["image_throughput", "images", "image_pixels"]
        if backend.video:
            keys += ["video_throughput"]
        return tuple(keys)

    def may_report(self, cell: Cell) -> tuple[str, ...]:
        """Metrics of servers that report their stages, peak memory, the first sound of each answer."""
        backend, requested = look_up_backend(cell), _percentile_metrics(cell)
        names = ["peak_memory_mb"] if backend.image or backend.video else []
        names += ["video_generation", "video_rtf"] if backend.video else []
        keys = [f"{name}:{part}" for name in names for part in ("median", "mean")]
        keys += [f"audio_ttfp:p{LEAST_PERCENT:g}"] if "audio_ttfp" in requested else []
        if backend.endpoint == SPEECH:
            percentiles = (LEAST_PERCENT, *cell.percentiles)
            parts = ("median", "mean", *(f"p{percentile:g}" for percentile in percentiles))
            keys += [f"{FIRST_CHUNK}:{part}" for part in parts]
        return (*keys, *(["denoise_step_latency:mean"] if backend.image else []))

    def field(self, key: str) -> str:
        name, _, statistic = key.partition(":")
        return f"{statistic}_{name}{_SUFFIX.get(name, '_ms')}" if statistic else name

    def reported(self, document: Document, key: str) -> float | None:
        field = self.field(key)
        older = f"{field.removesuffix('_s')}_ms"
        if ":" in key and field.endswith("_s") and field not in document and older in document:
            return number(document, older) / 1000.0
        return super().reported(document, key)

    def parse(
        self, cell: Cell, document: Document, *, index: int, seed: int, expected: Document = NO_VALUES
    ) -> RunResult:
        if not document.get("date") and not document.get("num_prompts"):
            raise ClientError("the result is the zero-filled form that the harness writes after a failed run")
        check_bench_identity(cell, document, seed, expected)
        totals = read_totals(cell, document)
        has_sound = "audio_duration" in _percentile_metrics(cell)
        is_speech = look_up_backend(cell).endpoint == SPEECH
        sound = _seconds_of_sound(document, totals.duration) if has_sound or is_speech else 0.0
        if has_sound and sound <= 0:
            raise ClientError(
                f"{totals.completed} requests completed without one second of sound", code="no_output"
            )
        known = token_values(document, totals)
        if look_up_backend(cell).image:
            known["images"] = count(document, "total_images") / totals.completed
            known["image_pixels"] = number(document, "average_pixels_per_image")
        values = self.read_values(cell, document, known)
        warnings = [
            *totals.warnings(cell.num_prompts),
            *self._silent(document, values),
            *_short_outputs(cell, known["output_tokens"]),
        ]
        return RunResult(
            index=index,
            seed=seed,
            values={**values, **read_stages(document)},
            warnings=tuple(warnings),
            seconds=totals.duration,
            facts={**bench_facts(document, totals), "audio_seconds": sound},
        )

    def _silent(self, document: Document, values: Mapping[str, float]) -> list[str]:
        median = values.get("audio_duration:median")
        shortest = self.reported(document, f"audio_duration:p{LEAST_PERCENT:g}")
        if median is None or shortest is None or shortest > _NO_SOUND * median:
            return []
        lengths = f"the shortest is {shortest:.2f} s, the median {median:.2f} s"
        return [f"at least one request has no sound: {lengths}"]


def _seconds_of_sound(document: Document, duration: float) -> float:
    """Total seconds of sound. :raises ClientError: total and throughput contradict each other."""
    if "total_audio_duration_s" in document:
        total = number(document, "total_audio_duration_s")
    # vLLM-Omni before 117d9bd1 (2026-02-04).
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


def _short_outputs(cell: Cell, tokens: float) -> list[str]:
    requested = cell.dataset_args.get("random-output-len")
    ranged = cell.dataset_args.get("random-range-ratio")
    # With a range the lengths are drawn, so that none is too short.
    if not cell.ignore_eos or not isinstance(requested, int) or ranged or tokens >= requested:
        return []
    return [f"outputs are shorter than requested: {tokens:.1f} of {requested} tokens per request"]


def look_up_backend(cell: Cell) -> Backend:
    """:raises UsageError: the backend is unknown or does not fit the endpoint."""
    found = BACKENDS.get(cell.backend)
    problem = ""
    if found is None:
        problem = f"client omni_bench has no backend {cell.backend}: {', '.join(BACKENDS)}"
    elif found.endpoint != cell.endpoint:
        problem = f"backend {cell.backend} uses {found.endpoint}, but the cell's endpoint is {cell.endpoint}"
    if found is None or problem:
        raise UsageError(f"cell {cell.name}: {problem}", field="backend")
    return found


def _percentile_metrics(cell: Cell) -> tuple[str, ...]:
    """The requested percentile metrics.

    Speech always has those of sound (its TTFT was its TTFP until #3674); a chat with sound has the duration;
    all have the latency of the request.
    """
    backend = look_up_backend(cell)
    names = [name for name in cell.percentile_metrics if name in _TEXT and backend.text]
    if backend.sound and (not backend.text or audible(cell)):
        requested = [name for name in cell.percentile_metrics if name.startswith("audio_")]
        names += dict.fromkeys((*requested, *(_SOUND if not backend.text else ("audio_duration",))))
    return (*names, "e2el")


CLIENT = OmniBench()
