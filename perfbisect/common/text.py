"""Text that others wrote (commit subjects, logs), made harmless before it is shown."""

from __future__ import annotations

import re
import unicodedata

_KEPT = {" "}
_LONGEST = 200


def line(text: str, limit: int = _LONGEST) -> str:
    """One line that a terminal shows as text: no escape, control, bidirectional or invisible character acts.

    Each becomes its escape, as Python writes it (``\\x1b``); beyond ``limit`` characters it ends in ``…``.
    """
    shown = "".join(_visible(character) for character in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def lines(text: str) -> str:
    """Several lines, each made harmless; line feeds stay."""
    return "\n".join(line(part, limit=10_000) for part in text.split("\n"))


def code(text: str) -> str:
    """Markdown that shows the text as it is: a code span, in which no markup, link, mention or HTML acts.

    Good inside a table too: a bar would end the cell, so it becomes the like-looking ``∣`` (U+2223).
    """
    shown = line(text).replace("|", "∣")
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") or not shown.strip() else ""
    return f"{fence}{pad}{shown or ' '}{pad}{fence}"


def block(text: str, language: str = "") -> str:
    """A fenced Markdown block that its content cannot close."""
    shown = lines(text)
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def _visible(character: str) -> str:
    if character in _KEPT or character.isprintable():
        # Variation selectors and the like are printable to Python, yet change or hide their neighbours.
        return (
            character
            if unicodedata.category(character) not in ("Cf", "Cc", "Cs", "Co")
            else _escape(character)
        )
    return _escape(character)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


MODEL = "{model}"

_PARTS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def glob_pattern(glob: str, *, models: bool = False) -> re.Pattern[str]:
    """What a pattern covers, of whole paths from the root of a repository.

    ``*`` and ``?`` do not cross a slash, ``**`` does; a pattern without a slash is that of a file name in any
    folder, one that ends in a slash is all of that folder. With ``models``, ``{model}`` (once in a pattern)
    is a name without a slash, which a match keeps as its group ``model``.
    """
    text = glob.removeprefix("/")
    if text.endswith("/"):
        text += "**"
    elif "/" not in glob:
        text = f"**/{text}"
    known = _PARTS | ({MODEL: "(?P<model>[^/]+)"} if models else {})
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\{model\})", text)
    return re.compile("".join(known.get(part, re.escape(part)) for part in parts), re.DOTALL)
