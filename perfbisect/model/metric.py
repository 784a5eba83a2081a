"""The metrics: unit, direction and smallest relevant effect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

from perfbisect.common.text import hint, nearest
from perfbisect.errors import UsageError

Direction = Literal["lower", "higher"]

Source = Literal["client", "engine counters", "engine log", "launch"]
"""Where a value is read. The client's result and the engine's counters give one a run; the engine's log, and
what is measured of the launch itself (times, memory of its processes), one a launch."""

Caches = Literal["", "warm", "cold"]
"""What a launch finds in its compile and kernel caches; empty: whatever is there."""

MetricKind = Literal["time", "rate", "share", "size", "exact"]
"""``exact``: hardly any noise; ``share``: effects are differences; the others by their unit."""

Need = Literal["", "kv cache", "prefix caching", "speculative decoding", "compilation", "devices"]
"""What a server must have for a metric."""

STAGE = "stage."
"""Prefix of stage metrics: ``stage.QwenImagePipeline.diffuse``."""

_QUEUE = re.compile(rf"{re.escape(STAGE)}([\w-]+)\.queue_ms")
"""Metric of a stage that an engine counts: the mean time that requests of a run waited for it."""

_REFERENCE = re.compile(
    r"^(?P<name>[a-z][a-z0-9_]*|stage\.[\w.-]+)(?::(?P<statistic>median|mean|std|p\d{1,2}(?:\.\d+)?))?$"
)


@dataclass(frozen=True)
class Metric:
    """A row of the table.

    ``smallest_effect`` is relative (0.03: 3 %), or with ``absolute`` a difference of shares. ``per_request``:
    clients report a distribution, so statistics (median, mean, p99) exist. ``guard``: watched, not optimised.
    ``neutral``: a property of requests or answers; neither more nor less is better, despite ``direction``.
    ``exact``: launches of one build agree, so that one launch tells its level. ``fact``: what is read at the
    ``source``; of counters a ratio. ``since``: the first vLLM release whose source reports it, empty if 0.4.1
    does; ``change``: the pull request that brought it, empty where only the releases were compared.
    ``scheduled``: several processes must get a processor in turn before it ends, so that its noise is the
    machine's: a per cent where each has processors, a third where they share two.
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
    exact: bool = False
    source: Source = "client"
    fact: str = ""
    since: str = ""
    change: str = ""
    needs: Need = ""
    caches: Caches = ""
    scheduled: bool = False

    @property
    def is_of_launch(self) -> bool:
        """Whether a launch has one value, however many runs it has."""
        return self.source in ("engine log", "launch")

    @property
    def kind(self) -> MetricKind:
        """What its noise and effects are like."""
        if self.exact or self.absolute:
            return "exact" if self.exact else "share"
        if "/s" in self.unit:
            return "rate"
        return "time" if re.match(r"(ms|s|ratio)\b", self.unit) else "size"

    @property
    def sign(self) -> int:
        """+1 if larger is worse, -1 if it is better."""
        return 1 if self.direction == "lower" else -1


_request = partial(Metric, per_request=True)
_first = partial(Metric, scheduled=True)
_count = partial(Metric, guard=True, neutral=True)
_share = partial(Metric, guard=True, absolute=True)
_counted = partial(Metric, source="engine counters")
_drafts = partial(_counted, needs="speculative decoding")
_logged = partial(Metric, source="engine log")
_kv = partial(_logged, exact=True, needs="kv cache")
_graphs = partial(_logged, needs="compilation")
_launch = partial(Metric, source="launch", fact="time to ready")
_memory = partial(Metric, source="launch")

