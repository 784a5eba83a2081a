"""Jobs that are started, left, polled and stopped: real processes that measure the pretend engine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from perfbisect.jobs.folders import Job, Jobs
from tests.cli.test_interrupts import Bench
from tests.command_line import type_json
from tests.fakes.history import ENVIRONMENT, MEASURED_WITH, PretendHistory, make_history
from tests.jobs.test_kill9 import CELL, marked
from tests.system.stand_ins import until

LONG = ("--launches", "500")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> PretendHistory:
    return make_history(tmp_path_factory.mktemp("h") / "repo", commits=2, slow=1, factor=2.5)


@pytest.fixture
def bench(tmp_path: Path, history: PretendHistory, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path, history)
    for name in ("PERFBISECT_STATE", "PERFBISECT_CACHE", "PERFBISECT_LOCKS"):
        monkeypatch.setenv(name, bench.env[name])
    monkeypatch.chdir(tmp_path)
    return bench


def said(bench: Bench, *typed: str, code: int = 0) -> dict[str, Any]:
    """The document that a command prints."""
    process = bench.start(*typed, "--json")
    out, told = process.communicate(timeout=100)
    assert process.returncode == code, (out, told)
    document = json.loads(out)
    assert isinstance(document, dict)
    return document


def run(bench: Bench, *more: str, code: int = 0) -> dict[str, Any]:
    return said(
        bench,
        *("run", str(CELL), "--at", bench.history.good, "--repo", str(bench.history.path)),
        *(*MEASURED_WITH, *more),
        code=code,
    )


def test_a_job_goes_on_without_the_shell_that_began_it(bench: Bench) -> None:
    left = run(bench, "--detach")
    assert left["schema"] == "perfbisect.detached/1"
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        assert os.getsid(left["pid"]) == left["pid"], "a hangup of our terminal must not reach it"
    program, *poll = left["poll"].split()
    assert (program, poll[:2]) == ("perfbisect", ["status", left["job"]])
    status = type_json(*poll[:-1])
    assert (status["state"], status["exit_code"], status["error"]) == ("finished", 0, None)
    assert [launch["outcome"] for launch in status["last"]] == ["measured"]
    assert json.loads(Path(status["result"]).read_text())["job"] == left["job"]
    log = Path(left["log"]).read_text()
    assert log.startswith("#1 "), "what precedes the job is printed where it was started"
    assert '"schema": "perfbisect.run/5"' in log
    assert Path(left["folder"]) == Jobs(bench.state).all()[0].path


def test_what_is_wrong_is_told_at_once_and_begins_nothing(bench: Bench) -> None:
    error = run(bench, "--detach", "--metric", "ttf", code=2)
    assert (error["schema"], error["kind"], error["exit_code"]) == ("perfbisect.error/1", "UsageError", 2)
    assert Jobs(bench.state).all() == ()


def over(pid: int) -> bool:
    """The process has ended: it lets go of its job a moment before."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_detached_job_is_watched_and_stopped(bench: Bench) -> None:
    left = run(bench, *LONG, "--detach")
    status = type_json("status", "--wait", "--timeout", "0.01m")
    assert (status["job"], status["state"], status["pid"]) == (left["job"], "running", left["pid"])
    assert (status["exit_code"], status["log"]) == (None, left["log"])
    assert status["next"] == f"perfbisect status {left['job']} --wait"
    doing = [""]

    def says() -> bool:
        """What the launch does now: for a moment none runs."""
        doing[:] = [launch["doing"] for launch in type_json("status", left["job"])["running"]]
        return any(doing)

    until(says)
    assert doing[0] in ("starting", "discarded run", "run 1", "stopping", "stopped")
    stopped = type_json("stop", left["job"], "--wait")
    assert (stopped["asked"], stopped["pid"], stopped["ended"]) == (True, left["pid"], True)
    until(lambda: over(left["pid"]))
    assert marked(bench.state) == []
    status = type_json("status", left["job"])
    assert (status["state"], status["exit_code"]) == ("unfinished", 130)
    assert (status["error"]["kind"], status["error"]["exit_code"]) == ("Interrupted", 130)
    assert status["next"] == stopped["next"] == f"perfbisect resume {left['job']}"
    assert type_json("stop", left["job"])["asked"] is False


@pytest.mark.processes
def test_a_killed_one_is_unfinished_and_is_resumed_once(bench: Bench) -> None:
    left = run(bench, *LONG, "--detach")
    until(lambda: bool(marked(bench.state)))  # a launch's processes outlive the driver
    os.kill(left["pid"], signal.SIGKILL)
    status = type_json("status", left["job"], "--wait")
    assert (status["state"], status["pid"]) == ("unfinished", None)
    assert (status["exit_code"], status["error"]) == (None, None), "it could not say how it ended"
    assert status["next"] == f"perfbisect resume {left['job']}"
    again = said(bench, "resume", left["job"], "--detach")
    assert (again["job"], again["log"]) == (left["job"], left["log"])
    refused = said(bench, "resume", left["job"], "--detach", code=5)
    assert refused["kind"] == "MachineError"
    assert f"process {again['pid']}" in refused["error"]
    assert type_json("status", left["job"])["pid"] == again["pid"], "the refusal left it alone"
    assert type_json("stop", left["job"], "--wait")["ended"]
    assert marked(bench.state) == []


@pytest.mark.processes
def test_a_job_that_waits_for_the_machine_is_seen_and_stopped(bench: Bench) -> None:
    first = run(bench, *LONG, "--detach")
    second = run(bench, "--detach", "--wait", "10m")
    assert second["job"] != first["job"]
    status = type_json("status", second["job"])
    assert (status["state"], status["launches"], status["running"]) == ("running", 0, [])
    assert status["expected"]["at"] is None
    for job in (second, first):
        assert type_json("stop", job["job"], "--wait")["ended"]
    assert "waits: " in Path(second["log"]).read_text()
    assert Job(Path(second["folder"])).finished is False


def test_a_dry_run_is_left_to_nobody(bench: Bench) -> None:
    ends = ("--good", bench.history.good, "--bad", bench.history.bad, "--repo", str(bench.history.path))
    plan = said(bench, "bisect", str(CELL), *ends, "--env", ENVIRONMENT, "--dry-run",
                "--detach")  # fmt: skip
    assert plan["schema"] == "perfbisect.plan/3"
    assert Jobs(bench.state).all() == ()
