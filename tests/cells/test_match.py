"""Workloads as others wrote them down (names of result files, bench commands), and the nearest cell."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.cells.match import nearest_cells
from perfbisect.cells.reports import WORKLOAD_PARTS, parse_report, python, shell
from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell, DeployYaml
from tests.shared import data

INF = math.inf
NAMES = [
    ("result_test_qwen3_omni_chunk_random_10_100_20260412-190115", "random", 100, 10, INF, {}),
    ("result_test_qwen3_omni_random-mm_0.5_100_20260412-190115", "random-mm", 100, None, 0.5, {}),
    ("result_test_qwen3_tts_base_seed-tts_64_128_inna_outna_20260519-190024", "seed-tts", 128, 64, INF, {}),
    (
        *("result_test_qwen3_omni_chunk_random_1_4_in2500_out900_20260601-190024", "random", 4, 1, INF),
        {"random-input-len": 2500, "random-output-len": 900},
    ),
    (
        *("result_test_minicpmo_4_5_random_2.0_100_in100_out100_20260601-190024", "random", 100, None, 2.0),
        {"random-input-len": 100, "random-output-len": 100},
    ),
]


@pytest.mark.parametrize(("name", "dataset", "prompts", "users", "rate", "arguments"), NAMES)
def test_a_result_file_of_every_era(
    name: str, dataset: str, prompts: int, users: int | None, rate: float, arguments: dict[str, int]
) -> None:
    seen = parse_report(f"nightly/6433/tests/{name}.json")
    assert name.startswith(f"result_test_{seen.test}_{dataset}_")
    assert seen.fields == {
        "dataset_name": dataset, "num_prompts": prompts, "max_concurrency": users, "request_rate": rate
    }  # fmt: skip
    assert (seen.arguments, seen.time) == (arguments, name[-15:])
    assert "model" in seen.missing


@pytest.mark.parametrize("start", ["benchmark_results", "diffusion_result"])
def test_a_result_file_of_images_has_a_test_only(start: str) -> None:
    seen = parse_report(f"{start}_test_wan22_i2v_vllm_omni_20260519-190531.json")
    assert (seen.test, seen.fields, seen.missing) == ("wan22_i2v_vllm_omni", {}, WORKLOAD_PARTS)


def test_a_command_with_what_stands_before_it() -> None:
    seen = parse_report(
        "HF_HUB_OFFLINE=1 python -m vllm.entrypoints.cli.main bench serve --omni \\\n --model Qwen/Qwen3 "
        "--base-url http://127.0.0.1:9 --dataset-name random --random-input-len 64 --num-prompts=20 "
        '--max-concurrency 4 --ignore-eos --extra-body \'{"voice": "Vivian"}\' --save-result '
        "--percentile-metrics ttft,tpot --temperature 0"
    )
    assert seen.fields["model"] == "Qwen/Qwen3"
    assert (seen.fields["num_prompts"], seen.fields["max_concurrency"]) == (20, 4)
    assert (seen.fields["num_warmups"], seen.fields["request_rate"]) == (0, math.inf)
    assert seen.fields["ignore_eos"] is True
    assert seen.fields["extra_body"] == {"voice": "Vivian"}
    assert dict(seen.arguments) == {"random-input-len": 64, "temperature": 0}
    assert seen.closed
    assert seen.missing == ("task", "deploy YAML")


OMNI_BENCH = "vllm bench serve --omni --model tts --num-prompts 512"


@pytest.mark.parametrize("between", ["\n", " && ", " & sleep 60; ", "\n# wait for it\n", " | tee log &\n"])
def test_the_servers_command_says_model_deploy_yaml_and_serve_arguments(between: str) -> None:
    serve = (
        "CUDA_VISIBLE_DEVICES=0 vllm serve org/tts --omni --deploy-config /app/x/vllm_omni/deploy/high.yaml "
        '--port 8091 --init-timeout 900 --stage-overrides \'{"1": {"devices": "1"}}\' '
        "--no-async-chunk --max-num-seqs 8 --served-model-name tts"
    )
    for text in (serve + between + OMNI_BENCH, OMNI_BENCH + between + serve):
        seen = parse_report(text)
        assert seen.fields["model"] == "org/tts"
        assert seen.fields["deploy_yaml"] == "vllm_omni/deploy/high.yaml"
        assert seen.fields["stage_overrides"] == {"1": {"devices": "1"}}
        assert seen.fields["num_prompts"] == 512
        assert seen.serve_args == {"async-chunk": False, "max-num-seqs": 8}
        assert seen.missing == ("task",)


def test_a_server_without_a_deploy_yaml_has_none_and_prose_is_no_server() -> None:
    bare = parse_report(
        f"python -m vllm_omni.entrypoints.cli.main serve --model org/tts --omni\n{OMNI_BENCH}"
    )
    assert (bare.fields["model"], bare.fields["deploy_yaml"], bare.serve_args) == ("org/tts", None, {})
    prose = parse_report(f"to serve many users\n{OMNI_BENCH}")
    assert (prose.serve_args, "deploy_yaml" in prose.fields) == (None, False)
    assert prose.missing == ("task", "deploy YAML")


def test_every_real_name_has_an_identity() -> None:
    names = {
        path.name for path in data("kanban").rglob("*.json") if path.name.startswith(("result_", "bench"))
    }
    assert names
    for name in names:
        seen = parse_report(name)
        assert seen.test
        assert set(seen.missing) <= set(WORKLOAD_PARTS)
        if name.startswith("result_"):
            assert {"num_prompts", "max_concurrency", "request_rate", "dataset_name"} == set(seen.fields)


BENCH = "vllm bench serve --model org/tts --num-prompts 48 --max-concurrency 1"
FIELDS = {"model": "org/tts", "num_prompts": 48, "max_concurrency": 1}


@pytest.mark.parametrize(
    "text",
    [
        "Slower since Monday:\n{}\nThe users' load hasn't changed.",
        "```bash\n$ {}\n```\nThat doesn't finish.",
        "`{}`",
        "CUDA_VISIBLE_DEVICES=0 {} 2>&1 > bench.log",
        "cd /srv && {} | tee log",
        "{}  # as in the nightly",
        "压测命令：\n{}\n首字延迟变慢了",
    ],
)
def test_a_command_on_a_line_of_its_own_is_read(text: str) -> None:
    seen = parse_report(text.format(BENCH))
    assert {name: seen.fields[name] for name in FIELDS} == FIELDS
    assert dict(seen.arguments) == {}
    assert seen.missing == ("task", "deploy YAML")


@given(before=st.text("ab' \"`“”‘’，。;&|(\n"), after=st.text("ab' \"`“”‘’，。;&|)\n"))
def test_other_lines_change_nothing(before: str, after: str) -> None:
    seen = parse_report(f"{before}\n{BENCH}\n{after}")
    assert {name: seen.fields[name] for name in FIELDS} == FIELDS
    assert dict(seen.arguments) == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tts --num", """tts --extra-body '{"voice": "it is"}' --num"""),
        ("tts --num", r"""tts --extra-body "{\"voice\": \"it is\"}" --num"""),
        ("tts --num", """tts --extra-body='{"voice": "it is"}' --num"""),
        *((" --max", f"{between}--max") for between in (" ", " \\\n  ", "\n  ", " \\ \r\n")),
    ],
)
def test_a_quoted_value_is_one_word_and_a_wrapped_command_one(old: str, new: str) -> None:
    seen = parse_report(BENCH.replace(old, new))
    assert {name: seen.fields[name] for name in FIELDS} == FIELDS
    assert seen.fields.get("extra_body") == ({"voice": "it is"} if "voice" in new else None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("result.json", "no name of a result file"),
        ("result_test_x_random_1_4.json", "no name of a result file"),
        ("vllm bench serve -n 3", "cannot be read"),
        ("vllm serve org/m -xyz 8", "cannot be read"),
        ("the server starts with vllm serve", "no model"),
        ("this is about vllm bench serve", "no options"),
        ("vllm bench serve --num-prompts 'unclosed, and late", "No closing quotation"),
        ("Run 'vllm bench serve --num-prompts 4'", "no `vllm serve`"),
        ("vllm bench serve --num-prompts 4 is slow", "'is' is not a long option"),
        ("vllm serve is slow", "'slow' is not a long option"),
        ("vllm bench serve is slow", "is not a long option"),
        ("It isn't slow", "no `vllm serve`"),
    ],
)
def test_what_is_no_command_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_report(text)


SPECULATIVE = """Earlier work didn't cover this, see [the first part](https://example.org/1).
## Test plan
server

