"""Commits built from source: right, only as much as changed, with the user's variables."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Environment
from perfbisect.environments.builders.cached import CachedBuilder, CommitTree
from perfbisect.environments.builders.source import SourceSettings, with_precompiled_commit
from perfbisect.environments.packages import engine
from perfbisect.errors import BuildError
from perfbisect.model.change import Change
from tests.changes.repositories import write_commits
from tests.environments.conftest import ask, plain_builder, refusal_of
from tests.environments.cproject import WHY_NOT, CHistory, write_c_history
from tests.fakes.gitwriter import run_git

compiles = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-")


@pytest.fixture(scope="module")
def c_history(tmp_path_factory: pytest.TempPathFactory) -> CHistory:
    made = write_c_history(tmp_path_factory.mktemp("c") / "repo")
    run_git(made.path, "tag", "v1.2.0", made.first)
    return made


def source(cache: Path, history: CHistory, more: str = "") -> CachedBuilder[SourceSettings, CommitTree]:
    spec = f"source,package=tiny_engine,env=TINY_COMPILED={cache / 'compiled'}{more}"
    builder = plain_builder(spec, repository=Repository.open(history.path), cache=cache)
    assert isinstance(builder, CachedBuilder)
    return builder


def ensure(builder: CachedBuilder[SourceSettings, CommitTree], sha: str) -> Environment:
    return builder.ensure(Change(sha), log=builder.cache.log("build"), timeout=120)


def compiled(cache: Path) -> list[str]:
    """What each build compiled, since it was last asked."""
    record = cache / "compiled"
    lines = record.read_text().splitlines() if record.exists() else []
    record.unlink(missing_ok=True)
    return lines


SPEED = "import tiny_engine; print(tiny_engine.speed())"


@compiles
def test_each_commit_is_right_and_only_what_changed_is_compiled(c_history: CHistory, tmp_path: Path) -> None:
    builder = source(tmp_path, c_history)
    found = {}
    for name in ("first", "python", "source", "header", "source"):
        built = ensure(builder, getattr(c_history, name))
        found[name] = (ask(built, SPEED), compiled(tmp_path), built.facts["incremental"])
        if name == "python":
            assert built.engine_version == f"1.2.1.dev1+g{c_history.python[:12]}"
            assert (built.engine_commit, built.facts["identified_by"]) == (c_history.python, "commit")
            there = {path.name for path in Path(built.engine_file).parent.glob("*.py")}
            assert there == {"__init__.py", "new.py", "_version.py"}
    assert found == {
        "first": ("12", ["module first second"], False),
        "python": ("12", [""], True),
        "source": ("13", [], True),  # the second time it was there
        "header": ("26", ["module first second"], True),
    }


@pytest.mark.processes
@compiles
def test_going_back_compiles_what_differs(c_history: CHistory, tmp_path: Path) -> None:
    builder = source(tmp_path, c_history)
    ensure(builder, c_history.source)
    back = ensure(builder, c_history.first)
    assert ask(back, SPEED) == "12"
    assert compiled(tmp_path) == ["module first second", "second"]
    whole = ensure(source(tmp_path, c_history, ",whole=yes"), c_history.first)
    assert ask(whole, SPEED) == "12"


@pytest.mark.processes
@compiles
def test_a_commit_that_does_not_compile_is_tried_from_nothing_and_hurts_no_other(
    c_history: CHistory, tmp_path: Path
) -> None:
    builder = source(tmp_path, c_history)
    ensure(builder, c_history.docs)
    with pytest.raises(BuildError, match="cannot build") as raised:
        ensure(builder, c_history.broken)
    assert raised.value.where == str(builder.cache.log("build"))
    output = builder.cache.log("build").read_text()
    assert "again, from scratch" in output and "undeclared" in output
    assert not builder.cached(Change(c_history.broken))
    mended = ensure(builder, c_history.mended)
    assert ask(mended, SPEED) == "46"
    assert mended.facts["incremental"] is True
    assert compiled(tmp_path)[-1] == "first second"  # and not the module, which was compiled before it broke


@pytest.mark.processes
@compiles
def test_what_a_killed_build_left_is_not_used(c_history: CHistory, tmp_path: Path) -> None:
    builder = source(tmp_path, c_history)
    ensure(builder, c_history.first)
    half = builder.settings.path / "tree" / "build" / "objects" / "second.o"
    half.write_bytes(half.read_bytes()[:100])
    (builder.settings.path / "building").touch()
    assert not builder.settings.is_warm
    built = ensure(builder, c_history.header)
    assert (ask(built, SPEED), built.facts["incremental"]) == ("26", False)


@compiles
def test_documentation_and_tests_make_no_new_environment(c_history: CHistory, tmp_path: Path) -> None:
    builder = source(tmp_path, c_history)
    header, docs = Change(c_history.header), Change(c_history.docs)
    assert builder.key(header) == builder.key(docs)
    first = ensure(builder, header.id)
    second = ensure(builder, docs.id)
    assert (second.folder, second.seconds, second.engine_commit) == (first.folder, 0.0, c_history.docs)
    assert not (builder.settings.path / "tree" / "docs").exists()
    whole = source(tmp_path, c_history, ",whole=yes")
    assert whole.key(header) != whole.key(docs)


@compiles
def test_the_users_checkout_is_not_touched(c_history: CHistory, tmp_path: Path) -> None:
    copy = tmp_path / "repo"
    shutil.copytree(c_history.path, copy)
    (copy / "csrc" / "first.c").write_text("not C at all\n")
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    copied = CHistory(copy, *[c_history.first] * 7)
    builder = source(tmp_path / "cache", copied, ",with=tiny-helper==5.0")
    built = ensure(builder, c_history.first)
    assert ask(built, SPEED) == "12"
    assert (built.engine_version, built.facts["identified_by"]) == ("1.2.0", "content")
    assert built.facts["packages"] == ["tiny-engine==1.2.0", "tiny-helper==5.0"]
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


@compiles
def test_ccache_is_used_where_it_is_on_the_path(
    c_history: CHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ccache").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path / "cached"}\nexec "$@"\n')
    (tools / "ccache").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    builder = source(tmp_path, c_history)
    built = ensure(builder, c_history.first)
    assert built.facts["ccache"] == str(tools / "ccache")
    assert [line.split()[0] for line in (tmp_path / "cached").read_text().splitlines()] == ["cc"] * 3
    assert f"ccache {tools / 'ccache'} keeps compiled files" in builder.notes()[0]


@compiles
def test_variables_that_steer_a_build_are_in_the_key_and_those_of_speed_are_not(
    c_history: CHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = Change(c_history.first)
    plain = source(tmp_path, c_history).key(change)
    monkeypatch.setenv("MAX_JOBS", "7")
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path))
    assert source(tmp_path, c_history).key(change) == plain
    monkeypatch.setenv("CFLAGS", "-DUNIT2")
    monkeypatch.setenv("NOT_OF_BUILDS", "x")
    steered = source(tmp_path, c_history)
    assert steered.key(change) != plain
    assert steered.settings.path != source(tmp_path, c_history, " CFLAGS=-O2").settings.path
    built = ensure(steered, change.id)
    shown = built.facts["variables"]
    assert (shown["MAX_JOBS"], shown["CFLAGS"]) == ("7", "-DUNIT2")
    assert "NOT_OF_BUILDS" not in shown
    assert "CFLAGS=-DUNIT2" in steered.notes()[0]


@pytest.mark.processes
@compiles
def test_prices_are_learnt_first_builds_and_later_ones_apart(c_history: CHistory, tmp_path: Path) -> None:
    builder = source(tmp_path, c_history)
    assert builder.minutes(Change(c_history.first)) is None
    assert builder.disk([Change(c_history.first)]) is None
    first = ensure(builder, c_history.first)
    assert builder.minutes(Change(c_history.first)) == 0.0
    assert builder.minutes(Change(c_history.source)) == pytest.approx(first.seconds / 60)
    later = ensure(builder, c_history.source)
    assert builder.minutes(Change(c_history.header)) == pytest.approx(later.seconds / 60)
    shutil.rmtree(builder.settings.path)
    assert builder.minutes(Change(c_history.header)) == pytest.approx(first.seconds / 60)
    assert "a first build took" in builder.notes()[0]
    sizes = [first.facts["bytes"], later.facts["bytes"]]
    assert builder.disk([Change(c_history.header)]) == round(sum(sizes) / 2)


def test_a_project_in_a_folder_and_a_commit_without_it(tmp_path: Path, wheels: Path) -> None:
    del wheels
    commits: list[dict[str, bytes | None]] = [
        {"other/x": b""},
        {"sub/pyproject.toml": b"", "sub/tiny_engine/__init__.py": b""},
    ]
    repository, (none, there) = write_commits(tmp_path / "repo", *commits)
    builder = plain_builder("source:sub,package=tiny_engine", repository=repository, cache=tmp_path)
    assert "has no folder sub/" in refusal_of(builder, Change(none)).reason
    assert builder.refuses(Change(there)) is None


def test_binaries_are_those_of_the_files_that_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that changes Python shares its compiled files with the one before."""
    commits: list[dict[str, bytes | None]] = [
        {"setup.py": b"", "csrc/a.cu": b"1", "vllm/__init__.py": b""},
        {"vllm/__init__.py": b"x = 1"},
        {"csrc/a.cu": b"2"},
        {"csrc/a.cu": b"1", "requirements/common.txt": b"torch"},
        {"requirements/common.txt": None},
    ]
    repository, shas = write_commits(tmp_path / "repo", *commits)

    def told(spec: str) -> list[str]:
        builder = plain_builder(spec, repository=repository, cache=tmp_path)
        builder.prepare([Change(sha) for sha in shas])
        return [builder.binaries(Change(sha)) for sha in shas]

    first, python, compiled, required, back = told("source:")
    assert first == python == back
    assert len({first, compiled, required}) == 3
    unknown = told("source:,package=tiny_engine")
    assert len(set(unknown)) == 4, "of another package only equal trees are known to compile alike"
    monkeypatch.setenv("CFLAGS", "-O1")
    assert told("source:")[0] != first
    monkeypatch.setenv("VLLM_USE_PRECOMPILED", "1")
    assert len(set(told("source:"))) == len(shas), "the wheel of each commit"


def test_precompiled_files_are_those_of_the_commit() -> None:
    row, sha = engine("vllm"), "a" * 40
    asked = {"VLLM_USE_PRECOMPILED": "1"}
    for switches in (asked, {"VLLM_USE_PRECOMPILED_RUST": "1"}):
        assert with_precompiled_commit(switches, row, sha)["VLLM_PRECOMPILED_WHEEL_COMMIT"] == sha
    for said in ({}, {"VLLM_USE_PRECOMPILED": "0"}, {**asked, "VLLM_PRECOMPILED_WHEEL_COMMIT": "b" * 40},
                 {**asked, "VLLM_PRECOMPILED_WHEEL_LOCATION": "/x.whl"}):  # fmt: skip
        assert with_precompiled_commit(said, row, sha) == said
    assert with_precompiled_commit(asked, engine("tiny_engine"), sha) == asked
