"""Result files in the forms in which others write them, made for a test."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from perfbisect.series.series import CellSeries, build_series
from perfbisect.series.store import SeriesStore

RAW = "data/buildkite_nightly_raw"
RESULTS = "tests/dfx/perf/results"


SAMPLES = Path(__file__).with_name("samples")


def sample(name: str) -> dict[str, Any]:
    """A result as others write it."""
    document: dict[str, Any] = json.loads((SAMPLES / f"{name}.json").read_text())
    return document


def served(**changed: Any) -> dict[str, Any]:
    """What a chat with sound reported: 40 requests, 4 at once, in 100 s."""
    return sample("served") | changed


def text_only(**changed: Any) -> dict[str, Any]:
    """The same asked for text alone: no name of sound but the totals, which are nothing."""
    document = {
        name: value for name, value in served().items() if "audio_" not in name or name.startswith("total")
    }
    return document | {"total_audio_duration_s": 0.0, "audio_throughput": 0.0} | changed


def drawn(**changed: Any) -> dict[str, Any]:
    """A record of the diffusion benchmark."""
    return sample("drawn") | changed


def template() -> dict[str, Any]:
    """The form that a harness writes where the benchmark left no result: every number is nothing."""
    return {name: (None if isinstance(value, str) else 0) for name, value in served().items()}


def name_of(
    test: str = "omni", load: str = "4", prompts: int = 40, at: str = "20260412-190115", more: str = ""
) -> str:
    """A result file's name as the nightly writes it."""
    return f"result_test_{test}_random_{load}_{prompts}{more}_{at}.json"


def write(path: Path, document: object) -> Path:
    """A JSON file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def result(root: Path, build: str, name: str, document: object) -> Path:
    """A file of a numbered build of a kanban."""
    return write(root / RAW / build / RESULTS / name, document)


def nights(
    root: Path, values: list[float | None], *, test: str = "omni", first: int = 100, **changed: Any
) -> None:
    """A build each night from 2026-04-01 on, its TTFP so many ms; None: no build that night."""
    for place, value in enumerate(values):
        if value is None:
            continue
        began = datetime(2026, 4, 1, 19) + timedelta(days=place)
        ended = began + timedelta(seconds=100)
        document = served(median_audio_ttfp_ms=value, date=f"{ended:%Y%m%d-%H%M%S}", **changed)
        result(root, str(first + place), name_of(test, at=f"{began:%Y%m%d-%H%M%S}"), document)


def series_of(store: SeriesStore, cells: Sequence[str] = (), *, metric: str = "") -> Iterator[CellSeries]:
    """Every series of the store, by machine series; ``cells`` and ``metric`` select."""
    for name, points in store.machine_series(cells):
        yield from build_series(points, metric=metric, cell=name)
