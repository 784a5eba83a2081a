"""Plays a transcript: a request, and the steps that SKILL.md prescribes for it, with what must come back.

A transcript is a YAML file: ``request``; ``world``, what is there (``tests/skill/worlds.py``); ``report``,
the text that the user pasted; ``steps``. A step: ``why``, a rule of the skill; ``type``, the command;
``code``, its exit code; ``shows``, path in the JSON document -> what must be there; ``says``, words that
must be told; ``keep``, name -> path of a value for later steps; ``files``, name -> text, written first.
``{NAME}`` is of the world, or kept; ``{REPORT}`` the report.

A path goes through keys and places, ``*`` through all places, ``[event=x]`` through those with that value:
``alerts.*.cause``. What must be there is a value, or one rule: ``{min: 0.9}``, ``{max: 2}``, ``{has: x}``,
``{only: [a, b]}``, ``{none_of: [a]}``.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.command_line import Outcome, fill, type_command
from tests.skill.forms import SKILL

FOLDER = Path(__file__).parent / "transcripts"


@dataclass(frozen=True)
class Step:
    """One command and what must come of it."""

    why: str
    type: str
    code: int = 0
    shows: Mapping[str, Any] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    keep: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Transcript:
    """A request and its steps."""

    request: str
    world: str
    steps: tuple[Step, ...]
    report: str = ""


def transcripts() -> list[Path]:
    """Every transcript."""
    return sorted(FOLDER.glob("*.yaml"))


def load(path: Path) -> Transcript:
    """:raises TypeError: a key that means nothing."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    steps = tuple(Step(**{**step, "says": tuple(step.get("says", ()))}) for step in document.pop("steps"))
    return Transcript(**document, steps=steps)


def play(told: Transcript, names: Mapping[str, str]) -> None:
    """Types every step in the current folder. :raises AssertionError: something else came back."""
    known = {**names, "SKILL": str(SKILL)}
    known["REPORT"] = fill(told.report, known)
    try:
        for step in told.steps:
            known |= played(step, known)
    finally:
        if "JOB" in known:  # one that was left to itself must not outlive its test
            type_command(["stop", known["JOB"], "--wait"])


def played(step: Step, known: Mapping[str, str]) -> dict[str, str]:
    """Types a step; returns the values that it keeps. :raises AssertionError: something else came back."""
    for name, text in step.files.items():
        path = Path(fill(name, known))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(text, known), encoding="utf-8")
    result = type_line([fill(word, known) for word in shlex.split(step.type)])
    shown = f"{step.why}\n{step.type}\n{result}"
    assert result.code == step.code, shown
    assert [words for words in step.says if fill(words, known) not in result.out + result.err] == [], shown
    document = json.loads(result.out) if step.shows or step.keep else {}
    for where, wanted in step.shows.items():
        found = at(document, where)
        assert agrees(found, fill(wanted, known)), f"{where}: {found!r}, not {wanted!r}\n{shown}"
    return {name: str(at(document, where)) for name, where in step.keep.items()}


def type_line(words: list[str]) -> Outcome:
    """Type a command: ours in this process, unless it outlives it; a script in a process of its own."""
    if words[0] == "perfbisect" and "--detach" not in words:
        return type_command(words[1:])
    programs = str(Path(sys.executable).parent)
    env = os.environ | {"PATH": os.pathsep.join((programs, os.environ["PATH"]))}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


def at(document: Any, path: str) -> Any:
    """The value at a path; a list of values where it goes through all places. :raises KeyError: none."""
    first, _, rest = path.partition(".")
    if not first:
        return document
    if first == "*":
        return [at(one, rest) for one in document]
    if first.startswith("["):
        key, _, value = first.strip("[]").partition("=")
        return [at(one, rest) for one in document if one[key] == value]
    below = document[int(first)] if isinstance(document, list) else document[first]
    return at(below, rest)


def agrees(found: Any, wanted: Any) -> bool:
    """True if a value is what is wanted, or keeps the one rule that is."""
    if not isinstance(wanted, Mapping):
        return bool(found == wanted)
    ((rule, value),) = wanted.items()
    if rule in ("min", "max"):
        return found is not None and (found >= value if rule == "min" else found <= value)
    if rule == "has":
        return value in found
    if rule == "only":
        return bool(found) and set(_each(found)) <= set(value)
    if rule == "none_of":
        return not set(_each(found)) & set(value)
    raise ValueError(f"no rule {rule!r}")


def _each(found: Any) -> Iterable[Any]:
    return found if isinstance(found, list) else [found]
