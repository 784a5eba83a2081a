"""Runs transcripts: what is typed, the exit code, what must be shown, as a person writes it down.

A transcript is a text file of steps. ``$ perfbisect ...`` is typed; ``! FILE`` and what follows up to ``!``
writes a file first; ``? CODE`` is the exit code; lines that begin with ``1 `` are all of standard output,
in order, those with ``2 `` of standard error. ``...`` alone stands for any lines, in a line for any text.
``{NAME}`` is what the test gives. A step without a line of a stream says nothing about that stream.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.command_line import fill, isolate, type_command

FOLDER = Path(__file__).parent


@dataclass
class Step:
    """One command and what must come of it."""

    typed: str
    line: int
    code: int = 0
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    files: dict[str, list[str]] = field(default_factory=dict)


def parse(text: str) -> list[Step]:
    """A transcript -> its steps. :raises ValueError: a line that means nothing."""
    steps: list[Step] = []
    files: dict[str, list[str]] = {}
    writing: list[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if writing is not None:
            if line == "!":
                writing = None
            else:
                writing.append(line)
        elif line.startswith("! "):
            writing = files.setdefault(line[2:], [])
        elif line.startswith("$ "):
            steps.append(Step(line[2:], number, files=files))
            files = {}
        elif line.startswith("? ") and steps:
            steps[-1].code = int(line[2:])
        elif line[:2] in ("1 ", "2 ") and steps:
            (steps[-1].out if line[0] == "1" else steps[-1].err).append(line[2:])
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"line {number} means nothing: {line!r}")
    return steps


def matches(wanted: list[str], shown: str) -> bool:
    """True if the lines are those that are wanted, ``...`` standing for anything."""
    parts = []
    for line in wanted:
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*")
        else:
            parts.append(r".*?".join(re.escape(piece) for piece in line.rstrip().split("...")) + r"[ ]*\n")
    return (
        re.fullmatch("".join(parts), shown if shown.endswith("\n") or not shown else shown + "\n") is not None
    )


def says_what_comes_next(out: str, err: str) -> bool:
    """True unless an error leaves its reader alone: each has a next step, in its JSON and for people."""
    if '"schema": "perfbisect.error/' in out:
        return bool(json.loads(out)["next"])
    errors = re.split(r"^error: ", err, flags=re.MULTILINE)[1:]
    return all(re.search(r"^  next:  \S", error, re.MULTILINE) for error in errors)


def play(steps: list[Step], folder: Path, names: Mapping[str, str], patch: pytest.MonkeyPatch) -> None:
    """Types every step in a folder and compares. :raises AssertionError: something else came."""

    isolate(folder, patch)
    for step in steps:
        for name, lines in step.files.items():
            path = folder / fill(name, names)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(fill(line, names) + "\n" for line in lines))
        program, *arguments = shlex.split(fill(step.typed, names))
        assert program == "perfbisect", f"line {step.line}: only perfbisect is typed"
        result = type_command(arguments)
        shown = f"line {step.line}: {step.typed}\n{result}"
        assert result.code == step.code, shown
        assert says_what_comes_next(result.out, result.err), shown
        for wanted, printed in ((step.out, result.out), (step.err, result.err)):
            if wanted:
                assert matches(fill(wanted, names), printed), shown
