"""Nightlies that were never measured, with changes planted in them: what `make demo-track` reads.

Eight servers with five loads each, ninety nights. Every number comes from one seed: the noise of a night's
machine, which all cells of a server share, that of a cell, and that of the slowest request, which only means
and percentiles see. Every night runs three commits that the night before did not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.fakes.gitwriter import HistoryWriter

NIGHTS = 90
COMMITS = 3
FIRST = datetime(2026, 1, 1, 19)
LOADS = (1, 4, 16, 32, 64)
PROMPTS = 64
OUT = 128

SERVERS: Mapping[str, tuple[str, float, float]] = {
    "text_small": ("Demo/Text-1B", 40.0, 6.0),
    "text_large": ("Demo/Text-30B", 180.0, 21.0),
    "text_long": ("Demo/Text-8B", 95.0, 11.0),
    "omni_plain": ("Demo/Omni-30B", 240.0, 17.0),
    "omni_chunk": ("Demo/Omni-30B", 210.0, 15.0),
    "tts_async_chunk": ("Demo/TTS-2B", 70.0, 9.0),
    "tts_plain": ("Demo/TTS-2B", 85.0, 9.5),
    "image_edit": ("Demo/Image-20B", 320.0, 28.0),
}
"""Test -> its model, and TTFT and TPOT in ms of one request alone."""

MACHINE, CELL, FIRST_REQUEST = 0.008, 0.015, 0.08
"""Standard deviations of logs: of a server's night, of a cell's, and of its slowest request."""

Shape = Literal["step", "drift", "transient"]


@dataclass(frozen=True)
class Plant:
    """A change of known shape and cause: from ``night`` on, until before ``until``.

    Of a drift ``until`` is the night from which on it is whole. ``factor`` multiplies ``metrics`` (``ttft``,
    ``tpot``).
    """

    name: str
    shape: Shape
    causes: tuple[str, ...]
    servers: tuple[str, ...]
    night: int
    until: int
    factor: float
    metrics: tuple[str, ...] = ("ttft", "tpot")

    def size(self, night: int) -> float:
        """By how much it multiplies on a night."""
        if night < self.night or (self.shape == "transient" and night >= self.until):
            return 1.0
        if self.shape == "drift" and night < self.until:
            return float(self.factor ** ((night - self.night) / (self.until - self.night)))
        return self.factor

    @property
    def cells(self) -> int:
        """How many cells it hits."""
        return len(self.servers) * len(LOADS)


PLANTS = (
    Plant("instrument", "step", ("instrument",), ("text_small",), 25, NIGHTS, 0.75, ("ttft",)),
    Plant("drift", "drift", ("product",), ("text_large",), 30, 70, 1.25, ("ttft", "tpot")),
    Plant("step", "step", ("product",), ("omni_chunk", "tts_async_chunk"), 48, NIGHTS, 1.15),
    Plant("bad night", "transient", ("night",), tuple(SERVERS), 60, 61, 1.6),
    Plant("transient", "transient", ("unknown", "night"), ("image_edit",), 75, 77, 1.5),
)
WARMUPS = 8
"""Requests that warm up since the change of the instrument; none did before."""

SLOW = PLANTS[2].night * COMMITS + 1
"""The commit behind the step, counted from the oldest: one of those that its night ran first."""

_FILES = (
    "vllm_omni/diffusion/worker.py",
    "vllm/model_executor/layers/linear.py",
    "docs/serving.md",
    "vllm_omni/entrypoints/openai/serving_speech.py",
    "tests/e2e/test_online.py",
    "vllm/v1/core/sched/scheduler.py",
)


def history(path: Path) -> tuple[str, ...]:
    """The repository that the nights ran; the ids of its commits, oldest first."""
    writer = HistoryWriter(path)
    for number in range(NIGHTS * COMMITS):
        file = _FILES[number * 5 % len(_FILES)]
        subject = f"Change {file.rpartition('/')[2]} (#{1000 + number})"
        if number == SLOW:
            file, subject = "vllm_omni/engine/orchestrator.py", f"Tidy up the orchestrator (#{1000 + number})"
        writer.commit(subject, {file: f"# {number}\n".encode() * 20})
    return writer.finish(checkout=False)


def ran(commits: tuple[str, ...], night: int) -> str:
    """The commit that a night ran: the newest of its own."""
    return commits[(night + 1) * COMMITS - 1]


def write(folder: Path, commits: tuple[str, ...], seed: int) -> int:
    """The results of all nights as files, a folder a night; returns how many."""
    random = np.random.default_rng(seed)
    count = 0
    for night in range(NIGHTS):
        build = folder / f"night-{night:03d}"
        build.mkdir(parents=True)
        for name, document, command in _night(random, night, ran(commits, night)):
            (build / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
            (build / f"{name}.commands").write_text(json.dumps(command), encoding="utf-8")
            count += 1
    return count


def _night(
    random: np.random.Generator, night: int, commit: str
) -> Iterator[tuple[str, dict[str, Any], dict[str, str]]]:
    began = FIRST + timedelta(days=night)
    for server, (model, ttft, tpot) in SERVERS.items():
        machine = float(np.exp(random.normal(0.0, MACHINE)))
        for load in LOADS:
            own = np.exp(random.normal(0.0, CELL, 2)) * machine
            planted = [p for p in PLANTS if server in p.servers]
            first, token = (
                base * crowd * noise * float(np.prod([p.size(night) for p in planted if metric in p.metrics]))
                for metric, base, crowd, noise in (
                    ("ttft", ttft, load**0.4, own[0]),
                    ("tpot", tpot, load**0.25, own[1]),
                )
            )
            late = float(np.exp(abs(random.normal(0.0, FIRST_REQUEST))))
            at = f"{began:%Y%m%d-%H%M%S}"
            began += timedelta(minutes=4)
            name = f"result_test_{server}_random_{load}_{PROMPTS}_{at}"
            yield name, _result(model, load, first, token, late, at, commit), _command(model, night, server)


def _result(
    model: str, load: int, ttft: float, tpot: float, late: float, at: str, commit: str
) -> dict[str, Any]:
    whole = ttft + tpot * (OUT - 1)
    duration = PROMPTS / load * whole / 1000
    times = {"ttft": ttft, "tpot": tpot, "e2el": whole}
    return {
        "date": at, "commit": commit, "backend": "vllm", "model_id": model, "num_prompts": PROMPTS,
        "request_rate": "inf", "max_concurrency": load, "duration": duration,
        "completed": PROMPTS, "failed": 0,
        "total_input_tokens": PROMPTS * 1000, "total_output_tokens": PROMPTS * OUT,
        "request_throughput": PROMPTS / duration, "output_throughput": PROMPTS * OUT / duration,
        "total_token_throughput": PROMPTS * (OUT + 1000) / duration,
        **{f"median_{name}_ms": value for name, value in times.items()},
        **{f"mean_{name}_ms": value * (1 + 0.05 * (late - 1)) for name, value in times.items()},
        **{f"p99_{name}_ms": value * 1.3 * late for name, value in times.items()},
    }  # fmt: skip


def _command(model: str, night: int, server: str) -> dict[str, str]:
    """What stands beside a result: the client's command, with its warm-ups."""
    changed = next(p for p in PLANTS if p.name == "instrument")
    warm = WARMUPS if server in changed.servers and night >= changed.night else 0
    told = f"vllm bench serve --model {model} --dataset-name random --num-warmups {warm}"
    return {"client_command": told, "gpu_type": "Demo GPU"}
