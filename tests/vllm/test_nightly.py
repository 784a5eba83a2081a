"""One night of two cells with the real vLLM, and the same commit once more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfbisect.jobs.folders import Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.replay import launches
from scripts.demo import CACHE, DAY
from scripts.demo_history import Demo
from tests.fakes.gitwriter import run_git
from tests.vllm.conftest import RELEASE, write_short
from tests.vllm.test_real import engines

pytestmark = [pytest.mark.vllm, pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(1200)]


def configured(folder: Path, history: Demo) -> Path:
    """A nightly over the history's first commit: a short cell and one with other prompts."""
    (folder / "cells").mkdir()
    for name, length in (("few", 64), ("longer", 96)):
        short = Path(write_short(folder / "cells", random_input_len=length))
        short.rename(short.with_name(f"{name}.yaml"))
    run_git(history.path, "branch", "--force", "tonight", history.commits[0])
    config = {
        "name": "real",
        "cells": ["few", "longer"],
        "repo": str(history.path),
        "branch": "tonight",
        "env": f"overlay:{RELEASE},base={history.commits[0]}",
        "exclude_newer": DAY,
        "launches": 2,
        "budget": "30m",
        "state": "state",
        "report": "report",
    }
    path = folder / "nightly.yaml"
    path.write_text(json.dumps(config, indent=1))
    return path


def night(config: Path) -> tuple[int, dict[str, Any]]:
    """A night as cron starts it; its progress goes to the terminal."""
    program = str(Path(sys.executable).with_name("perfbisect"))
    done = subprocess.run(
        [program, "nightly", str(config), "--full", "--json"],
        cwd=config.parent,
        stdout=subprocess.PIPE,
        env=os.environ | {"PERFBISECT_CACHE": str(CACHE)},
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_a_night_and_the_same_commit_again(tmp_path: Path, history: Demo) -> None:
    config = configured(tmp_path, history)
    code, first = night(config)
    assert code == 0, first
    assert first["commit"]["id"] == history.commits[0]
    assert [(cell["name"], cell["state"], cell["launches"]) for cell in first["cells"]] == [
        ("few", "measured", 2), ("longer", "measured", 2),
    ]  # fmt: skip
    assert all(1.0 < cell["value"] < 1000.0 and cell["unit"] == "ms" for cell in first["cells"])
    assert (tmp_path / "report" / "nightly.md").is_file()
    seen = [launch for job in Jobs(tmp_path / "state").all() for launch in launches(read(job.journal).events)]
    assert [launch.outcome for launch in seen] == ["measured"] * 4
    assert len({launch.token for launch in seen}) == 4, "each launch is a start of its own"
    for launch in seen:
        assert launch.attempt is not None
        (run,) = launch.attempt.runs
        # The longer prompts begin as the others do; the client repeats one of its own as it warms up.
        assert run.values.get("prefix_cache_hit_rate", 0.0) < 0.5, "no prompt of another launch was there"
    assert engines(tmp_path) == []

    code, again = night(config)
    assert code == 0, again
    assert [cell["state"] for cell in again["cells"]] == ["skipped"] * 2
    assert again["minutes"] == 0.0
    assert len(Jobs(tmp_path / "state").all()) == 2
