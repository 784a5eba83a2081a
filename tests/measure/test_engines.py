"""What an attempt knows of the engine before it starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfbisect.environments.base import Environment
from perfbisect.errors import ServerError, UsageError
from perfbisect.machine.slots import Slot
from perfbisect.measure.serving import check_stages, find_engine
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change

CHANGE = Change("a" * 40, date="2026-05-17T20:58:59+00:00")


def cell(**fields: Any) -> Cell:
    return Cell.model_validate({"name": "c", "family": "tts", "model": "m", "num_prompts": 1, **fields})


def environment(root: Path) -> Environment:
    package = root / "engine" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.touch()
    return Environment("k", Path("/python"), root, {}, "0.21.0", "", str(package), "")


def test_a_deploy_yaml_of_the_change_must_be_there(tmp_path: Path) -> None:
    built = environment(tmp_path)
    with_file = cell(deploy_yaml="engine/deploy/one.yaml")
    with pytest.raises(ServerError, match=r"engine/deploy/one\.yaml.*does not exist in aaaaaaaaaaaa"):
        find_engine(with_file, CHANGE, built)
    (tmp_path / "engine" / "deploy").mkdir()
    (tmp_path / "engine" / "deploy" / "one.yaml").write_text("stages: []\n")
    assert find_engine(with_file, CHANGE, built).root == str(tmp_path)


def test_a_pinned_deploy_yaml_is_not_looked_for(tmp_path: Path) -> None:
    assert find_engine(cell(deploy_yaml={"text": "stages: []\n"}), CHANGE, environment(tmp_path)).root


ONE = Slot("gpu4", ("GPU-4",), env={"CUDA_VISIBLE_DEVICES": "4"})


def test_stages_of_the_change_beyond_the_slot_are_the_changes(tmp_path: Path) -> None:
    """Another change may name fewer: it is skipped, and where it says so is told."""
    (tmp_path / "base.yaml").write_text("stages:\n  - {devices: 0}\n  - {devices: 0}\n")
    (tmp_path / "two.yaml").write_text("base_config: base.yaml\nstages:\n  - stage_id: 1\n    devices: '1'\n")
    check_stages(cell(deploy_yaml="base.yaml"), ONE, "cuda", root=str(tmp_path))
    with pytest.raises(
        ServerError, match=r"cell c: stages\.0\.devices: stage 1: devices '1' names '1'"
    ) as raised:
        check_stages(cell(deploy_yaml="two.yaml"), ONE, "cuda", root=str(tmp_path))
    assert raised.value.where == f"{tmp_path}/two.yaml:4"
    assert raised.value.next_step == "gpus: 2 in the cell, or other devices for the stage"
    two = Slot("gpu4+gpu5", ("GPU-4", "GPU-5"), env={"CUDA_VISIBLE_DEVICES": "4,5"})
    check_stages(cell(deploy_yaml="two.yaml"), two, "cuda", root=str(tmp_path))


def test_stages_of_the_cell_beyond_the_slot_are_the_users(tmp_path: Path) -> None:
    pinned = {"text": "stages:\n  - devices: '4'\nplatforms: {npu: {stages: [{stage_id: 0, devices: 0}]}}\n"}
    with pytest.raises(UsageError, match=r"stages\.0\.devices: stage 0: devices '4'"):
        check_stages(cell(deploy_yaml=pinned), ONE, "cuda")
    check_stages(cell(deploy_yaml=pinned), ONE, "npu")
    over = cell(stage_overrides={"0": {"devices": "0,1"}}, deploy_yaml="gone.yaml")
    with pytest.raises(UsageError, match=r"stage_overrides\.0\.devices: stage 0: devices '0,1' names '1'"):
        check_stages(over, ONE, "cuda", root=str(tmp_path))


@pytest.mark.parametrize("how", ["overridden", "pinned", "by path"])
def test_where_there_are_no_devices_none_are_counted(how: str, tmp_path: Path) -> None:
    stages = "stages:\n  - devices: '0'\n"
    (tmp_path / "one.yaml").write_text(stages)
    fields: dict[str, dict[str, Any]] = {
        "overridden": {"stage_overrides": {"0": {"devices": "0"}}},
        "pinned": {"deploy_yaml": {"text": stages}},
        "by path": {"deploy_yaml": "one.yaml"},
    }
    staged = cell(**fields[how])
    check_stages(staged, Slot(""), "", root=str(tmp_path))
    hidden = Slot("", env={"CUDA_VISIBLE_DEVICES": ""})
    with pytest.raises((UsageError, ServerError), match="names '0', and none is reserved"):
        check_stages(staged, hidden, "cuda", root=str(tmp_path))