_ROWS = (
    _request("ttft", "ms", "lower", 0.05, "time to first token"),
    _request("ttft_first_turn", "ms", "lower", 0.05, "time to first token of conversations' first turns"),
    _request("tpot", "ms", "lower", 0.03, "time per output token"),
    _request("itl", "ms", "lower", 0.03, "inter-token latency, per chunk"),
    _request("e2el", "ms", "lower", 0.03, "end-to-end latency"),
    Metric("request_throughput", "req/s", "higher", 0.03, "request throughput"),
    Metric("request_goodput", "req/s", "higher", 0.03, "requests within the service objectives"),
    Metric("output_throughput", "tok/s", "higher", 0.03, "output token throughput"),
    Metric("total_token_throughput", "tok/s", "higher", 0.03, "total token throughput"),
    Metric(
        *("rtfx", "audio-s/s", "higher", 0.03, "inverse real-time factor: sound transcribed per second"),
        since="0.17.0",
        change="#32300",
    ),
    Metric("tput_per_gpu", "tok/s/GPU", "higher", 0.03, "total token throughput of a GPU"),
    Metric("output_tput_per_gpu", "tok/s/GPU", "higher", 0.03, "output token throughput of a GPU"),
    Metric("input_tput_per_gpu", "tok/s/GPU", "higher", 0.03, "input token throughput of a GPU"),
    _first("audio_ttfp", "ms", "lower", 0.05, "time to first audio packet (TTFP)", per_request=True),
    _first("audio_first_chunk", "ms", "lower", 0.05, "TTFP as the server measures it", per_request=True),
    _request("audio_rtf", "ratio", "lower", 0.03, "real-time factor: processing time / audio duration"),
    Metric("audio_throughput", "audio-s/s", "higher", 0.03, "audio seconds per wall second"),
    _share(
        *("audio_underrun", "s", "lower", 0.1, "longest wait of a player that began at the first packet"),
        per_request=True,
    ),
    _first("audio_ttfp_per_audio_s", "ms/audio-s", "lower", 0.05, "TTFP per second of sound"),
    Metric("e2el_per_audio_s", "ms/audio-s", "lower", 0.03, "end-to-end latency per second of sound"),
    Metric("e2el_per_token", "ms/tok", "lower", 0.03, "end-to-end latency per output token"),
    Metric("image_throughput", "img/s", "higher", 0.03, "image throughput"),
    _request("image_generation", "ms", "lower", 0.03, "time to make an image"),
    _request("denoise_step_latency", "ms", "lower", 0.03, "time of a denoising step"),
    Metric("video_throughput", "video-s/s", "higher", 0.03, "video seconds per wall second"),
    _request("video_generation", "ms", "lower", 0.03, "time to make a video"),
    _request("video_rtf", "ratio", "lower", 0.03, "real-time factor: processing time / video duration"),
    _request("latency", "s", "lower", 0.03, "request latency"),
    Metric("throughput_qps", "req/s", "higher", 0.03, "request throughput"),
    _request("peak_memory_mb", "MB", "lower", 0.02, "peak device memory"),
    _share("failed", "share", "lower", 0.005, "failed requests"),
    _count("output_tokens", "tokens/req", "higher", 0.01, "output tokens per completed request"),
    _count("input_tokens", "tokens/req", "higher", 0.01, "input tokens per completed request"),
    _count("audio_duration", "s", "higher", 0.02, "audio duration per request", per_request=True),
    _count("images", "img/req", "higher", 0.001, "images per completed request"),
    _count("image_pixels", "px/img", "higher", 0.001, "pixels per image"),
    _share(
        *("image_distance", "share", "lower", 0.01),
        "mean difference of an image's pixels from its reference, of their full range",
        per_request=True,
    ),
    _drafts(
        *("spec_decode_acceptance_rate", "share", "higher", 0.01, "share of draft tokens accepted"),
        fact="accepted_tokens / draft_tokens",
        since="0.5.3",
        absolute=True,
    ),
    _drafts(
        *(
            "spec_decode_acceptance_length",
            "tokens",
            "higher",
            0.02,
            "tokens of a draft's step, its own included",
        ),
        fact="1 + accepted_tokens / drafts",
        since="0.8.5",
        change="#16665",
    ),
    _counted(
        *("prefix_cache_hit_rate", "share", "higher", 0.02, "prefix-cache hit rate"),
        fact="prefix_hits / prefix_queries",
        since="0.7.3",
        absolute=True,
        needs="prefix caching",
    ),
    _counted(
        *("tokens_per_step", "tokens", "higher", 0.01, "tokens of a step of the engine"),
        fact="iteration_tokens / iterations",
        since="0.7.3",
        change="#13288",
    ),
    _kv(
        *("kv_cache_tokens", "tokens", "higher", 0.01, "tokens that the KV cache holds"),
        fact="cache",
        since="0.8.0",
        change="#13596",
    ),
    _kv(
        *("available_kv_memory", "GiB", "higher", 0.01, "memory for the KV cache"),
        fact="cache memory",
        since="0.9.1",
    ),
    _logged(
        *("model_memory", "GiB", "lower", 0.01, "memory of the model's weights"),
        fact="model memory",
        exact=True,
        # Workers of vLLM on a CPU do not log it.
        needs="devices",
    ),
    _logged(
        *("weights_time", "s", "lower", 0.05, "time to load the weights"),
        fact="weights time",
        since="0.8.0",
        change="#14063",
    ),
    _graphs(
        *("graph_memory", "GiB", "lower", 0.02, "memory of captured graphs"),
        fact="graph memory",
        since="0.6.4",
        change="#10027",
        exact=True,
    ),
    _graphs("graph_time", "s", "lower", 0.1, "time to capture graphs", fact="graph time"),
    _graphs(
        *("compile_time", "s", "lower", 0.05, "time of torch.compile with empty caches"),
        fact="compile time",
        since="0.6.5",
        change="#11005",
        caches="cold",
    ),
    _launch("ready_time", "s", "lower", 0.05, "time to ready with filled compile caches", caches="warm"),
    _launch("ready_time_cold", "s", "lower", 0.05, "time to ready with empty compile caches", caches="cold"),
    _memory("host_memory_ready", "GiB", "lower", 0.02, "host memory when ready", fact="host ready"),
    _memory("host_memory_end", "GiB", "lower", 0.02, "host memory after the runs", fact="host end"),
    _memory(
        *("device_memory_ready", "GiB", "lower", 0.01, "device memory when ready"),
        fact="device ready",
        needs="devices",
    ),
    _memory(
        *("device_memory_end", "GiB", "lower", 0.01, "device memory after the runs"),
        fact="device end",
        needs="devices",
    ),
)

