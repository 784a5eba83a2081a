"""vLLM-Omni's specifications: small ones of every trap, and the real files where they are present."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfbisect.config.perf_specs import Specification, read_specification
from perfbisect.core.expand import expand
from perfbisect.errors import LocatedError
from tests.shared import data

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


def read(tmp_path: Path, document: object) -> Specification:
    path = tmp_path / "test_x.json"
    path.write_text(json.dumps(document))
    return read_specification(path)


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
    assert cell.document["num_warmups"] == 2
    assert cell.document["known_baselines"] == {"median_audio_ttfp_ms": [1.0, 2.0]}
    loads = [
        (rung.document["max_concurrency"], rung.document["num_prompts"]) for rung in expand(cell.document)
    ]
    assert loads == [(8, 80), (64, 128)]


def test_a_scalar_serves_every_place_and_a_rate_is_no_concurrency(tmp_path: Path) -> None:
    workload = {k: v for k, v in SPEECH.items() if k != "max_concurrency"}
    workload |= {"num_prompts": 100, "request_rate": [1.0, 2.0]}
    (cell,) = read(tmp_path, [server(workload)]).cells
    rungs = expand(cell.document)
    assert [(r.document["request_rate"], r.document["num_prompts"]) for r in rungs] == [
        (1.0, 100),
        (2.0, 100),
    ]
    assert all("max_concurrency" not in rung.document for rung in rungs)


def test_what_is_switched_off_is_counted(tmp_path: Path) -> None:
    found = read(tmp_path, [server(SPEECH, {**SPEECH, "enabled": False})])
    assert len(found.cells) == 1
    assert found.off == ("[0].benchmark_params[1]",)


def test_twins_of_one_name_are_told_apart_by_modality(tmp_path: Path) -> None:
    chat = SPEECH | {"backend": "openai-chat-omni", "endpoint": "/v1/chat/completions", "task": ""}
    audio = {k: v for k, v in chat.items() if k != "extra_body"}
    text = chat | {"extra_body": {"modalities": ["text"]}}
    found = read(tmp_path, [server(audio, text, extra_cli_args=["--async-chunk"])]).cells
    assert [cell.stem for cell in found] == ["tts-seed-tts-text", "tts-seed-tts-text-text"]
    assert all(cell.document["family"] == "omni" for cell in found)
    assert all(cell.document["serve_args"] == {"async-chunk": True} for cell in found)


def test_loads_of_one_name_are_numbered(tmp_path: Path) -> None:
    found = read(tmp_path, [server(SPEECH, SPEECH | {"num_prompts": [3, 4]})]).cells
    assert [cell.stem[-2:] for cell in found] == ["-1", "-2"]


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
    assert cell.document["dataset_path"] == "tts.jsonl"
    assert [json.loads(line) for line in cell.files["tts.jsonl"].splitlines()] == rows
    assert cell.document["dataset_args"] == {"width": 512}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"test_name": "x"}, "a list of servers"),
        ([3], r"\[0\]: is 3"),
        ([{"test_name": "x", "server_params": {}}], r"\[0\]\.benchmark_params: is missing"),
        (
            [server(SPEECH | {"num_prompts": [1, 2, 3]})],
            r"benchmark_params\[0\]: has lists that cannot",
        ),
        ([server({k: v for k, v in SPEECH.items() if k != "num_prompts"})], r"num_prompts: is missing"),
        ([server(SPEECH, model=None)], r"server_params\.model: is missing"),
        ([server(SPEECH, extra_cli_args=["8", "--x"])], r"server_params: holds '8'"),
        ([server(7)], r"benchmark_params\[0\]: is 7"),  # type: ignore[arg-type]
    ],
)
def test_a_specification_that_is_none(tmp_path: Path, document: object, told: str) -> None:
    with pytest.raises(LocatedError, match=told) as caught:
        read(tmp_path, document)
    assert caught.value.file == str(tmp_path / "test_x.json")


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('[\n {"test_name": }\n]')
    with pytest.raises(LocatedError, match="no JSON") as caught:
        read_specification(path)
    assert caught.value.line == 2


def test_every_real_specification_gives_the_cells_its_lists_say() -> None:
    for path in sorted(data("vllm_omni", "perf_specs").glob("*.json")):
        said = off = 0
        for entry in json.loads(path.read_text()):
            for workload in entry["benchmark_params"]:
                places = [
                    len(value)
                    for name, value in workload.items()
                    if name.replace("-", "_") in ("num_prompts", "max_concurrency", "request_rate")
                    and isinstance(value, list)
                ]
                off += workload.get("enabled") is False
                said += max(places, default=1) if workload.get("enabled", True) else 0
        found = read_specification(path)
        assert sum(len(expand(cell.document)) for cell in found.cells) == said, path.name
        assert len(found.off) == off, path.name
        assert len({cell.stem for cell in found.cells}) == len(found.cells), path.name
