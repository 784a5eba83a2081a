"""Several bases: each commit lies over the nearest that fits; versions and distances from the history."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Environment
from perfbisect.environments.builders.overlay import FirstParentLines, NearestBaseOverlay
from perfbisect.environments.source_tree import version_at
from perfbisect.errors import BuildError
from perfbisect.model.change import Change
from tests.environments.conftest import plain_builder
from tests.environments.tiny import package_files
from tests.fakes.gitwriter import HistoryWriter, run_git

COUNT = 8
Line = tuple[Repository, list[str], str]


@pytest.fixture
def line(tmp_path: Path) -> Line:
    """Eight commits; compiled sources change at 4 and back at 6; a branch of two commits leaves at 5."""
    writer = HistoryWriter(tmp_path / "repo")
    tracked = {
        name: data for name, data in package_files().items() if not name.endswith(("_version.py", ".so"))
    }
    writer.commit("0", {**tracked, "csrc/a.cpp": b"0"})
    for number in range(1, COUNT):
        native = {4: {"csrc/a.cpp": b"1"}, 6: {"csrc/a.cpp": b"0"}}.get(number, {})
        writer.commit(
            str(number), {"tiny_engine/core.py": b"def speed():\n    return %d\n" % number, **native}
        )
    shas = list(writer.finish())
    path = tmp_path / "repo"
    who = ["-c", "user.name=T", "-c", "user.email=t@example.invalid"]
    run_git(path, "checkout", "--quiet", "-b", "release", shas[5])
    for word in ("one", "two"):
        run_git(path, *who, "commit", "--quiet", "--allow-empty", "-m", word)
    tip = run_git(path, "rev-parse", "HEAD").strip()
    run_git(path, "checkout", "--quiet", "main")
    return Repository.open(path), shas, tip


def test_distances(line: Line) -> None:
    repository, shas, tip = line
    lines = FirstParentLines(repository)
    lines.prepare(shas)
    assert lines.distance(shas[1], shas[1]) == 0
    assert lines.distance(shas[1], shas[7]) == lines.distance(shas[7], shas[1]) == 6
    assert [lines.distance(tip, shas[number]) for number in (3, 5, 7)] == [4, 2, 4]
    assert FirstParentLines(repository).distance(shas[3], tip) == 4


def test_distances_where_nothing_is_shared(tmp_path: Path, line: Line) -> None:
    repository, shas, _ = line
    other = HistoryWriter(tmp_path / "other")
    other.commit("x", {"x": b""})
    (alone,) = other.finish(checkout=False)
    run_git(repository.path, "fetch", "--quiet", str(tmp_path / "other"), "main")
    assert FirstParentLines(repository).distance(alone, shas[3]) is None


@pytest.mark.parametrize(
    ("tag", "distance", "version"),
    [
        ("v1.2.3", 0, "1.2.3"),
        ("v1.2.3", 2, "1.2.4.dev2"),
        ("1.2", 1, "1.3.dev1"),
        ("v1.2.3rc1", 1, "1.2.3rc2.dev1"),
        ("nonsense", 1, "0.1.dev1"),
        ("", 0, "0.1.dev0"),
    ],
)
def test_versions(line: Line, tag: str, distance: int, version: str) -> None:
    repository, shas, _ = line
    if tag:
        run_git(repository.path, "tag", tag, shas[1])
    sha = shas[1 + distance]
    local = "" if distance == 0 and tag else f"+g{sha[:12]}"
    assert version_at(repository, sha) == version + local


def over(
    cache: Path, installed: Environment, repository: Repository, bases: dict[str, str]
) -> NearestBaseOverlay:
    words = []
    for name, sha in bases.items():
        copy = cache / name
        if not copy.exists():
            shutil.copytree(installed.folder / "venv", copy, symlinks=True)
        words.append(f"overlay:{copy}/bin/python,package=tiny_engine,base={sha}")
    builder = plain_builder(",".join(words), repository=repository, cache=cache)
    assert isinstance(builder, NearestBaseOverlay)
    return builder


def test_the_nearest_base_that_fits(line: Line, installed: Environment, tmp_path: Path) -> None:
    repository, shas, tip = line
    builder = over(tmp_path, installed, repository, {"old": shas[0], "release": tip, "new": shas[7]})
    changes = [Change(sha) for sha in shas]
    builder.prepare(changes)
    chosen = [builder.select(change) for change in changes]
    names = [Path(one.base_name).parents[1].name if one else "" for one in chosen]
    assert names == ["old", "old", "old", "old", "release", "release", "new", "new"]
    assert [builder.refuses(change) for change in changes] == [None] * COUNT
    assert [builder.key(change) for change in changes] == [
        one.key(change) for one, change in zip(chosen, changes, strict=True) if one
    ]
    (note,) = builder.notes()
    assert "4 over" in note
    assert builder.disk([]) == 0
    assert builder.minutes(changes[0]) is not None


def test_what_no_base_fits_is_refused_with_every_reason(
    line: Line, installed: Environment, tmp_path: Path, log: Path
) -> None:
    repository, shas, _ = line
    builder = over(tmp_path, installed, repository, {"old": shas[0], "new": shas[7]})
    refusal = builder.refuses(Change(shas[4]))
    assert refusal is not None
    assert refusal.reason.count("csrc/a.cpp") == 2
    assert builder.key(Change(shas[4])) != builder.key(Change(shas[5]))
    with pytest.raises(BuildError, match=r"csrc/a\.cpp"):
        builder.ensure(Change(shas[4]), log=log, timeout=60)
    assert builder.minutes(Change(shas[4])) is None
    assert not builder.cached(Change(shas[4]))


def test_it_builds_over_the_base_it_chose(
    line: Line, installed: Environment, tmp_path: Path, log: Path
) -> None:
    repository, shas, _ = line
    builder = over(tmp_path, installed, repository, {"a": shas[0], "b": shas[0]})
    built = builder.ensure(Change(shas[0]), log=log, timeout=60)
    assert built.facts["base"] == str(tmp_path / "a" / "bin" / "python")
    assert builder.cached(Change(shas[0]))
    client = builder.client()
    assert client is not None
    assert client.interpreter == tmp_path / "a" / "bin" / "python"
