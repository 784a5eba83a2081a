"""Whether an engine is a commit: what it says, and what its files say."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.changes.git import Repository
from perfbisect.common.digests import blob_id
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.source import (
    build_variables,
    compiler_versions,
    relevant_variables,
    with_ccache,
)
from perfbisect.environments.health import (
    ImportedEngine,
    identify_commit,
    import_engine,
)
from perfbisect.environments.source_tree import sync_tree, toml_strings, version_at
from perfbisect.errors import BuildError
from perfbisect.model.change import commit_in_version
from tests.fakes.gitwriter import HistoryWriter, run_git

SHA = "0a0d1d98e" + "6" * 31


@pytest.mark.parametrize(
    ("version", "commit"),
    [
        ("0.11.1rc8.dev14+gaa384b3c0.cu130", "aa384b3c0"),
        ("0.9.2.dev1+g1234567", "1234567"),
        ("1.0.dev7+g0a0d1d98e.d20250131", "0a0d1d98e"),
        ("0.32.0+cpu", ""),
        ("0.32.0", ""),
        ("0.32.0+g123", ""),
        ("1.0+precompiled.gabcdef0", "abcdef0"),
        ("1.0+garbage", ""),
    ],
)
def test_the_commit_in_a_version(version: str, commit: str) -> None:
    assert commit_in_version(version) == commit


@pytest.mark.parametrize(
    ("commit", "version", "said"),
    [
        ("g0a0d1d98e", "1.0", "0a0d1d98e"),
        (SHA, "1.0+gbbbbbbbbb", SHA),
        ("COMMIT_HASH_PLACEHOLDER", "1.0+gbbbbbbbbb", "bbbbbbbbb"),
        ("", "1.0", ""),
    ],
)
def test_what_an_engine_says(commit: str, version: str, said: str) -> None:
    assert ImportedEngine(Path("x"), version, commit, {}, Path("python")).reported_commit == said


def engine(
    folder: Path, files: dict[str, bytes], *, commit: str = "", version: str = "1.0"
) -> ImportedEngine:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return ImportedEngine(folder / "__init__.py", version, commit, {}, Path("python"))


GIT = {f"m{number}.py": b"%d" % number for number in range(20)} | {"__init__.py": b"", "data.json": b"{}"}
TRACKED = {name: blob_id(data, SHA) for name, data in GIT.items()}
LIES = {f"m{number}.py": b"lie" for number in range(3)}


@pytest.mark.parametrize(
    ("files", "commit", "shown"),
    [
        (GIT, "", "content"),
        (GIT, SHA[:10], "commit"),
        (GIT | {"m0.py": b"made by the build", "extra.py": b"", "data.json": b"x"}, SHA[:10], "commit"),
    ],
)
def test_it_is_the_commit(files: dict[str, bytes], commit: str, shown: str, tmp_path: Path) -> None:
    found = engine(tmp_path, files, commit=commit)
    assert identify_commit(found, SHA, TRACKED, what="w", log=tmp_path / "l") == shown


@pytest.mark.parametrize(
    ("files", "commit", "told"),
    [
        (GIT, "bbbbbbbbb", "says it is commit bbbbbbbbb"),
        (GIT | {"m0.py": b"x"}, "", "1 of its files are not those of 0a0d1d98e666: m0.py"),
        ({name: data for name, data in GIT.items() if name != "m7.py"}, "", "m7.py"),
        (GIT | LIES, SHA[:10], "3 of its files are not those of"),
    ],
)
def test_it_is_not(files: dict[str, bytes], commit: str, told: str, tmp_path: Path) -> None:
    found = engine(tmp_path, files, commit=commit)
    with pytest.raises(BuildError, match=told):
        identify_commit(found, SHA, TRACKED, what="w", log=tmp_path / "l")


def test_a_folder_of_which_nothing_was_installed_is_not_missed(tmp_path: Path) -> None:
    found = engine(tmp_path, GIT)
    tracked = TRACKED | {"tests/a.py": blob_id(b"", SHA)}
    assert identify_commit(found, SHA, tracked, what="w", log=tmp_path / "l") == "content"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", None),
        ("[project]\nname='x'\n", None),
        ("[build-system]\nrequires = []\n", ()),
        ('[build-system]\nrequires = ["unclosed"\n', None),
        ("[build-system]\nrequires=['a[b]>=1', \"c\"]\nbuild-backend='x'\n", ("a[b]>=1", "c")),
        (
            '[tool]\nrequires = ["no"]\n[build-system]\n# words\nrequires = [\n  "cmake>=3.26,<4", # ] why\n'
            '  "torch == 2.11",\n]\n[project]\n',
            ("cmake>=3.26,<4", "torch == 2.11"),
        ),
    ],
)
def test_what_a_build_needs(text: str, wanted: tuple[str, ...] | None) -> None:
    assert toml_strings(text, "build-system", "requires") == wanted


def test_what_a_build_is_given() -> None:
    shell = {
        "MAX_JOBS": "4", "CMAKE_ARGS": "-DX=1", "CCACHE_DIR": "/c", "CUDA_VISIBLE_DEVICES": "0", "FOO": "1",
        "VLLM_USE_PRECOMPILED": "1", "VLLM_API_KEY": "secret", "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_X": "1",
        "VLLM_ROCM_WHEEL_INDEX": "x", "ACL_ROOT_DIR": "/acl", "VLLM_DISABLE_SCCACHE": "1",
    }  # fmt: skip
    given_ = build_variables(shell, ("FOO", "BAR=a=b", "GONE"))
    assert given_ == {
        name: value
        for name, value in (shell | {"BAR": "a=b"}).items()
        if name not in ("CUDA_VISIBLE_DEVICES", "VLLM_API_KEY")
    }
    assert set(given_) - set(relevant_variables(given_)) == {"MAX_JOBS", "CCACHE_DIR", "VLLM_DISABLE_SCCACHE"}


def test_ccache_by_cmake_or_by_name() -> None:
    assert with_ccache({"A": "1"}, None, cmake=True) == {"A": "1"}
    assert with_ccache({}, "/b/ccache", cmake=False)["CC"] == "/b/ccache cc"
    assert with_ccache({"CC": "clang"}, "/b/ccache", cmake=False)["CC"] == "clang"
    cmake = with_ccache({"CMAKE_C_COMPILER_LAUNCHER": "sccache"}, "/b/ccache", cmake=True)
    assert (cmake["CMAKE_C_COMPILER_LAUNCHER"], cmake["CMAKE_CUDA_COMPILER_LAUNCHER"]) == (
        "sccache",
        "/b/ccache",
    )
    assert "CC" not in cmake


def test_compilers_say_who_they_are(tmp_path: Path) -> None:
    script = tmp_path / "mycc"
    script.write_text("#!/bin/sh\necho copyright\necho my compiler 1.2.3\n")
    script.chmod(0o755)
    assert compiler_versions({"CC": str(script), "CXX": "/nonexistent/c++"})[0] == "my compiler 1.2.3"


NAMES = st.sampled_from(["a.py", "d/b.py", "d/e/c.txt", "build/tracked.c", "f"])
TREES = st.dictionaries(NAMES, st.sampled_from([b"1", b"2"]), min_size=1)


@settings(max_examples=20, deadline=None)
@given(st.lists(TREES, min_size=1, max_size=4))
def test_a_tree_that_is_used_again_is_always_the_commit(trees: list[dict[str, bytes]]) -> None:
    """Whatever was there before, and whatever a build left, but for the folder that it keeps."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        writer = HistoryWriter(place / "repo")
        before: dict[str, bytes] = {}
        for number, tree in enumerate(trees):
            writer.commit(str(number), {**dict.fromkeys(set(before) - set(tree)), **tree})
            before = tree
        shas = writer.finish(checkout=False)
        repository = Repository.open(place / "repo")
        target = place / "tree"
        for sha, tree in zip(shas, trees, strict=True):
            sync_tree(target, repository, sha, keep=lambda path: path.startswith("build"))
            found = {
                path.relative_to(target).as_posix(): path.read_bytes()
                for path in target.rglob("*")
                if path.is_file()
            }
            kept = {path for path in found if path.startswith("build/")}
            assert {path: data for path, data in found.items() if path not in kept or path in tree} == tree
            again = sync_tree(target, repository, sha, keep=lambda path: path == "build")
            assert again.written == again.removed == ()
            (target / "build").mkdir(exist_ok=True)
            (target / "build" / "object.o").write_bytes(b"")
            (target / "left.egg-info").mkdir()
            (target / "left.egg-info" / "x").write_bytes(b"")
            (target / next(iter(tree))).write_bytes(b"changed by the build")


