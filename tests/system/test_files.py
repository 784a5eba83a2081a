"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfbisect.errors import MachineError
from perfbisect.system.files import write_atomic


def test_a_file_with_its_folders_as_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.csv"
    write_atomic(path, "one\r\ntwo\n")
    assert path.read_bytes() == b"one\r\ntwo\n"
    write_atomic(path, "three")
    assert path.read_text() == "three"
    assert list(path.parent.iterdir()) == [path]


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path: Path) -> None:
    """``-o /dev/stdout`` is no file beside which another could lie."""
    (tmp_path / "inner").mkdir()
    link, file, pipe = tmp_path / "link", tmp_path / "inner" / "file", tmp_path / "pipe"
    link.symlink_to(file)
    write_atomic(link, "text")
    assert link.is_symlink() and file.read_text() == "text"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomic(pipe, "text")
        assert pipe.is_fifo() and os.read(reader, 9) == b"text"
    finally:
        os.close(reader)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(MachineError, match="No space left") as caught:
        write_atomic(path, "new")
    assert caught.value.where == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(MachineError, match="cannot write the file") as caught:
        write_atomic(tmp_path / "file" / "inner", "text")
    assert caught.value.next_step
    with pytest.raises(MachineError, match="cannot write the report") as caught:
        write_atomic(tmp_path / "file" / "inner", "text", what="the report", next_step="perfbisect report J")
    assert caught.value.next_step == "perfbisect report J"
