"""vLLM's commands in a text, read as a shell reads them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

_CONTINUED = re.compile(r"\\[ \t]*\r?\n|\r?\n[ \t]*(?=--[A-Za-z])")
"""A command on two lines, as a shell has it and as wrapped text has it."""
_PROGRAM = re.compile(r"(?:\S*/)?vllm(?:-omni)?|\S*\bcli\.main")
_SEPARATOR = re.compile(r"[;&|]+")
_END = re.compile(r"#|\d*>")
"""What ends a command's arguments in a shell: a comment, a redirection."""


@dataclass(frozen=True)
class Command:
    """A command of vLLM: its verb and the arguments behind it."""

    verb: Literal["bench", "server"]
    words: tuple[str, ...]


def commands(text: str) -> tuple[Command, ...]:
    """Return the commands of ``vllm serve`` and ``vllm bench serve``, which stand on lines of their own.

    Raises:
        ValueError: a quote in a line with a command is not closed.
    """
    return tuple(
        command
        for line in _CONTINUED.sub(" ", text).splitlines()
        if re.search(r"\bserve\b", line)
        for words in _simple_commands(line)
        if (command := _command(words)) is not None
    )


def _simple_commands(line: str) -> Iterable[list[str]]:
    """Split a line at ``;``, ``&&``, ``|`` and ``&``."""
    lexer = shlex.shlex(line.strip().strip("`"), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    for word in lexer:
        if _SEPARATOR.fullmatch(word):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def _command(words: Sequence[str]) -> Command | None:
    for index, word in enumerate(words):
        if word != "serve" or index == 0:
            continue
        arguments = words[index + 1 :]
        end = next((i for i, argument in enumerate(arguments) if _END.match(argument)), len(arguments))
        if words[index - 1] == "bench":
            return Command("bench", tuple(arguments[:end]))
        if _PROGRAM.fullmatch(words[index - 1]):
            return Command("server", tuple(arguments[:end]))
    return None
