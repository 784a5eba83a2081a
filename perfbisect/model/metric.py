"""What each metric means: unit, direction, smallest effect. Nothing else in the code knows these."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from perfbisect.common.suggest import hint, nearest
from perfbisect.errors import UsageError

Direction = Literal["lower", "higher"]

STAGE = "stage."
"""How the metric of a part of the engine's own work begins: ``stage.QwenImagePipeline.diffuse``."""

_REFERENCE = re.compile(
    r"^(?P<name>[a-z][a-z0-9_]*|stage\.[\w.-]+)(?::(?P<statistic>median|mean|std|p\d{1,2}(?:\.\d+)?))?$"
)


@dataclass(frozen=True)
class Metric:
    """One row of the table.

    ``smallest_effect`` is relative (0.03: three per cent); ``per_request`` says that the client reports a
    distribution, so that a statistic (median, mean, p99) can be asked for; ``guard`` that the metric is
    watched rather than chased, ``absolute`` that its smallest effect is a difference of shares, not a ratio,
    ``neutral`` that it is a property of what is asked or answered: neither more nor less is better, whatever
    ``direction`` says.
    """

    name: str
    unit: str
    direction: Direction
    smallest_effect: float
    display: str
    per_request: bool = False
    guard: bool = False
    absolute: bool = False
    neutral: bool = False

    @property
    def sign(self) -> int:
        """+1 where a larger value is worse, -1 where it is better: multiplies log(value) in the core."""
        return 1 if self.direction == "lower" else -1


def _table(*rows: Metric) -> dict[str, Metric]:
    return {row.name: row for row in rows}


METRICS: dict[str, Metric] = _table(
    Metric("ttft", "ms", "lower", 0.05, "time to first token", per_request=True),
    Metric("tpot", "ms", "lower", 0.03, "time per output token", per_request=True),
    Metric("itl", "ms", "lower", 0.03, "inter-token latency, per chunk", per_request=True),
    Metric("e2el", "ms", "lower", 0.03, "end-to-end latency", per_request=True),
    Metric("request_throughput", "req/s", "higher", 0.03, "request throughput"),
    Metric("request_goodput", "req/s", "higher", 0.03, "requests within the service objectives"),
    Metric("output_throughput", "tok/s", "higher", 0.03, "output token throughput"),
    Metric("total_token_throughput", "tok/s", "higher", 0.03, "total token throughput"),
    Metric("audio_ttfp", "ms", "lower", 0.05, "time to first audio packet (TTFP)", per_request=True),
    Metric(
        "audio_rtf",
        "ratio",
        "lower",
        0.03,
        "real-time factor: processing time / audio duration",
        per_request=True,
    ),
    Metric("audio_throughput", "audio-s/s", "higher", 0.03, "audio seconds per wall second"),
    Metric(
        "audio_underrun",
        "s",
        "lower",
        0.1,
        "longest wait of a player that began at the first packet",
        per_request=True,
        guard=True,
        absolute=True,
    ),
    Metric("audio_ttfp_per_audio_s", "ms/audio-s", "lower", 0.05, "TTFP per second of sound"),
    Metric("e2el_per_audio_s", "ms/audio-s", "lower", 0.03, "end-to-end latency per second of sound"),
    Metric("e2el_per_token", "ms/tok", "lower", 0.03, "end-to-end latency per output token"),
    Metric("image_throughput", "img/s", "higher", 0.03, "image throughput"),
    Metric("image_generation", "ms", "lower", 0.03, "time to make an image", per_request=True),
    Metric("denoise_step_latency", "ms", "lower", 0.03, "time of a denoising step", per_request=True),
    Metric("video_throughput", "video-s/s", "higher", 0.03, "video seconds per wall second"),
    Metric("video_generation", "ms", "lower", 0.03, "time to make a video", per_request=True),
    Metric(
        "video_rtf",
        "ratio",
        "lower",
        0.03,
        "real-time factor: processing time / video duration",
        per_request=True,
    ),
    Metric("latency", "s", "lower", 0.03, "request latency", per_request=True),
    Metric("throughput_qps", "req/s", "higher", 0.03, "request throughput"),
    Metric("peak_memory_mb", "MB", "lower", 0.02, "peak device memory", per_request=True),
    Metric("failed", "share", "lower", 0.005, "failed requests", guard=True, absolute=True),
    Metric(
        "output_tokens",
        "tokens/req",
        "higher",
        0.01,
        "output tokens per completed request",
        guard=True,
        neutral=True,
    ),
    Metric(
        "input_tokens",
        "tokens/req",
        "higher",
        0.01,
        "input tokens per completed request",
        guard=True,
        neutral=True,
    ),
    Metric(
        "audio_duration",
        "s",
        "higher",
        0.02,
        "audio duration per request",
        per_request=True,
        guard=True,
        neutral=True,
    ),
    Metric("images", "img/req", "higher", 0.001, "images per completed request", guard=True, neutral=True),
    Metric("image_pixels", "px/img", "higher", 0.001, "pixels per image", guard=True, neutral=True),
    Metric(
        "image_distance",
        "share",
        "lower",
        0.01,
        "mean difference of an image's pixels from its reference, of their full range",
        per_request=True,
        guard=True,
        absolute=True,
    ),
    Metric(
        "spec_decode_acceptance_rate",
        "share",
        "higher",
        0.02,
        "share of draft tokens accepted",
        guard=True,
        absolute=True,
    ),
    Metric(
        "spec_decode_acceptance_length", "tokens", "higher", 0.02, "accepted tokens per draft", guard=True
    ),
    Metric(
        "prefix_cache_hit_rate", "share", "higher", 0.02, "prefix-cache hit rate", guard=True, absolute=True
    ),
)


