"""The fuzzer tells tracebacks, hangs and crashes of the interpreter apart, by input."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scripts.fuzz import __main__ as fuzz
from scripts.fuzz.mutate import bend_bytes, bend_json, bend_text


def misbehave(random: Random, folder: Path) -> None:
    """Input 1 raises, 2 ends the interpreter, 3 does not end."""
    number = int((folder.parent / "number").read_text()) if (folder.parent / "number").exists() else 0
    (folder.parent / "number").write_text(str(number + 1))
    (folder / "input.txt").write_text(str(random.random()))
    if number == 1:
        raise KeyError("a fault")
    if number == 2:
        os.abort()


def test_each_finding_belongs_to_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fuzz.AREAS, "logs", ("tests.scripts.test_fuzz:misbehave", 1))
    found = list(fuzz.fuzz("logs", 7, range(5), tmp_path))
    assert [(kind, number) for kind, number, _ in found] == [("traceback", 1), ("crash", 2), ("traceback", 4)]
    assert "KeyError: 'a fault'" in found[0][2]
    assert "ended with -6" in found[1][2]
    kept = (tmp_path / "logs-7-1" / "input.txt").read_text()
    assert kept == str(Random("logs 7 1").random())


def test_an_input_is_the_same_for_its_seed() -> None:
    document: dict[str, Any] = {"a": [1, 2, {"b": "c"}], "d": "text"}
    for bend, good in ((bend_json, document), (bend_text, "some text\nof lines"), (bend_bytes, b"bytes" * 9)):
        made = [[repr(bend(Random(seed), good)) for seed in range(50)] for _ in range(2)]
        assert made[0] == made[1]
        assert len(set(made[0])) > 25
    assert document == {"a": [1, 2, {"b": "c"}], "d": "text"}
