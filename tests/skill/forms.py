"""What the skill's files name of the command line: commands in code, and flags and verbs in the text."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from perfbisect.cli.app import app

ROOT = Path(__file__).resolve().parent.parent.parent
SKILL = ROOT / ".claude" / "skills" / "perf-bisect"

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_SHELL = ("sh", "bash", "")


@dataclass(frozen=True)
class Form:
    """A command as it is written somewhere: its verb, and the options that it names."""

    verb: tuple[str, ...]
    options: frozenset[str]
    text: str


def markdown() -> list[Path]:
    """SKILL.md and the references."""
    return [SKILL / "SKILL.md", *sorted((SKILL / "references").glob("*.md"))]


def scripts() -> list[Path]:
    """The skill's scripts."""
    return sorted(path for path in (SKILL / "scripts").iterdir() if path.is_file())


def written(text: str) -> Iterator[str]:
    """Every command of ours in a document: lines of shell blocks, and code in the text that begins with one.

    Code such as ``track detect`` or ``bisect --seed 3`` is a command too; so is a flag by itself, of any
    verb: those are yielded as ``perfbisect * --flag``.
    """
    for _, language, block in _FENCE.findall(text):
        if language in _SHELL:
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip().startswith("perfbisect "):
                    yield line.strip()
    for code in _CODE.findall(_FENCE.sub("", text)):
        first = code.split()[0]
        if first == "perfbisect" or first in app.commands:
            yield code if first == "perfbisect" else f"perfbisect {code}"
        elif first.startswith("--"):
            yield f"perfbisect * {code}"


def called(script: str) -> list[str]:
    """Every command of ours in a Python script: lists that begin with its name."""
    lists = [node.elts for node in ast.walk(ast.parse(script)) if isinstance(node, ast.List)]
    words = [[part.value if isinstance(part, ast.Constant) else "X" for part in parts] for parts in lists]
    return [" ".join(map(str, line)) for line in words if line[:1] == ["perfbisect"]]


def form(command: str) -> Form:
    """A command -> its form. :raises ValueError: no such verb, option or argument of one."""
    program, *words = shlex.split(command, comments=True)
    if program != "perfbisect":
        raise ValueError(f"{command!r} is no command of ours")
    if words[:1] == ["*"]:
        return _any_verb(command, words[1:])
    verb: list[str] = []
    found: click.Command = app
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        below = found.commands.get(name)
        if below is None:
            raise ValueError(f"{command!r}: no verb {name!r} under {' '.join(verb) or 'perfbisect'!r}")
        verb.append(name)
        found = below
    return Form(tuple(verb), frozenset(_options(command, found, words)), command)


def _options(command: str, verb: click.Command, words: list[str], *, bare: bool = False) -> Iterator[str]:
    """``bare``: the last option may be named without its value."""
    known = {name: param for param in verb.params if isinstance(param, click.Option) for name in param.opts}
    known |= {
        name: param
        for param in verb.params
        if isinstance(param, click.Option)
        for name in param.secondary_opts
    }
    places = sum(1 for param in verb.params if isinstance(param, click.Argument))
    many = any(param.nargs == -1 for param in verb.params)
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            places -= 1
            if places < 0 and not many:
                raise ValueError(f"{command!r}: {verb.name} takes no {word!r}")
            continue
        name, equals, _ = word.partition("=")
        if name in ("-h", "--help"):
            continue
        if name not in known:
            raise ValueError(f"{command!r}: {verb.name} has no option {name}")
        yield known[name].opts[0]
        option = known[name]
        if not option.is_flag and not equals:
            value = next(rest, None)
            if value is None and bare:
                return
            if value is None or (value.startswith("--") and len(value) > 2):
                raise ValueError(f"{command!r}: {name} has no value")
            if isinstance(option.type, click.Choice) and value not in option.type.choices:
                raise ValueError(f"{command!r}: {name} is none of {', '.join(option.type.choices)}")


def _any_verb(command: str, words: list[str]) -> Form:
    failed = []
    for path, verb in verbs():
        try:
            return Form(("*",), frozenset(_options(command, verb, words, bare=True)), " ".join(path))
        except ValueError as error:
            failed.append(str(error))
    raise ValueError(f"{command!r}: no verb has it: {failed[-1]}")


def verbs(
    group: click.Group = app, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every verb that does something, with its path."""
    for name, found in group.commands.items():
        if isinstance(found, click.Group):
            yield from verbs(found, (*path, name))
        else:
            yield (*path, name), found


def taught() -> dict[tuple[str, ...], frozenset[str]]:
    """Verb -> the options that the skill shows with it, in commands and in the text beside them."""
    shown: dict[tuple[str, ...], frozenset[str]] = {}
    for path in markdown():
        for command in written(path.read_text(encoding="utf-8")):
            one = form(command)
            shown[one.verb] = shown.get(one.verb, frozenset()) | one.options
    return shown
