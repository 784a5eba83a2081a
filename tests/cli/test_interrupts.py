"""Ctrl-C, TERM, ``stop``, a second perfbisect: real processes that bisect the pretend engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import read
from tests.changes.repositories import commit, everything, git
from tests.fakes.history import CALM, MEASURED_WITH, PretendHistory, make_history
from tests.jobs.test_kill9 import CELL, marked

START = "from perfbisect.cli import main; main()"
"""Background jobs of a shell that is not interactive ignore Ctrl-C: so must we not."""
IGNORING = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " + START

DIES_BEFORE_THE_RECORD = (
    "import os; from perfbisect.jobs.journal import Journal; real = Journal.append\n"
    "def append(self, kind, data):\n"
    "    os._exit(9) if kind == 'launched' else None\n"
    "    return real(self, kind, data)\n"
    "Journal.append = append\n" + START
)
"""The server's process exists, and nobody has written that down."""


class Bench:
    """A history of the pretend engine, a state folder, and perfbisect as a process."""

    def __init__(self, folder: Path, history: PretendHistory) -> None:
        self.history, self.state, self.folder = history, folder / "state", folder
        self.env = os.environ | {
            "PERFBISECT_STATE": str(self.state),
            "PERFBISECT_CACHE": str(history.path.parent / "cache"),
            "PERFBISECT_LOCKS": str(folder / "locks"),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *arguments: str, code: str = START) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )

    def bisect(self, *more: str, code: str = START) -> subprocess.Popen[str]:
        return self.start(
            *("bisect", str(CELL), "--repo", str(self.history.path)),
            *("--good", self.history.good, "--bad", self.history.bad),  # a later option of the same name wins
            *(*MEASURED_WITH, *more),
            code=code,
        )

    def wait_for(self, kind: str, process: subprocess.Popen[str]) -> Job:
        """The job, once its journal has an event of this kind."""
        while process.poll() is None:
            for job in Jobs(self.state).all():
                if any(event.kind == kind for event in read(job.journal).events):
                    return job
            time.sleep(0.02)
        pytest.fail(f"it ended before {kind}: {process.communicate()}")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> PretendHistory:
    """Four commits on main, of which the third is slow, and a release beside them."""
    made = make_history(tmp_path_factory.mktemp("h") / "repo", commits=4, slow=2, factor=2.5, pace=CALM)
    git(made.path, "checkout", "--quiet", "-b", "release", made.commits[0])
    init = (made.path / "vllm" / "__init__.py").read_text()
    commit(made.path, "Release", **{"vllm/__init__.py": init + "\n# Released.\n"})
    git(made.path, "tag", "v1")
    git(made.path, "checkout", "--quiet", "main")
    return made


@pytest.fixture
def bench(tmp_path: Path, history: PretendHistory) -> Bench:
    return Bench(tmp_path, history)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, START),
        pytest.param(signal.SIGINT, IGNORING, marks=pytest.mark.processes),
        pytest.param(signal.SIGTERM, START, marks=pytest.mark.processes),
        pytest.param(signal.SIGHUP, START, marks=pytest.mark.processes),
    ],
    ids=["ctrl-c", "ctrl-c-ignored-by-the-shell", "term", "hup"],
)
def test_an_interruption_stops_everything_and_can_be_resumed(
    bench: Bench, number: signal.Signals, code: str
) -> None:
    process = bench.bisect(code=code)
    job = bench.wait_for("launched", process)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert f"next:  perfbisect resume {job.id}" in told
    assert "Traceback" not in told
    assert marked(bench.state) == []
    assert job.holder is None
    if code == IGNORING:
        resumed = bench.start("resume", "--json")
        out, told = resumed.communicate(timeout=100)
        assert resumed.returncode == 3, told
        assert json.loads(out)["culprit"]["id"] == bench.history.culprit
        assert json.loads(out)["job"] == job.id


@pytest.mark.processes
def test_stop_interrupts_the_job_and_a_second_perfbisect_is_refused(bench: Bench) -> None:
    first = bench.bisect("--json")
    job = bench.wait_for("launched", first)
    second = bench.bisect("--json")
    out, _ = second.communicate(timeout=60)
    assert second.returncode == 5
    error = json.loads(out)
    assert error["schema"] == "perfbisect.error/1"
    assert error["kind"] == "MachineError"
    assert f"(pid {first.pid}, job {job.id}, since " in error["error"]
    assert "has the whole machine" in error["error"]
    assert error["next"].startswith("wait for it, stop it")
    running = bench.start("status", job.id, "--json")
    assert json.loads(running.communicate(timeout=60)[0])["state"] == "running"
    stopping = bench.start("stop", job.id, "--json")
    assert json.loads(stopping.communicate(timeout=60)[0])["pid"] == first.pid
    out, told = first.communicate(timeout=60)
    assert first.returncode == 130, told
    assert json.loads(out)["next"] == f"perfbisect resume {job.id}"
    assert marked(bench.state) == []


