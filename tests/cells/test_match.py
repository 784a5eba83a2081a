"""The nearest cell to a workload that somebody wrote down."""

from __future__ import annotations

from perfbisect.cells.match import nearest_cells, parse_report
from perfbisect.model.cell import Cell, DeployYaml

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


def test_the_wrong_cell_of_a_report_is_told_by_field() -> None:
    report = parse_report(
        "vllm bench serve --model org/model --dataset-name random --random-input-len 64 --num-prompts 512 "
        "--max-concurrency 64 --num-warmups 8 --temperature 0 --backend openai-audio-speech"
    )
    (match,) = nearest_cells(report, [FIRST])
    assert [field for field, _, _ in match.differing] == [
        "backend",
        "max_concurrency",
        "num_prompts",
        "num_warmups",
    ]


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
