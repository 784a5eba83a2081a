"""One bisection with the real ``vllm serve`` and ``vllm bench serve``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from perfbisect.measure.attempt import read_attempt
from perfbisect.model.attempt import RunResult
from perfbisect.model.counters import RunCounters
from scripts.demo_history import SCHEDULER, Demo
from tests.vllm.conftest import Answer, write_short

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]


def engines(ours: Path) -> list[str]:
    """Processes whose process environment or working folder is of this test."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and str(ours) in process.cwd() + str(process.cmdline()):
                found.append(f"{process.pid} {process.cmdline()}")
        except psutil.Error:
            continue
    return found


def check_counters(run: RunResult) -> None:
    """What the engine counted in a run agrees with what the client saw."""
    client = json.loads(Path(run.raw).read_text())
    counted = RunCounters.of_run(run)
    (engine,) = counted.engine.stages.values()
    completed, tokens = client["completed"], client["total_output_tokens"]
    # The client's check and warm-ups come on top, with outputs of the same length.
    assert engine["requests"] >= completed
    assert engine["generation_tokens"] * completed == engine["requests"] * tokens
    assert engine["iterations"] <= engine["generation_tokens"]
    assert engine["iteration_tokens"] > engine["generation_tokens"]
    assert min(engine[name] for name in ("queue_s", "prefill_s", "decode_s")) >= 0
    core_s = engine["queue_s"] + engine["prefill_s"] + engine["decode_s"]
    assert 0 < core_s <= engine["request_s"] * 1.01
    steps = engine["generation_tokens"] - engine["requests"]
    # The same steps by two clocks, of which the client's has its own load.
    assert 0.5 < 1e3 * engine["decode_s"] / steps / run.values["tpot:median"] < 2.0
    assert counted.cpu_s.keys() >= {"api_server", "engine_core", "worker"}
    assert all(counted.cpu_s[role] > 0 for role in ("api_server", "engine_core", "worker"))


@pytest.mark.parametrize(
    ("metric", "why"),
    [("model_memory", "uses none (gpus: 0)"), ("compile_time", "turns it off (enforce-eager: true)")],
)
def test_what_this_server_never_has_is_refused(
    perfbisect: Callable[..., Answer], history: Demo, metric: str, why: str
) -> None:
    answer = perfbisect("run", "--at", history.commits[0], "--metric", metric, "--dry-run")
    assert answer.code == 2
    assert why in answer.document["error"]


@pytest.mark.proof
def test_a_bisection_and_why(
    perfbisect: Callable[..., Answer], typed: Callable[..., Answer], history: Demo, tmp_path: Path
) -> None:
    ends = ("--good", history.commits[0], "--bad", history.commits[-1])
    answer = perfbisect("bisect", *ends, "--budget", "25m", cell=write_short(tmp_path))
    assert answer.document["outcome"] == "found", answer.document
    assert answer.code == 3
    assert answer.document["culprit"]["id"] == history.planted
    assert answer.document["probability"] >= 0.95
    assert answer.document["confirmed"]["low"] > 0.3
    assert [len(position["changes"]) for position in answer.document["merged"]] == [2]
    attempt = read_attempt(Path(answer.document["folder"], answer.document["launches"][0]["folder"]))
    assert attempt is not None
    for run in attempt.runs:
        check_counters(run)
    check_explanation(typed, answer.document["job"])
    assert engines(answer.folder) == []


def check_explanation(typed: Callable[..., Answer], job: str) -> None:
    """The phase is decode, and a profile of one launch a side names the function that was planted.

    The A/B of a large step has two launches a side: too few to say "moved" whatever the noise was, since that
    holds for all phases together.
    """
    phases = typed("explain", job).document["phases"]
    low = {row["name"]: row["low"] for row in phases["phases"]}
    assert low["decode"] > 0, phases
    profile = typed("explain", job, "--profile", "--launches", "1").document
    result = profile["result"]
    assert [launch["purpose"] for launch in profile["launches"]] == ["profile", "profile"]
    assert result["problems"] == [], result
    assert result["kind"] == "in the diff", result
    assert result["place"].startswith(f"{SCHEDULER}:") and "_check_block_accounting" in result["place"]
    assert result["functions"][0]["function"].endswith("_check_block_accounting")
