"""vLLM's own serving tests: both forms, and every trap of options that a shell read."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from perfbisect.clients import CLIENTS
from perfbisect.serving.families import FAMILIES, Endpoint
from tests.cells.importers.reading import loaded, only_error, read, without

SHAREGPT = "ShareGPT_V3_unfiltered_cleaned_split.json"


def entry(**more: Any) -> dict[str, Any]:
    """A test of the older form, as of 2024."""
    server = {"model": "org/llama", "tensor_parallel_size": 4, "disable_log_stats": "", "swap_space": 16}
    client = {
        "model": "org/llama",
        "backend": "vllm",
        "dataset_name": "sharegpt",
        "dataset_path": f"./{SHAREGPT}",
        "num_prompts": 200,
    }
    return {
        "test_name": "serving_llama8B_tp4_sharegpt",
        "qps_list": [1, 4.5, "inf"],
        "server_parameters": server | more.pop("server", {}),
        "client_parameters": client | more.pop("client", {}),
        **more,
    }


def test_the_older_form(tmp_path: Path) -> None:
    (found,) = read(tmp_path, [entry()]).cells
    cells = loaded(tmp_path, [found])
    assert found.stem == "serving_llama8B_tp4_sharegpt"
    assert [(cell.request_rate, cell.max_concurrency, cell.num_prompts) for cell in cells] == [
        (1.0, None, 200),
        (4.5, None, 200),
        (float("inf"), None, 200),
    ]
    first = cells[0]
    assert (first.family, first.model, first.gpus) == ("text", "org/llama", 4)
    assert first.serve_args == {"tensor-parallel-size": 4, "disable-log-stats": True, "swap-space": 16}
    assert (first.backend, first.endpoint) == ("vllm", "/v1/completions")
    assert (first.dataset_name, first.dataset_path) == ("sharegpt", SHAREGPT)
    assert (first.headline, first.guards) == ("tpot", ("failed", "output_tokens"))
    assert first.description == "serving_llama8B_tp4_sharegpt of test_x.json"


DEFAULTS = {
    "qps_list": ["inf"],
    "max_concurrency_list": [12, 200],
    "server_environment_variables": {"VLLM_CPU_KVCACHE_SPACE": 40, "VLLM_RPC_TIMEOUT": 100000},
    "server_parameters": {"model": "org/llama", "tensor_parallel_size": 2, "max-num-seqs": 256},
    "client_parameters": {
        "model": "org/llama",
        "backend": "vllm",
        "ignore-eos": "",
        "temperature": 0,
        "num_prompts": 200,
    },
}


def test_the_newer_form_takes_what_a_test_does_not_say_from_the_defaults(tmp_path: Path) -> None:
    tests = [
        {
            "test_name": "serving_a",
            "tier": "base",
            "client_parameters": {"dataset_name": "random", "random-input-len": 128},
        },
        {
            "test_name": "serving_b",
            "qps_list": [2, "inf"],
            "server_environment_variables": {"VLLM_RPC_TIMEOUT": 5},
            "server_parameters": {"model": "org/other", "max_num_seqs": 8},
            "client_parameters": {"model": "org/other", "dataset_name": "random", "num_prompts": 50},
        },
    ]
    one, two = read(tmp_path, {"defaults": DEFAULTS, "tests": tests}).cells
    (first, last), crossed = loaded(tmp_path, [one]), loaded(tmp_path, [two])
    assert (first.max_concurrency, last.max_concurrency) == (12, 200)
    assert first.request_rate == last.request_rate == float("inf")
    assert first.dataset_args == {"random-input-len": 128}
    assert (first.ignore_eos, first.sampling.temperature) == (True, 0)
    assert first.env == {"VLLM_CPU_KVCACHE_SPACE": "40", "VLLM_RPC_TIMEOUT": "100000"}
    assert [(cell.request_rate, cell.max_concurrency) for cell in crossed] == [
        (2.0, 12),
        (2.0, 200),
        (float("inf"), 12),
        (float("inf"), 200),
    ]
    assert crossed[0].model == "org/other"
    assert crossed[0].serve_args == {"tensor-parallel-size": 2, "max-num-seqs": 8}
    assert crossed[0].env["VLLM_RPC_TIMEOUT"] == "5"
    assert {cell.num_prompts for cell in crossed} == {50}


def test_text_is_what_a_shell_makes_of_it(tmp_path: Path) -> None:
    server = {"limit_mm_per_prompt": "'{\"image\": 3}'", "compilation_config.mode": 3}
    client = {
        "backend": "openai-chat",
        "endpoint": "/v1/chat/completions",
        "dataset_name": "random-mm",
        "random-mm-bucket-config": "'{(224, 224, 1): 1.0}'",
        "random-mm-limit-mm-per-prompt": '\'{"image": 3, "video": 0}\'',
        "seed": 42,
    }
    one = entry(server=server)
    one["client_parameters"] = without(one["client_parameters"], "dataset_path") | client
    (found,) = read(tmp_path, [one]).cells
    cell = loaded(tmp_path, [found])[0]
    assert cell.serve_args["limit-mm-per-prompt"] == {"image": 3}
    assert cell.serve_args["compilation-config.mode"] == 3
    assert cell.dataset_args == {
        "random-mm-bucket-config": "{(224, 224, 1): 1.0}",
        "random-mm-limit-mm-per-prompt": {"image": 3, "video": 0},
    }
    assert (cell.seed, found.needs) == (42, {})
    endpoint = Endpoint(port=1, model_name="m")
    argv = CLIENTS["vllm_bench"].command(cell, endpoint, seed=42, result=PurePosixPath("r.json"), metadata={})
    assert argv[argv.index("--random-mm-limit-mm-per-prompt") + 1] == '{"image":3,"video":0}'
    assert argv[argv.index("--random-mm-bucket-config") + 1] == "{(224, 224, 1): 1.0}"
    assert "--disable-log-stats" in FAMILIES["text"].server(cell, endpoint).args


@pytest.mark.parametrize("written", ["speculative_config", "speculative_config.method"])
def test_speculation_is_watched(tmp_path: Path, written: str) -> None:
    draft = {"model": "org/draft", "num_speculative_tokens": 4} if "." not in written else "mtp"
    (found,) = read(tmp_path, [entry(server={written: draft}, qps_list=[2])]).cells
    (cell,) = loaded(tmp_path, [found])
    assert cell.serve_args[written.replace("_", "-")] == draft
    assert cell.guards == ("failed", "output_tokens", "spec_decode_acceptance_rate")
    assert cell.request_rate == 2


@pytest.mark.parametrize(
    ("more", "gpus"),
    [
        ({}, 4),
        ({"server": {"pipeline_parallel_size": 2}}, 8),
        ({"server": {"device": "cpu"}}, 0),
        ({"server_environment_variables": {"VLLM_CPU_KVCACHE_SPACE": 40}}, 0),
        ({"server_environment_variables": {"PT_HPU_LAZY_MODE": 1}}, 4),
    ],
)
def test_devices(tmp_path: Path, more: dict[str, Any], gpus: int) -> None:
    (found,) = read(tmp_path, [entry(**more)]).cells
    assert found.document["gpus"] == gpus


def test_tokenizer_and_revisions_have_keys_of_their_own(tmp_path: Path) -> None:
    server = {"tokenizer": "org/words", "revision": "abc", "tokenizer_revision": "def"}
    (found,) = read(tmp_path, [entry(server=server)]).cells
    cell = loaded(tmp_path, [found])[0]
    assert (cell.tokenizer, cell.revision.model, cell.revision.tokenizer) == ("org/words", "abc", "def")


def test_what_must_be_brought(tmp_path: Path) -> None:
    ((path, origin),) = read(tmp_path, [entry()]).cells[0].needs.items()
    assert path == SHAREGPT
    assert "huggingface.co/datasets/" in origin
    hub = entry(client={"dataset_name": "hf", "dataset_path": "org/speech", "hf_split": "test"})
    file = entry(client={"dataset_name": "sonnet", "dataset_path": "./sonnet_4x.txt"})
    needs = [cell.needs for cell in read(tmp_path, [hub, file]).cells]
    assert needs[0] == {}
    assert list(needs[1]) == ["sonnet_4x.txt"]


def test_what_no_family_serves_is_told(tmp_path: Path) -> None:
    embed = entry(client={"backend": "openai-responses", "endpoint": "/v1/responses"})
    found = read(tmp_path, [entry(), embed])
    assert len(found.cells) == 1
    assert list(found.left_out.items()) == [
        ("[1]", "no family here asks at /v1/responses (serving_llama8B_tp4_sharegpt)")
    ]


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"tests": 3}, r"tests: is 3 \(int\)"),
        ({"tests": [], "default": {}}, r"default: unknown key; did you mean defaults"),
        ({"tests": [], "defaults": {"test_name": "x"}}, r"defaults\.test_name: unknown key"),
        ([entry(qps=[1])], r"\[0\]\.qps: unknown key.*qps_list"),
        ([entry(), 3], r"\[1\]: is 3"),
        ([entry(test_name=None)], r"\[0\]\.test_name: is missing"),
        ([entry(server_parameters=[])], r"\[0\]\.server_parameters\.model: is missing"),
        ([entry(server_parameters=["x"])], r"\[0\]\.server_parameters: is \[\"x\"\]"),
        ([entry(client={"model": "org/other"})], r"client_parameters\.model: is \"org/other\".*org/llama"),
        ([entry(client={"num_prompts": None})], r"client_parameters\.num_prompts: is missing"),
        ([entry(client={"request_rate": 3})], r"request-rate: is set by the lists"),
        ([entry(server={"x": "'unclosed"})], r"server_parameters\.x: is .*cannot read"),
        ([entry(qps_list=[])], r"\[0\]\.qps_list: is \[\]"),
        ([entry(qps_list=[1, "fast"])], r"\[0\]\.qps_list\[1\]: is \"fast\""),
        ([entry(qps_list=[1, 1.0])], r"\[0\]\.qps_list\[1\]: is 1\.0"),
        ([entry(max_concurrency_list=[8, "inf"])], r"max_concurrency_list\[1\]: is \"inf\""),
    ],
)
def test_what_is_wrong_is_told_where_it_is(tmp_path: Path, document: object, told: str) -> None:
    error = only_error(tmp_path, document)
    assert re.search(told, str(error))
    assert error.file == str(tmp_path / "test_x.json")


def nightly(**more: Any) -> dict[str, Any]:
    """A test of vLLM's comparison with other engines."""
    common = {"model": "org/llama", "tp": 4, "num_prompts": 500, "port": 8000, "reuse_server": True}
    return {
        "test_name": "llama_tp4_sonnet",
        "qps_list": [4, "inf"],
        "common_parameters": common | {"dataset_name": "sonnet", "dataset_path": "./sonnet_4x.txt"} | more,
        "trt_server_parameters": {"model_type": "llama"},
        "vllm_server_parameters": {"disable_log_stats": "", "dtype": "bfloat16"},
        "vllm_client_parameters": {},
    }


