"""Which devices the stages of a server name in the end, and what of it a cell does not reserve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from perfbisect.cells.deploy import PlacedStage, deploy_documents, placed_stages, read_deploy
from perfbisect.cells.loading import load_cell
from perfbisect.common.yaml_source import Located
from perfbisect.errors import LocatedError
from perfbisect.model.cell import DeployYaml

BASE = """\
stages:
  - stage_id: 0
    devices: "0"
  - stage_id: 1
    devices: "1"
    tensor_parallel_size: 1
platforms:
  npu:
    stages:
      - stage_id: 0
        devices: "0,1,2,3"
      - stage_id: 1
        runtime: {devices: "4"}
        engine_args: {max_num_seqs: 8}
"""
CELL = """\
family: tts
model: org/m
backend: openai-audio-speech
endpoint: /v1/audio/speech
client: omni_bench
num_prompts: 4
max_concurrency: 1
gpus: 2
"""


def said(
    *texts: str, overrides: Mapping[str, object] | None = None, platform: str | None = "cuda"
) -> dict[str, object]:
    documents = [read_deploy(text, Path("d.yaml")) for text in texts]
    found = placed_stages([d for d in documents if d], overrides or {}, platform)
    return {stage.stage: stage.devices for stage in found}


def test_of_a_platform_its_section_holds() -> None:
    assert said(BASE) == {"0": "0", "1": "1"}
    assert said(BASE, platform="npu") == {"0": "0,1,2,3", "1": "4"}
    assert said(BASE, platform=None) == {}, "not known, so nothing is said of stages that differ"


def test_the_old_form_has_them_in_runtime() -> None:
    old = 'stage_args:\n  - stage_id: 0\n    runtime: {devices: "0"}\n  - runtime: {devices: "2,3"}\n'
    assert said(old) == {"0": "0", "1": "2,3"}


def test_overrides_win_and_null_says_nothing() -> None:
    assert said(BASE, overrides={"1": {"devices": "0"}, "0": {"devices": None}}) == {"0": "0", "1": "0"}
    assert said(overrides={"2": {"devices": 3}, "3": {"max_num_seqs": 1}}) == {"2": 3}


def test_what_inherits_replaces_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    base, thin, root = tmp_path / "sub" / "base.yaml", tmp_path / "thin.yaml", str(tmp_path)
    base.write_text(BASE)
    thin.write_text("base_config: sub/base.yaml\nstages:\n  - {stage_id: 1, devices: 5}\n")
    (tmp_path / "round.yaml").write_text("base_config: ./round.yaml\nstages: []\n")
    documents = deploy_documents(DeployYaml.model_validate("thin.yaml"), root)
    assert [document.file for document in documents] == [base, thin]
    first, second = placed_stages(documents, {}, "cuda")
    assert (first.devices, first.file, first.line) == ("0", str(base), 3)
    assert (second.devices, second.file, second.line) == (5, str(thin), 3)
    assert len(deploy_documents(DeployYaml.model_validate("round.yaml"), root)) == 1
    assert deploy_documents(DeployYaml.model_validate("gone.yaml"), root) == ()


@pytest.mark.parametrize(
    "text", ["- a\n", "", "stages: 3\n", "stages: [1, {devices: cpu}]\n", "{", "a: !!x 1\n"]
)
def test_what_is_no_deploy_yaml_names_nothing_that_counts(text: str) -> None:
    document = read_deploy(text, Path("d.yaml"))
    found = placed_stages([document] if isinstance(document, Located) else [], {}, "cuda")
    assert [stage for stage in found if stage.beyond(0)] == []


def test_yaml_that_a_cell_may_not_write_is_read() -> None:
    assert said("a: &x {devices: '7'}\nstages:\n  - {<<: *x, stage_id: 4}\n") == {"4": "7"}


@pytest.mark.parametrize("devices", ["0", "0,1", 1, [0, 1], " 1 , 0 ", "cpu", None, ""])
def test_within_two(devices: object) -> None:
    assert PlacedStage("talker", devices).beyond(2) == ""


@pytest.mark.parametrize("devices", ["2", "0,2", 4, [0, 7], "4,5", "-1", "GPU-4", "all", "²", "9" * 5000])
def test_beyond_two(devices: object) -> None:
    """Also the numbers that the slot's devices have on the machine: the engine counts from 0."""
    why = PlacedStage("talker", devices).beyond(2)
    assert why.startswith(f"stage talker: devices {devices!r} names ")
    assert why.endswith("and 2 are reserved, counted from 0")


