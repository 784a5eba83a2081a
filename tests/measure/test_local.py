"""Attempts that succeed, with real processes and real HTTP: what is measured, recorded and kept."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfbisect.environments.base import Environment
from perfbisect.environments.cache import cache_variables
from perfbisect.measure.attempt import read_attempt
from perfbisect.measure.local import WARM_SEED_OFFSET
from perfbisect.model.attempt import Attempt
from perfbisect.model.counters import COUNTERS_FACT, RunCounters
from perfbisect.model.metric import parse_metric
from perfbisect.system import processes
from perfbisect.system.files import scratch_folder
from tests.fakes.history import with_pace
from tests.measure.pretend import CHANGE, ENGINE, Watch, attempt, cell, environment

TOKEN = secrets.token_hex(16)
"""Of this process of the tests: others run beside it."""


@dataclass
class Made:
    """An attempt with two runs: what came of it, what was told of it, and its folder."""

    attempt: Attempt
    watch: Watch
    folder: Path

    def document(self, run: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / f"run-{run}.json").read_text())
        return document


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder, watch = tmp_path_factory.mktemp("good"), Watch()
    return Made(attempt(folder, watch=watch, runs=2, token=TOKEN), watch, folder / "attempt")


def test_good_attempt(good: Made) -> None:
    made, watch = good.attempt, good.watch
    assert made.failure is None
    assert watch.phases == ["build", "launch", "ready", "warm", "bench", "bench", "stop"]
    assert watch.launched["token"] == TOKEN
    assert [(run.index, run.seed, run.warnings) for run in made.runs] == [(1, 41, ()), (2, 42, ())]
    assert all(run.values["tpot:median"] > 0 and run.seconds > 0 for run in made.runs)
    assert set(made.seconds) == {"build", "launch", "first_request", "warm", "bench", "stop"}
    assert (made.id, made.change_id, made.purpose) == ("a-1", CHANGE.id, "search")


def test_temporary_files_of_an_attempt_are_its_own_and_go_with_it(tmp_path: Path) -> None:
    token = secrets.token_hex(16)
    scratch = scratch_folder(token)

    def leave_a_file(_: Watch) -> None:
        assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
        (scratch / "vllm_dist_1").touch()

    made = attempt(tmp_path, watch=Watch(at={"ready": leave_a_file}), token=token)
    assert made.failure is None
    commands = made.provenance.facts["server"], made.provenance.facts["client"]
    assert [command["env"]["TMPDIR"] for command in commands] == [str(scratch)] * 2
    assert not scratch.exists()


def test_raw_files_are_kept(good: Made) -> None:
    assert {path.name for path in good.folder.iterdir()} == {
        "attempt.json", "server.log", "client-warm.log", "client-1.log", "client-2.log",
        "run-warm.json", "run-1.json", "run-2.json",
    }  # fmt: skip
    run, document = good.attempt.runs[1], good.document("2")
    assert run.raw == str(good.folder / "run-2.json")
    assert run.values["tpot:median"] == pytest.approx(document["median_tpot_ms"])
    assert len(document["ttfts"]) == 4
    assert read_attempt(good.folder) == good.attempt


def test_warm_run_has_prompts_of_its_own(good: Made) -> None:
    seeds = [good.document(run)["perfbisect_seed"] for run in ("warm", "1")]
    assert seeds == [str(40 + WARM_SEED_OFFSET), "41"]


def test_provenance(good: Made) -> None:
    provenance, facts = good.attempt.provenance, good.attempt.provenance.facts
    assert provenance.cell_digest == cell().digest
    assert provenance.machine_class == facts["machine"]["machine_class"]
    assert (provenance.engine_version, provenance.environment_key) == ("0.0.1", "engine")
    assert provenance.engine_commit == CHANGE.id
    assert facts["server"]["argv"][:4] == [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
    assert all(facts["model_name"] in facts[command]["argv"] for command in ("server", "client"))
    assert facts["client"]["env"]["NO_PROXY"].startswith("127.0.0.1")
    assert (facts["cache_reset"], facts["instrument"]["pinned"]) == ("yes", False)
    assert facts["warm"]["values"]["tpot:median"] > 0
    run = good.attempt.runs[0]
    assert run.facts["sampled"]["samples"] > 0 and run.facts["sampled"]["problem"] == ""
    assert run.facts["prefix_cache"]["after"]["queries"] > 0
    counted, document = RunCounters.of_run(run), good.document("1")
    # The client sends the first of its four prompts once before.
    assert counted.engine.total("requests") == 4 + 1
    assert counted.engine.total("generation_tokens") == document["total_output_tokens"] * 5 / 4
    seconds = [counted.engine.total(name) or 0.0 for name in ("queue_s", "prefill_s", "decode_s")]
    assert min(seconds) > 0 and sum(seconds) == pytest.approx(counted.engine.total("request_s"))
    assert counted.cpu_s.keys() == {"api_server", "engine_core", "worker"}
    assert 0.0 <= counted.cpu_s["worker"] <= counted.cpu_s["api_server"] <= run.seconds
    assert 0 <= run.values["prefix_cache_hit_rate"] <= 1


@pytest.mark.parametrize("fault", ["no_metrics", "half_metrics"])
def test_an_engine_without_counters_is_measured(tmp_path: Path, fault: str) -> None:
    made = attempt(tmp_path, environment(tmp_path, "server", PRETEND_FAULT=fault), runs=1)
    assert made.failure is None
    (run,) = made.runs
    assert RunCounters.of_run(run).engine.stages == {}
    assert "prefix_cache_hit_rate" not in run.values


def test_client_digest_is_of_its_sources(good: Made) -> None:
    root = ENGINE / "vllm"
    expected = hashlib.sha256()
    for part in ("benchmarks", "entrypoints/cli/benchmark"):
        for file in sorted((root / part).rglob("*.py")):
            content = file.read_bytes()
            expected.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    assert good.attempt.provenance.client_digest == f"vllm_bench 0.0.1 {expected.hexdigest()[:16]}"


@pytest.mark.parametrize(("asked", "sent"), [(1, 1), (9, 4)])
def test_a_cell_may_ask_for_a_shorter_discarded_run(tmp_path: Path, asked: int, sent: int) -> None:
    made = attempt(tmp_path, runs=1, workload=cell(discard_prompts=asked))
    assert made.failure is None
    warm = json.loads((tmp_path / "attempt" / "run-warm.json").read_text())
    run = json.loads((tmp_path / "attempt" / "run-1.json").read_text())
    assert (warm["num_prompts"], run["num_prompts"]) == (sent, 4)
    assert made.provenance.cell_digest == cell(discard_prompts=asked).digest != cell().digest


def test_the_discarded_run_has_no_warm_ups(tmp_path: Path) -> None:
    """The server's counters at the start of the measured run: the first request and the discarded run."""
    sent = []
    for warmups in (0, 3):
        (run,) = attempt(tmp_path / str(warmups), workload=cell(num_warmups=warmups)).runs
        sent.append(run.facts[COUNTERS_FACT]["before"])
        assert RunCounters.of_run(run).engine.total("requests") == 4 + 1 + warmups
    without, with_warmups = ({stage: row["requests"] for stage, row in each.items()} for each in sent)
    assert without == with_warmups


