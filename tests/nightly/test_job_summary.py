"""The summary of a job of GitHub Actions."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.errors import MachineError
from perfbisect.nightly.notify import MOST, append, room, summary_file


def test_it_is_the_file_that_the_runner_names(tmp_path: Path) -> None:
    assert summary_file({}) is None
    assert summary_file({"GITHUB_STEP_SUMMARY": ""}) is None
    path = tmp_path / "summary"
    assert summary_file({"GITHUB_STEP_SUMMARY": str(path)}) == path
    assert room(path) == MOST == 1_048_576
    append(path, "ä\n")
    append(path, "more\n")
    assert path.read_text(encoding="utf-8") == "ä\nmore\n"
    assert room(path) == MOST - 8
    path.write_bytes(b"x" * (MOST + 1))
    assert room(path) == 0


def test_one_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="job summary cannot be written"):
        append(tmp_path, "text")
