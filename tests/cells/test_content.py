"""What is hashed as a model or a data set, how often, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.cells import content
from perfbisect.cells.content import content_revision
from perfbisect.cells.loading import load_cells
from perfbisect.errors import LocatedError, UsageError

CELL = "family: text\nmodel: {model}\nnum_prompts: [1, 2]\nmax_concurrency: 1\ntokenizer: {model}\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "people" / "me"
    (folder / "models" / "tiny").mkdir(parents=True)
    (folder / "models" / "tiny" / "config.json").write_text("{}")
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ('"~"', "people/me is your home folder: give a file, or a folder with the files of one model"),
        ("~/", "is your home folder"),
        ("..", "'..'"),
        ("../..", "people holds your home folder"),
        ("/", "holds your home folder"),
        ("/proc/self", "is made by the kernel"),
        ("/dev/zero", "is made by the kernel"),
        ("/dev/shm", "is made by the kernel"),
        ("~/state", "holds the state of perfbisect"),
        ("~/empty", "holds no file"),
    ],
)
def test_a_folder_that_is_no_model_is_refused_unread(
    home: Path, model: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "_file_digest", lambda path: pytest.fail(f"{path} is read"))
    job = home / "state" / "jobs" / "a"
    job.mkdir(parents=True)
    (job / "journal.jsonl").write_text("{}")
    (home / "empty").mkdir()
    cell = home / "cells" / "cell.yaml"
    cell.parent.mkdir()
    cell.write_text(CELL.format(model=model))
    if model == "..":
        cell.write_text(CELL.format(model="./.."))
        said = "is your home folder"
    with pytest.raises(LocatedError, match=said) as caught:
        load_cells(cell)
    assert (caught.value.field, caught.value.line) == ("model", 2)


def test_limits_are_said_before_anything_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = home / "models" / "tiny"
    (model / "weights").write_bytes(bytes(100))
    monkeypatch.setattr(content, "_file_digest", lambda path: pytest.fail(f"{path} is read"))
    monkeypatch.setattr(content, "MOST_FILES", 1)
    with pytest.raises(UsageError, match="holds more than 1 files"):
        content_revision(model)
    monkeypatch.setattr(content, "MOST_BYTES", 99)
    with pytest.raises(UsageError, match="holds more than 0 TB"):
        content_revision(model / "weights")


def test_a_model_is_read_once_until_it_changes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    digest = content._file_digest
    monkeypatch.setattr(content, "_file_digest", lambda path: [read.append(path), digest(path)][1])
    cell = home / "cell.yaml"
    cell.write_text(CELL.format(model="~/models/tiny"))
    first = [load_cells(cell)[0].revision.model for _ in range(3)]
    assert len(set(first)) == len(read) == 1
    (home / "models" / "tiny" / "config.json").write_text("[]")
    assert load_cells(cell)[0].revision.model not in first
    assert len(read) == 2


def test_what_is_kept_in_memory_is_a_model(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_KERNEL", (home,))
    monkeypatch.setattr(content, "_MEMORY", home / "models")
    assert content_revision(home / "models" / "tiny").startswith("sha256:")
    with pytest.raises(UsageError, match="is made by the kernel"):
        content_revision(home / "models")
