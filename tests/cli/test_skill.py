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
    target, link = (home / place / "skills" / "perf-bisect" for place in (".agents", ".claude"))
    told = SkillInstallDocument.model_validate(type_json("skill", "install"))
    assert told.copied and (told.folder, told.link) == (str(target), str(link))
    assert link.readlink() == Path("../../.agents/skills/perf-bisect")
    shipped = shipped_folder(".claude/skills/perf-bisect")
    assert content(target) == content(shipped) and "SKILL.md" in told.files
    assert [path.name for path in target.parent.iterdir()] == ["perf-bisect"]
    assert "is there already, the same" in type_command(["skill", "install"]).out


def test_a_copy_where_the_link_would_be_stays(home: Path) -> None:
    type_json("skill", "install", str(home / ".claude" / "skills"))
    assert type_json("skill", "install")["copied"]
    assert not (home / ".claude" / "skills" / "perf-bisect").is_symlink()


def test_folders_of_skills_may_be_one(home: Path) -> None:
    (home / ".claude").mkdir()
    (home / ".claude" / "skills").symlink_to("../.agents/skills")
    assert type_json("skill", "install")["copied"]
    assert [path.name for path in (home / ".agents" / "skills").iterdir()] == ["perf-bisect"]


def test_nothing_is_copied_where_the_link_cannot_be(home: Path) -> None:
    other = home / ".claude" / "skills" / "perf-bisect"
    other.mkdir(parents=True)
    (other / "SKILL.md").write_text("mine")
    assert "is not the skill of this version" in type_json("skill", "install", code=2)["error"]
    assert not (home / ".agents").exists()


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
