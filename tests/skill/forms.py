"""What the skill's files show of the command line."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import click

from perfbisect.cli.app import app
from scripts.gen_cli_docs import commands as all_commands
from tests.docs.commands import ROOT, Command, in_text, leaf_of, options_of

SKILL = ROOT / ".claude" / "skills" / "perf-bisect"

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")


def markdown() -> list[Path]:
    """SKILL.md and the references."""
    return [SKILL / "SKILL.md", *sorted((SKILL / "references").glob("*.md"))]


def scripts() -> list[Path]:
    """The skill's scripts."""
    return sorted(path for path in (SKILL / "scripts").iterdir() if path.is_file())


def commands_shown(text: str) -> list[Command]:
    """Commands of a page, also those that a code span names without the program: ``track detect``."""
    spans = [code for code in _CODE.findall(_FENCE.sub("", text)) if code.split()[0] in app.commands]
    short = [_elided(shlex.split(code)) for code in spans]
    return [command for command in in_text(text, "") if command.program == "perfbisect"] + short


def flags_shown(text: str) -> set[str]:
    """Options that a code span names by themselves, of any verb."""
    return {code.split()[0] for code in _CODE.findall(_FENCE.sub("", text)) if code.startswith("--")}


def every_option() -> set[str]:
    """The options of all verbs."""
    return {name for _, command in all_commands(app, ("perfbisect",)) for name in options_of(command)}


def called(script: str) -> list[Command]:
    """Commands of ours in a Python script: lists that begin with the program's name."""
    lists = [node.elts for node in ast.walk(ast.parse(script)) if isinstance(node, ast.List)]
    rows = [[str(part.value) if isinstance(part, ast.Constant) else "X" for part in row] for row in lists]
    return [_elided(row[1:]) for row in rows if row[:1] == ["perfbisect"]]


def _elided(words: list[str]) -> Command:
    """A command of which only the verb and the names of options are checked."""
    return Command("perfbisect", tuple(words), "", 0, fenced=False, elided=True)


def verb_and_options(words: tuple[str, ...]) -> tuple[tuple[str, ...], set[str]]:
    """The verb of a command and the options it names. :raises ValueError: there is no such verb."""
    verb, leaf, rest = leaf_of(words)
    names = {
        name: param.opts[0] for param in leaf.params if isinstance(param, click.Option) for name in param.opts
    }
    typed = {word.partition("=")[0] for word in rest if word.startswith("-")}
    return verb, {names.get(name, name) for name in typed}


def taught() -> dict[tuple[str, ...], set[str]]:
    """Verb -> the options that the skill shows with it."""
    shown: dict[tuple[str, ...], set[str]] = {}
    for path in markdown():
        for command in commands_shown(path.read_text(encoding="utf-8")):
            verb, options = verb_and_options(command.words)
            shown[verb] = shown.get(verb, set()) | options
    return shown
