"""Containers of compose and Kubernetes files in a report -> commands and variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

from perfbisect.cells.reports.environment import ReportedEnvironment, read_assignments
from perfbisect.cells.reports.programs import Call, find_calls
from perfbisect.cells.reports.shell import Computed, replace_variables, split_commands
from perfbisect.common.yaml_source import parse
from perfbisect.errors import LocatedError

_QUOTED = re.compile(r"^(?:>[ \t]?)+", re.MULTILINE)
"""Markdown's quotation."""
_KEY = re.compile(
    r"^(?P<indent>[ \t]*)(?P<item>-[ \t]+)?"
    r"(?P<key>image|command|args|entrypoint|environment|env|env_file|envFrom)[ \t]*:(?:[ \t]+|$)"
)
_COMMANDS = ("entrypoint", "command", "args")
"""In the order in which their words make one command."""
_MOST_BLOCKS = 200
_MOST_LINES = 400
_LARGEST_BLOCKS = 100_000
"""Blocks that are read, lines of one, and characters of all."""
_VLLM = re.compile(r"vllm", re.IGNORECASE)
_COMPUTED = re.compile(r"\$[({\w]")


@dataclass
class ListedContainer:
    """The keys of one container. ``lines``: of the text that they take, from 0."""

    values: dict[str, object] = field(default_factory=dict)
    lines: set[int] = field(default_factory=set)

    @property
    def variables(self) -> ReportedEnvironment:
        """Of a mapping, or of ``X=1`` and ``{name, value}`` in a list; those of a file are elsewhere."""
        words: list[str] = []
        unread = [f"the variables of {name}" for name in ("env_file", "envFrom") if name in self.values]
        for value in (self.values.get("environment"), self.values.get("env")):
            rows = value.items() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
            for row in rows:
                text: object
                name, equals, text = str(row).partition("=")
                if isinstance(row, tuple):
                    name, text = str(row[0]), row[1]
                elif isinstance(row, Mapping):
                    name, text = str(row.get("name")), row.get("value")
                elif not equals:
                    text = None
                if text is None or isinstance(text, (Mapping, list)):
                    words.append(name)
                else:
                    # YAML reads true, which the engine gets as text.
                    words.append(f"{name}={str(text).lower() if isinstance(text, bool) else text}")
        found = read_assignments(words)
        return ReportedEnvironment(found.values, (*unread, *found.unread))

    @property
    def image(self) -> str:
        return str(self.values.get("image") or "")

    @property
    def is_anyones(self) -> bool:
        """Whether it has variables alone: those of the server that the text has elsewhere."""
        return not self.values.keys() & {*_COMMANDS} and (not self.image or bool(_VLLM.search(self.image)))

    @property
    def is_others(self) -> bool:
        """Whether its image is that of another program, whose variables are not the server's."""
        return bool(self.image) and not _VLLM.search(self.image)

    def calls(self) -> list[Call]:
        """The servers and clients that it runs; none of an image of another program."""
        words = [word for name in _COMMANDS for word in self._words(self.values.get(name))]
        found = list(find_calls(words)) if words else []
        found = [call for call in found if call.verb not in ("export", "assign")]
        if found or not words:
            return found
        # The image's own command is the server's.
        is_server = words[0].startswith("-") and any(word.startswith("--model") for word in words)
        return [Call("server", (), words)] if is_server or _VLLM.search(self.image) else []

    def _words(self, value: object) -> Iterator[str]:
        known = self.variables.values
        if isinstance(value, str):
            yield from (word for words in split_commands(replace_variables(value, known)) for word in words)
        for item in value if isinstance(value, list) else ():
            text = replace_variables(str(item), known)
            yield Computed(text) if _COMPUTED.search(text) and "\n" not in text else text

    @classmethod
    def find(cls, text: str) -> tuple[list[ListedContainer], list[str]]:
        """The containers of a text that are read, and which blocks of theirs are not, with their lines."""
        lines = [_QUOTED.sub("", line) for line in text.split("\n")]
        containers: list[ListedContainer] = []
        unread: list[str] = []
        indent, index, blocks, left = -1, 0, 0, _LARGEST_BLOCKS
        while index < len(lines) and blocks < _MOST_BLOCKS:
            line = lines[index]
            found = _KEY.match(line)
            if found is None:
                depth = len(line) - len(line.lstrip())
                indent = -1 if line.strip() and depth < indent else indent
                index += 1
                continue
            blocks += 1
            column = found.start("key")
            key, end = found["key"], cls._end_of_block(lines, index, column)
            block = "\n".join([" " * column + lines[index][column:], *lines[index + 1 : end]])
            left -= len(block)
            try:
                if left < 0:
                    raise LocatedError("too long", file=Path("report"))
                value = parse(dedent(block), Path("report")).mapping().get(key)
            except LocatedError:
                # A command may stand there that a shell reads.
                if key not in ("image", "command"):
                    unread.append(f"the list below {key}: in line {index + 1}")
                index += 1
                continue
            if column != indent or found["item"] or not containers or key in containers[-1].values:
                containers.append(cls())
                indent = column
            containers[-1].values[key] = value
            containers[-1].lines |= set(range(index, end))
            index = end
        return containers, unread

    @staticmethod
    def _end_of_block(lines: Sequence[str], start: int, column: int) -> int:
        """After the lines that belong to the key of a line."""
        end = start + 1
        while end < min(len(lines), start + _MOST_LINES):
            line = lines[end]
            bare = line.lstrip()
            depth = len(line) - len(bare)
            if bare and depth <= column and not (depth == column and bare.startswith(("- ", "]", "}"))):
                break
            end += 1
        # Blank lines behind a block are not of it.
        while end > start + 1 and not lines[end - 1].strip():
            end -= 1
        return end
