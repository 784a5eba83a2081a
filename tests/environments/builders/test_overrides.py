"""Packages swapped over a change's environment: these packages and nothing else differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Builder, Environment
from perfbisect.environments.factory import make_builder
from perfbisect.errors import BuildError
from perfbisect.model.change import Change
from tests.environments.conftest import ask, overlay, release
from tests.environments.tiny import TinyHistory, package_files, write_wheel

VERSIONS = "import importlib.metadata as m; print(m.version('tiny-engine'), m.version('tiny-helper'))"


@pytest.fixture
def release_1_0(shared_cache: Path) -> Builder:
    return release(shared_cache)


@pytest.fixture
def more_wheels(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of wheels beside the shared one."""
    folder = tmp_path / "more"
    folder.mkdir()
    monkeypatch.setenv("UV_FIND_LINKS", f"{wheels},{folder}")
    yield folder


def change(*pips: str, version: str = "1.0") -> Change:
    return Change(f"tiny-engine=={version}", "release").swapped(pips)


def test_one_package_is_another_and_nothing_else(release_1_0: Builder, log: Path) -> None:
    plain = release_1_0.ensure(change(), log=log, timeout=60)
    asked = change("tiny-helper==5.0")
    made = release_1_0.ensure(asked, log=log, timeout=60)
    assert release_1_0.cached(asked) and release_1_0.disk([asked]) == 0
    assert ask(plain, VERSIONS) == "1.0 5.1"
    assert ask(made, VERSIONS) == "1.0 5.0"
    assert "layer" in ask(made, "import tiny_helper; print(tiny_helper.__file__)")
    assert (made.engine_file, made.engine_version) == (plain.engine_file, plain.engine_version)
    assert made.facts["packages"] == ["tiny-engine==1.0", "tiny-helper==5.0"]
    assert made.facts["swapped"] == ["tiny-helper==5.0"]
    assert made.key != plain.key
    assert made.caches != plain.caches
    assert made.env["TRITON_CACHE_DIR"].startswith(str(made.folder))
    assert made.packages_digest != plain.packages_digest


def test_other_changes_go_through_as_they_are(release_1_0: Builder, installed: Environment) -> None:
    assert release_1_0.key(change()) == installed.key
    assert (release_1_0.name, release_1_0.spec) == ("release", "release:tiny-engine")
    assert release_1_0.refuses(Change("a" * 40)) is not None
    assert release_1_0.client() is None


def test_a_commit_keeps_its_own_tree(
    installed: Environment, history: TinyHistory, repository: Repository, shared_cache: Path, log: Path
) -> None:
    builder = overlay(shared_cache, installed.interpreter, repository, history.base)
    asked = Change(history.slow).swapped(("tiny-helper==5.0",))
    builder.prepare([Change(history.base), asked])
    assert builder.refuses(asked) is None
    made = builder.ensure(asked, log=log, timeout=60)
    speed = "import tiny_engine, tiny_helper; print(tiny_engine.speed(), tiny_helper.__file__)"
    said, file = ask(made, speed).split()
    assert said == "2"
    assert Path(file).is_relative_to(made.folder / "layer")
    assert made.engine_commit == history.slow


@pytest.mark.parametrize("pip", ["tiny-helper==9.9", "no-such-package==1.0"])
def test_what_cannot_be_had_is_refused_before_anything_is_built(release_1_0: Builder, pip: str) -> None:
    refusal = release_1_0.refuses(change(pip))
    assert refusal is not None
    assert refusal.reason.startswith(f"{pip} is not available: cannot find {pip}: ")
    assert not refusal.error
    assert release_1_0.refuses(change("tiny-helper==5.0")) is None


def test_the_engine_is_never_a_package(release_1_0: Builder, log: Path) -> None:
    with pytest.raises(
        BuildError, match=r"tiny_engine comes from .*layer.* cannot replace the engine itself"
    ):
        release_1_0.ensure(change("tiny-engine==1.1"), log=log, timeout=60)
    assert not release_1_0.cached(change("tiny-engine==1.1"))


def test_a_package_that_breaks_the_engine(more_wheels: Path, tmp_path: Path, log: Path) -> None:
    needs = {
        **package_files("7.0", module="needy"),
        "needy/core.py": b"from tiny_part import PART\ndef speed(): return PART\n",
    }
    write_wheel(more_wheels, "needy", "7.0", needs, ("tiny-part",))
    write_wheel(more_wheels, "tiny-part", "1.1", {"tiny_part.py": b"PART = 1\n"})
    write_wheel(more_wheels, "tiny-part", "1.0", {"tiny_part.py": b"OTHER = 1\n"})
    builder = make_builder("release:needy", repository=None, cache=tmp_path / "cache")
    plain = Change("needy==7.0", "release")
    builder.ensure(plain, log=log, timeout=60)
    with pytest.raises(BuildError, match="import needy failed: ImportError: cannot import name 'PART'"):
        builder.ensure(plain.swapped(("tiny-part==1.0",)), log=log, timeout=60)


def test_libraries_that_others_load_are_no_layer(release_1_0: Builder, more_wheels: Path, log: Path) -> None:
    files = {"vendor/__init__.py": b"", "vendor/blas/lib/libblas.so.12": b"\x7fELF"}
    write_wheel(more_wheels, "vendor-blas", "12.1", files)
    asked = change("vendor-blas==12.1", "tiny-helper==5.0")
    with pytest.raises(
        BuildError, match=r"vendor-blas contains only libraries \(libblas\.so\.12\)"
    ) as raised:
        release_1_0.ensure(asked, log=log, timeout=60)
    assert "--constraints" in (raised.value.next_step or "")


def test_a_distribution_whose_metadata_say_another_version(
    release_1_0: Builder, more_wheels: Path, log: Path
) -> None:
    """A module that hides the layer's metadata from whoever asks."""
    hides = (
        b"import importlib.metadata as m\n_v = m.version\n"
        b"m.version = lambda name: '0.1' if name == 'liar' else _v(name)\n"
    )
    write_wheel(more_wheels, "liar", "2.0", {"liar.py": b"", "sitecustomize.py": hides})
    with pytest.raises(BuildError, match=r"liar is 0\.1, not 2\.0"):
        release_1_0.ensure(change("liar==2.0"), log=log, timeout=60)
