"""The pretend engine behaves as the real one; its faults are tested with what perfbisect makes of them."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from perfbisect.system.ports import free_port
from tests.fakes.history import ENGINE
from tests.system.stand_ins import until

MODULE = (sys.executable, "-m", "vllm.entrypoints.cli.main")

RESULT_KEYS = set(
    shlex.split("""
    date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency
    duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput
    output_throughput total_token_throughput max_output_tokens_per_s max_concurrent_requests rtfx
    input_lens output_lens ttfts itls latencies start_times queue_times generated_texts errors""")
) | {
    f"{statistic}_{metric}_ms"
    for statistic in ("mean", "median", "std", "p50", "p99")
    for metric in ("ttft", "tpot", "itl", "e2el")
}


def environment(**extra: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PRETEND_")}
    return clean | {"PYTHONPATH": str(ENGINE), "VLLM_SERVER_DEV_MODE": "1"} | extra


def ended(process: psutil.Process) -> bool:
    """True also for one that is dead and not yet collected by its parent."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Server:
    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.port = process, port
        self.url = f"http://127.0.0.1:{port}"

    def answers(self) -> bool:
        if self.process.poll() is not None:
            return True
        try:
            return requests.get(f"{self.url}/v1/models", timeout=5).ok
        except requests.ConnectionError:
            return False

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def complete(self, **body: Any) -> requests.Response:
        asked = {"model": "m1", "prompt": "a b c", "max_tokens": 2} | body
        return requests.post(f"{self.url}/v1/completions", json=asked, timeout=10)

    def counter(self, name: str) -> float:
        page = requests.get(f"{self.url}/metrics", timeout=5).text
        return float(
            next(line for line in page.splitlines() if line.startswith(f"vllm:{name}_total{{")).split()[-1]
        )