def test_pinned_client_runs_in_its_own_environment(tmp_path: Path) -> None:
    """The server's environment cannot run a client here; the pinned one's mark is in the client's process."""
    server = environment(tmp_path, "server", PRETEND_FAULT="client_exit1")
    pinned = environment(tmp_path, "pinned", PRETEND_MARK="pinned")
    made = attempt(tmp_path, server, pinned)
    assert made.failure is None
    assert made.provenance.facts["instrument"]["pinned"] is True
    assert made.provenance.facts["client"]["env"]["PRETEND_MARK"] == "pinned"
    assert "PRETEND_MARK" not in made.provenance.facts["server"]["env"]


def test_caches_are_cold_once(tmp_path: Path) -> None:
    engine = environment(tmp_path)
    (engine.caches / "kernels").mkdir()
    assert attempt(tmp_path, engine).cold
    (engine.caches / "kernels" / "one.bin").write_bytes(b"x")
    made = attempt(tmp_path, engine)
    assert not made.cold
    assert made.provenance.facts["engine"]["caches"] == "warm"


def test_one_run_where_caches_cannot_be_emptied(tmp_path: Path) -> None:
    made = attempt(tmp_path, runs=3, workload=cell(env={"VLLM_SERVER_DEV_MODE": "0"}))
    assert made.failure is None
    assert [run.index for run in made.runs] == [1]
    assert made.provenance.facts["cache_reset"].startswith("no: ")


