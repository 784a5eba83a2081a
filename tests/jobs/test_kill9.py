"""kill -9 at random moments of real bisections of the pretend engine: real processes, real HTTP."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.replay import launches
from tests.fakes.history import ENGINE, PretendHistory, make_history

CELL = Path(__file__).parent.parent / "fakes" / "cells" / "pretend.yaml"
KILLS = 20
SEED = 20_261


class Scene:
    """A history of the pretend engine and the command line that bisects it."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        # A large step and little noise: few launches decide, and every undisturbed run names the same commit.
        pace = {"LAUNCH_SD": 0.005, "RUN_SD": 0.005, "OUTLIER_PROBABILITY": 0.0}
        self.history: PretendHistory = make_history(folder / "repo", commits=4, slow=2, factor=2.5, pace=pace)
        self.env = os.environ | {
            "PERFBISECT_STATE": str(self.state),
            "PERFBISECT_CACHE": str(folder / "cache"),
            "PERFBISECT_BACKOFF": "0.1,0.1",
            "PERFBISECT_LOCKS": str(folder / "locks"),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from perfbisect.cli import main; main()", *arguments, "--json"]
        return subprocess.Popen(
            command,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.state.parent,
        )

    def bisect(self) -> subprocess.Popen[str]:
        return self.start(
            *("bisect", str(CELL), "--repo", str(self.history.path)),
            *("--good", self.history.good, "--bad", self.history.bad),
            *("--env", f"overlay:{sys.executable},base=any"),
            *("--client", f"existing:{sys.executable},path={ENGINE}"),
        )

    def newest(self) -> Job | None:
        jobs = Jobs(self.state).all()
        return jobs[-1] if jobs else None


def marked(state: Path) -> list[psutil.Process]:
    """Living processes of this state folder's attempts: by their working folder, whoever their parent is."""
    found = []
    for process in psutil.process_iter():
        try:
            folder = process.cwd()
            living = process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if living and folder.startswith(str(state)):
            found.append(process)
    return found


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The history, and its environments built: a bisection that was not disturbed."""
    scene = Scene(tmp_path_factory.mktemp("kill9"))
    done = scene.bisect()
    output, told = done.communicate(timeout=100)
    assert done.returncode == 3, told
    assert json.loads(output)["culprit"]["id"] == scene.history.culprit
    return scene


@pytest.mark.slow
def test_kill_9_twenty_times(scene: Scene) -> None:
    draw = random.Random(SEED)
    killed = 0
    process, before = scene.bisect(), scene.newest()
    job: Job | None = None
    while killed < KILLS:
        if job is None:
            job = _begun(scene, before, process)
        deadline = time.monotonic() + draw.uniform(0.0, 2.0)
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        if process.poll() is not None:
            _check(scene, job, process)
            before, process, job = job, scene.bisect(), None
            continue
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += 1
        process = scene.start("resume", job.id)
    assert job is not None
    _check(scene, job, process)


def _begun(scene: Scene, before: Job | None, process: subprocess.Popen[str]) -> Job:
    """The job of a bisection that has just been started, once its plan is written."""
    while True:
        job = scene.newest()
        if job is not None and job != before and job.journal.stat().st_size > 0:
            return job
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def _check(scene: Scene, job: Job, process: subprocess.Popen[str]) -> None:
    """The same verdict, no attempt lost or doubled, no process left."""
    output, told = process.communicate(timeout=100)
    assert process.returncode == 3, told
    document = json.loads(output)
    assert document["outcome"] == "found"
    assert document["culprit"]["id"] == scene.history.culprit
    assert marked(scene.state) == []
    events = read(job.journal).events
    started = [event.data["attempt"] for event in events if event.kind == "started"]
    assert len(started) == len(set(started))
    seen = launches(events)
    assert [launch.attempt_id for launch in seen] == started
    assert all(launch.end is not None for launch in seen)
    ended_on_disk = {path.parent.name for path in job.path.glob("attempts/*/attempt.json")}
    in_journal = {f"{launch.number:03d}" for launch in seen if launch.end in ("finished", "failed")}
    assert ended_on_disk == in_journal, "an attempt that had ended is in the journal, another is abandoned"
    assert [e.kind for e in events].count("verdict") == 1