def test_the_nightly_form_is_read_as_its_script_calls_vllm(tmp_path: Path) -> None:
    found = read(tmp_path, [nightly(sonnet_input_len=512, sonnet_output_len=16), nightly(speed=1)])
    first, last = loaded(tmp_path, found.cells[:1])
    assert (first.request_rate, last.request_rate) == (4.0, float("inf"))
    assert (first.model, first.gpus, first.ignore_eos, first.backend) == ("org/llama", 4, True, "vllm")
    assert first.serve_args == {"disable-log-stats": True, "dtype": "bfloat16", "tensor-parallel-size": 4}
    assert first.dataset_args == {"sonnet-input-len": 512, "sonnet-output-len": 16}
    assert [error.field for error in found.errors] == ["[1].common_parameters.speed"]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"test_name": "latency", "parameters": {"model": "m"}}, "without a server"),
        ({"test_name": "throughput", "environment_variables": {}, "parameters": {}}, "without a server"),
        (
            {"test_name": "g", "common_parameters": {"model": "m"}, "genai_perf_input_parameters": {}},
            "its client is genai-perf",
        ),
    ],
)
def test_what_this_client_does_not_measure_is_left_out(
    tmp_path: Path, entry: dict[str, Any], why: str
) -> None:
    found = read(tmp_path, [entry])
    assert (found.cells, found.errors, list(found.left_out)) == ([], [], ["[0]"])
    assert why in found.left_out["[0]"]