@pytest.mark.processes
def test_an_end_that_does_not_serve_is_an_error_about_the_range(tmp_path: Path) -> None:
    history = make_history(tmp_path / "repo", commits=4, slow=2, faults={3: "exit1"})
    bench = Bench(tmp_path, history)
    process = bench.bisect("--json")
    out, told = process.communicate(timeout=100)
    assert process.returncode == 5, told
    error = json.loads(out)
    assert error["kind"] == "ServerError"
    assert f"the bad end {history.bad[:12]} does not serve" in error["error"]
    assert Path(error["where"]).name == "server.log"
    assert "--bad" in error["next"]
    job = Jobs(bench.state).all()[0]
    assert [event.kind for event in read(job.journal).events].count("failed") == 6
    assert marked(bench.state) == []


@pytest.mark.processes
def test_a_dirty_work_tree_is_told_and_not_touched(tmp_path: Path) -> None:
    history = make_history(tmp_path / "repo", commits=3, slow=2, factor=2.5)
    pace = history.path / "vllm" / "pace.py"
    pace.write_text("STEP_MS = 'mine'\n")
    (history.path / "untracked.txt").write_text("mine\n")
    before = {
        p: p.stat().st_mtime_ns for p in history.path.rglob("*") if p.is_file() and ".git" not in p.parts
    }
    process = Bench(tmp_path, history).bisect("--json")
    out, told = process.communicate(timeout=100)
    assert process.returncode == 3, told
    assert json.loads(out)["culprit"]["id"] == history.culprit
    assert any("uncommitted changes" in text for text in json.loads(out)["notes"])
    after = {
        p: p.stat().st_mtime_ns for p in history.path.rglob("*") if p.is_file() and ".git" not in p.parts
    }
    assert after == before


@pytest.mark.processes
def test_a_release_beside_main_and_the_reverted_end(bench: Bench, history: PretendHistory) -> None:
    """The good end is no ancestor of the bad one; the culprit is taken out of the bad end and measured."""
    before = everything(history.path)
    arguments = ("--good", "v1", "--bad", "main", "--confirm-revert", "--json", "--full")
    process = bench.bisect(*arguments)
    out, told = process.communicate(timeout=180)
    assert process.returncode == 3, told
    report = json.loads(out)
    assert report["culprit"]["id"] == history.culprit
    assert report["cherry_picks"] == []
    searched = [x for x in report["launches"] if x["purpose"] == "search"]
    assert searched[0]["change"]["id"] == history.commits[0], "the merge base first"
    assert report["revert"]["note"] == ""
    assert report["revert"]["change"]["id"] not in history.commits
    assert report["revert"]["verdict"]["high"] < -0.3, "without the culprit the end is fast"
    assert any("the step is gone with it" in text for text in report["summary"])
    assert everything(history.path) == before, "the user's repository is as it was"
    assert marked(bench.state) == []
    folder = Path(report["folder"])
    page = (folder / "report.html").read_text()
    assert str(history.culprit)[:12] in page
    other = bench.start("report", "--metric", "e2el", folder.name, "--json")
    asked = json.loads(other.communicate(timeout=60)[0])
    assert asked["metric"]["name"] == "e2el"
    assert asked["outcome"] in ("found", "inconclusive")


@pytest.mark.processes
def test_a_crash_between_the_start_of_a_server_and_its_record(bench: Bench, history: PretendHistory) -> None:
    process = bench.bisect("--json", code=DIES_BEFORE_THE_RECORD)
    process.communicate(timeout=60)
    assert process.returncode == 9
    job = Jobs(bench.state).all()[0]
    assert [event.kind for event in read(job.journal).events] == ["plan", "started"]
    assert marked(bench.state), "the server lives"
    resumed = bench.start("resume", "--json")
    out, told = resumed.communicate(timeout=100)
    assert resumed.returncode == 3, told
    assert "that attempt 1 had left" in told
    assert json.loads(out)["culprit"]["id"] == history.culprit
    assert marked(bench.state) == []


@pytest.mark.processes
def test_a_second_user_can_wait_for_the_first(bench: Bench, history: PretendHistory) -> None:
    first = bench.bisect()
    job = bench.wait_for("launched", first)
    second = bench.start(
        *("run", str(CELL), "--at", history.good, "--repo", str(history.path), "--wait", "10m", "--json"),
        *MEASURED_WITH,
    )
    assert second.stderr is not None
    while "waits: " not in (line := second.stderr.readline()):
        assert line, "it ended"
    assert f"(pid {first.pid}, job {job.id}, since " in line
    assert "has the whole machine" in line
    first.send_signal(signal.SIGINT)
    _, told = first.communicate(timeout=60)
    assert first.returncode == 130, told
    out, told = second.communicate(timeout=100)
    assert second.returncode == 0, told
    assert json.loads(out)["schema"] == "perfbisect.run/5"
    assert marked(bench.state) == []