@pytest.mark.parametrize(
    ("devices", "replicas", "each", "needs"),
    [
        ("0", 1, 1, 1),
        ("1,2", 2, 1, 3),
        ("0", 3, 1, 3),
        ("0,1", 2, 2, 4),
        ("2,3", 1, 2, 4),
        ("0,1,2,3", 2, 2, 4),
    ],
)
def test_replicas_repeat_a_pattern(devices: str, replicas: int, each: int, needs: int) -> None:
    """As vLLM-Omni splits them: all that the replicas take together, or those of one, repeated."""
    stage = PlacedStage("1", devices, replicas, each)
    assert stage.needs == needs
    assert stage.beyond(needs) == "" != stage.beyond(needs - 1)


@pytest.mark.parametrize(
    ("more", "line", "field", "said"),
    [
        ('stage_overrides: {"1": {devices: "2"}}', 9, "stage_overrides.1.devices", "names '2', and 2 are"),
        ('stage_overrides:\n  "1":\n    devices: "0,4"', 11, "stage_overrides.1.devices", "names '4'"),
        ("deploy_yaml: {file: d.yaml}", 5, "stages.1.devices", "devices '1' names"),
        ("deploy_yaml:\n  text: |\n    stages:\n      - {devices: 7}", 9, "stages.0.devices", "names '7'"),
        (
            'variants:\n  far:\n    stage_overrides: {"0": {devices: "9"}}',
            11,
            "stage_overrides.0.devices",
            "names '9'",
        ),
    ],
)
def test_a_cell_names_no_more_than_it_reserves(
    tmp_path: Path, more: str, line: int, field: str, said: str
) -> None:
    (tmp_path / "d.yaml").write_text(
        'stages:\n  - stage_id: 0\n    devices: "0"\n  - stage_id: 1\n    devices: "1"\n'
    )
    reserved = CELL.replace("gpus: 2", "gpus: 1") if "d.yaml" in more else CELL
    path = tmp_path / "cell.yaml"
    path.write_text(f"{reserved}{more}\n")
    with pytest.raises(LocatedError) as raised:
        load_cell(path)
    error = raised.value
    assert (error.line, error.field) == (line, field)
    assert Path(error.file).name == ("d.yaml" if "d.yaml" in more else "cell.yaml")
    assert said in error.message and "gpus: " in (error.next_step or "")


def test_a_deploy_yaml_that_contains_itself_names_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cell.yaml"
    path.write_text(CELL + "deploy_yaml: {text: 'stages: &x [*x]'}\n")
    assert load_cell(path).deploy_yaml == DeployYaml(text="stages: &x [*x]")


def test_a_cell_that_reserves_enough(tmp_path: Path) -> None:
    path = tmp_path / "cell.yaml"
    path.write_text(CELL + 'stage_overrides: {"1": {devices: "1"}}\ndeploy_yaml: d/of/the/change.yaml\n')
    assert load_cell(path).gpus == 2


def test_a_cell_without_devices_may_be_of_a_machine_that_has_none(tmp_path: Path) -> None:
    """There the number is that of a memory node; the machine says later whether it has devices."""
    (tmp_path / "d.yaml").write_text('stages:\n  - stage_id: 0\n    devices: "0"\n')
    path = tmp_path / "cell.yaml"
    path.write_text(CELL.replace("gpus: 2", "gpus: 0") + "deploy_yaml: {file: d.yaml}\n")
    assert load_cell(path).gpus == 0
