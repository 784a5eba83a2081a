"""Documented errors and exit codes match the code, and every command has help, JSON and a schema."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from perfbisect import errors
from perfbisect.cli.app import app
from perfbisect.cli.schema import documents
from scripts.gen_cli_docs import commands, help_of

DOCS = Path(__file__).parent.parent.parent / "docs"


def classes() -> dict[str, int]:
    """Every error class with its exit code."""
    found = [errors.PerfbisectError]
    for kind in found:
        found += kind.__subclasses__()
    return {kind.__name__: kind.exit_code for kind in found if kind.__module__ == errors.__name__}


def test_every_kind_of_error_is_explained_with_its_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    assert {name: int(code) for name, code in rows} == classes()


def test_every_exit_code_is_explained() -> None:
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    table = (DOCS / "errors.md").read_text().split("## Kinds")[0]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == codes


LEAVES = [
    (path, command)
    for path, command in commands(app, ("perfbisect",))
    if not isinstance(command, click.Group)
]


@pytest.mark.parametrize(
    ("path", "command"), LEAVES, ids=lambda x: " ".join(x) if isinstance(x, tuple) else ""
)
def test_every_verb_has_json_an_example_and_a_schema(path: tuple[str, ...], command: click.Command) -> None:
    shown = help_of(command, path)
    assert "--json" in shown
    assert re.search(r"Examples?:\n\s+perfbisect " + " ".join(path[1:]), shown)
    assert all(option.help for option in command.params if isinstance(option, click.Option)), path
    # An MCP client gets the documents of other commands.
    assert " ".join(path[1:]) in documents() or path[1:] in (("schema",), ("mcp",))
