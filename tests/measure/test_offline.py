"""Launches without a server: the benchmark is the engine's own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfbisect.clients import CLIENTS
from perfbisect.errors import UsageError
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.metric import parse_metric
from perfbisect.serving.families import FAMILIES
from tests.measure.pretend import Watch, attempt, cell, environment, failure
from tests.serving.workloads import ENDPOINT


def offline(task: str, **fields: Any) -> Cell:
    own: dict[str, Any] = {"family": "offline", "task": task, "client": "offline_bench", "ignore_eos": False}
    return cell(**{**own, "max_concurrency": None, "dataset_args": {}, "headline": "e2el", **fields})


LATENCY = offline(
    "latency",
    dataset_args={"input-len": 8, "output-len": 6},
    client={"name": "offline_bench", "args": {"num-iters": 5}},
)


def measure(folder: Path, workload: Cell, watch: Watch | None = None, **env: str) -> Attempt:
    return attempt(folder, environment(folder, **env), watch=watch, runs=2, workload=workload)


def test_iterations_are_the_runs_of_a_launch(tmp_path: Path) -> None:
    watch = Watch()
    made = measure(tmp_path, LATENCY, watch)
    assert made.failure is None
    assert watch.phases == ["build", "launch", "bench", "bench", "stop"]
    # Iteration k of 5 takes 30 ms and k per cent more.
    assert [run.values["e2el:median"] for run in made.runs] == pytest.approx([30 * 1.005, 30 * 1.03])
    assert [run.values["e2el_per_token"] for run in made.runs] == pytest.approx([5 * 1.005, 5 * 1.03])
    assert made.value(parse_metric("kv_cache_tokens")) == 131072
    assert made.provenance.client_digest.startswith("offline_bench 0.0.1 ")
    assert set(made.seconds) == {"build", "bench", "stop"}


def test_a_throughput_is_one_run(tmp_path: Path) -> None:
    workload = offline("throughput", headline="request_throughput")
    (run,) = measure(tmp_path, workload).runs
    assert run.values == {"request_throughput": 200.0, "total_token_throughput": 8000.0}


def test_times_of_starts_are_reported_by_the_benchmark(tmp_path: Path) -> None:
    made = measure(tmp_path, offline("startup", headline="ready_time", num_prompts=1))
    assert [made.value(parse_metric(name)) for name in ("ready_time", "ready_time_cold")] == [10.5, 31.0]


@pytest.mark.parametrize("fault", ["exit1", "no_file"])
def test_a_benchmark_that_fails_is_the_changes_failure(tmp_path: Path, fault: str) -> None:
    made = measure(tmp_path, LATENCY, PRETEND_FAULT=fault)
    assert (failure(made).fault, failure(made).phase) == ("change", "bench")
    assert not made.runs


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"task": "serve"}, "task"),
        ({"max_concurrency": 2}, "max_concurrency"),
        ({"request_rate": 2.0}, "request_rate"),
        ({"num_warmups": 2}, "num_warmups"),
        ({"sampling": {"temperature": 0}}, "sampling"),
    ],
)
def test_what_only_a_server_has_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError) as refused:
        FAMILIES["offline"].server(offline(**{"task": "latency", **fields}), ENDPOINT)
    assert refused.value.field == field


def test_the_command_is_the_benchmarks() -> None:
    command = FAMILIES["offline"].server(LATENCY, ENDPOINT)
    assert command.args[:4] == ("-m", "vllm.entrypoints.cli.main", "bench", "latency")
    assert {"--model", "--batch-size", "--input-len", "--num-iters", "--output-json"} <= set(command.args)
    assert not {"--host", "--port", "--served-model-name"} & set(command.args)


def test_metrics_of_a_server_are_refused() -> None:
    with pytest.raises(UsageError, match="seen at a server"):
        CLIENTS["offline_bench"].check_metric(LATENCY, parse_metric("ready_time"))


def test_caches_are_left_to_a_benchmark_of_starts() -> None:
    both, config = (
        [parse_metric("ready_time"), parse_metric("ready_time_cold")],
        MeasurementConfig(environment="x"),
    )
    assert config.for_metrics(offline("startup"), both).caches == ""
    with pytest.raises(UsageError, match="ready_time needs filled compile caches"):
        config.for_metrics(cell(), both)
