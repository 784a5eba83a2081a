"""Untrusted text made safe for terminals and Markdown; patterns; suggestions for mistyped names."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable

_UNUSUAL = re.compile(r"[^\x20-\x7e\n]")


def line(text: str, limit: int = 200) -> str:
    """One line in which control, bidirectional and invisible characters are escaped (``\\x1b``).

    Beyond ``limit`` characters it ends in ``…``.
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def json_text(text: str) -> str:
    """JSON with the characters escaped that :func:`line` escapes; line feeds stay."""

    def escaped(found: re.Match[str]) -> str:
        # json.dumps leaves DEL as it is.
        return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1].replace("\x7f", "\\u007f")

    return _UNUSUAL.sub(escaped, text)


def lines(text: str) -> str:
    """Several lines, each escaped; line feeds stay."""
    return "\n".join(line(part, limit=10_000) for part in text.split("\n"))


def code(text: str) -> str:
    """A Markdown code span, in which no markup, link, mention or HTML acts.

    A bar would end the cell of a table: it becomes the similar ``∣`` (U+2223).
    """
    shown = line(text).replace("|", "∣")
    fence = _fence(shown, 1)
    # A backtick beside the fence would lengthen it; Markdown takes one blank away on each side.
    pad = " " if shown.startswith("`") or shown.endswith("`") or not shown.strip() else ""
    return f"{fence}{pad}{shown or ' '}{pad}{fence}"


def block(text: str, language: str = "") -> str:
    """A fenced Markdown block that its content cannot close."""
    shown = lines(text)
    fence = _fence(shown, 3)
    return f"{fence}{language}\n{shown}\n{fence}"


def _fence(text: str, least: int) -> str:
    """More backticks than stand together in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)


MODEL = "{model}"

_PARTS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def glob_pattern(glob: str, *, models: bool = False) -> re.Pattern[str]:
    """A pattern for whole paths from the root of a repository.

    ``*`` and ``?`` do not match a slash, ``**`` does. A glob without a slash matches file names in any
    folder, one with a slash at its end all of that folder. With ``models``, ``{model}`` (at most once) is a
    name without a slash: the group ``model``.
    """
    text = glob.removeprefix("/")
    if text.endswith("/"):
        text += "**"
    elif "/" not in glob:
        text = f"**/{text}"
    known = _PARTS | ({MODEL: "(?P<model>[^/]+)"} if models else {})
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\{model\})", text)
    return re.compile("".join(known.get(part, re.escape(part)) for part in parts), re.DOTALL)


def regular_expression(text: str, flags: int = 0) -> re.Pattern[str]:
    """The pattern that a file names. :raises ValueError: it is none, or nested too deeply."""
    try:
        return re.compile(text, flags)
    # A count such as {99999999999} overflows.
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{line(text, 80)!r} is no regular expression: {error}") from None


_MOST_SUGGESTIONS = 3


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> tuple[str, ...]:
    """At most three similar names, ignoring case: those with this prefix, then by :mod:`difflib`'s ratio."""
    # Of names that differ only in case the first one stays.
    names = {candidate.lower(): candidate for candidate in reversed(tuple(known))}
    typed = name.strip().lower()
    prefixed = sorted(candidate for candidate in names if typed and candidate.startswith(typed))
    similar = difflib.get_close_matches(typed, names, n=_MOST_SUGGESTIONS, cutoff=cutoff)
    return tuple(names[candidate] for candidate in dict.fromkeys([*prefixed, *similar]))[:_MOST_SUGGESTIONS]


def hint(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """``; nearest: a, b``, the end of a message; empty without similar names."""
    near = nearest(name, known, cutoff)
    return f"; nearest: {', '.join(near)}" if near else ""
