"""Which commits an overlay refuses, and what it says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Environment
from perfbisect.environments.factory import make_builder
from perfbisect.errors import BuildError, RevisionError, UsageError
from perfbisect.model.change import Change
from tests.environments.conftest import overlay
from tests.environments.tiny import TinyHistory
from tests.fakes.gitwriter import HistoryWriter

PACKAGE = "tiny_engine"


def test_a_change_of_compiled_sources_is_refused_with_the_files(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path, log: Path
) -> None:
    builder = overlay(tmp_path, installed.interpreter, repository, history.base)
    refusal = builder.refuses(Change(history.kernel))
    assert refusal is not None
    assert "1 file differs: csrc/ops.cpp" in refusal.reason
    assert history.base[:12] in refusal.reason
    assert not refusal.error
    assert builder.key(Change(history.kernel)) != builder.key(Change(history.back))
    assert not builder.cached(Change(history.kernel))
    with pytest.raises(BuildError, match=r"csrc/ops\.cpp"):
        builder.ensure(Change(history.kernel), log=log, timeout=60)
    assert builder.refuses(Change(history.back)) is None


def test_many_changes_are_looked_up_together(
    history: TinyHistory,
    repository: Repository,
    installed: Environment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = [Change(sha) for sha in (history.base, history.slow, history.docs, history.kernel)]
    one_by_one = overlay(tmp_path, installed.interpreter, repository, history.base)
    together = overlay(tmp_path, installed.interpreter, repository, history.base)
    asked = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: asked.append(a) or run(*a, **k))
    together.prepare(changes)
    [together.refuses(change) for change in changes]
    [together.key(change) for change in changes]
    assert len(asked) == 2
    for change in changes:
        assert together.refuses(change) == one_by_one.refuses(change)
        assert together.key(change) == one_by_one.key(change)


@pytest.mark.parametrize(
    ("path", "needs_building"),
    [
        ("csrc/new.cu", True),
        ("tiny_engine/deep/kernel.cuh", True),
        ("cmake/x.cmake", True),
        ("CMakeLists.txt", True),
        ("setup.py", True),
        ("pyproject.toml", True),
        ("requirements/cuda.txt", True),
        ("requirements/common.txt", True),
        ("requirements/build/cuda.txt", True),
        ("rust/src/lib.rs", True),
        ("requirements/test.txt", False),
        ("requirements/test/cuda.txt", False),
        ("requirements/rocm-test.in", False),
        ("requirements/lint.txt", False),
        ("tests/kernels/x.cu", False),
        ("docs/setup.py", False),
        ("tiny_engine/anything.py", False),
        (".github/workflows/ci.yml", False),
    ],
)
def test_which_files_need_building(
    path: str, needs_building: bool, tmp_path: Path, installed: Environment
) -> None:
    writer = HistoryWriter(tmp_path / "repo")
    writer.commit("base", {"tiny_engine/__init__.py": b"", "requirements/common.txt": b"1"})
    writer.commit("change", {path: b"2"})
    first, second = writer.finish(checkout=False)
    repository = Repository.open(tmp_path / "repo")
    refusal = overlay(tmp_path, installed.interpreter, repository, first).refuses(Change(second))
    assert (refusal is not None) == needs_building
    assert refusal is None or path in refusal.reason


def test_many_differing_files_are_counted(tmp_path: Path, installed: Environment) -> None:
    writer = HistoryWriter(tmp_path / "repo")
    writer.commit("base", {"tiny_engine/__init__.py": b""})
    writer.commit("change", {f"csrc/{letter}.cu": b"" for letter in "edcba"})
    first, second = writer.finish(checkout=False)
    builder = overlay(tmp_path, installed.interpreter, Repository.open(tmp_path / "repo"), first)
    refusal = builder.refuses(Change(second))
    assert refusal is not None
    assert refusal.reason.endswith("5 files differ: csrc/a.cu, csrc/b.cu, csrc/c.cu and 2 more")


def test_a_base_of_no_known_commit_is_an_error(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path
) -> None:
    refusal = overlay(tmp_path, installed.interpreter, repository, "").refuses(Change(history.slow))
    assert refusal is not None
    assert refusal.error
    assert "base=REV" in refusal.reason


def test_a_base_commit_that_does_not_exist(
    repository: Repository, installed: Environment, tmp_path: Path
) -> None:
    with pytest.raises(RevisionError, match="'v9' does not exist"):
        overlay(tmp_path, installed.interpreter, repository, "v9")


def test_a_base_that_was_built_from_another_commit(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path, log: Path
) -> None:
    builder = overlay(tmp_path, installed.interpreter, repository, history.slow)
    with pytest.raises(BuildError, match=r"was not built from .*1 of 4 files differ, among them core\.py"):
        builder.ensure(Change(history.docs), log=log, timeout=60)


def test_a_commit_without_the_package(tmp_path: Path, installed: Environment) -> None:
    writer = HistoryWriter(tmp_path / "repo")
    writer.commit("only", {"elsewhere/x.py": b""})
    (only,) = writer.finish(checkout=False)
    builder = overlay(tmp_path, installed.interpreter, Repository.open(tmp_path / "repo"), "any")
    refusal = builder.refuses(Change(only))
    assert refusal is not None
    assert "no folder tiny_engine/" in refusal.reason


def test_a_repository_is_needed(tmp_path: Path, installed: Environment) -> None:
    with pytest.raises(UsageError, match="needs their repository"):
        make_builder(f"overlay:{installed.interpreter},base=any", repository=None, cache=tmp_path)


def test_releases_are_refused(repository: Repository, tmp_path: Path, installed: Environment) -> None:
    refusal = overlay(tmp_path, installed.interpreter, repository, "any").refuses(Change("x==1", "release"))
    assert refusal is not None
    assert refusal.error
