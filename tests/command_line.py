"""Types commands in this process, away from the state of the user."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perfbisect.cli.app import run

_NAME = re.compile(r"\{([A-Z_]+)\}")


class Outcome(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit {self.code}\n1: {self.out[-6000:]}\n2: {self.err[-3000:]}"


def isolate(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Keep state, cache and locks in a folder, and start there."""
    for name in [name for name in os.environ if name.startswith(("PERFBISECT_", "COLUMNS"))]:
        patch.delenv(name)
    for name in ("state", "cache", "locks"):
        patch.setenv(f"PERFBISECT_{name.upper()}", str(folder / name))
    patch.setenv("PERFBISECT_BACKOFF", "0.1,0.1")
    patch.setenv("PERFBISECT_LIMITS", "off")
    patch.chdir(folder)


def type_command(words: Sequence[str]) -> Outcome:
    """Run ``perfbisect`` with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["perfbisect", *words])
        code = run(words)
    return Outcome(code, out.getvalue(), err.getvalue())


def type_json(*words: str, code: int = 0) -> dict[str, Any]:
    """The document that a command prints, which ends with this exit code."""
    outcome = type_command([*words, "--json"])
    assert outcome.code == code, outcome
    document = json.loads(outcome.out)
    assert isinstance(document, dict)
    return document


def fill(value: Any, names: Mapping[str, str]) -> Any:
    """A text, or the texts of lists and mappings, with ``{NAME}`` replaced."""
    if isinstance(value, str):
        return _NAME.sub(lambda match: names[match[1]], value)
    if isinstance(value, list):
        return [fill(item, names) for item in value]
    return {key: fill(item, names) for key, item in value.items()} if isinstance(value, dict) else value