def test_nothing_of_the_shell_changes_the_workload(tmp_path: Path) -> None:
    shell = {
        **os.environ, "VLLM_ATTENTION_BACKEND": "X", "PYTHONPATH": "/elsewhere", "PRETEND_FAULT": "exit1",
        "http_proxy": "http://127.0.0.1:9", "HF_TOKEN": "hf_0123456789abcdef",
    }  # fmt: skip
    made = attempt(tmp_path, shell=shell)
    assert made.failure is None
    for command in ("server", "client"):
        env = made.provenance.facts[command]["env"]
        assert not {"VLLM_ATTENTION_BACKEND", "PRETEND_FAULT", "http_proxy"} & set(env)
        assert env["PYTHONPATH"] == str(ENGINE)
    kept = "".join(path.read_text() for path in (tmp_path / "attempt").iterdir())
    assert "hf_0123456789abcdef" not in kept


@pytest.mark.parametrize("fault", ["orphans", "ignore_term"])
def test_engine_that_does_not_go_by_itself_is_ended(tmp_path: Path, fault: str) -> None:
    watch = Watch()
    made = attempt(tmp_path, environment(tmp_path, PRETEND_FAULT=fault), watch=watch)
    assert made.failure is None and len(made.runs) == 1
    assert not processes.alive(watch.launched["pid"], watch.launched["created"])


@pytest.mark.parametrize("fault", ["some_failed", "short_outputs"])
def test_guards_that_were_touched_are_warnings(tmp_path: Path, fault: str) -> None:
    made = attempt(tmp_path, client=environment(tmp_path, "client", PRETEND_FAULT=fault))
    assert made.failure is None
    assert made.runs[0].warnings


def test_files_of_an_earlier_try_are_not_taken_for_new_ones(tmp_path: Path) -> None:
    folder = tmp_path / "attempt"
    folder.mkdir()
    (folder / "run-1.json").write_text('{"completed": 4}')
    (folder / "server.log").write_text("MemoryError: of an earlier try\n")
    made = attempt(tmp_path)
    assert made.failure is None
    assert "earlier" not in (folder / "server.log").read_text()


def test_a_launch_has_its_sizes_and_memory(tmp_path: Path) -> None:
    made = attempt(tmp_path)
    assert {"kv_cache_tokens", "model_memory", "host_memory_ready", "host_memory_end"} <= set(made.reported)
    assert made.values(parse_metric("kv_cache_tokens")) == (131072.0,)
    assert 0 < made.value(parse_metric("host_memory_ready")) < 4


def compiling(folder: Path) -> Environment:
    """An environment whose engine compiles for half a second where its caches are empty."""
    engine = shutil.copytree(ENGINE, folder / "source")
    pace = engine / "vllm" / "pace.py"
    pace.write_bytes(with_pace(pace.read_bytes(), "COMPILE_MS", 500.0))
    caches = cache_variables(folder / "engine" / "caches")
    return environment(folder, PYTHONPATH=str(engine), **caches)


def test_each_launch_of_a_cold_metric_compiles(tmp_path: Path) -> None:
    engine = compiling(tmp_path)
    for _ in range(2):
        made = attempt(tmp_path, engine, caches="cold")
        assert made.values(parse_metric("compile_time")) == (0.5,)
        assert made.value(parse_metric("ready_time_cold")) > 0.5
    assert engine.is_cold
    assert not (tmp_path / "attempt" / "caches").exists()


def test_no_launch_of_a_warm_metric_compiles(tmp_path: Path) -> None:
    engine = compiling(tmp_path)
    for _ in range(2):
        made = attempt(tmp_path, engine, caches="warm")
        assert "ready_time" in made.reported
        assert "compile time" not in made.provenance.facts["engine_log"]
    assert not engine.is_cold
