"""The result document of ``vllm bench serve --omni`` -> the numbers of a run, or why they are none.

The client exits 0 when every request failed; sound that never came counts as an answer of no length, and a
harness that finds no result writes a form full of zeros. So nothing is believed unasked (DESIGN rule 6).
Latencies are in milliseconds, sound in seconds (until 117d9bd1 in milliseconds), RTF is time over duration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfbisect.clients.reading import CELL, SEED, count, first, is_ours, number, unfinished
from perfbisect.core.attempt import RunResult
from perfbisect.core.cell import Cell
from perfbisect.core.metric import STAGE, per_unit
from perfbisect.errors import ClientError

STAGE_STATISTICS = {"mean": "mean", "median": "p50", "p99": "p99"}
"""What is told of a stage: the statistic, and what the client calls it."""

_SUFFIX = {
    "audio_rtf": "",
    "audio_duration": "_s",
    "audio_underrun": "_s",
    "video_rtf": "",
    "peak_memory_mb": "",
}
"""How the client's names end; all others in ``_ms``."""

_AGREE = 0.02
"""How far, relatively, two numbers of a result that follow from each other may lie apart."""

_NO_SOUND = 0.02
"""Share of the median duration under which a request has brought no sound."""


@dataclass(frozen=True)
class Asked:
    """What a result must hold: ``keys``, and ``optional`` where the server tells it.

    ``speech``: answers are nothing but sound; ``sound``: they have some; ``silent``: the percentile that
    shows the shortest of them.
    """

    keys: Sequence[str]
    optional: Sequence[str] = ()
    speech: bool = False
    sound: bool = False
    silent: float = 0.01


def parse(
    cell: Cell,
    document: Mapping[str, Any],
    asked: Asked,
    *,
    index: int,
    seed: int,
    expected: Mapping[str, object],
) -> RunResult:
    """The run; ``expected`` are top-level values that the document must hold.

    :raises ClientError: a gate was touched: the message says which and with what value.
    """
    if not document.get("date") and not document.get("num_prompts"):
        raise ClientError(
            "the result is a form full of zeros, which the harness writes where the benchmark left none"
        )
    is_ours(cell, document, {SEED: str(seed), CELL: cell.digest}, expected)
    completed, failed = count(document, "completed"), count(document, "failed")
    errors = [str(error) for error in document.get("errors") or () if error]
    if completed == 0:
        raise ClientError(
            f"none of {cell.num_prompts} requests completed ({failed} failed): {first(errors)}",
            output=first(errors),
        )
    if len(errors) > failed:
        raise ClientError(
            f"{len(errors)} requests carry an error in the stream, {failed} count as failed: {first(errors)}",
            output=first(errors),
        )
    duration = number(document, "duration")
    if duration <= 0:
        raise ClientError(f"duration is {document['duration']} s")
    sound = _sound(document, duration) if asked.sound or asked.speech else 0.0
    if asked.sound and sound <= 0:
        raise ClientError(f"{completed} requests completed and brought not one second of sound")
    values = _values(document, asked, completed=completed, failed=failed)
    tokens = count(document, "total_output_tokens")
    warnings = [
        *unfinished(cell.num_prompts, completed, failed, errors),
        *_silent(document, asked, values),
        *_short(cell, completed, tokens),
    ]
    return RunResult(
        index=index,
        seed=seed,
        values={**values, **stages(document)},
        warnings=tuple(warnings),
        seconds=duration,
        facts={
            "completed": completed,
            "failed": failed,
            "input_tokens": count(document, "total_input_tokens"),
            "output_tokens": tokens,
            "audio_seconds": sound,
            "max_concurrent_requests": document.get("max_concurrent_requests"),
            "date": document.get("date"),
            "errors": errors[:3],
        },
    )


