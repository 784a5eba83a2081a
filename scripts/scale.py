"""``python -m scripts.scale``: what the commands take on a large store and on a long job.

Generates 1,000 cells of 90 nights and a job of 5,000 launches, runs each command as a process of its own, and
prints its largest resident set, CPU or size beside the limit. Exits with 1 where a limit is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfbisect.jobs.folders import Jobs
from perfbisect.series.points import Build, Point, Workload, day_number, night_of
from perfbisect.series.store import SeriesStore
from scripts.long_job import write_long_job
from scripts.simulation import parser

METRICS: Mapping[str, float] = {
    "ttft:median": 120.0, "ttft:mean": 130.0, "ttft:p99": 300.0,
    "tpot:median": 12.0, "tpot:mean": 12.2, "tpot:p99": 20.0,
    "itl:median": 11.0, "itl:p99": 40.0, "e2el:median": 2500.0,
    "output_throughput": 2400.0, "request_throughput": 4.2,
}  # fmt: skip
FIRST_NIGHT = day_number("2026-01-01")
OUTPUT = "output"
"""File with the output of the last command."""
LOADS = (1, 4, 16, 64, 256)


@dataclass(frozen=True)
class Limits:
    """In MB of resident set, MB of the dashboard's first page, and a share of the first detection's CPU."""

    memory: float = 300.0
    export: float = 200.0
    page: float = 0.5
    again: float = 0.1


LIMITS = Limits()


@dataclass(frozen=True)
class Figure:
    what: str
    measured: float
    limit: float
    unit: str

    @property
    def holds(self) -> bool:
        return self.measured <= self.limit


@dataclass(frozen=True)
class Usage:
    """Of an ended command: its largest resident set in MB, and seconds of CPU."""

    memory: float
    cpu: float


def write_store(state: Path, cells: int, nights: int, metrics: int, seed: int) -> None:
    """Write a store of noise of 2 %, in which every 20th cell becomes 20 % slower in the last 30 nights."""
    rng, names = np.random.default_rng(seed), list(METRICS)[:metrics]
    with SeriesStore.of(state) as store, store.transaction():
        for number in range(nights):
            night = night_of(FIRST_NIGHT + number)
            commit, name = f"{number:040x}", str(1000 + number)
            build = Build("kanban", "nightly", name, commit=commit, branch="main", fixed=f"{night}T18:00:00Z")
            noise = np.exp(rng.normal(0, 0.02, (cells, len(names))))
            points = [
                _point(build, night, number, nights, cell, names, noise[cell].tolist())
                for cell in range(cells)
            ]
            store.replace_results(store.keep_build(build, whole=True), points, ())


def _point(
    build: Build,
    night: str,
    number: int,
    nights: int,
    cell: int,
    names: Sequence[str],
    noise: Sequence[float],
) -> Point:
    slower = 1.2 if cell % 20 == 0 and number >= nights - 30 + cell % 7 else 1.0
    values = {
        name: float(METRICS[name] * factor * (1 / slower if "throughput" in name else slower))
        for name, factor in zip(names, noise, strict=True)
    }
    workload = Workload(
        f"model_{cell // 5:03}",
        "random",
        LOADS[cell % 5],
        prompts=128,
        lengths="in1000-out100",
        model=f"Some/Model-{cell // 5}",
        backend="openai-chat-omni",
        digest=f"{cell:064x}",
    )
    covariates = {
        "duration": 31.2, "outside": 2.1, "completed": 128, "failed": 0, "prompts": 128, "warmups": 2,
        "max_concurrent_requests": 16, "input_tokens": 1024.5, "output_tokens": 100.0,
        "client": "a" * 12, "keys": "b" * 12, "server": "c" * 12, "suite": "d" * 12,
        "host": f"box{cell % 4}", "hardware": "2 x NVIDIA H100", "engine": "0.12.0",
    }  # fmt: skip
    began = f"{night}T{19 + cell // 600 % 5}:{cell // 10 % 60:02}"
    start, raw = f"start-{number}-{cell // 5}", f"nightly-{build.name}/result_{cell}.json"
    return Point(
        build=build,
        workload=workload,
        began=f"{began}:00Z",
        ended=f"{began}:31Z",
        values=values,
        covariates=covariates,
        night=night,
        start=start,
        raw=raw,
    )


def measure(state: Path, *arguments: str) -> Usage:
    """Run a command to its end. :raises SystemExit: it failed."""
    command = [sys.executable, "-c", "from perfbisect.cli import main; main()", *arguments]
    env = os.environ | {"PERFBISECT_STATE": str(state)}
    with (state / OUTPUT).open("wb") as out, (state / "errors.log").open("wb") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=env, cwd=state)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        said = (state / "errors.log").read_text("utf-8", "replace")[-2000:]
        raise SystemExit(f"perfbisect {' '.join(arguments)} ended with {process.returncode}: {said}")
    return Usage(used.ru_maxrss * 1024 / 1e6, used.ru_utime + used.ru_stime)


def figures(state: Path, options: argparse.Namespace, limits: Limits) -> list[Figure]:
    """Generate everything below the state folder and measure it."""
    write_store(state, options.cells, options.nights, options.metrics, options.seed)
    job = Jobs(state).find(write_long_job(state, options.launches, options.seed)).id
    first, again = measure(state, "track", "detect"), measure(state, "track", "detect")
    export = measure(state, "track", "export")
    measure(state, "dashboard", "build", "-o", str(state / "site"), "--json")
    page = json.loads((state / OUTPUT).read_bytes())["first_page_bytes"] / 1e6
    status, resumed = measure(state, "status", job), measure(state, "resume", job)
    return [
        Figure("dashboard: first page", page, limits.page, "MB"),
        Figure("track detect: memory", first.memory, limits.memory, "MB"),
        Figure("track detect, unchanged: memory", again.memory, limits.memory, "MB"),
        Figure("track detect, unchanged: share of the first CPU", again.cpu / first.cpu, limits.again, ""),
        Figure("track export: memory", export.memory, limits.export, "MB"),
        Figure("status: memory", status.memory, limits.memory, "MB"),
        Figure("resume: memory", resumed.memory, limits.memory, "MB"),
    ]


def table(measured: Sequence[Figure]) -> list[str]:
    head = f"{'what':<48} {'measured':>12} {'limit':>12}  holds"
    return [
        head,
        *(
            f"{one.what:<48} {f'{one.measured:.3g} {one.unit}':>12} {f'{one.limit:g} {one.unit}':>12}  "
            f"{'yes' if one.holds else 'NO'}"
            for one in measured
        ),
    ]


def main(arguments: Sequence[str] | None = None, limits: Limits = LIMITS) -> int:
    """Generates, measures, prints; returns the exit code."""
    options = parser(__doc__)
    options.add_argument("--cells", type=int, default=1000)
    options.add_argument("--nights", type=int, default=90)
    options.add_argument("--metrics", type=int, default=len(METRICS), choices=range(1, len(METRICS) + 1))
    options.add_argument("--launches", type=int, default=5000)
    options.add_argument("--seed", type=int, default=1)
    with tempfile.TemporaryDirectory(prefix="pb-scale-") as folder:
        measured = figures(Path(folder), options.parse_args(arguments), limits)
    print("\n".join(table(measured)))
    return 0 if all(figure.holds for figure in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