PER_UNIT: dict[str, tuple[str, str]] = {
    "audio_rtf": ("e2el", "audio_duration"),
    "e2el_per_audio_s": ("e2el", "audio_duration"),
    "e2el_per_token": ("e2el", "output_tokens"),
    "audio_ttfp_per_audio_s": ("audio_ttfp", "audio_duration"),
}
"""Metrics per unit of an answer: the metric that a longer answer makes larger, and the answer's length."""


def per_unit(values: Mapping[str, float]) -> dict[str, float]:
    """A run's metrics per unit of output: ratios of its medians, where it has both (keys as in a run).

    A shorter answer makes the latency smaller and these hardly. RTF is not among them: clients report it.
    """
    found: dict[str, float] = {}
    for name, (whole, length) in PER_UNIT.items():
        top = values.get(f"{whole}:median")
        bottom = values.get(f"{length}:median" if METRICS[length].per_request else length, 0.0)
        if not METRICS[name].per_request and top is not None and bottom > 0:
            found[name] = top / bottom
    return found


def row(name: str) -> Metric:
    """The row of a metric; of a stage, whose names the engine gives, one made for it.

    A stage's time is in seconds, or in milliseconds where its name ends in ``_ms``.

    :raises KeyError: neither a row of the table nor a stage.
    """
    if not name.startswith(STAGE):
        return METRICS[name]
    unit = "ms" if name.endswith("_ms") else "s"
    return Metric(name, unit, "lower", 0.05, f"time of {name.removeprefix(STAGE)}", per_request=True)


@dataclass(frozen=True)
class MetricRef:
    """A metric with its statistic: ``ttft:p99``. Without a suffix the median, where requests have one."""

    name: str
    statistic: str = ""

    @property
    def metric(self) -> Metric:
        return row(self.name)

    def __str__(self) -> str:
        return f"{self.name}:{self.statistic}" if self.statistic and self.statistic != "median" else self.name


def parse_metric(text: str) -> MetricRef:
    """``ttft``, ``ttft:p99``, ``output_throughput`` -> reference.

    :raises UsageError: an unknown name (the nearest are named), or a statistic of a metric that has none.
    """
    found = _REFERENCE.match(text.strip())
    name = found["name"] if found else text.strip().split(":")[0]
    if found is None or not (name in METRICS or name.startswith(STAGE)):
        near = nearest(name, METRICS)
        known = f"{', '.join(METRICS)}, with :median, :mean or :pNN"
        raise UsageError(
            f"unknown metric {text!r}{hint(name, METRICS)}; known: {known}",
            next_step=f"--metric {near[0]}" if near else "--metric with one of the names that are known",
        )
    metric, statistic = row(name), found["statistic"] or ""
    if statistic and not metric.per_request:
        raise UsageError(
            f"metric {name!r} is one number a run and has no {statistic!r}; ask for {name!r}",
            next_step=f"--metric {name}",
        )
    return MetricRef(name, statistic or ("median" if metric.per_request else ""))


def check_metrics(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """The same, where every name is that of a metric: a validator. :raises ValueError: one is none."""
    for text in (value,) if isinstance(value, str) else value:
        try:
            parse_metric(text)
        except UsageError as error:
            raise ValueError(error.message) from None
    return value