METRICS: dict[str, Metric] = {row.name: row for row in _ROWS}


PER_UNIT: dict[str, tuple[str, str]] = {
    "audio_rtf": ("e2el", "audio_duration"),
    "e2el_per_audio_s": ("e2el", "audio_duration"),
    "e2el_per_token": ("e2el", "output_tokens"),
    "audio_ttfp_per_audio_s": ("audio_ttfp", "audio_duration"),
}
"""Metric per unit of output -> the metric that longer outputs increase, and the output's length."""


def per_unit(values: Mapping[str, float]) -> dict[str, float]:
    """A run's metrics per unit of output: ratios of its medians. RTF is excluded: clients report it."""
    found: dict[str, float] = {}
    for name, (whole, length) in PER_UNIT.items():
        top = values.get(f"{whole}:median")
        bottom = values.get(f"{length}:median" if METRICS[length].per_request else length, 0.0)
        if not METRICS[name].per_request and top is not None and bottom > 0:
            found[name] = top / bottom
    return found


def row(name: str) -> Metric:
    """The row of a metric; for a stage one in seconds, or in milliseconds if its name ends in ``_ms``.

    Raises:
        KeyError: unknown metric.
    """
    if not name.startswith(STAGE):
        return METRICS[name]
    if queue := _QUEUE.fullmatch(name):
        return _first(name, "ms", "lower", 0.05, f"time of a request in the queue of stage {queue[1]}")
    unit = "ms" if name.endswith("_ms") else "s"
    return Metric(name, unit, "lower", 0.05, f"time of {name.removeprefix(STAGE)}", per_request=True)


@dataclass(frozen=True)
class MetricRef:
    """A metric with its statistic: ``ttft:p99``."""

    name: str
    statistic: str = ""

    @property
    def metric(self) -> Metric:
        return row(self.name)

    def __str__(self) -> str:
        return f"{self.name}:{self.statistic}" if self.statistic and self.statistic != "median" else self.name


def parse_metric(text: str) -> MetricRef:
    """Read ``ttft``, ``ttft:p99`` or ``output_throughput``; the default statistic is the median.

    Raises:
        UsageError: an unknown name, or a statistic of a metric that has none.
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


@lru_cache(maxsize=4096)
def find_metric(text: str) -> MetricRef | None:
    """As :func:`parse_metric`, or None."""
    try:
        return parse_metric(text)
    except UsageError:
        return None


def check_metrics(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Validator of metric names. :raises ValueError: one is unknown."""
    for text in (value,) if isinstance(value, str) else value:
        try:
            parse_metric(text)
        except UsageError as error:
            raise ValueError(error.message) from None
    return value
