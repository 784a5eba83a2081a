"""``vllm bench serve --omni``: vLLM-Omni's client for speech, chat with sound, images and videos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from perfbisect.clients import bench_serve, reading
from perfbisect.clients import omni_bench_result as result_document
from perfbisect.core.attempt import RunResult
from perfbisect.core.cell import Cell
from perfbisect.core.metric import STAGE, MetricRef
from perfbisect.errors import UsageError
from perfbisect.families import Endpoint
from perfbisect.families.requests import CHAT, EDITS, IMAGES, SPEECH, VIDEOS, audible

SILENT = 0.01
"""A percentile so low that it is the shortest answer: a request without any sound shows in it."""

RAW_SOUND = {"stream_format": "audio", "response_format": "pcm"}
"""What the speech client must be answered with: it counts bytes, and takes each pair for a sample.

Servers stream events by default since #4679; the clients of before do not ask for raw sound by themselves.
"""

_TEXT = ("ttft", "tpot", "itl")
_SOUND = ("audio_ttfp", "audio_rtf", "audio_duration")


@dataclass(frozen=True)
class Backend:
    """What one of the client's backends asks for: its endpoint, and what comes back."""

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
"""Sound of a chat is there where the cell asks for it. Those over WebSocket are not measured here."""


class OmniBench:
    """See :class:`perfbisect.clients.Client`."""

    name = "omni_bench"
    package = "vllm_omni"
    sources: tuple[str, ...] = ("benchmarks", "entrypoints/cli/benchmark", "metrics/definitions.py")

    def command(
        self, cell: Cell, endpoint: Endpoint, *, seed: int, result: PurePath, metadata: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Arguments after the interpreter. Seed and digest are stamped on the result as metadata.

        Sampling is the deploy YAML's, but for what the cell sets: greedy speech does not end.

        :raises UsageError: an argument that is not the cell's to set, a backend that is not known, one that
            does not fit the endpoint, or an answer that the client cannot count.
        """
        differing = {
            "omni": True,
            "extra-body": _extra_body(cell) or None,
            "ready-check-timeout-sec": 60,
            **bench_serve.listed(_asked(cell), _percentiles(cell)),
        }
        return bench_serve.command(
            self.package, cell, endpoint, seed=seed, result=result, metadata=metadata, differing=differing
        )

    def env(self, cell: Cell) -> dict[str, str]:
        """See :func:`perfbisect.clients.bench_serve.environment`."""
        return bench_serve.environment(cell, bench_serve.NO_USAGE)

    def preload(self, env: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002
        """None: its modules change those of vLLM as they are imported, in an order that is its own."""
        return ()

    def metrics(self, cell: Cell) -> tuple[str, ...]:
        """Keys that a result of this cell reports; standard deviations are never among them.

        :raises UsageError: a backend that is not known.
        """
        backend = backend_of(cell)
        statistics = ["median", "mean", *(f"p{percentile:g}" for percentile in cell.metric_percentiles)]
        asked = _asked(cell)
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
        """Keys that a result has where the server reports its stages: of images and videos, and memory."""
        backend = backend_of(cell)
        keys = ["peak_memory_mb:median", "peak_memory_mb:mean"] if backend.image or backend.video else []
        keys += ["denoise_step_latency:mean"] if backend.image else []
        if backend.video:
            keys += [
                f"{name}:{part}" for name in ("video_generation", "video_rtf") for part in ("median", "mean")
            ]
        return tuple(keys)

    def check_metric(self, cell: Cell, metric: MetricRef) -> None:
        """:raises UsageError: a result of this cell will not report the metric; names those that it will."""
        if metric.name.startswith(STAGE) and metric.statistic in result_document.STAGE_STATISTICS:
            return
        reported = (*self.metrics(cell), *self.may_report(cell))
        reading.check_reported(self.name, cell, metric, reported)

    def parse(
        self,
        cell: Cell,
        document: Mapping[str, Any],
        *,
        index: int,
        seed: int,
        expected: Mapping[str, object] | None = None,
    ) -> RunResult:
        """A result document -> a run; see :mod:`perfbisect.clients.omni_bench_result`."""
        asked = result_document.Asked(
            keys=self.metrics(cell),
            optional=self.may_report(cell),
            speech=backend_of(cell).endpoint == SPEECH,
            sound="audio_duration" in _asked(cell),
            silent=SILENT,
        )
        return result_document.parse(cell, document, asked, index=index, seed=seed, expected=expected or {})


def backend_of(cell: Cell) -> Backend:
    """:raises UsageError: the cell's backend is not known, or is none of its endpoint."""
    found = BACKENDS.get(cell.backend)
    if found is None:
        raise UsageError(
            f"cell {cell.name}: client omni_bench has no backend {cell.backend}: {', '.join(BACKENDS)}",
            field="backend",
        )
    if found.endpoint != cell.endpoint:
        raise UsageError(
            f"cell {cell.name}: backend {cell.backend} asks at {found.endpoint}, the cell's endpoint is "
            f"{cell.endpoint}",
            field="backend",
        )
    return found


def _asked(cell: Cell) -> tuple[str, ...]:
    """The percentile metrics that the client is asked for.

    Of speech always those of sound (its TTFT was its TTFP until #3674, and is gone since); of a chat with
    sound its duration, by which the others are judged; of all the latency of the whole request.
    """
    backend = backend_of(cell)
    names = [name for name in cell.percentile_metrics if name in _TEXT and backend.text]
    if backend.sound and (not backend.text or audible(cell)):
        asked = [name for name in cell.percentile_metrics if name.startswith("audio_")]
        names += dict.fromkeys((*asked, *(_SOUND if not backend.text else ("audio_duration",))))
    return (*names, "e2el")


def _percentiles(cell: Cell) -> tuple[float, ...]:
    return (*((SILENT,) if "audio_duration" in _asked(cell) else ()), *cell.metric_percentiles)


def _extra_body(cell: Cell) -> dict[str, object]:
    """The cell's own; of speech raw sound in any case. :raises UsageError: it asks for another form."""
    if backend_of(cell).endpoint != SPEECH:
        return dict(cell.extra_body)
    for name, value in {**RAW_SOUND, "stream": True}.items():
        if cell.extra_body.get(name, value) != value:
            raise UsageError(
                f"cell {cell.name}: extra_body asks for {name} {cell.extra_body[name]!r}, and the client "
                f"counts the bytes of raw sound: {name} must be {value!r} or left out",
                field="extra_body",
            )
    return {**cell.extra_body, "stream_format": RAW_SOUND["stream_format"]}


CLIENT = OmniBench()
