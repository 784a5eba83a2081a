"""The second half of the tutorial, as it is typed; the first is played by tests/test_packaging.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfbisect.setup.demo import write_demo
from tests.command_line import type_command
from tests.docs.tutorial import Line, half
from tests.fakes.gitwriter import run_git

PLANNED = {"compare"}
"""What is only planned here: tests/transcripts measure it on the same engine."""


class Reader:
    """Types lines and reads what is printed."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.told = ""
        self.codes: dict[str, int] = {}
        self.patch.chdir(folder)

    def types(self, line: Line) -> None:
        """:raises AssertionError: it is nothing that a reader of the tutorial types."""
        program, *arguments = [
            word.replace("CULPRIT", self.culprit).replace("JOB", self.job) for word in line.words
        ]
        if program == "cd":
            self.patch.chdir(arguments[0])
        elif program == "export":
            self.patch.setenv(*arguments[0].split("=", 1))
        elif program == "git":
            self.told += run_git(Path.cwd(), *arguments)
        elif program == "perfbisect":
            arguments += ["--dry-run"] if arguments[0] in PLANNED else []
            self.codes[line.text] = self._perfbisect(arguments, line.into)
        else:
            raise AssertionError(line.text)

    @property
    def culprit(self) -> str:
        """The name that a bisection gave; empty before there is one."""
        named = re.search(r"^  next: +git -C \S+ show (\w+)$", self.told, re.MULTILINE)
        return named[1] if named else ""

    @property
    def job(self) -> str:
        """The first job; empty before there is one."""
        begun = re.search(r"^job (\S+)$", self.told, re.MULTILINE)
        return begun[1] if begun else ""

    def _perfbisect(self, arguments: list[str], into: str) -> int:
        result = type_command(arguments)
        if into:
            Path(into).write_text(result.out)
        self.told += result.out + result.err
        return result.code


@pytest.mark.processes
def test_the_second_half_ends_with_the_slow_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PERFBISECT_STATE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PERFBISECT_CACHE", str(tmp_path / "cache"))
    made, checkout = tmp_path / "perfbisect-demo", tmp_path / "vllm"
    slow = write_demo(made)
    checkout.mkdir()  # where the first half ends
    reader = Reader(checkout, monkeypatch)
    for line in half(1):
        reader.types(line)
        code = reader.codes.get(line.text, 0)
        assert code in (0, 3, 4), f"{line.text}: exit {code}\n{reader.told[-3000:]}"
    told = {text.split()[1] for text, code in reader.codes.items() if code == 3}
    assert "bisect" in told
    assert reader.culprit and slow.startswith(reader.culprit)
    assert run_git(made, "status", "--porcelain") == ""
