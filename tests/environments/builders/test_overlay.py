"""Overlays: a commit's Python over the base's compiled files; commits that would not fit are refused."""

from __future__ import annotations

import errno
import shutil
import subprocess
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments import cache
from perfbisect.environments.base import Environment
from perfbisect.environments.builders import overlay_layer
from perfbisect.environments.factory import make_builder
from perfbisect.errors import BuildError, MachineError, RevisionError
from perfbisect.model.change import Change
from tests.changes.repositories import blobs
from tests.environments.conftest import World, ask, overlay, refusal_of, release
from tests.environments.tiny import COMPILED, package_files, version_file, write_wheel

PACKAGE = "tiny_engine"


def package_of(environment: Environment) -> Path:
    return Path(environment.engine_file).parent


@pytest.fixture(params=["release", "interpreter"])
def base_spec(request: pytest.FixtureRequest, installed: Environment) -> object:
    """Both kinds of base."""
    return "tiny-engine==1.0" if request.param == "release" else installed.interpreter


def test_each_commit_is_what_git_has(world: World, base_spec: object, shared_cache: Path) -> None:
    history, repository = world.history, world.repository
    builder = overlay(shared_cache, base_spec, repository, history.base)
    speeds = {}
    for sha in (history.base, history.slow, history.mended):
        built = world.ensure(builder, sha)
        speeds[sha] = ask(built, "import tiny_engine; print(tiny_engine.speed())")
        assert (built.engine_commit, built.engine_version) == (sha, "1.0")
        for path, blob in blobs(repository, sha, PACKAGE).items():
            assert repository.read(sha, path) == (package_of(built).parent / path).read_bytes(), blob
    assert speeds == {history.base: "1", history.slow: "2", history.mended: "4"}


def test_equal_files_are_linked_with_their_byte_code(world: World) -> None:
    built = world.ensure(world.overlay(), world.history.slow)
    here, there = package_of(built), package_of(world.installed)
    for same in ("__init__.py", "sub/gone.py", "_version.py", "_C.abi3.so"):
        assert (here / same).samefile(there / same)
    assert not (here / "core.py").samefile(there / "core.py")
    compiled = next((here / "__pycache__").glob("__init__.*.pyc"))
    assert compiled.samefile(there / "__pycache__" / compiled.name)
    assert list((here / "__pycache__").glob("core.*.pyc"))
    assert (there / "core.py").read_bytes() != (here / "core.py").read_bytes()
    assert (built.facts["files_linked"], built.facts["files_changed"]) == (3, 1)
    assert built.facts["files_carried"] == ["_C.abi3.so", "_version.py"]


