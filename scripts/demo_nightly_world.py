"""The world of `make demo-nightly`: a history night by night, cells, a client, a configuration."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from tests.fakes.gitwriter import HistoryWriter
from tests.fakes.history import ENGINE, engine_files, with_pace

NIGHTS = 10
FIRST = datetime(2026, 3, 2, 2, tzinfo=timezone.utc)
"""The first night; the others follow day by day."""

COMMITS = {1: 2, 2: 3, 3: 3, 4: 3, 5: 3, 6: 3, 7: 5, 8: 3, 9: 3, 10: 0}
"""Commits that the head of a night has and that of the night before had not."""

BROKEN = 4
"""The night whose head does not import; the first commit of the next night mends it."""
KILLED = 5
"""The night that is killed in the middle, and started again."""
SLOW, SLOW_PLACE, FACTOR = 7, 3, 1.3
"""The night on which the slow commit is new, its place among the new ones, and how much slower it is."""
CLIENT = 8
"""The night from which on the client counts the time per token in another way."""

OPENS = 8
"""The night on which the alert can open at the earliest: five nights of the level before it (the broken one
measured nothing) and two of the new one are what the detector asks for."""
LATEST = 9

PACE = {
    "STEP_MS": 8.0,
    "PREFILL_MS": 40.0,
    "LAUNCH_SD": 0.015,
    "RUN_SD": 0.005,
    "REQUEST_SD": 0.02,
    "OUTLIER_PROBABILITY": 0.0,
}
"""What the whole history has of ``vllm/pace.py``."""

LAUNCHES = 2
CELLS: dict[str, dict[str, object]] = {
    "chat_short": {"random_input_len": 64, "random_output_len": 6},
    "chat_long": {"random_input_len": 192, "random_output_len": 9},
    "wide": {"random_output_len": 6, "serve_args": {"max-model-len": 4096}},
    "deep": {"random_output_len": 6, "serve_args": {"max-model-len": 8192}},
}
"""Of three servers: the first two differ in their load alone."""

_HARMLESS = ("vllm/server.py", "vllm/noise.py", "vllm/prefix_cache.py", "vllm/processes.py")


@dataclass(frozen=True)
class World:
    """Where it lies. ``heads``: the commit that each night measures, from night 1."""

    folder: Path
    heads: tuple[str, ...]
    slow: str
    broken: str

    @property
    def repository(self) -> Path:
        return self.folder / "repo"

    @property
    def config(self) -> Path:
        return self.folder / "nightly.yaml"

    @property
    def state(self) -> Path:
        return self.folder / "state"


def moment(night: int) -> datetime:
    """When a night begins."""
    return FIRST + timedelta(days=night - 1)


def make(folder: Path, seed: int) -> World:
    """Writes everything into an empty folder. ``seed``: of the pretend engine's noise."""
    world = history(folder)
    shutil.copytree(ENGINE / "vllm", folder / "client" / "vllm", ignore=shutil.ignore_patterns("__pycache__"))
    cells = folder / "cells"
    shutil.copytree(Path(__file__).parents[1] / "pretend" / "cells" / "models", cells / "models")
    (folder / "launches").mkdir()
    for name, own in CELLS.items():
        fields: dict[str, object] = {
            "family": "text",
            "model": "./models/pretend",
            "dataset_name": "random",
            "random_input_len": 64,
            "ignore_eos": True,
            "num_prompts": 8,
            "num_warmups": 1,
            "max_concurrency": 1,
            "headline": "ttft",
            "gpus": 0,
            "ready_timeout": 30,
            "env": {"PRETEND_SEED": str(seed), "PRETEND_STATE": str(folder / "launches")},
            **own,
        }
        (cells / f"{name}.yaml").write_text(json.dumps(fields, indent=1) + "\n")
    world.config.write_text(json.dumps(_config(folder), indent=1) + "\n")
    return world


def _config(folder: Path) -> dict[str, object]:
    return {
        "name": "demo",
        "cells": list(CELLS),
        "repo": "repo",
        "branch": "main",
        "env": f"overlay:{sys.executable},base=any",
        "client": f"existing:{sys.executable},path={folder / 'client'}",
        "launches": LAUNCHES,
        "budget": "30m",
        "state": "state",
        "report": "report",
        "dashboard": {"folder": "site", "title": "Ten nights"},
        "bisect": {"budget": "15m"},
    }


def change_the_client(world: World) -> None:
    """From here on it spreads an answer's time over one token less: a time per token that nobody slowed."""
    path = world.folder / "client" / "vllm" / "benchmarks" / "report.py"
    text = path.read_text()
    new = text.replace("/ (output.tokens - 1) for", "/ (output.tokens - 2) for")
    if new == text:
        raise SystemExit(f"{path} is not the one that this demonstration knows")
    path.write_text(new)


def history(folder: Path) -> World:
    """The repository: the commits of all nights on one branch."""
    writer = HistoryWriter(folder / "repo", first=int((FIRST - timedelta(hours=40)).timestamp()))
    files = engine_files()
    for name, value in PACE.items():
        files["vllm/pace.py"] = with_pace(files["vllm/pace.py"], name, value)
    clean, mend = dict(files), dict[str, bytes | None]()
    writer.commit("Import the engine", files)
    count, ends, slow = 1, [], 0
    for night in range(1, NIGHTS + 1):
        for place in range(1, COMMITS[night] + 1):
            changes, mend = mend, {}
            subject = f"Explain step {count}"
            if (night, place) == (SLOW, SLOW_PLACE):
                slow, subject = count, "[Core] Check the block table before each prefill"
                slower = with_pace(clean["vllm/pace.py"], "PREFILL_MS", PACE["PREFILL_MS"] * FACTOR)
                clean["vllm/pace.py"] = changes["vllm/pace.py"] = slower
            elif night == BROKEN and place == COMMITS[night]:
                subject = "[Refactor] Move the helpers"
                mend["vllm/__init__.py"] = clean["vllm/__init__.py"]
                changes["vllm/__init__.py"] = clean["vllm/__init__.py"].replace(
                    b"from .faults import", b"from .helpers.faults import"
                )
            else:
                target = _HARMLESS[count % len(_HARMLESS)]
                clean[target] += b"\n# Step %d.\n" % count
                changes[target] = clean[target]
            writer.commit(subject, changes)
            count += 1
        ends.append(count - 1)
    commits = writer.finish(checkout=False)
    heads = tuple(commits[end] for end in ends)
    return World(folder, heads, commits[slow], heads[BROKEN - 1])
