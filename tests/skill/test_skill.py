"""SKILL.md, its references and scripts: what they say of the command line, of exit codes and fields is so."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from perfbisect import errors
from perfbisect.cli.schema import documents
from perfbisect.serving.families import FAMILIES
from tests.docs.commands import wrong_with
from tests.skill.forms import (
    SKILL,
    called,
    commands_shown,
    every_option,
    flags_shown,
    markdown,
    scripts,
    taught,
)

HEAD, _, BODY = (SKILL / "SKILL.md").read_text(encoding="utf-8").removeprefix("---\n").partition("\n---\n")

REQUESTS = (
    "find which commit slowed default_voice",
    "verify PR N",
    "bisect TTFP between X and Y",
    "is this nightly red real?",
    "which cell is this report about?",
)


def front() -> dict[str, str]:
    found = yaml.safe_load(HEAD)
    assert isinstance(found, dict)
    return found


def test_the_front_matter_is_what_agents_read() -> None:
    head = front()
    assert set(head) == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", head["name"]) and len(head["name"]) <= 64
    assert head["name"] == SKILL.name
    assert 0 < len(head["description"]) <= 1024
    assert not re.search(r"[<>]", head["description"])


def test_the_description_says_when_and_when_not() -> None:
    told = front()["description"]
    assert all(request in told for request in REQUESTS)
    assert "Use when" in told and "Not for" in told
    assert len(re.findall(r"[\u4e00-\u9fff]", told)) > 40


def test_it_is_short_and_the_rest_is_behind_links() -> None:
    assert len(BODY.splitlines()) < 250
    assert all(f"references/{path.name}" in BODY for path in (SKILL / "references").iterdir())
    assert all(f"scripts/{path.name}" in BODY for path in scripts())


@pytest.mark.parametrize("path", markdown(), ids=lambda path: path.name)
def test_every_command_and_flag_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    commands = commands_shown(text)
    assert len(commands) > 3
    assert {command.text: wrong_with(command) for command in commands if wrong_with(command)} == {}
    assert flags_shown(text) - every_option() == set()


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.name)
def test_scripts_only_call_the_command_line(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    modules = {
        name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert modules <= {"json", "pathlib", "subprocess", "sys"}
    commands = called(text)
    assert commands
    assert [wrong_with(command) for command in commands if wrong_with(command)] == []


def test_commands_are_read_wherever_they_stand() -> None:
    text = (
        "say `track detect` or\n```sh\nperfbisect run \\\n  CELL  # now\n```\nand `--variant fix`, `other`\n"
    )
    assert [command.text for command in commands_shown(text)] == [
        "perfbisect run CELL",
        "perfbisect track detect",
    ]
    assert flags_shown(text) == {"--variant"}
    script = 'subprocess.run(["perfbisect", "stop", job])\nx = ["ls"]\n'
    assert [command.text for command in called(script)] == ["perfbisect stop X"]


def test_links_lead_somewhere() -> None:
    for path in markdown():
        targets = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
        assert [one for one in targets if not (path.parent / one).is_file()] == [], path.name


def test_no_machine_is_named() -> None:
    folder = re.compile(r"(?<![\w.$}/~-])/(home|root|tmp|opt|usr|mnt|data|work|Users|var)/")
    for path in [*markdown(), *scripts()]:
        assert not folder.search(path.read_text(encoding="utf-8")), path.name


def test_every_exit_code_is_there_and_no_other() -> None:
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    rows = re.findall(r"^\| (\d+) \|", BODY, re.MULTILINE)
    assert sorted(map(int, rows)) == sorted(codes)


def test_every_family_is_there_with_its_headline() -> None:
    rows = dict(
        re.findall(
            r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|",
            (SKILL / "references" / "families.md").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    )
    assert rows.keys() == FAMILIES.keys()
    said = {name: f"`{family.headline}`" for name, family in FAMILIES.items() if name != "omni"}
    assert {name: rows[name].partition(";")[0] for name in said} == said


@cache
def fields_below(*models: type[BaseModel]) -> set[str]:
    """Names of the fields of documents and of those of their parts."""
    schemas = [model.model_json_schema(mode="serialization") for model in models]
    objects = [part for schema in schemas for part in (schema, *schema.get("$defs", {}).values())]
    return {name for part in objects for name in part.get("properties", {})}


def test_every_field_is_one_of_its_verbs_document() -> None:
    text = (SKILL / "references" / "verdicts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z ]+) \| `(\w+)` \| (.+) \|$", text, re.MULTILINE)
    assert len(rows) > 25
    for verb, field, words in rows:
        models = documents()[verb]
        assert any(field in model.model_fields for model in models), (verb, field)
        known = fields_below(*models) | _said(models)
        named = set(re.findall(r"`([\w ]+)`", words))
        assert named <= known, (verb, field, named - known)


@cache
def _said(models: tuple[type[BaseModel], ...]) -> set[str]:
    """The words that the fields of documents may hold."""
    parts: list[Any] = [model.model_json_schema() for model in models]
    found: set[str] = {"unfinished"}
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            found.update(word for word in part.get("enum", ()) if isinstance(word, str))
            parts += part.values()
        elif isinstance(part, list):
            parts += part
    return found


def test_what_is_taught_is_enough_for_the_requests() -> None:
    verbs = set(taught())
    wanted = {"bisect", "compare", "verify", "resume", "stop", "status", "report", "doctor"}
    assert {(name,) for name in wanted} <= verbs
    assert {("cells", "match"), ("cells", "show"), ("cells", "diff"), ("track", "suspects")} <= verbs
