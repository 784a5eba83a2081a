"""``--weights FILE``: by paths or by commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.bisect.plan import Position
from perfbisect.changes.priors import commit_weights_text
from perfbisect.commands.bisect_request import position_weigher
from perfbisect.commands.workspace import open_workspace
from perfbisect.model.change import Change
from tests.fakes.gitwriter import HistoryWriter


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, tuple[str, ...]]:
    writer = HistoryWriter(tmp_path / "repo")
    for name in ("first", "csrc/a.cu", "docs/a.md", "csrc/b.cu"):
        writer.commit(name, {name: b"x"})
    return tmp_path / "repo", writer.finish(checkout=False)


def positions(ids: tuple[str, ...]) -> list[Position]:
    """The second and third are one position, and the last has a package swapped."""
    swapped = Change(ids[3]).swapped(["a==1"])
    return [
        Position(changes=(Change(ids[0]),)),
        Position(changes=(Change(ids[1]), Change(ids[2]))),
        Position(changes=(swapped,)),
    ]


def test_by_commits(repository: tuple[Path, tuple[str, ...]], tmp_path: Path) -> None:
    path, ids = repository
    file = tmp_path / "weights.yaml"
    file.write_text(commit_weights_text({ids[2]: 10, ids[3]: 4}, "of an alert"))
    assert position_weigher(open_workspace(repo=path), file)(positions(ids)) == (1, 10, 4)


def test_by_paths(repository: tuple[Path, tuple[str, ...]], tmp_path: Path) -> None:
    path, ids = repository
    file = tmp_path / "weights.yaml"
    file.write_text("csrc/b.cu: 5\ndocs/: 0.5\n")
    unswapped = [
        p.model_copy(update={"changes": tuple(c.unswapped for c in p.changes)}) for p in positions(ids)
    ]
    assert position_weigher(open_workspace(repo=path), file)(unswapped) == (1, 1, 5)
