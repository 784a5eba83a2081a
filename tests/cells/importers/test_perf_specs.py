"""vLLM-Omni's specifications: small ones of every trap."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfbisect.cells.importers import read_specification
from perfbisect.cells.importers.base import SpecificationFile, read_file
from perfbisect.errors import LocatedError
from perfbisect.model.change import Change
from tests.cells.importers.reading import loaded, only_error, read, without

SPEECH = {
    "task": "default_voice",
    "dataset_name": "seed-tts-text",
    "backend": "openai-audio-speech",
    "endpoint": "/v1/audio/speech",
    "num_prompts": [80, 128],
    "max_concurrency": [8, 64],
    "seed_tts_locale": "en",
    "extra_body": {"voice": "Vivian"},
    "percentile-metrics": "ttft,audio_ttfp",
    "baseline": {"median_audio_ttfp_ms": [1.0, 2.0]},
}


def server(*workloads: dict[str, Any], **params: Any) -> dict[str, Any]:
    return {
        "test_name": "test_tts",
        "server_params": {"model": "org/model", **params},
        "benchmark_params": list(workloads),
    }


def test_a_paired_list_is_a_ladder(tmp_path: Path) -> None:
    (cell,) = read(tmp_path, [server(SPEECH, stage_overrides={"1": {"devices": "1"}})]).cells
    assert cell.stem == "tts-seed-tts-text-default-voice"
    assert cell.document["family"] == "tts"
    assert cell.document["stage_overrides"] == {"1": {"devices": "1"}}
    assert cell.document["dataset_args"] == {"seed-tts-locale": "en"}
    assert cell.document["num_warmups"] == [8, 64]
    assert cell.document["known_baselines"] == {"median_audio_ttfp_ms": [1.0, 2.0]}
    cells = loaded(tmp_path, [cell])
    assert [(one.max_concurrency, one.num_prompts, one.num_warmups) for one in cells] == [
        (8, 80, 8),
        (64, 128, 64),
    ]


def test_a_scalar_serves_every_place_and_a_rate_is_no_concurrency(tmp_path: Path) -> None:
    workload = without(SPEECH, "max_concurrency")
    workload |= {"num_prompts": 100, "request_rate": [1.0, 2.0]}
    (cell,) = read(tmp_path, [server(workload)]).cells
    cells = loaded(tmp_path, [cell])
    assert [(one.request_rate, one.num_prompts) for one in cells] == [(1.0, 100), (2.0, 100)]
    assert all(one.max_concurrency is None for one in cells)


def test_sampling_is_the_cells(tmp_path: Path) -> None:
    sampled = SPEECH | {"temperature": 0.4, "top_p": 0.9, "repetition_penalty": 1.05}
    (cell,) = read(tmp_path, [server(sampled)]).cells
    assert cell.document["sampling"] == {"temperature": 0.4, "top_p": 0.9, "repetition_penalty": 1.05}
    assert cell.document["dataset_args"] == {"seed-tts-locale": "en"}
    assert loaded(tmp_path, [cell])[0].sampling.top_p == 0.9


def test_what_is_switched_off_is_counted(tmp_path: Path) -> None:
    found = read(tmp_path, [server(SPEECH, {**SPEECH, "enabled": False})])
    assert len(found.cells) == 1
    assert found.off == ["[0].benchmark_params[1]"]


def test_twins_of_one_name_are_told_apart_by_modality(tmp_path: Path) -> None:
    chat = SPEECH | {"backend": "openai-chat-omni", "endpoint": "/v1/chat/completions", "task": ""}
    audio = without(chat, "extra_body")
    text = chat | {"extra_body": {"modalities": ["text"]}}
    found = read(tmp_path, [server(audio, text, extra_cli_args=["--async-chunk"])]).cells
    assert [cell.stem for cell in found] == ["tts-seed-tts-text", "tts-seed-tts-text-text"]
    assert all(cell.document["family"] == "omni" for cell in found)
    assert all(cell.document["serve_args"] == {"async-chunk": True} for cell in found)


def test_deploy_yaml_of_the_change_and_inline(tmp_path: Path) -> None:
    token = server(
        SPEECH, extra_cli_args=["--deploy-config", "vllm_omni/deploy/a.yaml", "--trust-remote-code"]
    )
    argument = server(SPEECH, serve_args={"deploy_config": "../vllm_omni/deploy/b.yaml", "max-num-seqs": 8})
    content = {"pipeline": "p", "stages": [{"stage_id": 0}]}
    inline = server(SPEECH, serve_args={"deploy-config-inline": {"type": "yaml", "content": content}})
    one, two, three = (read(tmp_path, [s]).cells[0].document for s in (token, argument, inline))
    assert one["deploy_yaml"] == {"from": "change", "path": "vllm_omni/deploy/a.yaml"}
    assert one["serve_args"] == {"trust-remote-code": True}
    assert two["deploy_yaml"] == {"from": "change", "path": "vllm_omni/deploy/b.yaml"}
    assert two["serve_args"] == {"max-num-seqs": 8}
    assert isinstance(three["deploy_yaml"], dict)
    assert yaml.safe_load(three["deploy_yaml"]["text"]) == content
    assert "serve_args" not in three


def test_an_inline_data_set_lies_beside_the_cell(tmp_path: Path) -> None:
    rows = [{"prompt": "ein Bär", "seed": 1}, {"prompt": "b"}]
    workload = {
        "name": "inline_5",
        "dataset": "custom",
        "dataset-path-inline": {"type": "jsonl", "content": rows},
        "task": "ti2i",
        "num-prompts": 96,
        "max-concurrency": 16,
        "width": 512,
    }
    (cell,) = read(tmp_path, [server(workload) | {"benchmark_endpoint": "/v1/images/edits"}]).cells
    assert (cell.document["family"], cell.document["endpoint"]) == ("diffusion", "/v1/images/edits")
    ((name, text),) = cell.files.items()
    assert cell.document["dataset_path"] == name
    assert [json.loads(line) for line in text.splitlines()] == rows
    assert cell.document["dataset_args"] == {"width": 512}
    assert cell.needs == {}


def test_inline_data_sets_of_one_name_are_two_files(tmp_path: Path) -> None:
    workload = {"name": "inline", "dataset": "custom", "task": "ti2i", "num-prompts": 9}
    sets = [{"type": "jsonl", "content": [{"prompt": word}]} for word in ("a", "b")]
    found = read(tmp_path, [server(*({**workload, "dataset-path-inline": one} for one in sets))]).cells
    texts = {cell.files[str(cell.document["dataset_path"])] for cell in found}
    assert texts == {'{"prompt": "a"}\n', '{"prompt": "b"}\n'}
    assert len({name for cell in found for name in cell.files}) == 2


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"test_name": "x"}, "vLLM-Omni's list of servers .*, vLLM's serving tests .*, its nightly"),
        ([3], "of no form that is known"),
        ([{"test_name": "x", "parameter": {}}], "of no form that is known"),
        ([server(SPEECH), 3], r"\[1\]: is 3"),
        ([{"test_name": "x", "server_params": {}}], r"\[0\]\.benchmark_params: is missing"),
        ([server(SPEECH) | {"deploy": "x"}], r"\[0\]\.deploy: unknown key.*benchmark_endpoint"),
        ([server(SPEECH, stage_override={})], r"server_params\.stage_override: .*mean stage_overrides"),
        ([server(SPEECH | {"request_rate": 1.0})], "has both request_rate and max_concurrency"),
        ([server(SPEECH | {"num_prompts": [1, 2, 3]})], r"benchmark_params\[0\]: has lists that cannot"),
        ([server(without(SPEECH, "num_prompts"))], r"num_prompts: is missing"),
        (
            [server(SPEECH, serve_args={"deploy-config-inline": {"content": 3}})],
            r"deploy-config-inline: is 3",
        ),
        ([server(SPEECH, model=None)], r"server_params\.model: is missing"),
        ([server(SPEECH, extra_cli_args=["8", "--x"])], r"server_params: holds '8'"),
        ([server(SPEECH, serve_args={"init-timeout": "long"})], r"server_params: has a timeout of \"long\""),
        ([server(7)], r"benchmark_params\[0\]: is 7"),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_understood_has_its_place(tmp_path: Path, document: object, told: str) -> None:
    error = only_error(tmp_path, document)
    assert re.search(told, str(error))
    assert (error.file, error.line) == (str(tmp_path / "test_x.json"), 1)


def test_an_error_has_its_line_and_ends_no_other_workload(tmp_path: Path) -> None:
    path = tmp_path / "test_x.json"
    servers = [server(SPEECH), server(SPEECH, CHAT | {"num_prompts": []}), server(CHAT) | {"depoly": 1}]
    path.write_text(json.dumps(servers, indent="\t"))
    found = read_specification(read_file(path))
    assert len(found.cells) == 2
    places = ["[1].benchmark_params[1]", "[2].depoly"]
    assert [error.field for error in found.errors] == places
    lines = path.read_text().splitlines()
    for error, word in zip(found.errors, ("{", '"depoly": 1'), strict=True):
        assert error.line is not None and lines[error.line - 1].strip() == word


def test_the_time_of_a_start_is_the_cells(tmp_path: Path) -> None:
    timeouts = {"stage-init-timeout": 900, "init-timeout": 1200, "use-hsdp": True}
    (cell,) = read(tmp_path, [server(IMAGE, serve_args=timeouts)]).cells
    (made,) = loaded(tmp_path, [cell])
    assert (made.ready_timeout, made.serve_args) == (1200, {"use-hsdp": True})


def test_a_mark_may_be_one_mapping(tmp_path: Path) -> None:
    mark = {"hardware_marks": {"res": {"cuda": "H100"}, "num_cards": 2}, "marks": ["diffusion"]}
    (cell,) = read(tmp_path, [server(IMAGE) | {"mark": mark}]).cells
    assert cell.document["gpus"] == 2


@pytest.mark.parametrize(
    ("workload", "params", "client"),
    [
        ({"trust_remote_code": True}, {}, {"name": "omni_bench", "args": {"trust-remote-code": True}}),
        ({}, {"trust_remote_code": True}, {"name": "omni_bench", "args": {"trust-remote-code": True}}),
        ({}, {"extra_cli_args": ["--trust-remote-code"]}, "omni_bench"),
    ],
)
def test_the_client_loads_a_models_own_code_where_the_harness_lets_it(
    tmp_path: Path, workload: dict[str, Any], params: dict[str, Any], client: object
) -> None:
    (cell,) = read(tmp_path, [server(SPEECH | workload, **params)]).cells
    assert cell.document["client"] == client
    (served, _) = loaded(tmp_path, [cell])
    assert served.serve_args.get("trust-remote-code", False) == bool(params)


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('[\n {"test_name": }\n]')
    with pytest.raises(LocatedError, match="no JSON") as caught:
        read_specification(read_file(path))
    assert caught.value.line == 2
    with pytest.raises(LocatedError, match="cannot read"):
        read_file(tmp_path / "none.json")


IMAGE = {"name": "512_steps20", "dataset": "random", "task": "t2i", "width": 512, "num-prompts": 10}
CHAT = {
    "dataset_name": "random",
    "backend": "openai-chat-omni",
    "endpoint": "/v1/chat/completions",
    "num_prompts": 4,
    "max_concurrency": 1,
}
SOUND = CHAT | {"percentile-metrics": "ttft,e2el,audio_rtf"}
PLAIN = CHAT | {"backend": "openai", "endpoint": "/v1/completions"}


@pytest.mark.parametrize(
    ("workload", "params", "headline", "guards"),
    [
        (SPEECH, {}, "audio_ttfp", ["failed", "audio_duration"]),
        (SOUND, {}, "audio_rtf", ["failed", "output_tokens", "audio_duration"]),
        (
            CHAT | {"extra_body": {"modalities": ["text", "audio"]}},
            {},
            "audio_rtf",
            ["failed", "output_tokens", "audio_duration"],
        ),
        (SOUND | {"extra_body": {"modalities": ["text"]}}, {}, "e2el", ["failed", "output_tokens"]),
        (CHAT, {}, "e2el", ["failed", "output_tokens"]),
        (PLAIN, {"use_omni": False}, "tpot", ["failed", "output_tokens"]),
        (IMAGE, {}, "latency", ["failed"]),
        (SPEECH | {"headline": "audio_throughput"}, {}, "audio_throughput", ["failed", "audio_duration"]),
        (SOUND | {"guards": ["failed"]}, {}, "audio_rtf", ["failed"]),
    ],
)
def test_headline_and_guards_suit_what_the_answers_hold(
    tmp_path: Path, workload: dict[str, Any], params: dict[str, Any], headline: str, guards: list[str]
) -> None:
    (cell,) = read(tmp_path, [server(workload, **params)]).cells
    assert (cell.document["headline"], cell.document["guards"]) == (headline, guards)
    arguments = cell.document.get("dataset_args", {})
    assert isinstance(arguments, dict) and not {"headline", "guards"} & set(arguments)
    assert all(one.headline == headline for one in loaded(tmp_path, [cell]))


@pytest.mark.parametrize(
    ("more", "gpus"),
    [
        ({}, 2),
        ({"stage_overrides": {"1": {"devices": "1,3"}, "0": {"gpu_memory_utilization": 0.3}}}, 4),
        ({"serve_args": {"deploy-config-inline": {"content": {"stages": [{"devices": "0"}]}}}}, 1),
        ({"use_omni": False}, 1),
        ({"use_omni": False, "extra_cli_args": ["--tensor-parallel-size", 2]}, 2),
    ],
)
def test_as_many_devices_as_the_stages_name(tmp_path: Path, more: dict[str, Any], gpus: int) -> None:
    (cell,) = read(tmp_path, [server(CHAT, **more)]).cells
    assert cell.document["gpus"] == gpus


def test_a_diffusion_server_takes_the_product_and_a_mark_says_it(tmp_path: Path) -> None:
    sizes = {"ulysses-degree": 2, "cfg-parallel-size": 2, "vae-patch-parallel-size": 4}
    mark = [{"hardware_marks": {"res": {"cuda": "H100"}, "num_cards": 8}}, "full_model"]
    plain, marked = server(IMAGE, serve_args=sizes), server(IMAGE, serve_args=sizes) | {"mark": mark}
    assert [read(tmp_path, [one]).cells[0].document["gpus"] for one in (plain, marked)] == [4, 8]


def test_a_diffusion_workload_is_named_by_the_file_and_warmed_as_its_client_does(tmp_path: Path) -> None:
    profiles = [{"width": 8, "weight": 1}]
    other = IMAGE | {"warmup-requests": 8, "random-request-config": profiles}
    one, two = read(tmp_path, [server(IMAGE) | {"test_name": "test_x_single_device"}, server(other)]).cells
    assert (one.stem, two.stem) == ("x-single_device-512-steps20", "x-tts-512-steps20")
    assert [cell.document["num_warmups"] for cell in (one, two)] == [1, 8]
    assert [cell.document["max_concurrency"] for cell in (one, two)] == [1, 1]
    assert two.document["dataset_args"] == {"width": 512, "random-request-config": '[{"width":8,"weight":1}]'}


def test_what_cannot_be_measured_here_is_told(tmp_path: Path) -> None:
    socket = CHAT | {"backend": "openai-realtime"}
    lasting = without(CHAT, "num_prompts") | {"duration_sec": 86400}
    servers = [server(CHAT, socket, lasting), server(SPEECH) | {"server_type": "sglang-omni"}]
    found = read(tmp_path, [*servers, server(CHAT, stage_config_name="two.yaml", update={"a": 1})])
    assert len(found.cells) == 1
    assert list(found.left_out.items()) == [
        ("[0].benchmark_params[1]", "client omni_bench has no backend openai-realtime"),
        (
            "[0].benchmark_params[2]",
            "it runs for a time, not for a number of prompts: a test of stability",
        ),
        ("[1].benchmark_params[0]", "it is served by sglang-omni"),
        ("[2].benchmark_params[0]", "its stage config is a file beside the specification, as before #2383"),
    ]


def test_a_folder_of_the_repository_must_be_brought_and_a_hubs_data_need_not(tmp_path: Path) -> None:
    paths = ("benchmarks/build_dataset/smoke", "org/sentences")
    found = read(tmp_path, [server(*(SPEECH | {"dataset_path": path} for path in paths))]).cells
    assert [cell.needs for cell in found] == [
        {paths[0]: "a folder of vLLM-Omni's repository"},
        {},
    ]


@pytest.mark.parametrize(
    ("date", "more", "warmups"),
    [
        ("2026-05-18T13:25:36Z", {}, 0),
        ("2026-05-18T13:25:37Z", {}, 2),
        ("2026-08-18T23:59:59Z", {}, 2),
        ("2026-08-19T00:00:00Z", {}, [8, 64]),
        ("2026-08-19T00:00:00Z", {"max_concurrency": [1, 2]}, 2),
        ("2026-05-18T13:25:36Z", {"num_warmups": 8}, 8),
    ],
)
def test_as_many_warm_ups_as_the_harness_of_the_commit_sends(
    date: str, more: dict[str, Any], warmups: int | list[int]
) -> None:
    commit = Change(id="a" * 40, date=date)
    source = SpecificationFile(Path("x.json"), json.dumps([server(SPEECH | more)]), commit)
    (cell,) = read_specification(source).cells
    assert cell.document["num_warmups"] == warmups
    assert cell.document["description"] == "test_tts of x.json at aaaaaaaaaaaa"