def _values(document: Mapping[str, Any], asked: Asked, *, completed: int, failed: int) -> dict[str, float]:
    known = {"failed": failed / (completed + failed)}
    known["input_tokens"] = count(document, "total_input_tokens") / completed
    known["output_tokens"] = count(document, "total_output_tokens") / completed
    if "images" in asked.keys:
        known["images"] = count(document, "total_images") / completed
        known["image_pixels"] = number(document, "average_pixels_per_image")
    derived = {key for key in asked.keys if "_per_" in key}
    values: dict[str, float] = {}
    missing = []
    for key in asked.keys:
        if key in derived:
            continue
        if key in known:
            value: float | None = known[key]
        elif key.startswith(("tpot", "itl")) and known["output_tokens"] <= 1:
            continue  # One token a request has no time between tokens.
        else:
            value = _told(document, key)
        if value is None:
            missing.append(_names(key)[0])
            continue
        may_be_zero = key in known or key.startswith("audio_underrun") or key == "request_goodput"
        if value < 0 or (value == 0 and not may_be_zero):
            raise ClientError(f"{_names(key)[0]} is {value:g}: no measurement")
        values[key] = value
    if missing:
        raise ClientError(f"the result has no {', '.join(missing)}")
    for key in asked.optional:
        told = _told(document, key)
        if told is not None and math.isfinite(told) and told > 0:
            values[key] = told
    return {**values, **{key: value for key, value in per_unit(values).items() if key in derived}}


def _names(key: str) -> tuple[str, ...]:
    """``audio_ttfp:median`` -> ``median_audio_ttfp_ms``: the names that the client has or had for it."""
    name, _, statistic = key.partition(":")
    if not statistic:
        return (name,)
    full = f"{statistic}_{name}{_SUFFIX.get(name, '_ms')}"
    return (full, full.removesuffix("_s") + "_ms") if full.endswith("_s") else (full,)


def _told(document: Mapping[str, Any], key: str) -> float | None:
    """The number under the first of its names that is there, in the unit of the metric table."""
    for place, name in enumerate(_names(key)):
        if name in document:
            return number(document, name) / (1000.0 if place else 1.0)
    return None


def _sound(document: Mapping[str, Any], duration: float) -> float:
    """Seconds of sound in all; the unit is checked against the throughput, which follows from it.

    :raises ClientError: total and throughput contradict each other.
    """
    if "total_audio_duration_s" in document:
        total = number(document, "total_audio_duration_s")
    elif "total_audio_duration_ms" in document:
        total = number(document, "total_audio_duration_ms") / 1000.0
    else:
        raise ClientError("the result has no total_audio_duration_s")
    told = number(document, "audio_throughput") * duration
    if abs(told - total) > _AGREE * max(told, total):
        raise ClientError(
            f"the result contradicts itself: {total:g} s of sound, and by its audio_throughput {told:g} s"
        )
    return total


def _silent(document: Mapping[str, Any], asked: Asked, values: Mapping[str, float]) -> list[str]:
    median = values.get("audio_duration:median")
    shortest = _told(document, f"audio_duration:p{asked.silent:g}")
    if median is None or shortest is None or shortest > _NO_SOUND * median:
        return []
    return [
        f"a request at least brought no sound: the shortest has {shortest:.2f} s, the median {median:.2f} s"
    ]


def _short(cell: Cell, completed: int, tokens: int) -> list[str]:
    asked = cell.dataset_args.get("random-output-len")
    ranged = cell.dataset_args.get("random-range-ratio")
    if not cell.ignore_eos or not isinstance(asked, int) or ranged or tokens >= asked * completed:
        return []
    return [f"outputs shorter than asked: {tokens / completed:.1f} tokens a request of {asked}"]


def stages(document: Mapping[str, Any]) -> dict[str, float]:
    """What the engine's own profiler told of its parts, where it is on."""
    found: dict[str, float] = {}
    for statistic, theirs in STAGE_STATISTICS.items():
        told = document.get(f"stage_durations_{theirs}")
        for stage, value in told.items() if isinstance(told, Mapping) else ():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if is_number and math.isfinite(value) and value > 0:
                found[f"{STAGE}{stage}:{statistic}"] = float(value)
    return found
