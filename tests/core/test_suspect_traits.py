"""What cells run: by their files, and by their names where there are no files."""

from __future__ import annotations

import pytest

from perfbisect.config.cells import load_cells
from perfbisect.config.suspect_table import load_suspect_table
from perfbisect.core.cell_parts import DeployYaml
from perfbisect.core.suspect_traits import files_of_cell, traits_of_cell

TABLE = load_suspect_table()


def test_a_familys_knobs_are_traits() -> None:
    (cell,) = load_cells("omni_audio_chat")
    assert traits_of_cell(cell, TABLE) == {"omni", "async_chunk"}
    whole = cell.model_copy(update={"serve_args": {"async-chunk": False}})
    assert traits_of_cell(whole, TABLE) == {"omni"}


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("async_chunk: true\nstages: []\n", True),
        ("async_chunk: true  # streams\n", True),
        ("async_chunk: false\n", False),
        ("# async_chunk: true\n", False),
        ("stages:\n  - async_chunk: true\n", False),
    ],
)
def test_a_deploy_yaml_says_whether_stages_pass_chunks(text: str, chunks: bool) -> None:
    (cell,) = load_cells("omni_audio_chat")
    placed = cell.model_copy(update={"serve_args": {}, "deploy_yaml": DeployYaml(text=text)})
    assert ("async_chunk" in traits_of_cell(placed, TABLE)) == chunks
    refused = placed.model_copy(update={"serve_args": {"async-chunk": False}})
    assert "async_chunk" not in traits_of_cell(refused, TABLE)


def test_the_deploy_yaml_of_the_change_is_a_file_that_a_cell_names() -> None:
    (cell,) = load_cells("omni_audio_chat")
    of_change = cell.model_copy(
        update={"deploy_yaml": DeployYaml.model_validate({"from": "change", "path": "a/b.yaml"})}
    )
    assert files_of_cell(of_change) == {"a/b.yaml"}
    pinned = cell.model_copy(update={"deploy_yaml": DeployYaml(text="x: 1")})
    assert files_of_cell(pinned) == frozenset()


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        ("test_qwen3_omni_chunk", {"omni", "async_chunk"}),
        ("test_qwen3_omni", {"omni"}),
        ("test_qwen3_tts_base", {"tts", "async_chunk"}),
        ("test_voxcpm2", {"tts"}),
        ("test_qwen_image_edit", {"diffusion"}),
        ("test_qwen3_omni_910", {"omni", "npu"}),
        ("serving_llama8B_tp1", set()),
    ],
)
def test_the_cells_of_nightlies_by_their_names(name: str, traits: set[str]) -> None:
    assert TABLE.traits_of(name) == traits
