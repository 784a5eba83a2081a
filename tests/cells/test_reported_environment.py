"""Environment variables of a reported server: compared with the cell's, or refused where they cannot be."""

from __future__ import annotations

import pytest

from perfbisect.cells.match import Difference, differing
from perfbisect.cells.reports import parse_report
from perfbisect.commands.setups import require_workload
from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell, Sampling

CELL = Cell.model_validate(
    {
        "name": "chat",
        "family": "text",
        "model": "org/model",
        "task": "generate",
        "dataset_name": "random",
        "dataset_args": {"random-input-len": 64},
        "num_prompts": 4,
        "max_concurrency": 1,
        "env": {"VLLM_ATTENTION_BACKEND": "TRITON_ATTN"},
    }
)
PLAIN = CELL.model_copy(update={"env": {}})
BENCH = (
    "vllm bench serve --model org/model --dataset-name random --random-input-len 64 --num-prompts 4 "
    "--max-concurrency 1 --temperature 0\n"
)
SERVE = "vllm serve org/model\n"
SET = "VLLM_ATTENTION_BACKEND=TRITON_ATTN"


def rows(report: str, cell: Cell) -> tuple[Difference, ...]:
    return differing(parse_report(report), cell)


READ = [
    f'services:\n  vllm:\n    environment:\n      VLLM_ATTENTION_BACKEND: "TRITON_ATTN"\n{SERVE}',
    f"env:\n- name: VLLM_ATTENTION_BACKEND\n  value: TRITON_ATTN\n{SERVE}",
    f"{SERVE}with the environment\n```\n{SET}\n```\n",
    f"ENV {SET}\n{SERVE}",
    f"bash -lc 'cd /srv; {SET} vllm serve org/model'\n",
    f"export {SET}\n{SERVE}",
    f"$ export CUDA_VISIBLE_DEVICES=0 {SET}\n$ {SERVE}",
    f"export {SET} && {SERVE}",
    f"{SET} {SERVE}",
    f"env -u OMP {SET} numactl -m 0 {SERVE}",
    f"docker run --gpus device=0 -e {SET} -e HF_TOKEN vllm/vllm-openai:v0.12.0 --model org/model\n",
    f"docker run --env={SET} --mount type=bind,source=/a vllm/vllm-openai --model org/model\n",
]


@pytest.mark.parametrize("server", READ)
def test_a_variable_of_the_server_is_part_of_the_workload(server: str) -> None:
    assert rows(server + BENCH, CELL) == ()
    assert rows(server + BENCH, PLAIN) == (("env.VLLM_ATTENTION_BACKEND", "TRITON_ATTN", "-"),)
    assert parse_report(server + BENCH).unread == ()


def test_a_variable_that_the_cell_alone_sets_differs() -> None:
    assert rows(SERVE + BENCH, CELL) == (("env.VLLM_ATTENTION_BACKEND", "-", "TRITON_ATTN"),)
    assert rows(BENCH, CELL) == ()  # no server is reported


def test_variables_that_every_server_gets_and_those_of_the_script_do_not_count() -> None:
    script = "export MODEL=org/model\nexport VLLM_LOGGING_LEVEL=DEBUG HF_HOME=/models\nHF_TOKEN=x "
    script += "vllm serve $MODEL\n"
    assert rows(script + BENCH, PLAIN) == ()
    assert parse_report(script + BENCH).unread == ()


def test_a_later_export_is_not_the_servers() -> None:
    assert rows(f"{SERVE}export {SET}\n{BENCH}", PLAIN) == ()
    assert parse_report(f"{SERVE}export {SET}\n{BENCH}").unread == ("VLLM_ATTENTION_BACKEND",)


UNREAD = {
    f"docker run --env-file server.env vllm/vllm-openai --model org/model\n{BENCH}": "--env-file server.env",
    f"docker run -e VLLM_USE_V1 vllm/vllm-openai --model org/model\n{BENCH}": "the value of VLLM_USE_V1",
    f"export VLLM_USE_V1=$(cat v1)\n{SERVE}{BENCH}": "the value of VLLM_USE_V1",
    f"env:\n- name: VLLM_USE_V1\n  valueFrom: {{a: x}}\n{SERVE}{BENCH}": "the value of VLLM_USE_V1",
    f"env:\n- name: 'VLLM_USE_V1\n{SERVE}{BENCH}": "the list below env:",
    f"env_file: server.env\n{SERVE}{BENCH}": "the variables of env_file",
    f'os.environ["VLLM_USE_V1"] = "0"\n{SERVE}{BENCH}': "VLLM_USE_V1",
    f"ENV NCCL_ALGO=Ring\n{BENCH}": "NCCL_ALGO",
}


@pytest.mark.parametrize(("report", "what"), UNREAD.items())
def test_what_cannot_be_compared_is_told_and_refused(report: str, what: str) -> None:
    assert what in parse_report(report).unread
    with pytest.raises(UsageError) as refused:
        require_workload(PLAIN, report)
    assert what in refused.value.message


def test_a_value_that_is_set_later_is_read_and_one_that_is_not_is_told_once() -> None:
    assert parse_report(f"export VLLM_X=$(a)\nexport VLLM_X=1\n{SERVE}").unread == ()
    assert parse_report("export A=$A\n" * 1_000 + SERVE).unread == ("the value of A",)


def test_more_variables_than_a_server_has_are_refused() -> None:
    for value in ("1", "$(a)"):
        with pytest.raises(UsageError, match="sets more than 1,000 variables"):
            parse_report("".join(f"export A{number}={value}\n" for number in range(1001)) + SERVE)


def test_a_mention_without_a_value_sets_nothing() -> None:
    assert parse_report(f"We did not touch VLLM_USE_V1.\n{SERVE}{BENCH}").unread == ()


def test_a_secret_is_compared_and_not_told() -> None:
    ((field, there, here),) = rows(f"MY_API_TOKEN=hf_abcdefghijkl {SERVE}{BENCH}", PLAIN)
    assert (field, here) == ("env.MY_API_TOKEN", "-")
    assert "hf_abcdefghijkl" not in str(there)


def test_a_report_without_a_temperature_agrees_with_that_of_older_clients() -> None:
    silent = BENCH.replace(" --temperature 0", "")
    assert rows(silent, PLAIN) == ()
    server = PLAIN.model_copy(update={"sampling": Sampling(temperature="server")})
    assert rows(silent, server) == ()
    assert rows(BENCH, server) == (("temperature", 0, "server"),)
    assert rows(f"vLLM v0.14.1\n{silent}", server) == (("temperature", "-", "server"),)
    assert rows(f"vLLM v0.14.1\n{silent}", PLAIN) == rows(f"vLLM v0.16.0\n{silent}", server) == ()
    assert rows(f"vLLM v0.16.0\n{silent}", PLAIN) == (("temperature", "-", 0.0),)
    assert rows(f"v0.14.0 -> v0.15.0\n{silent}", PLAIN) == rows(f"v0.14.0, v0.15.0\n{silent}", server) == ()
    warm = PLAIN.model_copy(update={"sampling": PLAIN.sampling.model_copy(update={"temperature": 0.7})})
    assert rows(silent, warm) == (("temperature", "-", 0.7),)
