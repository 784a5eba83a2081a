"""The second half of the tutorial, as it is typed; the first is played by tests/test_packaging.py."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from scripts import pretend
from tests.command_line import type_command
from tests.docs.tutorial import Line, half
from tests.fakes.gitwriter import run_git
from tests.fakes.history import make_history

FEW = ("--commits", "8")
"""Fewer than the reader's, which are found as well and take longer."""

CALM = {"LAUNCH_SD": 0.005, "RUN_SD": 0.005, "OUTLIER_PROBABILITY": 0.0}
"""Noise in which no search goes wrong by chance."""

PLANNED = {"compare"}
"""What is only planned here: tests/transcripts measure it on the same engine."""

ELSEWHERE = {"make", "."}
"""What prepares a shell, which the tests have."""


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
        elif program == "python":
            assert arguments[:2] == ["-m", "scripts.pretend"]
            assert pretend.main([*arguments[2:], *FEW]) == 0
        elif program == "git":
            self.told += run_git(Path.cwd(), *arguments)
        elif program == "perfbisect":
            arguments += ["--dry-run"] if arguments[0] in PLANNED else []
            self.codes[line.text] = self._perfbisect(arguments, line.into)
        else:
            assert program in ELSEWHERE, line.text

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
    monkeypatch.setattr(pretend, "make_history", functools.partial(make_history, pace=CALM))
    reader = Reader(tmp_path, monkeypatch)
    for line in half(1):
        reader.types(line)
        code = reader.codes.get(line.text, 0)
        assert code in (0, 3, 4), f"{line.text}: exit {code}\n{reader.told[-3000:]}"
    told = {text.split()[1] for text, code in reader.codes.items() if code == 3}
    assert "bisect" in told
    made = tmp_path / "build" / "pretend"
    slow = run_git(made, "log", "--format=%H", "--grep=Batch the bookkeeping").strip()
    assert reader.culprit and slow.startswith(reader.culprit)
    assert run_git(made, "status", "--porcelain") == ""


def test_what_pretends_is_written_once_and_says_the_answer_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pretend"
    assert pretend.main([str(folder), "--commits", "8", "--seed", "2", "--tell"]) == 0
    told = re.search(r"the slow one: (\w{40})$", capsys.readouterr().out, re.MULTILINE)
    assert told is not None
    changed = run_git(folder, "show", "--name-only", "--format=", told[1]).split()
    assert changed == ["vllm/pace.py"]
    with pytest.raises(SystemExit):
        pretend.main([str(folder)])
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize("commits", [8, 9, 25])
@pytest.mark.parametrize("seed", range(7))
def test_the_slow_commit_is_never_an_end(commits: int, seed: int) -> None:
    assert 2 < pretend.place(commits, seed) < commits - 1
