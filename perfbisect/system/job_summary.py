"""The summary of a job of GitHub Actions: a file that each step may append Markdown to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfbisect.errors import MachineError

VARIABLE = "GITHUB_STEP_SUMMARY"

MOST = 1024 * 1024
"""Bytes that GitHub takes of a step; of a longer file it takes nothing at all."""

LEAST = 2048
"""Bytes below which nothing is worth saying."""


def summary_file(variables: Mapping[str, str]) -> Path | None:
    """The file of this step; None outside GitHub Actions."""
    told = variables.get(VARIABLE, "")
    return Path(told) if told else None


def room(path: Path) -> int:
    """Bytes that may still be appended."""
    try:
        return max(0, MOST - path.stat().st_size)
    except OSError:
        return MOST


def append(path: Path, text: str) -> None:
    """:raises MachineError: the file cannot be written."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise MachineError(
            f"the job summary cannot be written: {error.strerror or error}", where=path
        ) from error
