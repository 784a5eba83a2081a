"""vLLM's commands in a text that somebody wrote: found as a reader finds them, read as a shell reads them.

Only a command is held to a shell's quotes. What stands around it is prose, whose apostrophes close nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

_BENCH = r"(?P<bench>(?<![A-Za-z0-9_.-])bench[ \t]+serve)"
_SERVER = r"(?:(?<![A-Za-z0-9_.-])vllm(?:-omni)?|cli\.main)[ \t]+serve"
_VERB = re.compile(rf"(?:{_BENCH}|{_SERVER})(?![A-Za-z0-9_-])")
"""What begins a command. Before ``serve`` stands vLLM's program: prose has the word too."""

_CONTINUED = re.compile(r"\\[ \t]*\r?\n|\r?\n[ \t]*(?=--[A-Za-z])")
"""One command on two lines, as a shell has it and as a text that was wrapped has it."""

_CLOSERS = "`”’）」』】》"
_STOPS = "、。，；：！？（「『【《…"
"""Punctuation around a command that no shell has; what stands behind a closer is no part of the command."""

_OPENS = r"""(?<![^\s=:,(\[{'"])"""
"""Where a quote opens. Any other is an apostrophe, or closes what was opened before the command."""

_PART = re.compile(
    rf"""(?<=[A-Za-z0-9])['’](?=[A-Za-z0-9])
       | {_OPENS}'(?P<single>[^']*)'
       | {_OPENS}"(?P<double>(?:\\.|[^"\\])*)"
       | ‘(?P<curly>[^’]*)’
       | “(?P<curly_double>[^”]*)”
       | \\(?P<escaped>.)
       | [^\s'"\\;&|‘“{_CLOSERS}{_STOPS}]+""",
    re.VERBOSE | re.DOTALL,
)
_SPACE = re.compile(r"[^\S\n]*")
_BEHIND = re.compile(r"#|\d*>")
"""What follows a command in a shell: a comment, a file for what it prints."""
_OPTION = re.compile(r"(?<![A-Za-z0-9-])--?[A-Za-z]")
_DASHES = re.compile(r"^[—–]+(?=[A-Za-z])")
"""What a word processor makes of two dashes."""
_ENDING = re.compile(r"[.,:!?)]+$")
"""What a sentence has behind its last word."""


@dataclass(frozen=True)
class Command:
    """``words`` are what follows the verb; ``trouble`` says why they may not be all, empty where they are."""

    verb: Literal["bench", "server"]
    words: tuple[str, ...]
    trouble: str = ""

    @property
    def typed(self) -> bool:
        """It has options, or a model by its path; a sentence only names one (``vllm serve is slow``)."""
        if self.verb == "server" and len(self.words) == 1:
            return "/" in self.words[0]
        return any(_OPTION.match(word) for word in self.words[: 1 if self.verb == "bench" else 2])


def commands(text: str) -> tuple[Command, ...]:
    """Every command of vLLM in a text, in order, also those that a sentence only names."""
    text = _CONTINUED.sub(" ", text)
    found: list[Command] = []
    at = 0
    while verb := _VERB.search(text, at):
        words, at = _words(text, verb.end())
        kind: Literal["bench", "server"] = "bench" if verb["bench"] else "server"
        found.append(Command(kind, words, _trouble(text, at)))
    return tuple(found)


def options_among(words: Sequence[str], *, flags: Collection[str], several: Collection[str]) -> list[str]:
    """The words of a command up to the sentence that goes on behind its options.

    ``flags``: options that take no value, ``several``: those that take any number; others take one.

    :raises ValueError: options follow behind what no option takes.
    """
    room = 0.0
    for place, word in enumerate(words):
        if _OPTION.match(word):
            name, equals, _ = word.removeprefix("--").partition("=")
            room = float("inf") if name in several else 0 if equals or name in flags else 1
        elif room:
            room -= 1
        elif any(_OPTION.match(rest) for rest in words[place:]):
            raise ValueError(f"{word!r} stands between its options")
        else:
            return sentence_ended(words[:place])
    return sentence_ended(words)


def sentence_ended(words: Sequence[str]) -> list[str]:
    """The words without the punctuation behind the last."""
    plain = [*words[:-1], *(_ENDING.sub("", word) for word in words[-1:])]
    return plain if not plain or plain[-1] or not words[-1] else plain[:-1]


def _words(text: str, at: int) -> tuple[tuple[str, ...], int]:
    """The words from a place on, and where they end."""
    words: list[str] = []
    while True:
        at = start = _end(_SPACE.match(text, at), at)
        if _BEHIND.match(text, at):
            return tuple(words), at
        word = ""
        while part := _PART.match(text, at):
            word, at = word + _plain(part), part.end()
        if at == start:
            return tuple(words), at
        words.append(_DASHES.sub("--", word))


def _end(found: re.Match[str] | None, at: int) -> int:
    return found.end() if found else at


def _plain(part: re.Match[str]) -> str:
    if part.lastgroup is None:
        return part[0]
    inner = part[part.lastgroup]
    return re.sub(r'\\(["\\$`])', r"\1", inner) if part.lastgroup == "double" else inner


def _trouble(text: str, end: int) -> str:
    """Why a command that ends here may have more: a quote that is open, options behind other words."""
    stop, rest = text[end : end + 1], text[end + 1 :].partition("\n")[0]
    if not stop or stop in "\n;&|#" or stop in _CLOSERS:
        return ""
    if stop in "‘“" or (stop in "'\"" and text[end - 1].isspace()):
        return f"the quote before {rest[:40]!r} is not closed"
    following = _VERB.search(rest)
    if _OPTION.search(rest[: following.start()] if following else rest):
        return f"its options go on behind {stop!r}"
    return ""
