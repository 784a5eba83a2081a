"""Plays transcripts: what is typed, the exit code, what must be shown, as a person writes it down.

A transcript is a text file of steps, each line with its sign:

- ``: NAME text`` before the first step says something of the whole: ``request``, ``world``.
- ``# text`` says why the next step is typed.
- ``! FILE`` and what follows up to ``!`` writes a file before the next step; ``! {NAME}`` names the text.
- ``$ perfbisect ...`` is typed; ``? CODE`` is its exit code.
- ``1 text`` lines are all of standard output, in order, ``2 text`` of standard error. ``...`` alone for
  any lines, in a line for any text. A step without a line of a stream says nothing about that stream.
- ``~ words`` are printed on either stream.
- ``= PATH: RULE``: the JSON document has this value there, or one that keeps the rule (:func:`agrees`).
- ``> NAME PATH`` gives a name to a value of the document.

``{NAME}`` is what the test or a step gave.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.command_line import Outcome, fill, type_command

FOLDER = Path(__file__).parent


@dataclass
class Step:
    """One command and what must come of it."""

    typed: str
    line: int
    why: str = ""
    code: int = 0
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    says: list[str] = field(default_factory=list)
    shows: dict[str, Any] = field(default_factory=dict)
    keep: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Transcript:
    """What is said of the whole, and the steps."""

    about: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


def parse(text: str) -> Transcript:
    """:raises ValueError: a line that means nothing."""
    made = Transcript()
    steps = made.steps
    why: list[str] = []
    files: dict[str, list[str]] = {}
    writing: list[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        sign, _, rest = line.partition(" ")
        if writing is not None:
            if line == "!":
                writing = None
            else:
                writing.append(line)
        elif sign == "!":
            writing = files.setdefault(rest, [])
        elif sign == "#":
            why.append(rest)
        elif sign == "$":
            steps.append(Step(rest, number, " ".join(why), files=files))
            why, files = [], {}
        elif sign == ":" and not steps:
            name, _, made.about[name] = rest.partition(" ")
        elif sign == "?" and steps:
            steps[-1].code = int(rest)
        elif sign in ("1", "2", "~") and steps:
            {"1": steps[-1].out, "2": steps[-1].err, "~": steps[-1].says}[sign].append(rest)
        elif sign == "=" and steps:
            path, _, rule = rest.partition(": ")
            steps[-1].shows[path] = yaml.safe_load(rule)
        elif sign == ">" and steps:
            name, _, steps[-1].keep[name] = rest.partition(" ")
        elif line.strip():
            raise ValueError(f"line {number} means nothing: {line!r}")
    return made


Typist = Callable[[str, Mapping[str, str]], Outcome]
"""Types a line of a transcript, with the values of its names."""


def play(told: Transcript, names: Mapping[str, str], typist: Typist | None = None) -> None:
    """Types every step in the current folder. :raises AssertionError: something else came back."""
    known = dict(names)
    try:
        for step in told.steps:
            for name, lines in step.files.items():
                text = "".join(fill(line, known) + "\n" for line in lines)
                if re.fullmatch(r"\{[A-Z]+\}", name):
                    known[name.strip("{}")] = text.rstrip("\n")
                    continue
                path = Path(fill(name, known))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            known |= play_step(step, known, typist or type_line)
    finally:
        if "JOB" in known:  # one that was left to itself must not outlive its test
            type_command(["stop", known["JOB"], "--wait"])


def play_step(step: Step, known: Mapping[str, str], typist: Typist) -> dict[str, str]:
    """The values that the step keeps. :raises AssertionError: something else came back."""
    result = typist(step.typed, known)
    shown = f"line {step.line}: {step.why}\n{step.typed}\n{result}"
    assert result.code == step.code, shown
    assert says_what_comes_next(result.out, result.err), shown
    for wanted, printed in ((step.out, result.out), (step.err, result.err)):
        if wanted:
            assert matches(fill(wanted, known), printed), shown
    assert [words for words in fill(step.says, known) if words not in result.out + result.err] == [], shown
    document = json.loads(result.out) if step.shows or step.keep else {}
    for where, rule in step.shows.items():
        found = at(document, where)
        assert agrees(found, fill(rule, known)), f"{where}: {found!r}, not {rule!r}\n{shown}"
    return {name: str(at(document, where)) for name, where in step.keep.items()}


def type_line(line: str, known: Mapping[str, str]) -> Outcome:
    """Type a command: ours in this process, unless it outlives it; a script in a process of its own."""
    words = [fill(word, known) for word in shlex.split(line)]
    if words[0] == "perfbisect" and "--detach" not in words:
        return type_command(words[1:])
    programs = str(Path(sys.executable).parent)
    env = os.environ | {"PATH": os.pathsep.join((programs, os.environ["PATH"]))}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


def matches(wanted: Sequence[str], shown: str) -> bool:
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


def at(document: Any, path: str) -> Any:
    """The value at a path of keys and places: ``alerts.0.cause``.

    ``*`` goes through all places of a list, ``[event=x]`` through those with that value, to a list of values.

    :raises KeyError: there is none.
    """
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
    """True if a value is the wanted one, or keeps its rule: ``{min: 0.9}``, ``{max: 2}``, ``{has: x}``,
    ``{only: [a, b]}``, ``{none_of: [a]}``.
    """
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
