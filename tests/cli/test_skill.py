"""The skill is copied where an agent reads it, and nothing that is there is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.commands.documents import SkillInstallDocument
from perfbisect.resources import shipped_folder
from tests.command_line import type_command, type_json


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_it_is_copied_whole_and_once(home: Path) -> None:
    target = home / ".claude" / "skills" / "perf-bisect"
    told = SkillInstallDocument.model_validate(type_json("skill", "install"))
    assert told.copied and told.folder == str(target)
    shipped = shipped_folder(".claude/skills/perf-bisect")
    assert content(target) == content(shipped) and "SKILL.md" in told.files
    assert [path.name for path in target.parent.iterdir()] == ["perf-bisect"]
    assert "is there already, the same" in type_command(["skill", "install"]).out


@pytest.mark.parametrize("there", ["changed", "more", "file"])
def test_what_is_there_is_never_touched(there: str, tmp_path: Path) -> None:
    target = tmp_path / "perf-bisect"
    if there == "file":
        target.write_text("mine")
    else:
        type_json("skill", "install", str(tmp_path))
        (target / ("SKILL.md" if there == "changed" else "mine.md")).write_text("mine")
    before = content(tmp_path)
    error = type_json("skill", "install", str(tmp_path), code=2)["error"]
    assert "is not the skill of this version" in error
    assert content(tmp_path) == before
