"""Text that people copied from a shell -> the words of its commands; nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfbisect.errors import UsageError

LARGEST_TEXT = 1_000_000
"""Characters of a report."""
LONGEST_COMMAND = 20_000
_MOST_REPLACED = 100_000
"""Characters of all values that are put in place of variables."""
_MOST_LINES = 40
"""Lines of a command with a quoted value that is open at the end of a line."""

_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
"""Colours and titles of a terminal."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u0085\u2028\u2029]")
_MARKUP = re.compile(r"[ \t]*(?:(?:>|[*+-]|\d+[.)])[ \t]+)*")
"""What Markdown puts before a line: quotation and list."""
_PROMPT = re.compile(r"[ \t]*[$%]?[ \t]+|\$")
_TICKS = re.compile(r"`+")
_WRAPPED = re.compile(r"[ \t]*--?[A-Za-z]")
"""A line that begins with an option: the rest of the one above."""
_COMMENT = re.compile(r"""^((?:[^'"#]|'[^']*'|"[^"]*"|(?<=\S)\#)*?)[ \t]\\?[ \t]{0,9}\#.*$""")
"""A line with a comment; a backslash before that was to continue the line."""
_ASSIGNED = re.compile(
    r"""^(?:export[ ]+)?(?P<name>[A-Za-z_]\w*)[ ]?(?::=|\?=|=)[ ]?"""
    r"""(?:"([^"\n]*)"|'([^'\n]*)'|([^\s;&|'"`]+))[ ]*[;`]*$""",
    re.MULTILINE,
)
_USED = re.compile(
    r"\$(?:(?P<plain>\w+)|\{(?P<braced>\w+)(?::?-(?P<default>[^{}$`\n]*))?\}|\((?P<made>\w+)\))"
    r"|\{\{[ ]?(?P<templated>\w+)[ ]?\}\}"
)
"""``$X``, ``${X}``, ``${X:-default}``, ``$(X)`` of make and Kubernetes, ``{{X}}`` of just and Jinja."""
_OPEN_VALUE = re.compile(r"""'\s*(?:[{\[][^']*)?$|"\s*(?:[{\[].*)?$""")
"""A quoted value that later lines end, such as JSON; not the apostrophe of a sentence."""
_QUOTES = re.compile(r"\\.|['\"]", re.DOTALL)
_TOKEN = re.compile(
    r"""(?P<blank>(?:\\\n|\n(?=[ \t]*-)|[^\S\n])+)|(?P<separator>[;&|\n]+)"""
    r"""|(?P<single>'[^']*')|(?P<double>"(?:\\.|[^"\\])*")|(?P<quote>['"])"""
    r"""|(?P<computed><[A-Za-z][\w ./-]*>|\{\{[^{}]*\}\}|\$\{[^{}]*\}|\$[\w@*\#?!-]|`[^`]*`)"""
    r"""|(?P<substitution>\$\()|(?P<redirection>(?:>>?|<<?)&?[ \t]*[^\s;&|]*)"""
    r"""|(?P<escaped>\\.)|(?P<bare>[^\s;&|'"\\<>$`{]+|.)""",
    re.DOTALL,
)
_SUBSTITUTED = re.compile(r"(?<!\\)(?:\$[\w({]|`)|\{\{")
_ESCAPED = re.compile(r"\\([\"\\$`])")
_PARENTHESES = re.compile(r"[()]")


class Computed(str):
    """A word of which a shell would compute a part, such as ``$(date +%s)``: the text does not say it."""

    __slots__ = ()


@dataclass(frozen=True)
class ShellLine:
    """A line as a shell would read it, its continuations joined; ``number``: where it begins, from 1.

    ``text``: of the lines together, without markup. ``calls``: the words of each command in it.
    """

    number: int
    text: str
    calls: Sequence[Sequence[str]] = ()
    problem: str = ""


