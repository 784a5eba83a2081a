"""Forms in which people write down servers and clients: shells, lists, files, tables, and what is neither."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.cells.reports import parse_report
from perfbisect.cells.reports.report import hub_name
from perfbisect.cells.reports.revisions import commits_in, releases_in
from perfbisect.cells.reports.shell import Computed, split_commands
from perfbisect.errors import UsageError

BENCH = "vllm bench serve --model org/m --num-prompts 8 --max-concurrency 2"

SERVERS = [
    "vllm serve --dtype half org/m --max-model-len 512",
    "vllm serve --enforce-eager --dtype half org/m --max-model-len=512 --enforce-eager",
    "vllm serve --lora-modules a=/a b=/b --model org/m --dtype half --max-model-len 512",
    "vllm serve --brand-new-switch org/m --dtype half --max-model-len 512",
    "vllm serve org/m --dtyp half --max_model_len 512",
    "$ numactl -m 0 vllm serve org/m --dtype half --max-model-len 512 2>&1 > log  # as before",
    "vllm serve org/m --dtype=half --max-model-len 512 --max-model-len 512 | tee log",
    "vllm serve org/m   # the server\n  --dtype half  # it's\n  --max-model-len 512",
    "vllm serve org/m \\  # issue #3\n  --dtype half \\\n  # --enforce-eager\n  --max-model-len 512  # last",
    'MODEL := "org/m"\nserve:\n\tchg run -- vllm serve {{MODEL}} --dtype half --max-model-len 512',
    "M ?= org/m\nserve:\n\tvllm serve $(M) --dtype half --max-model-len ${LEN:-512}",
    "bash -c 'vllm serve org/m --dtype half --max-model-len 512'",
    "vllm bench sweep serve --serve-cmd 'vllm serve org/m --dtype half --max-model-len 512' --num-runs 2",
    'command: ["--model", "org/m", "--dtype", "half", "--max-model-len", "512"]',
    "  entrypoint: [vllm, serve]\n  command:\n  - org/m\n  - --dtype=half\n  - --max-model-len=512\n",
    "command: >\n  --model org/m\n  --dtype half\n  --max-model-len 512\nimage: vllm/vllm-openai:v0.9.0",
    "> - name: m\n>   image: vllm/vllm-openai\n>   args:\n>   - '--model=org/m'\n>   - \"--dtype\"\n"
    ">   - half\n>   - '--max-model-len=512'",
    'containers:\n- command: ["sh", "-c"]\n  args:\n  - |\n    set -e\n    vllm serve org/m \\\n'
    "      --dtype half\n      --max-model-len 512\n  image: ours",
    "- name: MODEL\n  value: x\n- image: vllm/vllm-openai\n  env:\n  - {name: M, value: org/m}\n"
    "  args: [--model, $(M), --dtype, half, --max-model-len, '512']",
    "\x1b[1mvllm serve org/m\x1b[0m --dtype half \x1b]0;title\x07--max-model-len 512",
]


@pytest.mark.parametrize("text", SERVERS)
def test_a_server_is_read_however_it_is_written_down(text: str) -> None:
    seen = parse_report(f"It is slow:\n```\n{text}\n```\nand then\n{BENCH}\n")
    assert seen.fields["model"] == "org/m"
    assert seen.serve_args is not None
    assert {"dtype": "half", "max-model-len": 512}.items() <= seen.serve_args.items()
    assert (seen.engine, seen.closed, seen.unread, seen.unsaid) == ("vllm", True, (), ())


def test_the_variables_of_another_container_are_not_the_servers() -> None:
    compose = "services:\n  cache:\n    image: redis\n    environment:\n      NCCL_ALGO: Ring\n"
    seen = parse_report(compose + "  vllm:\n    image: vllm/vllm-openai\n    command: [--model, org/m]\n")
    assert (seen.fields["model"], seen.env, seen.unread) == ("org/m", {}, ())


def test_what_a_shell_would_compute_is_not_said_and_the_rest_is() -> None:
    seen = parse_report(
        "vllm serve $MODEL -tp $(nvidia-smi -L | wc -l) --port ${PORT} --dtype half\n"
        "vllm bench serve --model $MODEL --seed $(date +%s) --num-prompts $((64 * 10)) --dataset-name random "
        "--input-len 100 --output-len `cat n` --max-concurrency <N> --temperature 0"
    )
    assert set(seen.unsaid) == {
        *("model", "seed", "num_prompts", "max_concurrency", "output-len", "serve_args.tensor-parallel-size")
    }
    assert (seen.serve_args, seen.arguments) == (
        {"dtype": "half"},
        {"random-input-len": 100, "temperature": 0},
    )
    assert not {"model", "seed", "num_prompts", "max_concurrency"} & seen.fields.keys()


@pytest.mark.parametrize(
    ("dataset", "given", "own"),
    [
        ("random", "--input-len 8 --output-len 4", {"random-input-len": 8, "random-output-len": 4}),
        ("random-mm", "--input-len 8 --output-len 4", {"random-input-len": 8, "random-output-len": 4}),
        ("sonnet", "--input-len 8", {"sonnet-input-len": 8}),
        ("sharegpt", "--input-len 8 --output-len 4", {"sharegpt-output-len": 4}),
        ("prefix_repetition", "--output-len 4", {"prefix-repetition-output-len": 4}),
        ("random", "--random-input-len 9 --input-len 8", {"random-input-len": 8}),
    ],
)
def test_the_general_lengths_are_those_of_the_data_set(
    dataset: str, given: str, own: dict[str, object]
) -> None:
    assert parse_report(f"{BENCH} --dataset-name {dataset} {given}").arguments == own


def test_a_backend_has_one_endpoint() -> None:
    for backend, endpoint in {
        "vllm": "/v1/completions",
        "openai-chat": "/v1/chat/completions",
        "vllm-rerank": "/v1/rerank",
        "openai-audio": "/v1/audio/transcriptions",
    }.items():
        assert parse_report(f"{BENCH} --backend {backend}").fields["endpoint"] == endpoint


def test_a_client_that_asks_for_an_adapter_asks_for_it_by_name() -> None:
    serve = "vllm serve org/base --enable-lora --lora-modules a=/a\n"
    seen = parse_report(serve + BENCH.replace("org/m", "a"))
    assert (seen.fields["model"], seen.arguments, seen.notes) == ("org/base", {"lora-modules": "a"}, ())
    other = parse_report(serve + BENCH)
    assert other.notes == ("the client asks for org/m, the server has org/base",)
    named = parse_report(f"vllm serve org/base --served-model-name org/m\n{BENCH}")
    assert named.notes == ()


NOTES = {
    "vllm serve org/m --max-num-seqs 8\nA=1 vllm serve org/m\n": (
        "of 2 servers' commands the first is read; they differ in --max-num-seqs, A"
    ),
    "vllm serve org/m\npython benchmark_serving_multi_turn.py --model x --no-stream\n": (
        "--no-stream is left out: without a stream there is no TTFT"
    ),
    "vllm serve org/m\nais_bench --models vllm_api\n": "the client AISBench is not read",
    "vllm serve org/m\npython -m sglang.launch_server --model org/m\n": "the server of SGLang is not read",
    "vllm serve org/m\nvllm bench serve --num-prompts 'open\n": "line 2 is not read: No closing quotation",
    "vllm serve org/m\nvllm bench latency --model org/m --input-len 8\n": (
        "vllm bench latency, which has no server, is another load, and is not read"
    ),
}


@pytest.mark.parametrize(("text", "note"), NOTES.items())
def test_what_is_not_read_is_told(text: str, note: str) -> None:
    assert note in parse_report(text).notes


SET_TWICE = {
    "M=org/m\nT=1\nvllm serve $M -tp $T\nM=org/n\nT=4\nvllm serve $M -tp $T": "model, --tensor-parallel-size",
    "VLLM_X=1\nvllm serve org/m -tp 1\n\nVLLM_X=2\nvllm serve org/m -tp 1": "VLLM_X",
    "vllm serve org/m -tp 1\n\nVLLM_X=2\nvllm serve org/m -tp 1": "VLLM_X",
    "export VLLM_X=2\nVLLM_X=1\nvllm serve org/m -tp 1\nexport VLLM_X=2\nvllm serve org/m -tp 1": "VLLM_X",
    "R=org\nM=$R/m\nvllm serve $M -tp 1\nR=x\nM=$R/n\nvllm serve $M -tp 1": "model",
}


@pytest.mark.parametrize(("text", "names"), SET_TWICE.items())
def test_a_variable_that_is_set_twice_holds_until_it_is_set_again(text: str, names: str) -> None:
    seen = parse_report(text)
    assert (seen.fields["model"], seen.serve_args) == ("org/m", {"tensor-parallel-size": 1})
    assert seen.env == ({} if text.startswith("vllm") or "VLLM" not in text else {"VLLM_X": "1"})
    assert seen.notes == (f"of 2 servers' commands the first is read; they differ in {names}",)


def test_the_same_server_twice_is_one() -> None:
    assert parse_report("git checkout a\nvllm serve org/m\ngit checkout b\nvllm serve org/m\n").notes == ()


TOGETHER = [
    "vllm serve org/m --port 1 &\nvllm serve org/m --port 2 &\npython toy_proxy_server.py --port 3\n",
    """vllm serve org/m --kv-transfer-config '{"kv_role": "kv_producer"}'\n"""
    """vllm serve org/m --kv-transfer-config '{"kv_role": "kv_consumer"}'\n""",
]


@pytest.mark.parametrize("text", TOGETHER)
def test_servers_behind_a_proxy_are_no_server_alone(text: str) -> None:
    (said,) = parse_report(text + BENCH).unread
    assert said.startswith("2 servers behind ") and said.endswith(": one server is measured")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("python3 -m sglang.launch_server --model-path org/m", "the server is that of SGLang"),
        ("trtllm-serve org/m", "the server is that of TensorRT-LLM"),
        ("genai-perf profile -m org/m", "the client is GenAI-Perf"),
    ],
)
def test_another_engine_or_client_alone_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_report(text)


def test_another_engine_under_our_client_cannot_be_compared() -> None:
    seen = parse_report(f"python3 -m sglang.launch_server --model-path org/m\n{BENCH}")
    assert (seen.serve_args, seen.unread) == (None, ("the server, which is that of SGLang",))


VLLM = {
    "backend": "vllm",
    "model_id": "org/m",
    "tokenizer_id": "org/m",
    "num_prompts": 8,
    "completed": 8,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 2,
    "total_input_tokens": 256,
    "total_output_tokens": 128,
    "max_num_seqs": 4,
    "run_number": 0,
}
AIPERF = {
    "aiperf_version": "0.10.0",
    "request_count": {"avg": 96.0},
    "output_sequence_length": {"avg": 300.4},
    "input_config": {
        "models": {"items": [{"name": "served"}]},
        "tokenizer": {"name": "org/m"},
        "endpoint": {"type": "chat"},
        "phases": [{"name": "warmup", "concurrency": 1}, {"name": "profiling", "concurrency": 2}],
    },
}
GUIDELLM = {
    "metadata": {"guidellm_version": "0.7.4"},
    "args": {"model": "org/m", "data": "prompt_tokens=256,output_tokens=128"},
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "concurrent", "streams": 2}},
            "metrics": {"request_totals": {"successful": 512}},
        }
    ],
}


@pytest.mark.parametrize(
    ("document", "prompts", "lengths", "serve_args"),
    [
        (VLLM, 8, {"random-input-len": 32, "random-output-len": 16}, {"max-num-seqs": 4}),
        (AIPERF, 96, {"random-output-len": 300}, None),
        (GUIDELLM, 512, {"random-input-len": 256, "random-output-len": 128}, None),
    ],
    ids=["vllm bench serve", "AIPerf", "GuideLLM"],
)
def test_a_result_file_says_model_and_load(
    document: dict[str, object], prompts: int, lengths: dict[str, int], serve_args: dict[str, int] | None
) -> None:
    seen = parse_report(json.dumps(document, indent=1))
    load = {"model": "org/m", "num_prompts": prompts, "max_concurrency": 2}
    assert load.items() <= seen.fields.items()
    assert (seen.likely["dataset_args"], seen.serve_args) == (lengths, serve_args)
    assert not seen.closed and "dataset" in seen.missing


def test_lines_of_sglangs_results_say_the_load_and_no_model() -> None:
    record = {"backend": "sglang", "completed": 600, "random_input_len": 180, "random_output_len": 400}
    lines = [json.dumps({**record, "request_rate": rate, "max_concurrency": None}) for rate in (40.0, 20.0)]
    seen = parse_report("\n".join(lines))
    assert (seen.fields["num_prompts"], seen.fields["request_rate"]) == (600, 40)
    assert seen.arguments == {"random-input-len": 180, "random-output-len": 400}
    assert "model" in seen.missing and "of 2 results the first is read" in seen.notes


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"avg_latency": 21.5, "latencies": [21.4]}, "a result of vllm bench latency says neither"),
        ({"elapsed_time": 60.2, "requests_per_second": 16.6}, "a result of vllm bench throughput"),
        ({"avg_cold_startup_time": 118.4}, "a result of vllm bench startup"),
        ({"a": 1}, "no result of a client that is known"),
        ({"model_id": {}, "num_prompts": 1, "total_input_tokens": [], "completed": 1e300}, None),
        ({"metadata": {}, "benchmarks": []}, "cannot be read"),
        ({"model_id": math.nan, "num_prompts": 3}, "cannot be read"),
        ({"aiperf_version": 1, "input_config": {"models": {"items": []}}}, "cannot be read"),
    ],
)
def test_a_file_without_a_workload_says_what_it_is(document: dict[str, object], said: str | None) -> None:
    if said is None:
        assert parse_report(json.dumps(document)).fields["num_prompts"] == 1
    else:
        with pytest.raises(UsageError, match=said):
            parse_report(json.dumps(document))


TABLE = """Since Monday:
| source | model | config | metric | latest |
|---|---|---|---|---:|
| kanban | org/m | random-c64-n128 | tpot | 9.9 |
"""


def test_a_row_of_a_nightlys_table_is_read_below_its_header() -> None:
    seen = parse_report(TABLE)
    assert seen.fields == {"model": "org/m", "max_concurrency": 64, "num_prompts": 128}
    tabs = "Model\tDataset\tConcurrency\tInput len\tTP\norg/m\trandom\t1,024\t8\t4\n"
    wide = parse_report(tabs)
    assert wide.fields == {"model": "org/m", "dataset_name": "random", "max_concurrency": 1024}
    assert (wide.arguments, wide.serve_args) == ({"random-input-len": 8}, {"tensor-parallel-size": 4})


@pytest.mark.parametrize(
    ("column", "value", "read"),
    [
        ("qps", "1.5", {"request_rate": 1.5}),
        ("request rate", "Inf", {"request_rate": math.inf}),
        ("concurrency", "1,024", {"max_concurrency": 1024}),
        ("concurrency", "-", {}),
        *(("concurrency", value, None) for value in ("16²", "16, 32", "16,32", "1k", "x" * 90, "9" * 5000)),
        ("isl", "1024 tokens", None),
    ],
)
def test_what_a_cell_of_a_table_says_is_read_or_told(
    column: str, value: str, read: dict[str, object] | None
) -> None:
    seen = parse_report(f"| model | {column} |\n|---|---|\n| org/m | {value} |")
    assert seen.fields == {"model": "org/m", **(read or {})}
    assert (len(seen.notes), seen.arguments) == (int(read is None), {})
    assert all(repr(value)[:40] in note for note in seen.notes)


@pytest.mark.parametrize(
    ("text", "releases"),
    [
        ("v0.14 -> v0.15", ("v0.14.0", "v0.15.0")),
        ("slower with v0.20.2 and v0.21.1 than with v0.19.1", ("v0.19.1", "v0.20.2", "v0.21.1")),
        ("vllm-ascend 0.9.2rc1 to 0.10.2rc1", ("v0.9.2rc1", "v0.10.2rc1")),
        ("v0.13.0rc1 to v0.13.0 and v0.13.0.post1", ("v0.13.0rc1", "v0.13.0", "v0.13.0.post1")),
        ("image: vllm/vllm-openai:v0.12.0", ("v0.12.0",)),
        ("pip install vllm==0.10.2 torch==2.8.0", ("v0.10.2",)),
        ("vLLM Version: 0.7.2\n[conda] tokenizers      0.21.1      pypi_0    pypi", ("v0.7.2",)),
        ("[conda] vllm     0.9.1    pypi_0   pypi\n[pip3] some-kernels    0.0.4\n", ("v0.9.1",)),
        ("vllm        0.9.1\nxgrammar    0.1.19\nsome.one      0.3.2  /src\n", ("v0.9.1",)),
        ("| vllm | 0.9.1 |\n| uvicorn | 0.34.0 |", ("v0.9.1",)),
        ("vllm 0.9.1 with uvicorn 0.34.0, flashinfer-python 0.2.5 and torchvision==0.22.0", ("v0.9.1",)),
        (
            "good    0.14.0\nbad     0.15.0\nTTFT    0.14.1   0.16.0",
            ("v0.14.0", "v0.14.1", "v0.15.0", "v0.16.0"),
        ),
        ("v0.8.5   1234 tok/s\nv0.9.0\t\t1100 tok/s", ("v0.8.5", "v0.9.0")),
        ("previous   0.8.5\ncurrent    0.9.1", ("v0.8.5", "v0.9.1")),
        ("from 0.14.0 to 0.15.0, version 0.7.2", ("v0.7.2", "v0.14.0", "v0.15.0")),
        ("--gpu-memory-utilization 0.95 at 127.0.0.1, 0.0.0.0:80, TPOT +0.7 %", ()),
    ],
)
def test_releases_are_told_from_other_numbers(text: str, releases: tuple[str, ...]) -> None:
    assert releases_in(text) == releases


def test_commits_are_told_from_other_words() -> None:
    long, short = "3b6a2047899b79f2ccad736ea87e4fe7d2c9084f", "fa2a33b"
    text = f"git checkout {long}\nthen commit {short}; 0.11.2.dev3+gabc1234de; id a1b2c3d, deadbeef, 1234567"
    assert commits_in(text) == (long, short, "abc1234de")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/models/Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("/home/Qwen3-32B", "Qwen3-32B"),
        ("~/.cache/huggingface/hub/models--org--m/snapshots/abc", "org/m"),
        ("/mnt/data/models/Qwen3-8B/", "Qwen3-8B"),
        ("org/m", "org/m"),
        ("/", "/"),
    ],
)
def test_a_model_in_a_folder_there_has_a_name_on_a_hub(path: str, name: str) -> None:
    assert hub_name(path) == name


@given(st.lists(st.text("ab'\" \\$;(=-é\n", min_size=1), min_size=1, max_size=6))
def test_quoted_words_are_split_as_a_shell_does(words: list[str]) -> None:
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
    assert split_commands(quoted) == [words]


@given(st.text("ab'\" \\$`;(){}<>&|#=-\n", max_size=80))
def test_any_line_is_split_or_refused(line: str) -> None:
    try:
        commands = split_commands(line)
    except ValueError:
        return
    assert all(commands) and all(isinstance(word, (str, Computed)) for words in commands for word in words)


HOSTILE = [
    "vllm serve org/m\n" + "a #' " * 60_000 + "\n--x",
    "vllm serve org/m\n" + " " * 200_000 + "'\n--x",
    "vllm serve org/m\n" + "a  1" * 60_000,
    "vllm serve org/m\nuvicorn" + " " * 200_000,
    "vllm serve org/m\ngood:" + " " * 200_000,
    "vllm serve org/m\nargs:\n" + "- [" * 400,
    "args: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(20)) + "vllm serve org/m",
    "image: vllm/vllm-openai\nargs:\n- &a ['--x', *a]\n",
    "vllm serve org/m " + "$(" * 9000,
    "vllm serve org/m '" + '{"a": ' * 2000,
    "vllm serve org/m\n" + "env:\n  A: 1\n" * 5000,
    "|a" * 20_000 + "|\n" + "|b" * 20_000 + "|\nvllm serve org/m",
    "vllm serve org/m\n" + "`" * 60_000,
    "vllm serve org/m\n" + "a-" * 60_000,
    "vllm serve org/m\n" + ("env:\n  A: " + "[" * 4000 + "\n") * 200,
    "{" * 100_000,
    '{"model_id": ' + "[" * 300,
    "v0." * 50_000,
    "a" * 900_000 + " serve",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_read_or_refused_with_a_message(text: str) -> None:
    try:
        seen = parse_report(text)
    except UsageError as error:
        assert error.message and len(error.message) < 1000
    else:
        assert seen.fields["model"] == "org/m" and not math.isnan(len(seen.unread))
