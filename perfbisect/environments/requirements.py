"""What a commit of a package that stands on another engine declares: that engine, and its requirements."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfbisect.changes.git import Repository
from perfbisect.changes.pins import DOCKERFILE, Pins, pins_of
from perfbisect.errors import RevisionError

_FOLDER, _PROJECT = "requirements", "pyproject.toml"
_NESTED = re.compile(r"^(?:-r|--requirement)[\s=]+(?P<path>\S+)")
_STATIC = re.compile(r"^dependencies\s*=\s*(?P<list>\[)", re.MULTILINE)
_TABLE = re.compile(r"^\[project\]\s*$(?P<body>.*?)(?=^\[[^\]\n]+\]\s*$|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Declared:
    """``pins``: None where the commit has no ``docker/Dockerfile.ci``; ``requirements``: lines, in order."""

    pins: Pins | None
    requirements: tuple[str, ...]

    @property
    def group(self) -> str:
        """The engine below in a word: ``v0.21.0``, or twelve digits of its commit; empty: none is named."""
        if self.pins is None or self.pins.kind == "unknown":
            return ""
        return self.pins.commit[:12] if self.pins.commit else f"v{self.pins.release}"


def declared(repository: Repository, shas: Collection[str], platform: str) -> dict[str, Declared]:
    """What each commit declares; ``platform`` is the one of ``requirements/PLATFORM.txt``.

    Three git processes for all of them, and a few for each state that differs.
    """
    parts = [repository.tree_ids(shas, path) for path in (DOCKERFILE, _FOLDER, _PROJECT)]
    known: dict[tuple[str | None, ...], Declared] = {}
    found = {}
    for sha in shas:
        state = tuple(ids[sha] for ids in parts)
        if state not in known:
            text = _text(repository, sha, DOCKERFILE)
            pins = None if text is None else pins_of(text)
            known[state] = Declared(pins, requirements(repository, sha, platform))
        found[sha] = known[state]
    return found


def requirements(repository: Repository, sha: str, platform: str) -> tuple[str, ...]:
    """Lines of ``requirements/PLATFORM.txt`` with the files it takes in, else of ``requirements.txt``, else
    the static dependencies of ``pyproject.toml``; none where there are none of these."""
    for path in (f"{_FOLDER}/{platform}.txt", "requirements.txt"):
        if (text := _text(repository, sha, path)) is not None:
            return _lines(repository, sha, path, text, ())
    return static_dependencies(_text(repository, sha, _PROJECT) or "")


def static_dependencies(project: str) -> tuple[str, ...]:
    """``dependencies`` of the ``[project]`` table of a ``pyproject.toml``; none if they are dynamic."""
    table = _TABLE.search(project)
    start = _STATIC.search(table["body"]) if table else None
    if table is None or start is None:
        return ()
    text = table["body"][start.start("list") :]
    for end in (place + 1 for place, letter in enumerate(text) if letter == "]"):
        try:  # a list of plain TOML strings, comments included, is one of Python's
            found = ast.literal_eval(text[:end])
        except (SyntaxError, ValueError):
            continue
        return tuple(str(line) for line in found)
    return ()


def _lines(repository: Repository, sha: str, path: str, text: str, above: tuple[str, ...]) -> tuple[str, ...]:
    lines: list[str] = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        bare = re.sub(r"(^|\s)#.*$", "", line).strip()
        if nested := _NESTED.match(bare):
            inner = str(PurePosixPath(path).parent / nested["path"])
            more = _text(repository, sha, inner) if inner not in above else None
            lines += () if more is None else _lines(repository, sha, inner, more, (*above, path))
        elif bare:
            lines.append(bare)
    return tuple(lines)


def _text(repository: Repository, sha: str, path: str) -> str | None:
    try:
        return repository.read(sha, path).decode("utf-8", errors="replace")
    except RevisionError:
        return None
