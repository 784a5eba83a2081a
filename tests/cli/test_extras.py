"""What can be asked beside the one step, with real processes that bisect the pretend engine."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from perfbisect.jobs.folders import Jobs
from perfbisect.jobs.journal import read
from tests.changes.repositories import commit, everything, git
from tests.cli.test_interrupts import START, Bench
from tests.fakes.history import CALM, MEASURED_WITH, PretendHistory, make_history
from tests.jobs.test_kill9 import CELL, marked

DIES_BEFORE_THE_RECORD = (
    "import os; from perfbisect.jobs.journal import Journal; real = Journal.append\n"
    "def append(self, kind, data):\n"
    "    os._exit(9) if kind == 'launched' else None\n"
    "    return real(self, kind, data)\n"
    "Journal.append = append\n" + START
)
"""The server's process exists, and nobody has written that down."""


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


def test_a_release_beside_main_and_the_reverted_end(tmp_path: Path, history: PretendHistory) -> None:
    """The good end is no ancestor of the bad one; the culprit is taken out of the bad end and measured."""
    before = everything(history.path)
    bench = Bench(tmp_path, history)
    arguments = ("--good", "v1", "--bad", "main", "--confirm-revert", "--json", "--full")
    process = bench.bisect(*arguments)
    out, told = process.communicate(timeout=180)
    assert process.returncode == 3, told
    report = json.loads(out)
    assert report["culprit"]["id"] == history.culprit
    assert report["cherry_picks"] == []
    searched = [x for x in report["launches"] if x["purpose"] == "search"]
    assert searched[0]["change"]["id"] == history.commits[0], "the merge base first"
    assert report["revert_note"] == ""
    assert report["revert"]["left"]["id"] == history.bad
    assert report["revert"]["high"] < -0.3, "without the culprit the end is fast"
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


def test_a_crash_between_the_start_of_a_server_and_its_record(
    tmp_path: Path, history: PretendHistory
) -> None:
    bench = Bench(tmp_path, history)
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


def test_a_second_user_can_wait_for_the_first(tmp_path: Path, history: PretendHistory) -> None:
    bench = Bench(tmp_path, history)
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
    assert json.loads(out)["schema"] == "perfbisect.run/2"
    assert marked(bench.state) == []
