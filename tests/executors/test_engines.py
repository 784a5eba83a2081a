"""What an attempt knows of the engine before it starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfbisect.core.cell import Cell
from perfbisect.core.change import Change
from perfbisect.environments import Environment
from perfbisect.errors import ServerError
from perfbisect.executors.engines import engine_of, lay

CHANGE = Change("a" * 40, date="2026-05-17T20:58:59+00:00")


def cell(**fields: Any) -> Cell:
    return Cell.model_validate({"name": "c", "family": "tts", "model": "m", "num_prompts": 1, **fields})


def environment(root: Path) -> Environment:
    package = root / "engine" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.touch()
    return Environment("k", Path("/python"), root, {}, "0.21.0", "", str(package), "")


def test_version_date_and_tree(tmp_path: Path) -> None:
    engine = engine_of(cell(), CHANGE, environment(tmp_path))
    assert (engine.version, engine.date, engine.root) == ("0.21.0", CHANGE.date, str(tmp_path))


def test_a_deploy_yaml_of_the_change_must_be_there(tmp_path: Path) -> None:
    built = environment(tmp_path)
    with_file = cell(deploy_yaml="engine/deploy/one.yaml")
    with pytest.raises(ServerError, match=r"engine/deploy/one\.yaml.*is not in aaaaaaaaaaaa"):
        engine_of(with_file, CHANGE, built)
    (tmp_path / "engine" / "deploy").mkdir()
    (tmp_path / "engine" / "deploy" / "one.yaml").write_text("stages: []\n")
    assert engine_of(with_file, CHANGE, built).root == str(tmp_path)


def test_a_pinned_deploy_yaml_is_not_looked_for(tmp_path: Path) -> None:
    assert engine_of(cell(deploy_yaml={"text": "stages: []\n"}), CHANGE, environment(tmp_path)).root


def test_texts_are_laid_into_the_servers_folder(tmp_path: Path) -> None:
    lay({"deploy.yaml": "stages: [ä]\n"}, tmp_path)
    assert (tmp_path / "deploy.yaml").read_text("utf-8") == "stages: [ä]\n"
