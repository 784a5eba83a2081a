"""Which engine a checkout holds: its packages decide, its project files say what it calls itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

ENGINES = {"vllm_omni": "vLLM-Omni", "vllm": "vLLM"}
"""Import name -> the name that people use. The first whose package is there is the engine."""

PYPROJECT, SETUP = "pyproject.toml", "setup.py"

_TABLE = re.compile(r"^\[(?P<table>[^\[\]]+)\]\s*(?:#.*)?$")
_NAME = re.compile(r"""^name\s*=\s*["'](?P<name>[A-Za-z0-9._-]+)["']""")
_SETUP_NAME = re.compile(r"""\bname\s*=\s*["'](?P<name>[A-Za-z0-9._-]+)["']""")
_PLUGIN = re.compile(r"\bvllm\.(?:platform|general)_plugins\b")

_Finder = Callable[[str], tuple[str, int]]


@dataclass(frozen=True)
class Project:
    """What a checkout's project file says of it.

    ``file`` is empty where there is none; ``line``: where the name stands, from 1, 0 if it has none.
    ``plugin_line``: where it says that it is a plug-in of vLLM, 0 if it does not; in ``plugin_file``.
    """

    file: str = ""
    name: str = ""
    line: int = 0
    plugin_file: str = ""
    plugin_line: int = 0

    @property
    def told(self) -> str:
        """In words."""
        if not self.name:
            return f"{self.file}, which names no project" if self.file else "no project file"
        return f"project {self.name!r} ({self.file}:{self.line})"


def project_of(pyproject: str | None, setup: str | None) -> Project:
    """What the texts of ``pyproject.toml`` and ``setup.py`` say; None where there is no such file."""
    found = [
        (file, *_named(text, named))
        for file, text, named in ((PYPROJECT, pyproject, _in_table), (SETUP, setup, _in_call))
        if text is not None
    ]
    if not found:
        return Project()
    file, name, line, _ = next((row for row in found if row[1]), found[0])
    plugin = next((row for row in found if row[3]), ("", "", 0, 0))
    return Project(file, name, line, plugin[0], plugin[3])


def engine_of(packages: Collection[str]) -> str | None:
    """The engine of a checkout with these packages at its root; None: it is none that is known."""
    return next((name for name in ENGINES if name in packages), None)


def _named(text: str, named: _Finder) -> tuple[str, int, int]:
    """(the project's name, its line, the line that makes it a plug-in of vLLM); lines from 1, 0: nowhere."""
    name, line = named(text)
    plugin = next((number for number, row in enumerate(text.splitlines(), 1) if _PLUGIN.search(row)), 0)
    return name, line, plugin


def _in_table(text: str) -> tuple[str, int]:
    """``name`` of the ``[project]`` table."""
    table = ""
    for number, row in enumerate(text.splitlines(), 1):
        if head := _TABLE.match(row):
            table = head["table"].strip()
        elif table == "project" and (found := _NAME.match(row)):
            return found["name"], number
    return "", 0


def _in_call(text: str) -> tuple[str, int]:
    """The first ``name="..."``."""
    found = _SETUP_NAME.search(text)
    return (found["name"], text.count("\n", 0, found.start()) + 1) if found else ("", 0)