def clean(text: str) -> str:
    """A report without what a terminal would act on. :raises UsageError: it is too long."""
    if len(text) > LARGEST_TEXT:
        raise UsageError(
            f"the text has more than {LARGEST_TEXT:,} characters", next_step="give the part with the command"
        )
    return _CONTROL.sub(" ", _TERMINAL.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def assignments(text: str) -> Mapping[str, str]:
    """The variables that a text sets on lines of their own; the first value of each."""
    plain = "\n".join(line[_marked(line) :].lstrip("` ") for line in text.splitlines())
    return {
        found["name"]: next(filter(None, found.groups()[1:]), "")
        for found in reversed([*_ASSIGNED.finditer(plain)])
    }


def used_variables(text: str) -> frozenset[str]:
    """The names that a text uses as variables."""
    return frozenset(filter(None, (_used_name(found) for found in _USED.finditer(text))))


def _used_name(found: re.Match[str]) -> str:
    return found["plain"] or found["braced"] or found["made"] or found["templated"] or ""


def replace_variables(text: str, values: Mapping[str, str]) -> str:
    """The text with the values of its variables, or the default that it writes beside one.

    A line that sets one holds for those after it.
    """
    # Bounded: a short text with many uses of a long variable would become very long.
    left, lines, values = _MOST_REPLACED, list[str](), dict(values)

    def value(found: re.Match[str]) -> str:
        nonlocal left
        new = values.get(_used_name(found), found["default"])
        left -= len(new or "")
        return found[0] if new is None or left < 0 else new

    for line in text.split("\n"):
        lines.append(_USED.sub(value, line))
        values |= assignments(lines[-1])
    return "\n".join(lines)


def _marked(line: str) -> int:
    """Where a line begins behind its markup."""
    found = _MARKUP.match(line)
    return found.end() if found else 0


def read_lines(text: str, calls: re.Pattern[str]) -> Iterator[ShellLine]:
    """The lines of a text that have a word of ``calls``; others are passed over.

    Continuations are joined, and each code span with a call is a line of its own.
    """
    joined: list[tuple[int, list[str]]] = []
    is_open = is_fence = False
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw[_marked(raw) :].rstrip()
        was_fence, is_fence = is_fence, line.startswith(("```", "~~~"))
        if is_fence:
            line = line[3:].strip("`")
        is_continued = line.endswith("\\") and not line.endswith("\\\\")
        part = line[:-1] if is_continued else line
        if joined and not (is_fence or was_fence) and (is_open or _WRAPPED.match(line)):
            above = joined[-1][1]
            # Where the first part is a comment as a whole, so is the command.
            above[-1] = _COMMENT.sub(r"\1", f" {above[-1]}" if len(above) > 1 else above[-1])
            above.append(part)
        else:
            joined.append((number, [part]))
        is_open = is_continued
    lines: list[tuple[int, str]] = []
    for number, parts in joined:
        line = " ".join(parts)
        # Code in a line of Markdown stands between backticks.
        spans = [span for span in _TICKS.split(line)[1::2] if calls.search(span)]
        for one in spans or [line]:
            bare = one.strip().strip("`")
            prompt = _PROMPT.match(bare)
            lines.append((number, (bare[prompt.end() :] if prompt else bare).strip()))
    for index, (number, line) in enumerate(lines):
        if not calls.search(line):
            continue
        if _OPEN_VALUE.search(line):
            line = " ".join(part for _, part in lines[index : _end_of_value(lines, index)])
        try:
            yield ShellLine(number, line, split_commands(line))
        except ValueError as error:
            yield ShellLine(number, line, problem=str(error))


def _end_of_value(lines: Sequence[tuple[int, str]], start: int) -> int:
    """After the line that closes the quotes which a line opens."""
    quote = ""
    for index in range(start, min(start + _MOST_LINES, len(lines))):
        for token in _QUOTES.findall(lines[index][1]):
            if not quote and len(token) == 1:
                quote = token
            elif token == quote or (quote == "'" and token == "\\'"):  # A shell has no escapes there.
                quote = ""
        if not quote:
            return index + 1
    return start + 1


def split_commands(line: str) -> list[list[str]]:
    """The words of each command of a line, without comments and redirections.

    Raises:
        ValueError: it is too long, or quotes are not closed.
    """
    if len(line) > LONGEST_COMMAND:
        raise ValueError(f"it has more than {LONGEST_COMMAND:,} characters")
    commands: list[list[str]] = [[]]
    word: list[str] | None = None
    at, is_computed, may_close = 0, False, True
    while at < len(line):
        token = _TOKEN.match(line, at)
        kind = token.lastgroup if token else None
        if token is None or kind == "quote":
            raise ValueError("No closing quotation")
        text, at = token[0], token.end()
        if kind == "bare" and word is None and text.startswith("#"):
            break
        if kind == "redirection" and word is not None and "".join(word).isdigit():
            word = None
        if kind in ("blank", "separator", "redirection"):
            if word is not None:
                commands[-1].append(Computed("".join(word)) if is_computed else "".join(word))
            word, is_computed = None, False
            commands += [[]] if kind == "separator" else []
            continue
        if kind == "substitution" and may_close:
            # Looked for once: where one is not closed, those before it are not either.
            depth = 1
            for parenthesis in _PARENTHESES.finditer(line, at):
                depth += 1 if parenthesis[0] == "(" else -1
                if depth == 0:
                    at = parenthesis.end()
                    break
            may_close = depth == 0
            text = line[token.start() : at]
        is_computed |= kind in ("computed", "substitution") or (
            kind == "double" and bool(_SUBSTITUTED.search(text))
        )
        word = word or []
        if kind == "escaped":
            text = text[1:]
        elif kind == "single":
            text = text[1:-1]
        elif kind == "double":
            text = _ESCAPED.sub(r"\1", text[1:-1])
        word.append(text)
    if word is not None:
        commands[-1].append(Computed("".join(word)) if is_computed else "".join(word))
    return [words for words in commands if words]
