"""Complete follow-up commands of a job, with its repository and environments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from perfbisect.jobs.settings import MeasurementConfig

_MEASURING = ("run", "bisect", "compare", "check")
"""Commands whose first argument is the cell."""

_ASKING = ("compare", "verify", "check")
"""Commands that can be repeated with a larger budget."""

_ONCE = ("--json", "--full", "--quiet", "--detach", "--dry-run")
"""Options that a follow-up command does not repeat."""

_REPORT = "--expect-workload"
"""Checked once; a follow-up command uses the same cell."""


def follow_up_command(
    setting: MeasurementConfig, verb: str, cell: Mapping[str, Any], metric: str, *words: str
) -> str:
    """Another command for the cell, repository and environments of a job."""
    repository = ("--repo", setting.repository) if setting.repository else ()
    options = {
        "--env": setting.environment,
        "--client": setting.client,
        "--constraints": setting.constraints,
        "--exclude-newer": setting.exclude_newer,
        "--machine": setting.machine,
        "--metric": "" if metric == cell["headline"] else metric,
    }
    given = [word for name, value in options.items() if value for word in (name, value)]
    return shlex.join(("perfbisect", verb, _typed_cell(setting, cell["name"]), *repository, *words, *given))


def repeat_command(setting: MeasurementConfig, option: str, value: str) -> str | None:
    """A job's command with another value of an option; None if the job was started by another command."""
    words = shlex.split(setting.typed)
    if words[1:2] == [] or words[1] not in _ASKING:
        return None
    return shlex.join((*_without(words, (option, _REPORT), _ONCE), option, value))


def git_command(repository: str, *words: str) -> str:
    """A git command in the repository."""
    return shlex.join(("git", *(("-C", repository) if repository else ()), *words))


def _typed_cell(setting: MeasurementConfig, name: str) -> str:
    """The cell as typed, which may be a path."""
    words = shlex.split(setting.typed)
    if "--cell" in words[:-1]:
        return words[words.index("--cell") + 1]
    typed = len(words) > 2 and words[1] in _MEASURING and not words[2].startswith("-")
    return words[2] if typed else name


def _without(words: list[str], valued: tuple[str, ...], flags: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    left_out = False
    for word in words:
        if left_out:
            left_out = False
        elif word in valued:
            left_out = True
        elif word not in flags and word.partition("=")[0] not in valued:
            kept.append(word)
    return kept
