"""The table of mutations, and what becomes of a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.mutants import MUTANTS, MovedLineError, Mutant, failing_test, missing_lines, mutate
from scripts.simulation import ROOT


def test_each_line_of_the_table_stands_once_in_its_file() -> None:
    assert missing_lines(ROOT / "perfbisect") == []
    assert len(MUTANTS) == 20


def test_a_line_keeps_its_place_and_indentation() -> None:
    assert mutate("def f():\n    return 1\n", "return 1", "return 2") == "def f():\n    return 2\n"


@pytest.mark.parametrize("text", ["", "x = 1\nx = 1\n", "x = 11\n"])
def test_a_line_that_has_moved_is_an_error(text: str) -> None:
    with pytest.raises(MovedLineError):
        mutate(text, "x = 1", "x = 2")


def test_what_has_moved_is_named(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "a.py").write_text("x = 1\n")
    table = [Mutant("a.py", "x = 1", "x = 2", ("gone.py",)), Mutant("b.py", "x = 1", "x = 2", ())]
    gone, moved = missing_lines(tmp_path / "package", table)
    assert gone == "tests/gone.py: no such tests"
    assert moved.startswith("b.py: ")


@pytest.mark.processes
def test_the_test_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    test = tmp_path / "tests" / "test_a.py"
    test.write_text("def test_right(): pass\ndef test_wrong(): assert 1 - 1\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert failing_test(tmp_path, ["test_a.py"], "") == "tests/test_a.py::test_wrong"
    test.write_text("def test_right(): pass\n")
    assert failing_test(tmp_path, ["test_a.py"], "") == ""
