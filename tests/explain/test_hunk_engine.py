"""A squash merge of the pretend engine with one guilty hunk: real git, real processes, killed once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfbisect.cli.app import run as cli
from perfbisect.commands.workspace import open_workspace
from perfbisect.errors import EXIT_REGRESSION
from perfbisect.explain.plans import plan_hunks
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.requests import NO_REQUEST
from tests.fakes.gitwriter import HistoryWriter
from tests.fakes.history import ENGINE, engine_files, with_step
from tests.jobs.test_kill9 import CELL, marked

MEASURED = (
    *("--env", f"overlay:{sys.executable},base=any"),
    *("--client", f"existing:{sys.executable},path={ENGINE}", "--quiet"),
)


def squash_merge(path: Path) -> tuple[str, str]:
    """A repository: a commit, and the squash merge."""
    files = engine_files()
    for name in ("LAUNCH_SD", "RUN_SD", "OUTLIER_PROBABILITY"):
        value = b"0.0" if name == "OUTLIER_PROBABILITY" else b"0.004"
        pattern = rb"^%s = .*$" % name.encode()
        files["vllm/pace.py"] = re.sub(
            pattern, b"%s = %s" % (name.encode(), value), files["vllm/pace.py"], flags=re.M
        )
    merge: dict[str, bytes | None] = {
        "vllm/pace.py": with_step(files["vllm/pace.py"], 1.8),
        "vllm/prefix_cache.py": files["vllm/prefix_cache.py"].replace(b"known = 0", b"known = int(0)"),
        "vllm/server.py": files["vllm/server.py"]
        .replace(
            b"self.completions += 1\n", b"self.completions += 1\n            totals.note(self.completions)\n"
        )
        .replace(
            b"from . import faults, pace, processes\n", b"from . import faults, pace, processes, totals\n"
        ),
        "vllm/totals.py": b"def note(count):\n    return count\n",
        "vllm/noise.py": files["vllm/noise.py"].replace(b"self._run = 1.0", b"self._run = 1.0 * 1.0"),
        "docs/notes.md": b"# Notes\n\nmore\n",
        "tests/test_totals.py": b"assert True\n",
    }
    writer = HistoryWriter(path)
    writer.commit("Import the engine", files | {"docs/notes.md": b"# Notes\n"})
    writer.commit("[Core] Count what was done (#4711)", merge)
    parent, culprit = writer.finish()
    return parent, culprit


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Job, tuple[str, str]]:
    """The merge, compared with its parent."""
    parent, culprit = squash_merge(tmp_path / "repo")
    for name in ("STATE", "CACHE", "LOCKS"):
        monkeypatch.setenv(f"PERFBISECT_{name}", str(tmp_path / name.lower()))
    monkeypatch.setenv("PERFBISECT_BACKOFF", "0.1,0.1")
    monkeypatch.chdir(tmp_path)
    sides = ("--a", parent, "--b", culprit, "--blocks", "2")
    assert cli(["compare", str(CELL), "--repo", str(tmp_path / "repo"), *sides, *MEASURED]) == EXIT_REGRESSION
    return Jobs(tmp_path / "state").all()[-1], (parent, culprit)


@pytest.mark.processes
def test_the_guilty_hunk_is_found_through_a_kill(
    tmp_path: Path, compared: tuple[Job, tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    source, (parent, culprit) = compared
    planned = plan_hunks(open_workspace(), source, NO_REQUEST, min_effect=None, budget=900.0, dry_run=True)
    labels = [group.label for group in planned.plan.groups]
    assert [label.partition(":")[0] for label in labels] == [
        *("vllm/noise.py", "vllm/pace.py", "vllm/prefix_cache.py", "vllm/server.py")
    ]
    assert "vllm/totals.py" in labels[3]
    assert planned.plan.left_out == (
        "documentation and examples: docs/notes.md",
        "tests: tests/test_totals.py",
    )
    assert planned.plan.parent == parent and planned.plan.slower
    assert planned.shown.step == pytest.approx(0.8, abs=0.15)
    assert planned.shown.launches is not None

    process = subprocess.Popen(
        [Path(sys.executable).with_name("perfbisect"), "explain", source.id, "--hunks", "--json"],
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    job = begun(tmp_path / "state", source, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    capsys.readouterr()
    assert cli(["resume", job.id, "--json", "--full", "--quiet"]) == EXIT_REGRESSION
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "perfbisect.hunks/3"
    assert document["verdict"] == "found"
    (guilty,) = [group for group in document["groups"] if group["guilty"]]
    assert guilty["label"] == labels[1]
    assert guilty["hunks"][0]["added"] == ["STEP_MS = 9.0000"]
    assert document["share"]["effect"] == pytest.approx(1 / 1.8 - 1, abs=0.06)
    assert marked(tmp_path / "state") == []
    assert "STEP_MS = 9.0000" in job.page.read_text() and ">> +STEP_MS = 9.0000" in job.report.read_text()
    assert cli(["status", job.id, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["verb"], status["outcome"]) == ("hunks", "found")
    # The patch file is a change that the grammar of changes has.
    assert (
        cli(["changes", "show", f"{culprit}+patch:{document['patch']}", "--repo", str(tmp_path / "repo")])
        == 0
    )


def begun(state: Path, source: Job, process: subprocess.Popen[str]) -> Job:
    """The search, once five of its launches have ended."""
    while process.poll() is None:
        job = Jobs(state).all()[-1]
        if job != source and [event.kind for event in read(job.journal).events].count("finished") >= 5:
            return job
        time.sleep(0.02)
    pytest.fail(f"it ended: {process.communicate()}")
