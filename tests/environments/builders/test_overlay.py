"""Overlays: a commit's Python over the base's compiled files; what would not fit is refused."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments import cache
from perfbisect.environments.base import Environment
from perfbisect.environments.builders import overlay as builders_overlay
from perfbisect.environments.factory import make_builder
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change
from tests.environments.conftest import overlay, release
from tests.environments.tiny import COMPILED, TinyHistory, package_files, version_file, write_wheel
from tests.fakes.gitwriter import HistoryWriter

PACKAGE = "tiny_engine"


def commit(sha: str) -> Change:
    return Change(sha)


def ask(environment: Environment, code: str) -> str:
    """What the environment's interpreter prints, in its own variables alone."""
    done = subprocess.run(
        [environment.interpreter, "-c", code],
        env=dict(environment.env),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def folder_of(environment: Environment) -> Path:
    return Path(environment.engine_file).parent


@pytest.fixture(params=["release", "interpreter"])
def base_spec(request: pytest.FixtureRequest, installed: Environment) -> object:
    """Both kinds of base."""
    return "tiny-engine==1.0" if request.param == "release" else installed.interpreter


def test_each_commit_is_what_git_has(
    history: TinyHistory, repository: Repository, base_spec: object, shared_cache: Path, log: Path
) -> None:
    builder = overlay(shared_cache, base_spec, repository, history.base)
    speeds = {}
    for sha in (history.base, history.slow, history.mended):
        built = builder.ensure(commit(sha), log=log, timeout=60)
        speeds[sha] = ask(built, "import tiny_engine; print(tiny_engine.speed())")
        assert built.engine_commit == sha
        assert built.engine_version == "1.0"
        for path, blob in repository.blobs(sha, PACKAGE).items():
            assert repository.read(sha, path) == (folder_of(built).parent / path).read_bytes(), blob
    assert speeds == {history.base: "1", history.slow: "2", history.mended: "4"}


def test_what_is_the_same_is_linked_and_keeps_its_byte_code(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path, log: Path
) -> None:
    builder = overlay(tmp_path, installed.interpreter, repository, history.base)
    built = builder.ensure(commit(history.slow), log=log, timeout=60)
    here, there = folder_of(built), folder_of(installed)
    for same in ("__init__.py", "sub/gone.py", "_version.py", "_C.abi3.so"):
        assert (here / same).samefile(there / same)
    assert not (here / "core.py").samefile(there / "core.py")
    compiled = next((here / "__pycache__").glob("__init__.*.pyc"))
    assert compiled.samefile(there / "__pycache__" / compiled.name)
    assert list((here / "__pycache__").glob("core.*.pyc"))
    assert (there / "core.py").read_bytes() != (here / "core.py").read_bytes()
    assert (built.facts["files_linked"], built.facts["files_changed"]) == (3, 1)
    assert built.facts["files_carried"] == ["_C.abi3.so", "_version.py"]


def test_a_disk_without_hard_links(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path, log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(builders_overlay.os, "link", refuse)
    built = overlay(tmp_path, installed.interpreter, repository, history.base).ensure(
        commit(history.slow), log=log, timeout=60
    )
    assert (folder_of(built) / "_C.abi3.so").read_bytes() == COMPILED
    assert not (folder_of(built) / "_C.abi3.so").samefile(folder_of(installed) / "_C.abi3.so")


def test_a_file_that_the_commit_removed_is_not_carried_in(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path, log: Path
) -> None:
    builder = overlay(tmp_path, installed.interpreter, repository, history.base)
    built = builder.ensure(commit(history.removed), log=log, timeout=60)
    assert not (folder_of(built) / "sub" / "gone.py").exists()
    assert (folder_of(built) / "sub" / "new.py").read_bytes() == b"NEW = 1\n"
    assert built.facts["files_dropped"] == 1


def test_any_base_carries_binary_and_generated_files_only(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path, log: Path
) -> None:
    builder = overlay(tmp_path, installed.interpreter, repository, "any")
    assert builder.refuses(commit(history.kernel)) is None
    built = builder.ensure(commit(history.removed), log=log, timeout=60)
    assert built.facts["files_carried"] == ["_C.abi3.so", "_version.py"]
    assert not (folder_of(built) / "sub" / "gone.py").exists()


def test_documentation_and_tests_make_no_new_environment(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path, log: Path
) -> None:
    builder = overlay(tmp_path, installed.interpreter, repository, history.base)
    slow, docs = commit(history.slow), commit(history.docs)
    assert builder.refuses(docs) is None
    assert builder.key(slow) == builder.key(docs)
    assert not builder.cached(docs)
    first = builder.ensure(slow, log=log, timeout=60)
    assert builder.cached(docs)
    second = builder.ensure(docs, log=log, timeout=60)
    assert (second.folder, second.seconds, second.engine_commit) == (first.folder, 0.0, history.docs)


def test_the_same_tree_again_later_is_the_same_environment(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path
) -> None:
    builder = overlay(tmp_path, installed.interpreter, repository, history.base)
    assert builder.key(commit(history.slow)) == builder.key(commit(history.slow_again))
    keys = {builder.key(commit(sha)) for sha in (history.base, history.slow, history.removed, history.broken)}
    assert len(keys) == 4


def test_another_base_is_another_key(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path
) -> None:
    change = commit(history.slow)
    keys = {
        overlay(tmp_path, what, repository, history.base).key(change)
        for what in (installed.interpreter, "tiny-engine==1.0", "tiny-engine==1.1")
    }
    assert len(keys) == 3


def test_a_commit_that_does_not_import(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path, log: Path
) -> None:
    builder = overlay(tmp_path, installed.interpreter, repository, history.base)
    with pytest.raises(BuildError, match="No module named 'missing_helper'"):
        builder.ensure(commit(history.broken), log=log, timeout=60)
    assert not builder.cached(commit(history.broken))
    assert not list((tmp_path / "environments").glob("[!.]*"))
    assert not list((tmp_path / "environments" / ".staging").iterdir())


@pytest.mark.parametrize(
    ("code", "error", "told"),
    [
        (b"x = (\n", BuildError, "SyntaxError"),
        (b"raise SystemExit(0)\n", BuildError, "SystemExit"),
        (b"import os\nos.kill(os.getpid(), 11)\n", BuildError, "signal 11"),
        (b"import os\nos._exit(0)\n", BuildError, "exit code 0"),
        (b"import os\nos.kill(os.getpid(), 9)\n", MachineError, "killed from outside"),
        (b"raise OSError(28, 'No space left on device')\n", MachineError, "No space left"),
        (b"raise MemoryError('no memory')\n", MachineError, "no memory"),
        (b"raise ValueError('\\x1b[2J\\x07 two\\nlines')\n", BuildError, "lines"),
    ],
)
def test_how_an_import_fails_says_whose_fault_it_is(
    code: bytes, error: type[Exception], told: str, tmp_path: Path, installed: Environment, log: Path
) -> None:
    writer = HistoryWriter(tmp_path / "repo")
    writer.commit("only", {"tiny_engine/__init__.py": code})
    (only,) = writer.finish(checkout=False)
    builder = overlay(tmp_path, installed.interpreter, Repository.open(tmp_path / "repo"), "any")
    with pytest.raises(error, match=told) as raised:
        builder.ensure(commit(only), log=log, timeout=60)
    assert "\x1b" not in str(raised.value)


def test_our_own_search_path_does_not_reach_the_engine(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path, log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    lie = tmp_path / "lie" / PACKAGE
    lie.mkdir(parents=True)
    (lie / "__init__.py").write_text("__version__ = '1.0'\n")
    monkeypatch.setenv("PYTHONPATH", str(lie.parent))
    monkeypatch.chdir(lie.parent)
    built = overlay(tmp_path, installed.interpreter, repository, history.base).ensure(
        commit(history.slow), log=log, timeout=60
    )
    assert folder_of(built).is_relative_to(built.folder)


def test_an_interpreter_that_imports_another_engine_is_found_out(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path, log: Path
) -> None:
    lie = tmp_path / "lie" / PACKAGE
    lie.mkdir(parents=True)
    (lie / "__init__.py").write_text("__version__ = '1.0'\n")
    venv = tmp_path / "venv"
    shutil.copytree(installed.folder / "venv", venv, symlinks=True)
    site = next(venv.glob("lib/python3*/site-packages"))
    (site / "lie.pth").write_text(f"import sys; sys.path.insert(0, {str(lie.parent)!r})\n")
    builder = overlay(tmp_path, venv / "bin" / "python", repository, "any")
    with pytest.raises(BuildError, match=r"imported .*lie/tiny_engine/__init__\.py, not from"):
        builder.ensure(commit(history.slow), log=log, timeout=60)


def test_a_base_without_the_engine(tmp_path: Path, installed: Environment, log: Path) -> None:
    writer = HistoryWriter(tmp_path / "repo")
    writer.commit("only", {"pure_engine/__init__.py": b"__version__ = '7'\n"})
    (only,) = writer.finish(checkout=False)
    spec = f"overlay:{installed.interpreter},base=any,package=pure_engine"
    builder = make_builder(spec, repository=Repository.open(tmp_path / "repo"), cache=tmp_path / "cache")
    assert builder.ensure(commit(only), log=log, timeout=60).engine_version == "7"
    assert builder.client() is None


def test_the_client_is_the_base_without_the_overlay(
    history: TinyHistory,
    repository: Repository,
    base_spec: object,
    shared_cache: Path,
    installed: Environment,
) -> None:
    client = overlay(shared_cache, base_spec, repository, history.base).client()
    assert client is not None
    assert ask(client, "import tiny_engine; print(tiny_engine.__file__)") == str(
        folder_of(installed) / "__init__.py"
    )


def test_caches_are_the_environments_own(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path, log: Path
) -> None:
    builder = overlay(tmp_path, installed.interpreter, repository, history.base)
    one, two = (builder.ensure(commit(sha), log=log, timeout=60) for sha in (history.base, history.slow))
    assert one.caches.is_dir()
    for name in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"):
        assert Path(one.env[name]).is_relative_to(one.caches)
        assert one.env[name] != two.env[name]


def test_git_that_returns_other_bytes_is_found_out(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path, log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Repository, "contents", lambda _, blobs: ((blob, b"torn") for blob in blobs))
    with pytest.raises(BuildError, match=r"core\.py was written as"):
        overlay(tmp_path, installed.interpreter, repository, history.base).ensure(
            commit(history.slow), log=log, timeout=60
        )


def test_links_and_modes(tmp_path: Path, installed: Environment, log: Path) -> None:
    path = tmp_path / "repo"
    (path / PACKAGE).mkdir(parents=True)
    (path / PACKAGE / "__init__.py").write_text("__version__ = '1'\n")
    (path / PACKAGE / "alias.py").symlink_to("__init__.py")
    (path / PACKAGE / "run.sh").write_text("#!/bin/sh\n")
    (path / PACKAGE / "run.sh").chmod(0o755)
    first = _commit_all(path)
    built = overlay(tmp_path, installed.interpreter, Repository.open(path), "any").ensure(
        commit(first), log=log, timeout=60
    )
    assert (folder_of(built) / "alias.py").readlink() == Path("__init__.py")
    assert os.access(folder_of(built) / "run.sh", os.X_OK)
    (path / PACKAGE / "out").symlink_to("../../../../etc/passwd")
    second = _commit_all(path)
    with pytest.raises(BuildError, match="symbolic link out of the package"):
        overlay(tmp_path, installed.interpreter, Repository.open(path), "any").ensure(
            commit(second), log=log, timeout=60
        )


def _commit_all(path: Path) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    who = ["git", "-c", "user.name=T", "-c", "user.email=t@example.invalid"]
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "x"]):
        subprocess.run([*who, *arguments], cwd=path, env=env, check=True)
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=path, env=env, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_an_engine_changed_in_place_is_another_base(
    repository: Repository, history: TinyHistory, installed: Environment, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    shutil.copytree(installed.folder / "venv", venv, symlinks=True)
    python = venv / "bin" / "python"
    before = overlay(tmp_path, python, repository, "any").key(commit(history.slow))
    compiled = next(venv.glob("lib/python3*/site-packages/tiny_engine/_C.abi3.so"))
    compiled.unlink()
    compiled.write_bytes(COMPILED[::-1])
    assert overlay(tmp_path, python, repository, "any").key(commit(history.slow)) != before


def test_the_base_is_built_when_it_is_first_needed(
    repository: Repository, history: TinyHistory, tmp_path: Path, wheels: Path, log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    links = tmp_path / "links"
    shutil.copytree(wheels, links)
    write_wheel(
        links, "tiny-engine", "1.7", package_files("1.7") | {"tiny_engine/_version.py": version_file("1.7")}
    )
    monkeypatch.setenv("UV_FIND_LINKS", str(links))
    builder = overlay(tmp_path, "tiny-engine==1.7", repository, history.base)
    built = builder.ensure(commit(history.slow), log=log, timeout=60)
    assert built.engine_version == "1.7"
    assert release(tmp_path).cached(Change("tiny-engine==1.7", "release"))
    assert cache.read_stamp(built.folder) is not None