def commit_all(path: Path) -> str:
    who = ("-c", "user.name=T", "-c", "user.email=t@example.invalid")
    for arguments in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "-m", "x")):
        run_git(path, *who, *arguments)
    return run_git(path, "rev-parse", "HEAD").strip()


def test_links_modes_and_kinds_change(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "a").write_text("1")
    (repo / "b").symlink_to("a")
    (repo / "c").mkdir()
    (repo / "c" / "d").write_text("2")
    first = commit_all(repo)
    (repo / "a").chmod(0o755)
    (repo / "b").unlink()
    (repo / "b").mkdir()
    (repo / "b" / "x").write_text("3")
    (repo / "c" / "d").unlink()
    (repo / "c").rmdir()
    (repo / "c").symlink_to("b")
    second = commit_all(repo)
    repository = Repository.open(repo)
    target = tmp_path / "tree"
    for sha in (first, second, first, second):
        sync_tree(target, repository, sha)
        links = {path.name for path in target.iterdir() if path.is_symlink()}
        assert links == ({"b"} if sha == first else {"c"})
        assert bool((target / "a").stat().st_mode & 0o100) == (sha == second)
    (repo / "out").symlink_to("../../etc/passwd")
    third = commit_all(repo)
    with pytest.raises(BuildError, match="symbolic link out of"):
        sync_tree(target, repository, third)


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
def test_versions(line: tuple[Path, list[str]], tag: str, distance: int, version: str) -> None:
    path, shas = line
    if tag:
        run_git(path, "tag", tag, shas[1])
    sha = shas[1 + distance]
    local = "" if distance == 0 and tag else f"+g{sha[:12]}"
    assert version_at(Repository.open(path), sha) == version + local


def test_equal_compiled_files_have_one_digest_wherever_they_were_built(tmp_path: Path) -> None:
    def digest(name: str, files: dict[str, bytes]) -> str:
        engine(tmp_path / name / "toy", {"__init__.py": b"", **files})
        (tmp_path / name / "toy" / "gone.so").symlink_to(tmp_path / "nowhere")
        path = {"PYTHONPATH": str(tmp_path / name)}
        build = BuildRun(tmp_path / "log", 60.0)
        return str(import_engine(build, Path(sys.executable), "toy", env=path, what=name).facts["compiled"])

    first = digest("a", {"_C.so": b"1", "ops/_moe.so": b"2", "x.py": b"# old"})
    assert first and first == digest("b", {"_C.so": b"1", "ops/_moe.so": b"2", "x.py": b"# new"})
    assert first not in (digest("c", {"_C.so": b"1", "_moe.so": b"2"}), digest("d", {"_C.so": b"12"}))
    assert digest("e", {"x.py": b""}) == "", "none: what it runs is not known here"