def test_disk_without_hard_links(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(overlay_layer.os, "link", refuse)
    copied = package_of(world.ensure(world.overlay(), world.history.slow)) / "_C.abi3.so"
    assert copied.read_bytes() == COMPILED
    assert not copied.samefile(package_of(world.installed) / "_C.abi3.so")


def test_removed_files_are_not_carried_over(world: World) -> None:
    built = world.ensure(world.overlay(), world.history.removed)
    assert not (package_of(built) / "sub" / "gone.py").exists()
    assert (package_of(built) / "sub" / "new.py").read_bytes() == b"NEW = 1\n"
    assert built.facts["files_dropped"] == 1


def test_any_base_carries_binary_and_generated_files_only(world: World) -> None:
    builder = world.overlay("any")
    assert builder.refuses(Change(world.history.kernel)) is None
    built = world.ensure(builder, world.history.removed)
    assert built.facts["files_carried"] == ["_C.abi3.so", "_version.py"]
    assert not (package_of(built) / "sub" / "gone.py").exists()


def test_documentation_and_tests_make_no_new_environment(world: World) -> None:
    builder = world.overlay()
    slow, docs = Change(world.history.slow), Change(world.history.docs)
    assert builder.refuses(docs) is None
    assert builder.key(slow) == builder.key(docs)
    assert not builder.cached(docs)
    first = world.ensure(builder, slow)
    assert builder.cached(docs)
    second = world.ensure(builder, docs)
    assert (second.folder, second.seconds, second.engine_commit) == (first.folder, 0.0, docs.id)


def test_keys_follow_tree_and_base(world: World) -> None:
    builder, history = world.overlay(), world.history
    change = Change(history.slow)
    assert builder.key(change) == builder.key(Change(history.slow_again))
    shas = (history.base, history.slow, history.removed, history.broken)
    assert len({builder.key(Change(sha)) for sha in shas}) == 4
    bases = (world.installed.interpreter, "tiny-engine==1.0", "tiny-engine==1.1")
    assert len({world.overlay(base=base).key(change) for base in bases}) == 3
    assert len({builder.binaries(Change(sha)) for sha in shas}) == 1
    assert len({world.overlay(base=base).binaries(change) for base in bases}) == 3


def test_a_commit_that_does_not_import(world: World) -> None:
    builder, broken = world.overlay(), Change(world.history.broken)
    with pytest.raises(BuildError, match="No module named 'missing_helper'"):
        world.ensure(builder, broken)
    assert not builder.cached(broken)
    assert not list((world.cache / "environments").glob("[!.]*"))
    assert not list((world.cache / "environments" / ".staging").iterdir())


@pytest.mark.parametrize(
    ("code", "error", "said"),
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
def test_fault_of_a_failed_import(world: World, code: bytes, error: type[Exception], said: str) -> None:
    repository, (only,) = world.of({"tiny_engine/__init__.py": code})
    builder = overlay(world.cache, world.installed.interpreter, repository, "any")
    with pytest.raises(error, match=said) as raised:
        world.ensure(builder, only)
    assert "\x1b" not in str(raised.value)


def copy_venv(world: World) -> Path:
    """The interpreter of a copy of the installed environment."""
    shutil.copytree(world.installed.folder / "venv", world.cache / "venv", symlinks=True)
    return world.cache / "venv" / "bin" / "python"


def test_an_interpreter_that_imports_another_engine_is_detected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One on our own search path is not reached, one on the interpreter's is refused."""
    foreign, python = world.cache / "foreign", copy_venv(world)
    (foreign / PACKAGE).mkdir(parents=True)
    (foreign / PACKAGE / "__init__.py").write_text("__version__ = '1.0'\n")
    monkeypatch.setenv("PYTHONPATH", str(foreign))
    monkeypatch.chdir(foreign)
    built = world.ensure(world.overlay(), world.history.slow)
    assert package_of(built).is_relative_to(built.folder)
    site = next((world.cache / "venv").glob("lib/python3*/site-packages"))
    (site / "foreign.pth").write_text(f"import sys; sys.path.insert(0, {str(foreign)!r})\n")
    with pytest.raises(BuildError, match=r"imported .*foreign/tiny_engine/__init__\.py, not from"):
        world.ensure(world.overlay("any", python), world.history.slow)


def test_an_engine_changed_in_place_is_another_base(world: World) -> None:
    python, change = copy_venv(world), Change(world.history.slow)
    before = world.overlay("any", python).key(change)
    compiled = next((world.cache / "venv").glob("lib/python3*/site-packages/tiny_engine/_C.abi3.so"))
    compiled.unlink()
    compiled.write_bytes(COMPILED[::-1])
    assert world.overlay("any", python).key(change) != before


def test_a_base_without_the_engine(world: World) -> None:
    repository, (only,) = world.of({"pure_engine/__init__.py": b"__version__ = '7'\n"})
    spec = f"overlay:{world.installed.interpreter},base=any,package=pure_engine"
    builder = make_builder(spec, repository=repository, cache=world.cache)
    assert world.ensure(builder, only).engine_version == "7"
    assert builder.client() is None


def test_the_client_is_the_base_without_the_overlay(
    world: World, base_spec: object, shared_cache: Path
) -> None:
    client = overlay(shared_cache, base_spec, world.repository, world.history.base).client()
    assert client is not None
    engine = ask(client, "import tiny_engine; print(tiny_engine.__file__)")
    assert engine == str(package_of(world.installed) / "__init__.py")


def test_caches_are_the_environments_own(world: World) -> None:
    builder = world.overlay()
    one, two = (world.ensure(builder, sha) for sha in (world.history.base, world.history.slow))
    assert one.caches.is_dir()
    for name in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"):
        assert Path(one.env[name]).is_relative_to(one.caches)
        assert one.env[name] != two.env[name]


def test_costs_are_estimated_from_earlier_builds(world: World) -> None:
    builder, slow, base = world.overlay(), Change(world.history.slow), Change(world.history.base)
    assert builder.minutes(slow) == pytest.approx(0.2)
    assert builder.disk([slow, base, slow]) == 2 * 50_000_000
    built = world.ensure(builder, slow)
    assert builder.minutes(slow) == 0.0
    assert builder.minutes(base) == pytest.approx(built.seconds / 60)
    assert builder.disk([slow]) == 0
    assert builder.disk([slow, base]) == built.facts["bytes"]


def test_torn_files_are_detected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Repository, "contents", lambda _, blobs: ((blob, b"torn") for blob in blobs))
    with pytest.raises(BuildError, match=r"core\.py was written as"):
        world.ensure(world.overlay(), world.history.slow)


def test_the_base_is_built_when_it_is_first_needed(
    world: World, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = world.cache / "links"
    shutil.copytree(wheels, links)
    files = package_files("1.7") | {"tiny_engine/_version.py": version_file("1.7")}
    write_wheel(links, "tiny-engine", "1.7", files)
    monkeypatch.setenv("UV_FIND_LINKS", str(links))
    built = world.ensure(world.overlay(base="tiny-engine==1.7"), world.history.slow)
    assert built.engine_version == "1.7"
    assert release(world.cache).cached(Change("tiny-engine==1.7", "release"))
    assert cache.read_stamp(built.folder) is not None


def test_a_change_of_compiled_sources_is_refused_with_the_files(world: World) -> None:
    builder, kernel, back = world.overlay(), Change(world.history.kernel), Change(world.history.back)
    refusal = builder.refuses(kernel)
    assert refusal is not None and not refusal.error
    assert "1 file differs: csrc/ops.cpp" in refusal.reason
    assert world.history.base[:12] in refusal.reason
    assert builder.key(kernel) != builder.key(back)
    assert not builder.cached(kernel)
    with pytest.raises(BuildError, match=r"csrc/ops\.cpp"):
        world.ensure(builder, kernel)
    assert builder.refuses(back) is None


def test_many_changes_are_looked_up_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    history = world.history
    changes = [Change(sha) for sha in (history.base, history.slow, history.docs, history.kernel)]
    single, bulk = world.overlay(), world.overlay()
    calls = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: calls.append(a) or run(*a, **k))
    bulk.prepare(changes)
    for change in changes:
        bulk.refuses(change)
        bulk.key(change)
    assert len(calls) == 2
    for change in changes:
        assert bulk.refuses(change) == single.refuses(change)
        assert bulk.key(change) == single.key(change)


@pytest.mark.parametrize(
    ("path", "needs_building"),
    [
        ("csrc/new.cu", True),
        ("tiny_engine/deep/kernel.cuh", True),
        ("cmake/x.cmake", True),
        ("setup.py", True),
        ("requirements/common.txt", True),
        ("requirements/build/cuda.txt", True),
        ("rust/src/lib.rs", True),
        ("requirements/test.txt", False),
        ("requirements/test/cuda.txt", False),
        ("requirements/rocm-test.in", False),
        ("tests/kernels/x.cu", False),
        ("docs/setup.py", False),
        ("tiny_engine/anything.py", False),
    ],
)
def test_which_files_need_building(path: str, needs_building: bool, world: World) -> None:
    repository, (first, second) = world.of(
        {"tiny_engine/__init__.py": b"", "requirements/common.txt": b"1"}, {path: b"2"}
    )
    builder = overlay(world.cache, world.installed.interpreter, repository, first)
    refusal = builder.refuses(Change(second))
    assert (refusal is not None) == needs_building
    assert refusal is None or path in refusal.reason


def test_a_base_of_no_known_commit_is_an_error(world: World) -> None:
    builder = overlay(world.cache, world.installed.interpreter, world.repository, "")
    refusal = builder.refuses(Change(world.history.slow))
    assert refusal is not None and refusal.error
    assert "base=REV" in refusal.reason
    with pytest.raises(RevisionError, match="'v9' does not exist"):
        world.overlay("v9")


def test_a_base_that_was_built_from_another_commit(world: World) -> None:
    builder = world.overlay(world.history.slow)
    with pytest.raises(BuildError, match=r"was not built from .*1 of 4 files differ, among them core\.py"):
        world.ensure(builder, world.history.docs)


def test_a_commit_without_the_package(world: World) -> None:
    repository, (only,) = world.of({"elsewhere/x.py": b""})
    assert (
        "no folder tiny_engine/"
        in refusal_of(
            overlay(world.cache, world.installed.interpreter, repository, "any"), Change(only)
        ).reason
    )
