"""Patterns of paths, as files of patterns write them."""

from __future__ import annotations

import re

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