` A_B=X vllm serve org/m --speculative-config '{"method": "eagle3", "model": "org/d"}' --async-scheduling`

client

` vllm bench serve --port 8000 --save-result   --backend vllm --dataset-name hf   --dataset-path org/bench`
## Test result
|  version   | mean TPOT(ms)  |
|  ----  | ----  |
| main  |  9.9 |
"""
TWO_SIDES = """Thanks for the context, it's the follow-up. To serve more users:

`export MODEL="org/m"`

`vllm serve $MODEL -pp 4 --port 9256 --max-num-seqs 128  --async-scheduling`
vs
`vllm serve $MODEL -pp 4 --port 9256 --max-num-seqs 128 -no-async-scheduling`

`vllm bench serve --model $MODEL  --random-input-len 2 --num-prompts 128 --num-warmups 16`
"""
WRAPPED = """On H100:
```
vllm serve org/m \\
    -tp 8 -ep -O3 \\
    --speculative-config '{
       "method": "mtp",
       "num_speculative_tokens": 1
    }' \\
    --no-enable-prefix-caching
```
with
```
vllm bench serve \\
    --dataset-name spec_bench --metric-percentiles 50 90 \\
    --num-prompts 10 --max-concurrency 1
```
"""
QUOTED = """> ```
> VLLM_USE_V1=1 python3 benchmarks/benchmark_serving.py \\
>   --model $WHAT --num-prompts 100 --request-rate inf
> ```
It's 3 % faster.
- `docker run --gpus all -p 8000:8000 vllm/vllm-openai:latest --model org/m -dp=2`
"""
MODULE = """**Server**: isn't changed
```sh
# vllm serve org/old
CUDA_VISIBLE_DEVICES=0,1 python -m vllm.entrypoints.openai.api_server --model org/m -cc.mode=3 > log 2>&1 &
```
It answers "hello" after `vllm serve` has started, and doesn't stop.
"""


@pytest.mark.parametrize(
    ("text", "fields", "arguments", "serve_args"),
    [
        (
            SPECULATIVE,
            {"model": "org/m", "backend": "openai", "dataset_name": "hf", "dataset_path": "org/bench"},
            {},
            {
                "speculative-config": {"method": "eagle3", "model": "org/d"},
                "async-scheduling": True,
            },
        ),
        (
            TWO_SIDES,
            {"model": "org/m", "num_prompts": 128, "num_warmups": 16},
            {"random-input-len": 2},
            {"pipeline-parallel-size": 4, "max-num-seqs": 128, "async-scheduling": True},
        ),
        (
            WRAPPED,
            {"model": "org/m", "dataset_name": "spec_bench", "num_prompts": 10, "max_concurrency": 1},
            {},
            {
                "tensor-parallel-size": 8,
                "enable-expert-parallel": True,
                "optimization-level": 3,
                "speculative-config": {"method": "mtp", "num_speculative_tokens": 1},
                "enable-prefix-caching": False,
            },
        ),
        (
            QUOTED,
            {"model": "org/m", "dataset_name": "sharegpt", "num_prompts": 100, "request_rate": INF},
            {},
            {"data-parallel-size": 2},
        ),
        (MODULE, {"model": "org/m", "deploy_yaml": None}, {}, {"compilation-config.mode": 3}),
    ],
    ids=["code in lines", "two sides", "JSON over lines", "quoted script and image", "server alone"],
)
def test_the_commands_of_a_pull_requests_text_are_read_and_the_rest_is_not(
    text: str, fields: dict[str, object], arguments: dict[str, object], serve_args: dict[str, object]
) -> None:
    seen = parse_report(text)
    assert {name: seen.fields[name] for name in fields} == fields
    assert (dict(seen.arguments), seen.serve_args) == (arguments, serve_args)
    assert ("load" in seen.missing) == (text == MODULE) == (not seen.closed)


OFFLINE = """The test (it isn't a server):
```python
llm = LLM(
    model="org/m",
    max_model_len=2048,
    tensor_parallel_size=size,
    async_scheduling=True,
    speculative_config={
        "model": "org/draft",  # (an EAGLE draft)
        "num_speculative_tokens": 2,
    },
)
```
"""


def test_an_engine_in_python_is_read_where_there_is_no_server() -> None:
    seen = parse_report(OFFLINE)
    assert (seen.fields["model"], seen.closed) == ("org/m", False)
    assert seen.serve_args == {
        "max-model-len": 2048,
        "async-scheduling": True,
        "speculative-config": {"model": "org/draft", "num_speculative_tokens": 2},
    }
    assert parse_report(f"{OFFLINE}\nvllm serve org/other").fields["model"] == "org/other"
    for text in ("an LLM() of ours", "LLM(", "LLM(a b)", "LLM(b'x')"):
        with pytest.raises(UsageError, match="no `vllm serve`"):
            parse_report(text)


def test_a_servers_command_alone_finds_its_cells() -> None:
    cell = FIRST.model_copy(update={"serve_args": {"tensor-parallel-size": 2}})
    (match,) = nearest_cells(parse_report("vllm serve org/model -tp 2"), [cell])
    assert match.exact


def test_a_value_that_the_text_does_not_say_is_not_claimed() -> None:
    seen = parse_report("vllm bench serve --model $MODEL --num-prompts ${N} --max-concurrency 2")
    assert not {"model", "num_prompts"} & set(seen.fields)
    assert seen.fields["max_concurrency"] == 2


def test_of_each_kind_the_first_command_counts() -> None:
    seen = parse_report(
        "bin/vllm serve org/m --seed 1 & sleep 60; python -m vllm.entrypoints.cli.main bench serve --seed 2\n"
        "vllm serve org/other; vllm bench serve --seed 3"
    )
    assert (seen.fields["model"], seen.serve_args, seen.fields["seed"]) == ("org/m", {}, 2)
    assert seen.notes == (
        "of 2 servers' commands the first is read; they differ in model",
        "the server's --seed 1: a cell has one seed, that of its requests",
    )


FIRST = Cell.model_validate(
    {
        "name": "qwen3_tts-random@c1-n4",
        "family": "text",
        "model": "org/model",
        "num_prompts": 4,
        "max_concurrency": 1,
        "dataset_args": {"random-input-len": 64},
    }
)
MORE = FIRST.model_copy(update={"name": "qwen3_tts-random@c1-n40", "num_prompts": 40})
CHUNK = FIRST.model_copy(update={"name": "qwen3_tts_chunk-random@c1-n4"})
COMMAND = (
    "vllm bench serve --model org/model --dataset-name random --random-input-len 64 --num-prompts 4 "
    "--max-concurrency 1 --temperature 0"
)


def test_the_cell_of_a_command() -> None:
    first, second, *_ = nearest_cells(parse_report(COMMAND), [MORE, FIRST])
    assert (first.cell, first.exact) == (FIRST, True)
    assert second.differing == (("num_prompts", 4, 40),)


def test_what_a_command_adds_or_leaves_out_differs() -> None:
    (more,) = nearest_cells(parse_report(COMMAND + " --random-range-ratio 0.5"), [FIRST])
    assert more.differing == (("random-range-ratio", 0.5, "-"),)
    (less,) = nearest_cells(parse_report(COMMAND.replace("--random-input-len 64 ", "")), [FIRST])
    assert less.differing == (("random-input-len", "-", 64),)


def test_the_cell_of_a_result_is_that_of_its_test() -> None:
    seen = parse_report("result_test_qwen3_tts_random_1_4_20260412-190115.json")
    found = nearest_cells(seen, [CHUNK, MORE, FIRST])
    assert found[0].cell == FIRST
    assert found[0].exact
    assert ("test", "qwen3_tts", "qwen3_tts_chunk-random@c1-n4") in found[1].differing + found[2].differing


def test_the_servers_command_is_compared_too() -> None:
    cell = FIRST.model_copy(
        update={
            "serve_args": {"max-model-len": 512},
            "deploy_yaml": DeployYaml(origin="change", path="vllm_omni/deploy/high.yaml"),
        }
    )
    serve = "vllm serve org/model --deploy-config vllm_omni/deploy/high.yaml --max-model-len 512\n"
    (same,) = nearest_cells(parse_report(serve + COMMAND), [cell])
    assert same.exact
    other = "vllm serve org/model --enforce-eager\n"
    (differs,) = nearest_cells(parse_report(other + COMMAND), [cell])
    assert differs.differing == (
        ("deploy_yaml", None, "vllm_omni/deploy/high.yaml"),
        ("serve_args.enforce-eager", True, "-"),
        ("serve_args.max-model-len", "-", 512),
    )
    own = cell.model_copy(update={"deploy_yaml": DeployYaml(text="stages: []")})
    (unlike,) = nearest_cells(parse_report(serve + COMMAND), [own])
    assert unlike.differing == (("deploy_yaml", "vllm_omni/deploy/high.yaml", "a text of the cell's own"),)


def test_the_engine_and_the_endpoint_come_before_the_count_of_differences() -> None:
    """An image cell has few options, so that it differs from any report of text in few fields."""
    image = FIRST.model_copy(
        update={
            "name": "image",
            "family": "diffusion",
            "endpoint": "/v1/images/generations",
            "dataset_args": {},
        }
    )
    text = FIRST.model_copy(
        update={
            "name": "text",
            "family": "text",
            "model": "org/other",
            "serve_args": {"max-model-len": 512, "enforce-eager": True, "max-num-seqs": 8},
        }
    )
    for report in (
        "vllm serve org/third\n",
        f"vllm serve org/third\n{COMMAND}",
        COMMAND.replace("model ", "third "),
    ):
        assert nearest_cells(parse_report(report), [image, text])[0].cell.name == "text"
    own = image.model_copy(update={"name": "own", "family": "text", "model": "org/third"})
    assert nearest_cells(parse_report("vllm serve org/third\n"), [text, own])[0].cell.name == "own"


@pytest.mark.parametrize(
    "text",
    [
        "LLM(" * 5000 + ")" * 40,
        "LLM(" + "x" * 20_000 + ")",
        "LLM('" * 4000,
        "LLM(" + "-" * 3000 + "1)",
        "LLM(model=" + "[" * 150 + "]" * 150 + ")",
        "vllm serve '{\n" * 1500,
        "A=" + "x" * 10_000 + "\nvllm serve " + "$A" * 5000,
    ],
)
def test_the_work_on_a_text_grows_with_its_size(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters that are parsed as Python or as a shell's words."""
    parsed = 0

    def count(call: Callable[..., Any], text: str, **named: Any) -> Any:
        nonlocal parsed
        parsed += len(text)
        return call(text, **named)

    monkeypatch.setattr(python.ast, "parse", partial(count, python.ast.parse))
    monkeypatch.setattr(shell, "split_commands", partial(count, shell.split_commands))
    with contextlib.suppress(UsageError):
        parse_report(text)
    assert parsed <= python.MOST_CALLS * python.LONGEST_CALL + shell._MOST_REPLACED + 4 * len(text)


def test_limits_of_a_report_are_said() -> None:
    with pytest.raises(UsageError, match="it has more than 20,000 characters"):
        parse_report("vllm bench serve --model " + "m" * 20_000)
    with pytest.raises(UsageError, match="more than 1,000,000 characters"):
        parse_report("vllm serve m " * 100_000)
    with pytest.raises(UsageError, match="is no name of a result file"):
        parse_report(f"result_test_a_random_1_{'9' * 5000}_20260519-190024.json")