@contextmanager
def serving(*arguments: str, ready: bool = True, **extra: str) -> Iterator[Server]:
    port = free_port()
    command = f"serve model --host 127.0.0.1 --port {port} --served-model-name m1".split()
    process = subprocess.Popen(
        (*MODULE, *command, *arguments),
        env=environment(**extra),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    server = Server(process, port)
    try:
        if ready:
            until(server.answers)
        yield server
    finally:
        children = server.children() if process.poll() is None else []
        process.kill()
        process.wait()
        for child in children:
            if child.is_running():
                child.kill()


def bench(url: str, folder: Path, *arguments: str, **extra: str) -> tuple[int, Path]:
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    command = (
        *MODULE,
        *shlex.split("bench serve --backend openai --endpoint /v1/completions --model m1 --tokenizer model"),
        *shlex.split("--dataset-name random --random-input-len 64 --random-output-len 6 --num-prompts 4"),
        *shlex.split("--max-concurrency 1 --request-rate inf --num-warmups 1 --ignore-eos --temperature 0"),
        *shlex.split("--percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,99 --disable-tqdm"),
        *shlex.split("--save-result --save-detailed --metadata commit=abc"),
        *("--base-url", url, "--result-dir", str(folder), "--result-filename", result.name),
        *arguments,
    )
    done = subprocess.run(command, env=environment(**extra), capture_output=True, timeout=60, check=False)
    return done.returncode, result


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def test_result_has_the_keys_and_numbers_of_the_real_client(server: Server, tmp_path: Path) -> None:
    code, result = bench(server.url, tmp_path)
    document = read(result)
    assert code == 0
    assert document.keys() == RESULT_KEYS | {"commit"}
    assert (document["completed"], document["failed"], document["total_output_tokens"]) == (4, 0, 24)
    assert document["request_rate"] == "inf"
    assert document["input_lens"] == [64] * 4
    per_request = [
        1e3 * (latency - ttft) / (tokens - 1)
        for latency, ttft, tokens in zip(
            document["latencies"], document["ttfts"], document["output_lens"], strict=True
        )
    ]
    assert document["median_tpot_ms"] == pytest.approx(statistics.median(per_request))
    assert document["output_throughput"] == pytest.approx(24 / document["duration"])
    assert document["duration"] >= sum(document["latencies"]) * 0.99


def test_same_seed_same_prompts_which_the_prefix_cache_remembers_until_it_is_reset(
    server: Server, tmp_path: Path
) -> None:
    assert requests.post(f"{server.url}/reset_prefix_cache", timeout=5).ok

    def hits(seed: str) -> float:
        before = server.counter("prefix_cache_hits")
        assert bench(server.url, tmp_path, "--seed", seed, "--num-warmups", "0")[0] == 0
        return server.counter("prefix_cache_hits") - before

    assert (hits("7"), hits("7"), hits("8")) == (0.0, 4 * 64.0, 0.0)
    assert requests.post(f"{server.url}/reset_prefix_cache", timeout=5).ok
    assert hits("7") == 0.0


def test_http_as_the_real_server(server: Server) -> None:
    assert requests.get(f"{server.url}/version", timeout=5).json() == {"version": "0.32.0+pretend"}
    assert requests.get(f"{server.url}/health", timeout=5).status_code == 200
    assert [m["id"] for m in requests.get(f"{server.url}/v1/models", timeout=5).json()["data"]] == ["m1"]
    assert server.complete().json()["choices"][0]["text"] == " w0 w1"
    assert server.complete(model="other").status_code == 404
    assert server.complete(prompt="x " * 5000).status_code == 400


def test_reset_needs_the_developer_mode() -> None:
    with serving(VLLM_SERVER_DEV_MODE="0") as server:
        assert requests.post(f"{server.url}/reset_prefix_cache", timeout=5).status_code == 404


def test_term_ends_the_tree_and_kill_leaves_the_children() -> None:
    with serving() as server:
        children = server.children()
        assert sorted(child.name() for child in children) == ["VLLM::EngineCor", "VLLM::Worker"]
        assert {os.getpgid(child.pid) for child in children} == {server.process.pid}
        server.process.terminate()
        assert server.process.wait(10) == 0
        until(lambda: all(map(ended, children)))
    with serving() as server:
        children = server.children()
        server.process.kill()
        server.process.wait(10)
        assert [ended(child) for child in children] == [False, False]
        os.killpg(server.process.pid, signal.SIGKILL)
        until(lambda: all(map(ended, children)))


def test_no_token_comes_from_a_dead_engine() -> None:
    with serving() as server:
        core = next(child for child in server.children() if child.name() == "VLLM::EngineCor")
        core.kill()
        # The kernel takes a moment to end it, in which the server still answers.
        until(lambda: core.pid not in psutil.pids() or core.status() == psutil.STATUS_ZOMBIE)
        with pytest.raises(requests.ConnectionError):
            server.complete()
        assert server.process.wait(10) == 0  # as the real one does when its core is killed


def test_the_client_exits_1_without_a_file_when_the_ready_check_fails(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, result = bench(url, tmp_path, "--ready-check-timeout-sec", "1")
    assert (code, result.exists()) == (1, False)
    assert bench(url, tmp_path)[0] == 0
    assert (read(result)["completed"], read(result)["median_tpot_ms"]) == (0, 0.0)


def test_an_option_that_the_real_client_does_not_have_is_refused(tmp_path: Path) -> None:
    assert bench("http://127.0.0.1:1", tmp_path, "--no-such-option", "1")[0] == 2


def test_two_servers_share_a_port() -> None:
    with serving() as stale:
        second = f"serve other --host 127.0.0.1 --port {stale.port} --served-model-name m2".split()
        process = subprocess.Popen((*MODULE, *second), env=environment(), stdout=subprocess.DEVNULL)
        try:
            until(lambda: len({_model(stale.url) for _ in range(20)}) == 2)
        finally:
            process.terminate()
            process.wait(10)


def _model(url: str) -> str:
    return str(requests.get(f"{url}/v1/models", timeout=5).json()["data"][0]["id"])


def test_a_fault_of_one_launch_only(tmp_path: Path) -> None:
    codes = []
    for _ in range(3):
        with serving(ready=False, PRETEND_STATE=str(tmp_path), PRETEND_FAULT="exit1@2") as server:
            until(server.answers)
            codes.append(server.process.poll())
    assert codes == [None, 1, None]
    assert (tmp_path / "launches").stat().st_size == 3


def factors(seed: str, launch: int) -> list[float]:
    """Six request factors of a launch, drawn in a process of its own."""
    code = (
        "import sys; from vllm import faults, noise; faults.launch_number = lambda: int(sys.argv[1]); "
        "n = noise.Noise(1, 'm'); print(*[n.request() for _ in range(6)])"
    )
    extra = {"PRETEND_SEED": seed} if seed else {}
    done = subprocess.run(
        [sys.executable, "-c", code, str(launch)], env=environment(**extra), capture_output=True, check=True
    )
    return [float(word) for word in done.stdout.split()]


def test_noise_is_seeded_by_launch_and_otherwise_from_the_system() -> None:
    assert factors("3", 1) == factors("3", 1) != factors("3", 2)
    assert factors("", 1) != factors("", 1)
    launches = [statistics.fmean(map(math.log, factors(str(seed), 1))) for seed in range(12)]
    assert 0.005 < statistics.stdev(launches) < 0.2
