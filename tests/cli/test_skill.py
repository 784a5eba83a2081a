"""The skill is copied where an agent reads it, and nothing that is there is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfbisect.cli.app import run
from perfbisect.commands.documents import SkillInstallDocument
from perfbisect.resources import skill_folder


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_it_is_copied_whole_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    target = tmp_path / ".claude" / "skills" / "perf-bisect"
    assert run(["skill", "install", "--json"]) == 0
    told = SkillInstallDocument.model_validate(json.loads(capsys.readouterr().out))
    assert told.copied and told.folder == str(target)
    assert content(target) == content(skill_folder()) and "SKILL.md" in told.files
    assert [path.name for path in target.parent.iterdir()] == ["perf-bisect"]
    assert run(["skill", "install"]) == 0
    assert "is there already, the same" in capsys.readouterr().out


@pytest.mark.parametrize("there", ["changed", "more", "file"])
def test_what_is_there_is_never_touched(
    there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "perf-bisect"
    if there == "file":
        target.write_text("mine")
    else:
        assert run(["skill", "install", str(tmp_path)]) == 0
        (target / ("SKILL.md" if there == "changed" else "mine.md")).write_text("mine")
    before = content(tmp_path)
    assert run(["skill", "install", str(tmp_path)]) == 2
    assert "is not the skill of this version" in capsys.readouterr().err
    assert content(tmp_path) == before
