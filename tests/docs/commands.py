"""Every command that the documents show: found in their text, held against the command line's tree."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from perfbisect.cli.app import app
from scripts import gen_cli_docs

ROOT = Path(__file__).resolve().parent.parent.parent

_PROGRAM = re.compile(
    r"^(?:\$ +)?(?:[A-Z_]+=\S* +)*(?:git bisect run +)?(?:\S+/)?(?P<program>perfbisect|make) +(?P<rest>\S.*)$"
)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_COMMENT = re.compile(r"(?:^|\s)#\s.*$")
_CHOICE = re.compile(r"^[a-z-]+(?:\|[a-z-]+)+$")
_AFTER = {">", ">>", "2>", "|", "||", "&&", "&", ";"}


@dataclass(frozen=True)
class Command:
    """A command at a place. ``words`` without the program.

    ``fenced``: of a block, so it stands there whole, unless it is one of several in a line (``ack|close``).
    ``elided``: dots stand for words that are left out.
    """

    program: str
    words: tuple[str, ...]
    file: str
    line: int
    fenced: bool
    elided: bool = False

    @property
    def text(self) -> str:
        return shlex.join((self.program, *self.words))

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Document:
    """A page for users and its name in the repository."""

    name: str
    text: str


def documents() -> list[Document]:
    """README, CONTRIBUTING, docs/, the skill, and the generated command reference."""
    skill = ROOT / ".claude" / "skills" / "perf-bisect"
    paths = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted(skill.rglob("*.md")),
    ]
    written = [Document(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths]
    return [*written, Document("cli.md", gen_cli_docs.text())]


def commands_of(document: Document) -> list[Command]:
    """Commands in the code blocks and code spans of a document."""
    return [*in_text(document.text, document.name)]


def in_text(text: str, file: str) -> Iterator[Command]:
    """The commands of a Markdown text."""
    inside, prose, whole = False, [], text.splitlines()
    number = 0
    while number < len(whole):
        row, at = whole[number], number + 1
        number += 1
        if _FENCE.match(row):
            inside = not inside
            prose.append("")
            continue
        if not inside:
            prose.append(row)
            continue
        prose.append("")
        while row.endswith("\\") and number < len(whole):
            row = f"{row[:-1].rstrip()} {whole[number].strip()}"
            number += 1
            prose.append("")
        yield from _commands(row.strip(), file, at, fenced=True)
    told = "\n".join(prose)
    for span in _SPAN.finditer(told):
        at = told.count("\n", 0, span.start()) + 1
        yield from _commands(" ".join(span[1].split()), file, at, fenced=False)


def _commands(row: str, file: str, at: int, *, fenced: bool) -> Iterator[Command]:
    found = _PROGRAM.match(row)
    if found is None:
        return
    typed = _COMMENT.sub("", found["rest"])
    words = []
    for word in shlex.split(typed):
        if word in _AFTER:
            break
        words.append(word)
    elided = any(word in ("...", "…") for word in words)
    bare = [word.strip("[]").removesuffix("...") if fenced else word for word in words]
    kept = [word for word in bare if word not in ("", "...", "…")]
    ways = [word.split("|") if _CHOICE.match(word) else [word] for word in kept]
    whole = fenced and all(len(way) == 1 for way in ways)
    for chosen in itertools.product(*ways):
        yield Command(found["program"], chosen, file, at, whole, elided)


def leaf_of(words: tuple[str, ...]) -> tuple[tuple[str, ...], click.Command, list[str]]:
    """(the verb, its command, what is given to it). :raises ValueError: there is no such verb or option."""
    command: click.Command = app
    path: list[str] = []
    rest = list(words)
    while isinstance(command, click.Group) and rest:
        word = rest.pop(0)
        if word.startswith("-"):
            if word not in options_of(command):
                raise ValueError(f"{' '.join(path) or 'perfbisect'} has no option {word}")
            continue
        if word not in command.commands:
            raise ValueError(f"there is no verb {' '.join([*path, word])}")
        command = command.commands[word]
        path.append(word)
    return tuple(path), command, rest


def options_of(command: click.Command) -> set[str]:
    """Every spelling of its options."""
    context = click.Context(command, help_option_names=["-h", "--help"])
    return {name for one in command.get_params(context) for name in (*one.opts, *one.secondary_opts)}


def wrong_with(command: Command) -> str:
    """What the command line would refuse before it does anything; empty: nothing."""
    try:
        path, leaf, rest = leaf_of(command.words)
    except ValueError as error:
        return str(error)
    if isinstance(leaf, click.Group):
        return "" if not command.fenced or not path or command.elided else f"{' '.join(path)} needs a verb"
    if command.elided:
        known = options_of(leaf)
        return ", ".join(f"no option {word}" for word in rest if word.startswith("-") and word not in known)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            leaf.make_context(path[-1], rest, help_option_names=["-h", "--help"])
    except click.exceptions.Exit:
        return ""
    except click.MissingParameter as error:
        return error.format_message() if command.fenced else ""
    except click.ClickException as error:
        return error.format_message()
    return ""


def targets() -> set[str]:
    """What `make` can be asked for."""
    found = re.findall(r"^([a-z][a-z-]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return set(found)
